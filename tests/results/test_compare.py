"""Comparisons of real run folders: what is tested against what, what is marked, what is warned of."""

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from run_folders import build_run
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from longeval.errors import UserError
from longeval.results.compare import compare, two_runs
from longeval.results.fairness import unfair_differences
from longeval.results.published import load_published
from longeval.results.runs import load_runs
from longeval.results.side_by_side import comparison_grids
from longeval.results.store import Row
from longeval.tasks import get_task

TASKS = ("niah_single_1", "vt")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two checkpoints on the same samples, and the first one's model on others."""
    folder = tmp_path_factory.mktemp("runs")
    build_run(folder / "one", "rope", tasks=TASKS, n=30, skill=0.5, slope=0.2)
    build_run(folder / "two", "path-fox", tasks=TASKS, n=30, skill=0.9)
    build_run(folder / "three", "fox", tasks=TASKS, n=30, skill=0.5, seed=1)
    return [folder / name for name in ("one", "two", "three")]


def shown(grids, width=120):
    console = Console(width=width, record=True, file=io.StringIO())
    for grid in grids:
        console.print(grid)
    return console.export_text()


def entries(grid, row, checkpoint):
    (line,) = [line for line in grid.lines if line.labels == (row, checkpoint)]
    return dict(zip((column.rstrip("*") for column in grid.columns), line.entries, strict=True))


def test_cells_are_tested_in_pairs_and_corrected_over_the_table(runs):
    comparison = compare(runs[:2])
    tested = comparison.tested["ruler"]
    assert len(tested) == 9  # two tasks and an average at three lengths
    first, second = ({r.id: r.score for r in run.rows.values()} for run in comparison.runs)
    ids = [i for i in first if i.startswith("ruler/niah_single_1/2048/")]
    table = np.zeros((2, 2))
    for i in ids:
        table[int(1 - first[i]), int(1 - second[i])] += 1
    cell = tested["ruler/niah_single_1", 2048, "path-fox"]
    assert cell.difference.p == pytest.approx(mcnemar(table, exact=True).pvalue)
    assert cell.difference.pairs == 30
    assert tested["ruler/vt", 2048, "path-fox"].difference.test == "paired permutation"
    raw = [one.difference.p for one in tested.values()]
    assert [one.corrected for one in tested.values()] == pytest.approx(multipletests(raw, method="holm")[1])


def test_the_average_of_a_difference_is_the_difference_of_averages(runs):
    comparison = compare(runs[:2])
    one, two = ({a.length: a.mean.value for a in run.scores.averages if a.suite == "ruler"} for run in comparison.runs)
    for length in one:
        found = comparison.tested["ruler"]["average", length, "path-fox"].difference
        assert found.value == pytest.approx(two[length] - one[length])
        assert found.low < found.value < found.high


def test_differences_of_averages_are_shown(runs):
    comparison = compare(runs[:2])
    (grid,) = comparison_grids(comparison)
    shown_at = entries(grid, "average", "Δ path-fox")["4k"]
    found = comparison.tested["ruler"]["average", 4096, "path-fox"].difference
    assert shown_at.text == f"+{100 * found.value:.1f}"
    assert shown_at.interval.endswith(f" d={found.effect:.2f}")
    (reverse,) = comparison_grids(compare(runs[:2], baseline=runs[1]))
    assert entries(reverse, "average", "Δ rope")["4k"].text == f"{-100 * found.value:.1f}"


def test_best_and_significance_are_marked(runs):
    (grid,) = comparison_grids(compare(runs[:2]))
    best = entries(grid, "niah_single_1", "path-fox")["4k"]
    assert best.best
    assert best.marks == ("▲",)
    assert not entries(grid, "niah_single_1", "rope (baseline)")["4k"].best
    (reverse,) = comparison_grids(compare(runs[:2], baseline=runs[1]))
    assert entries(reverse, "niah_single_1", "rope")["4k"].marks == ("▼",)
    assert reverse.notes[1].startswith(
        "▲ better, ▼ worse than path-fox: p < 0.05 after Holm's correction over the table's tests, 9 in all"
    )


