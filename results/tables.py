"""Rich tables of a run: rows are tasks and categories, columns are lengths, cells are mean ± standard error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from longeval.results.aggregate import Cell, Mean, Scores, SuiteAverage


@dataclass(frozen=True)
class PredictionScore:
    """One scored row of a predictions file; `length` is None where the row has none."""

    task: str
    length: int | None
    label: str
    score: float
    empty: bool


def run_tables(manifest: Mapping[str, Any], scores: Scores) -> RenderableType:
    """One table per suite of a run, each with its notes under it."""
    return Group(*(part for suite in manifest["info"]["suites"] for part in _suite(manifest, suite, scores)))


def _title(text: str) -> Text:
    return Text(text, style="bold")


def _table() -> Table:
    """Narrow enough for six lengths in 80 columns."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("task", no_wrap=True)
    return table


def _suite(manifest: Mapping[str, Any], suite: Mapping[str, Any], scores: Scores) -> list[RenderableType]:
    tasks = suite["tasks"]
    names = {task["name"] for task in tasks}
    cells = [cell for cell in scores.cells if cell.task in names]
    lengths = sorted({cell.length for cell in cells})
    trained = manifest["info"].get("trained_length")
    table = _table()
    for length in lengths:
        label = next(p["label"] for p in manifest["info"]["cells"] if p["length"] == length and p["task"] in names)
        beyond = suite["unit"] == "tokens" and trained is not None and length > trained
        table.add_column(label + ("*" if beyond else ""), justify="right")
    categories = [a for a in scores.categories if a.suite == suite["name"]]
    for task in tasks:
        row = [_cell(scores.cell(task["name"], length), task["percent"]) for length in lengths]
        table.add_row(task["name"].partition("/")[2], *row)
    percent = all(task["percent"] for task in tasks)
    _add_averages(table, categories, lengths, percent, "italic")
    _add_averages(table, [a for a in scores.averages if a.suite == suite["name"]], lengths, percent, "bold")
    return [_title(f"{suite['title']} · {manifest['info']['model']}"), table, _notes(suite, cells, scores, trained)]


def _add_averages(
    table: Table, averages: Sequence[SuiteAverage], lengths: Sequence[int], percent: bool, style: str
) -> None:
    by_name: dict[str, dict[int, SuiteAverage]] = {}
    for average in averages:
        by_name.setdefault(average.name, {})[average.length] = average
    if by_name:
        table.add_section()
    for name, at in by_name.items():
        table.add_row(Text(name, style=style), *(_average(at.get(length), percent, style) for length in lengths))


def _number(mean: Mean, percent: bool) -> str:
    if mean.value is None:
        return "–"
    scale, digits = (100.0, 1) if percent else (1.0, 3)
    error = "" if mean.standard_error is None else f"±{mean.standard_error * scale:.{digits}f}"
    return f"{mean.value * scale:.{digits}f}{error}"


def _average(average: SuiteAverage | None, percent: bool, style: str) -> Text:
    if average is None or average.mean.value is None:
        return Text("–")
    partial = f" {average.tasks}/{average.of}" if average.partial else ""
    return Text(_number(average.mean, percent) + partial, style=style)


def _cell(cell: Cell | None, percent: bool) -> Text:
    if cell is None:
        return Text("")
    if not cell.fits:
        return Text("does not fit", style="dim")
    text = Text(_number(cell.mean, percent))
    if cell.n < cell.planned:
        text.append(f" n={cell.n}/{cell.planned}", style="yellow")
    if cell.errors:
        text.append(f" e{cell.errors}", style="red")
    if cell.truncated:
        text.append(f" t{cell.truncated}", style="yellow")
    return text


def _counts(cells: Sequence[Cell]) -> str:
    counts = sorted({cell.planned for cell in cells if cell.fits})
    if len(counts) == 1:
        return f"n = {counts[0]} per cell"
    return f"n = {counts[0]}–{counts[-1]} per cell" if counts else "no cell fits"


def _notes(suite: Mapping[str, Any], cells: Sequence[Cell], scores: Scores, trained: int | None) -> Text:
    metrics = dict.fromkeys(task["metric"] for task in suite["tasks"])
    scale = "× 100, " if all(task["percent"] for task in suite["tasks"]) else ""
    lines = [f"{_counts(cells)} · mean ± standard error of {', '.join(metrics)} ({scale}lengths in {suite['unit']})"]
    if suite["unit"] == "tokens" and trained is not None and any(cell.length > trained for cell in cells):
        lines.append(f"* beyond the trained window of {trained:,} tokens")
    missing = len(suite["all_tasks"]) - len(suite["tasks"])
    if missing:
        lines.append(f"partial suite: {len(suite['tasks'])}/{len(suite['all_tasks'])} tasks")
    smallest = {cell.task.partition("/")[2]: cell.smallest for cell in cells if not cell.fits}
    if smallest:
        lines.append("smallest size: " + ", ".join(f"{task} {size:,}" for task, size in smallest.items()))
    counted = {
        "failed, scored 0 (e)": sum(c.errors for c in cells),
        "truncated (t)": sum(c.truncated for c in cells),
        "empty predictions": sum(c.empty for c in cells),
    }
    lines += [f"{what}: {number}" for what, number in counted.items() if number]
    lines += suite.get("notes", [])
    if summary := scores.summaries.get(suite["name"]):
        lines.append(_length_summary(summary))
    return Text("\n".join(lines) + "\n", style="dim")


def _length_summary(summary: Mapping[str, Any]) -> str:
    effective = summary["effective_length"]
    reached = f"{effective:,} tokens" if effective else "not reached"
    partial = " (partial suite)" if summary["partial"] else ""
    return (
        f"effective length (average above {summary['threshold'] * 100:.1f}): {reached}{partial} · over lengths: "
        f"mean {summary['mean_over_lengths'] * 100:.1f}, weighted to long {summary['weighted_increasing'] * 100:.1f}, "
        f"to short {summary['weighted_decreasing'] * 100:.1f}"
    )


def predictions_table(title: str, rows: Sequence[PredictionScore]) -> RenderableType:
    """Scores of a predictions file: mean × 100 ± standard error with n, rows tasks, columns lengths."""
    labels = {row.length: row.label for row in rows}
    lengths = sorted(labels, key=lambda length: (length is None, length or 0))
    table = _table()
    for length in lengths:
        table.add_column(labels[length], justify="right")
    means: dict[int | None, list[Mean]] = {}
    for task in dict.fromkeys(row.task for row in rows):
        row_cells = []
        for length in lengths:
            scores = [row.score for row in rows if row.task == task and row.length == length]
            mean = Mean.of(scores)
            if scores:
                means.setdefault(length, []).append(mean)
            row_cells.append(f"{_number(mean, percent=True)} n={len(scores)}" if scores else "")
        table.add_row(task, *row_cells)
    if len({row.task for row in rows}) > 1:
        table.add_section()
        averages = (_number(Mean.over(means[length]), percent=True) for length in lengths)
        table.add_row(Text("mean of tasks", style="bold"), *averages)
    empty = sum(row.empty for row in rows)
    return Group(_title(title), table, Text(f"{len(rows):,} predictions, {empty:,} empty", style="dim"))
