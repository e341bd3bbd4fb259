"""What a person sees in the terminal: tables, and the shapes in them as curves and heatmaps; for documents the loss by
position as tables, curves and pictures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.text import Text

from longeval.results.aggregate import Cell, Scores, SuiteAverage, headline, rows_by_cell
from longeval.results.compare import Comparison
from longeval.results.depths import depth_grids, depths_note
from longeval.results.pictures import heatmap, score_curves
from longeval.results.plots import save_plot, terminal_plot
from longeval.results.position_tables import position_grids, positions_by_place
from longeval.results.positions import positions_table, run_positions
from longeval.results.side_by_side import comparison_grids
from longeval.results.store import Row, RunFolder
from longeval.results.tables import (
    averages_by_name,
    is_percent,
    length_labels,
    run_grids,
    scaled,
    short_name,
    shown_averages,
)

_WIDEST = 120


def run_view(folder: RunFolder, scores: Scores, width: int = 80) -> RenderableType:
    """Tables and pictures of a run, in at most `width` columns where a picture has a width of its own."""
    info = folder.manifest["info"]
    trained = info.get("trained_length")
    parts: list[RenderableType] = []
    by_cell = rows_by_cell(folder.rows().values())
    for suite, grid in zip(info["suites"], run_grids(folder.manifest, scores), strict=True):
        parts.append(grid)
        labels = length_labels(info, suite)
        averages = averages_by_name([*scores.categories, *scores.averages], suite["name"])
        series = {name: _points(averages.get(name, {}).values(), is_percent(suite)) for name in shown_averages(suite)}
        parts += _curves(series or _by_task(suite, scores), labels, suite, width)
        parts += _heatmaps(suite, labels, by_cell)
    for (task, length), loss in run_positions(folder).items():
        title = f"{task} · {length:,} tokens"
        parts.append(positions_table(loss, title, trained))
        parts.append(terminal_plot({info["model"]: loss}, title, trained, width=min(width, _WIDEST)))
    return Group(*parts)


def comparison_view(comparison: Comparison, width: int = 80, detect: float | None = None) -> RenderableType:
    """Tables of a comparison, under each the checkpoints' averages as curves; losses by position as
    tables and one picture for all of them."""
    parts: list[RenderableType] = []
    for suite, grid in zip(comparison.suites, comparison_grids(comparison, detect), strict=True):
        parts.append(grid)
        labels = {n: label for run in comparison.runs for n, label in length_labels(run.info, suite).items()}
        series = {run.label: _points(headline(suite, run.scores), is_percent(suite)) for run in comparison.runs}
        parts += _curves(series, labels, suite, width)
    parts += position_grids(comparison.runs)
    windows = {run.info.get("trained_length") for run in comparison.runs}
    trained = windows.pop() if len(windows) == 1 else None
    for (task, length), curves in positions_by_place(comparison.runs).items():
        parts.append(terminal_plot(curves, f"{task} · {length:,} tokens", trained, width=min(width, _WIDEST)))
    return Group(*parts)


def _points(means: Iterable[SuiteAverage | Cell], percent: bool) -> dict[int, float]:
    """Values by length in the tables' scale."""
    scores = {one.length: scaled(one.mean.value, percent) for one in means}
    return {length: score for length, score in scores.items() if score is not None}


def _by_task(suite: Mapping[str, Any], scores: Scores) -> dict[str, dict[int, float]]:
    """Values by task and length."""
    return {
        short_name(task["name"]): _points((c for c in scores.cells if c.task == task["name"]), is_percent(suite))
        for task in suite["tasks"]
    }


def _curves(
    series: Mapping[str, Mapping[int, float]], labels: Mapping[int, str], suite: Mapping[str, Any], width: int
) -> Iterator[RenderableType]:
    """One picture when there are at least three lengths to see a shape in."""
    drawn = {name: points for name, points in series.items() if points}
    lengths = {length for points in drawn.values() for length in points}
    if len(lengths) > 2:
        what = "averages" if shown_averages(suite) else "scores" if is_percent(suite) else "losses"
        title = f"{suite['title']} · {what} by length"
        yield score_curves(drawn, {n: labels[n] for n in lengths}, title, min(width, _WIDEST), is_percent(suite))
        yield Text()


def _heatmaps(
    suite: Mapping[str, Any], labels: Mapping[int, str], by_cell: Mapping[tuple[str, int], list[Row]]
) -> Iterator[RenderableType]:
    tasks = [task["name"] for task in suite["tasks"] if task["percent"]]
    grids = {task: grid for task, grid in depth_grids(by_cell).items() if task in tasks}
    if grids:
        yield Text(f"{suite['title']} · score × 100 by depth (%) and length", style="bold")
        yield Columns([heatmap(grid, labels, short_name(task)) for task, grid in grids.items()], padding=(1, 3))
        yield Text(f"{depths_note(grids.values())}\n", style="dim")


def save_plots(folder: RunFolder) -> None:
    """Writes `plots/<task>-<length>.png` for every task and length of documents."""
    info = folder.manifest["info"]
    for (task, length), loss in run_positions(folder).items():
        path = folder.path / "plots" / f"{task.replace('/', '-')}-{length}.png"
        path.parent.mkdir(exist_ok=True)
        save_plot({info["model"]: loss}, path, f"{info['model']} · {task}", info.get("trained_length"))