def test_other_seeds_share_no_samples(runs):
    comparison = compare([runs[0], runs[2]])
    assert {one.difference.test for one in comparison.tested["ruler"].values()} == {"permutation"}
    (grid,) = comparison_grids(comparison)
    assert "no samples in common with rope: fox" in grid.notes
    assert "not the same in all runs: seed (rope: 0, fox: 1)" in comparison.warnings


def test_a_smaller_run_is_compared_on_what_both_have(runs, tmp_path):
    build_run(tmp_path / "small", "small", tasks=TASKS, n=10, lengths=(1024,))
    comparison = compare([runs[0], tmp_path / "small"])
    assert {one.difference.pairs for one in comparison.tested["ruler"].values()} == {10, 20}
    (grid,) = comparison_grids(comparison)
    assert entries(grid, "vt", "small")["4k"].text == "not run"
    assert entries(grid, "average", "small")["4k"].text == "not run"
    assert grid.notes[0].startswith("rope: n = 30 per cell, small: n = 10 per cell · ")
    (lengths,) = comparison.warnings
    assert lengths.startswith("not the same in all runs: lengths of ruler/niah_single_1, ruler/vt (rope: [1024, 2048")


def test_categories_are_tested_where_they_have_several_tasks(tmp_path):
    three = ("niah_single_1", "niah_single_2", "vt")
    for name, skill in (("a", 0.5), ("b", 0.9)):
        build_run(tmp_path / name, name, tasks=three, lengths=(1024,), n=9, skill=skill)
    comparison = compare([tmp_path / "a", tmp_path / "b"])
    assert [row for row, _, _ in comparison.tested["ruler"]] == [
        *(f"ruler/{short}" for short in three),
        "retrieval",
        "average",
    ]
    (grid,) = comparison_grids(comparison)
    marked = entries(grid, "retrieval", "b")["1k"].marks
    assert ("▲" in marked) == comparison.tested["ruler"]["retrieval", 1024, "b"].significant
    assert {line.labels[0] for line in grid.lines if line.style == "difference"} == {"average"}


def test_a_suite_of_one_task_shows_its_differences_there(tmp_path):
    for name, skill in (("a", 0.5), ("b", 0.9)):
        build_run(tmp_path / name, name, "phonebook", lengths=(2048,), n=9, skill=skill)
    (grid,) = comparison_grids(compare([tmp_path / "a", tmp_path / "b"], published=[load_published("path-paper")]))
    labels = [line.labels for line in grid.lines]
    assert labels[:3] == [("lookup", "a (baseline)"), ("lookup", "b"), ("lookup", "Δ b")]
    assert labels[3:] == [("lookup", f"{model} (published)") for model in ("RoPE", "FoX", "PaTH", "PaTH-FoX")]


def test_averages_over_different_tasks_are_not_tested(runs, tmp_path):
    build_run(tmp_path / "part", "part", tasks=TASKS[:1], n=30)
    tested = compare([runs[0], tmp_path / "part"]).tested["ruler"]
    assert {row for row, _, _ in tested} == {"ruler/niah_single_1"}


def test_suites_of_one_run_only(runs, tmp_path):
    build_run(tmp_path / "book", "book", suite="phonebook", lengths=(2048,))
    ruler, phonebook = comparison_grids(compare([runs[0], tmp_path / "book"]))
    assert {line.labels[1] for line in ruler.lines} == {"rope"}
    assert {line.labels[1] for line in phonebook.lines} == {"book"}
    assert "suite not run: rope" in phonebook.notes


def test_rules_part_rows_of_several_checkpoints_only(runs):
    def sizes(paths):
        return [len(group) for grid in comparison_grids(compare(paths)) for group in grid.groups]

    assert sizes(runs[:1]) == [2, 1]  # tasks, the average
    assert sizes(runs[:2]) == [2, 2, 3]  # a task each, the average with its difference


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        ({"tokenizer": "bbbb"}, "tokenizer_hash (rope: aaaa, other: bbbb)"),
        ({"dtype": "bfloat16"}, "model.dtype (rope: float32, other: bfloat16)"),
        ({"versions": {"vt": "0"}}, f"version of ruler/vt (rope: {get_task('ruler/vt').version}, other: 0)"),
        ({"n": 20}, None),
    ],
)
def test_unfair_differences(runs, tmp_path, change, warning):
    build_run(tmp_path / "other", "other", tasks=TASKS, **{"n": 30, **change})
    lines = unfair_differences(load_runs([runs[0], tmp_path / "other"]))
    assert lines == ([warning] if warning else [])


