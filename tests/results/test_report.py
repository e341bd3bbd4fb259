"""What stands on the report's page; `test_report_browser` opens it."""

from run_folders import build_run

from longeval.results.compare import compare
from longeval.results.report import summary_grid
from longeval.results.side_by_side import comparison_grids


def test_every_suite_is_in_the_summary(tmp_path):
    build_run(tmp_path / "a", "a", tasks=("niah_single_1", "vt"), n=4)
    build_run(tmp_path / "b", "b", "phonebook", lengths=(2048,), n=4)
    build_run(tmp_path / "c", "c", "perplexity", tasks=["stdlib"], lengths=(256,), n=4)
    comparison = compare([tmp_path / name for name in "abc"])
    summary = summary_grid(comparison.suites, comparison_grids(comparison))
    assert summary.columns == [
        "RULER 1k", "RULER 2k", "RULER 4k*", "PhoneBook lookup 2k", "Perplexity by position stdlib 256",
    ]  # fmt: skip
    shown = {line.labels[0]: [bool(entry.text) for entry in line.entries] for line in summary.lines}
    assert shown == {
        "a (baseline)": [True, True, True, False, False],
        "b": [False, False, False, True, False],
        "c": [False, False, False, False, True],
    }
