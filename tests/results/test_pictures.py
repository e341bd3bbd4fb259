"""Depth grids by hand, and the terminal's heatmaps and curves."""

import io

import pytest
from rich.console import Console
from run_folders import build_run

from longeval.errors import UserError
from longeval.results.aggregate import rows_by_cell
from longeval.results.depths import depth_grids
from longeval.results.pictures import heatmap, legend, score_curves
from longeval.results.runs import load_runs
from longeval.results.store import Row
from longeval.results.view import comparison_view, run_view


def row(index, score, depths, length=1024):
    meta = {"depths": depths} if depths else {}
    return Row(f"s/t/{length}/0/{index}", "s/t", length, 1, score=score, meta=meta)


def shown(renderable, width=100):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


def test_depth_grid_by_hand():
    rows = [row(0, 1.0, [0.0]), row(1, 0.0, [9.99]), row(2, 0.5, [10.0, 100.0]), row(3, None, [15.0]), row(4, 1.0, [])]
    rows += [row(5, 1.0, [30.0]), row(6, 0.0, [55.0])]
    (grid,) = depth_grids(rows_by_cell(rows)).values()
    assert grid.means[1024] == [0.375, 1.0, 0.0, None, 0.5]
    assert grid.counts[1024] == [4, 1, 1, 0, 1]
    assert grid.several
    assert grid.depths[4] == "80–100"
    assert depth_grids(rows_by_cell([row(0, 1.0, [])])) == {}


def test_few_samples_get_fewer_depths():
    def depths(places):
        (grid,) = depth_grids(rows_by_cell([row(i, 1.0, [place]) for i, place in enumerate(places)])).values()
        return grid.depths

    assert len(depths(range(10))) == 10
    assert depths(range(9)) == depths(range(5)) == ["0–20", "20–40", "40–60", "60–80", "80–100"]
    assert depths(range(4)) == depths([5]) == ["0–50", "50–100"]


@pytest.mark.parametrize("depths", ["40", ["40"], [140.0], [float("nan")]])
def test_depths_that_are_none_are_named(depths):
    with pytest.raises(UserError, match="sample s/t/1024/0/0: its depths are no list of percents"):
        depth_grids(rows_by_cell([row(0, 1.0, depths)]))


def test_heatmap_has_a_number_in_every_field():
    rows = [row(i, float(i % 2), [5.0 + 20 * (i // 2)], length) for i in range(8) for length in (1024, 2048)]
    (grid,) = depth_grids(rows_by_cell(rows)).values()
    text = shown(heatmap(grid, {1024: "1k", 2048: "2k*"}, "needle"))
    assert text.splitlines()[0].strip() == "needle"
    assert text.split().count("50") == 8
    assert len(text.splitlines()) == 2 + 5


def test_curves_fit_their_width_and_mark_every_length():
    text = shown(score_curves({"a": {0: 90.0, 1000: 50.0}}, {0: "0k", 1000: "1k"}, "title", 60, percent=True))
    assert text.startswith("title")
    assert "0k" in text.splitlines()[-2] + text.splitlines()[-1]
    assert max(map(len, text.splitlines())) <= 60


def test_a_run_and_a_comparison_come_with_pictures(tmp_path):
    for name in ("one", "two"):
        build_run(tmp_path / name, name, tasks=("niah_single_1", "vt"), n=6)
    first, _ = load_runs([tmp_path / "one", tmp_path / "two"])
    text = shown(run_view(first.folder, first.scores, 100))
    assert "RULER · averages by length" in text
    assert "score × 100 by depth (%) and length" in text
    from longeval.results.compare import compare

    text = shown(comparison_view(compare([tmp_path / "one", tmp_path / "two"]), 100))
    assert "⣤ one   ⣤ two" in text


def test_two_lengths_are_no_curve(tmp_path):
    build_run(tmp_path / "run", tasks=("vt",), lengths=(1024, 2048), n=3)
    (run,) = load_runs([tmp_path / "run"])
    assert "averages by length" not in shown(run_view(run.folder, run.scores, 100))


def test_a_legend_breaks_between_names():
    names = [(f"⣤ {name}", "") for name in ("question answering", "multi-hop tracing", "average")]
    assert legend(names, 42).plain.split("\n") == ["⣤ question answering   ⣤ multi-hop tracing", "⣤ average"]
    assert legend(names, 41).plain.split("\n") == ["⣤ question answering", "⣤ multi-hop tracing   ⣤ average"]
    assert legend(names, 5).plain.count("\n") == 2


def test_a_suite_of_one_task_has_its_curve(tmp_path):
    build_run(tmp_path / "run", suite="phonebook", n=3)
    (run,) = load_runs([tmp_path / "run"])
    text = shown(run_view(run.folder, run.scores, 100))
    assert "PhoneBook · scores by length" in text
    assert "⣤ lookup" in text
    assert "average" not in text