def test_published_rows_stand_beside(runs):
    (grid,) = comparison_grids(compare(runs[:2], published=[load_published("path-paper")]))
    assert [column.rstrip("*") for column in grid.columns] == ["1k", "2k", "4k", "8k", "16k"]
    published = entries(grid, "average", "PaTH-FoX (published)")
    assert [published[n].text for n in ("1k", "4k", "8k", "16k")] == ["", "42.3", "34.0", "22.6"]
    assert not any(entry.best for line in grid.lines if line.style == "published" for entry in line.entries)
    assert entries(grid, "average", "rope (baseline)")["8k"].text == ""
    assert any("arXiv 2505.16381" in note for note in grid.notes)


@pytest.mark.parametrize("width", [80, 160])
def test_a_wide_comparison_breaks_into_blocks_of_columns(runs, width):
    text = shown(comparison_grids(compare(runs, published=[load_published("path-paper")])), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert text.count("22.6") == 1


def test_labels(runs, tmp_path):
    build_run(tmp_path / "again", "rope", tasks=TASKS, lengths=(1024,), n=5)
    assert [run.label for run in load_runs([runs[0], tmp_path / "again"])] == ["one", "again"]
    with pytest.raises(UserError, match="given twice"):
        load_runs([runs[0], runs[0]])
    with pytest.raises(UserError, match=r"--baseline .*nope is none of the runs"):
        compare(runs, baseline=runs[0].parent / "nope")
    with pytest.raises(UserError, match=r"no published table is called 'path'; did you mean path-paper"):
        load_published("path")


def test_power_note(runs):
    (grid,) = comparison_grids(compare(runs[:2]), detect=10)
    (note,) = [note for note in grid.notes if "power" in note]
    assert "in a cell (30 samples; 10 would need " in note
    assert "in the average (60 samples; 10 would need " in note


def test_rows_pair_by_sample_and_content():
    def row(index, score, reference="a", **meta):
        return Row(f"s/t/1/0/{index}", "s/t", 1, 1, score=score, references=[reference], meta=meta)

    pair = two_runs([row(0, 1.0), row(1, 0.0), row(2, 1.0)], [row(1, 1.0), row(0, 1.0), row(2, 0.0, "other")], True)
    assert pair.paired
    assert (pair.first.tolist(), pair.second.tolist()) == ([1.0, 0.0], [1.0, 1.0])
    books = two_runs([row(0, 2.0, document="x")], [row(0, 3.0, document="y")], False)
    assert not books.paired
    assert two_runs([row(0, None)], [row(0, 1.0)], bounded=False) is None
    assert two_runs([row(0, None)], [row(0, 1.0)], bounded=True).first.tolist() == [0.0]


def test_lower_losses_are_better(tmp_path):
    build_run(tmp_path / "a", "worse", "perplexity", tasks=["stdlib"], lengths=(256,), n=12, skill=0.2)
    build_run(tmp_path / "b", "better", "perplexity", tasks=["stdlib"], lengths=(256,), n=12, skill=0.9)
    (grid,) = comparison_grids(compare([tmp_path / "a", tmp_path / "b"]))
    assert entries(grid, "stdlib", "better")["256"].best
    assert entries(grid, "stdlib", "better")["256"].marks == ("▲",)


def test_equal_averages_are_both_best(tmp_path):
    """10/12 and 7/12 have the average of 8/12 and 9/12, but for its last digit."""
    tasks = ("vt", "cwe")
    for name, twelfths in (("a", (10, 7)), ("b", (8, 9)), ("c", (0, 0))):
        scores = {task: twelfth / 12 for task, twelfth in zip(tasks, twelfths, strict=True)}
        build_run(
            tmp_path / name,
            name,
            tasks=tasks,
            lengths=(1024,),
            n=1,
            change=lambda row, scores=scores: replace(row, score=scores[row.task.partition("/")[2]]),
        )
    (grid,) = comparison_grids(compare([tmp_path / name for name in "abc"]))
    averages = [line.entries[0] for line in grid.lines if line.style == "average"]
    assert [entry.best for entry in averages] == [True, True, False]
