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
    summary = summary_grid(comparison, comparison_grids(comparison))
    assert summary.columns == ["256", "1k", "2k", "4k"]
    shown = {line.labels: [bool(entry.text) for entry in line.entries] for line in summary.lines}
    assert shown == {
        ("RULER", "a"): [False, True, True, True],
        ("PhoneBook · lookup", "b"): [False, False, True, False],
        ("Perplexity by position · stdlib", "c"): [True, False, False, False],
    }
