"""Tables of one run: rows are tasks and categories, columns are lengths, cells are mean ± standard error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType

from longeval.results.aggregate import Cell, Scores, SuiteAverage, average_weights, category_averages
from longeval.results.grid import Entry, Grid, Line
from longeval.results.statistics import Mean


def run_tables(manifest: Mapping[str, Any], scores: Scores) -> RenderableType:
    """One table per suite of a run, each with its notes under it."""
    return Group(*run_grids(manifest, scores))


def run_grids(manifest: Mapping[str, Any], scores: Scores) -> list[Grid]:
    """One table per suite of a run."""
    return [_suite(manifest, suite, scores) for suite in manifest["info"]["suites"]]


def is_percent(suite: Mapping[str, Any]) -> bool:
    """Whether a suite's averages are fractions, shown times 100."""
    return all(task["percent"] for task in suite["tasks"])


def length_labels(info: Mapping[str, Any], suite: Mapping[str, Any]) -> dict[int, str]:
    """How a suite's lengths are called, shortest first; a star marks those beyond the trained window."""
    trained = info.get("trained_length")
    labels = {}
    for plan in sorted(info["cells"], key=lambda plan: plan["length"]):
        if plan["task"].startswith(suite["name"] + "/"):
            beyond = suite["unit"] == "tokens" and trained is not None and plan["length"] > trained
            labels[plan["length"]] = plan["label"] + ("*" if beyond else "")
    return labels


def scaled(value: float | None, percent: bool) -> float | None:
    """A score in the scale of the tables: fractions times 100, losses as they are."""
    return value * 100 if percent and value is not None else value


def comparable(value: float) -> float:
    """A score without the last digits, in which averages that are equal can differ by rounding."""
    return round(value, 12)


def number(value: float | None, percent: bool) -> str:
    """A score as the tables print it."""
    return "–" if value is None else f"{scaled(value, percent):z.{1 if percent else 3}f}"


def interval(mean: Mean, percent: bool) -> str:
    """A 95 % interval as tables print it: whole points where it is wide, one digit more where it is narrow."""
    low, high = scaled(mean.low, percent), scaled(mean.high, percent)
    if low is None or high is None:
        return ""
    digits = (0 if percent else 2) + (high - low < (5 if percent else 0.05))
    joint = " to " if low < 0 else "–"
    return f"{low:z.{digits}f}{joint}{high:z.{digits}f}"


def short_name(task: str) -> str:
    """A task's name within its suite; an average's name as it is."""
    return task.rpartition("/")[2]


def record(
    run: str, suite: str, kind: str, name: str, length: int | None, label: str, mean: Mean, percent: bool, **more: Any
) -> dict[str, Any]:
    """The numbers behind an entry, in the scale of the tables."""
    return {
        "run": run,
        "suite": suite,
        "kind": kind,
        "name": name,
        "length": length,
        "label": label.rstrip("*"),
        "score": scaled(mean.value, percent),
        "standard_error": scaled(mean.standard_error, percent),
        "low": scaled(mean.low, percent),
        "high": scaled(mean.high, percent),
        **more,
    }


def cell_record(run: str, suite: str, cell: Cell, label: str, percent: bool) -> dict[str, Any]:
    """See `record`."""
    counts = {name: getattr(cell, name) for name in ("n", "planned", "errors", "empty", "cut", "truncated")}
    return record(run, suite, "task", short_name(cell.task), cell.length, label, cell.mean, percent, **counts)


def average_record(run: str, kind: str, average: SuiteAverage, label: str, percent: bool) -> dict[str, Any]:
    """See `record`; `kind` is "average" or "category"."""
    return record(
        run, average.suite, kind, average.name, average.length, label, average.mean, percent,
        tasks=average.tasks, of=average.of,
    )  # fmt: skip


def _suite(manifest: Mapping[str, Any], suite: Mapping[str, Any], scores: Scores) -> Grid:
    info = manifest["info"]
    labels = length_labels(info, suite)
    run, name = info["model"], suite["name"]
    tasks = []
    for task in suite["tasks"]:
        cells = [(scores.cell(task["name"], length), label) for length, label in labels.items()]
        tasks.append(
            Line((short_name(task["name"]),), [_cell(run, name, cell, label, task["percent"]) for cell, label in cells])
        )
    groups = [tasks, _beside(run, suite, scores, labels), *_average_lines(run, suite, scores, labels)]
    return Grid(
        title=f"{suite['title']} · {run}",
        stubs=("task",),
        columns=list(labels.values()),
        groups=[group for group in groups if group],
        notes=_notes(info, suite, scores),
    )


def _beside(run: str, suite: Mapping[str, Any], scores: Scores, labels: Mapping[int, str]) -> list[Line]:
    """A row for every score that a task wants shown beside its headline; a mean without an error."""
    lines = []
    for task in suite["tasks"]:
        for score in task.get("beside", ()):
            name = f"{short_name(task['name'])} {score}"
            entries = []
            for length, label in labels.items():
                cell = scores.cell(task["name"], length)
                mean = Mean(cell.scores.get(score) if cell else None)
                figures = record(run, suite["name"], "score", name, length, label, mean, task["percent"])
                entries.append(Entry(number(mean.value, task["percent"]), record=figures))
            lines.append(Line((name,), entries, "beside"))
    return lines


def _average_lines(
    run: str, suite: Mapping[str, Any], scores: Scores, labels: Mapping[int, str]
) -> tuple[list[Line], list[Line]]:
    """The rows of categories and those of averages."""
    lines: dict[str, list[Line]] = {"category": [], "average": []}
    by_name = averages_by_name([*scores.categories, *scores.averages], suite["name"])
    for name, kind in shown_averages(suite).items():
        at = by_name.get(name, {})
        entries = [_average(run, kind, at.get(n), label, is_percent(suite)) for n, label in labels.items()]
        if kind == "average" or any(entry.record for entry in entries):
            lines[kind].append(Line((name,), entries, kind))
    return lines["category"], lines["average"]


def shown_averages(suite: Mapping[str, Any]) -> dict[str, str]:
    """The averages that tables have rows for, each with its kind, "category" or "average".

    One over a single task that was run would repeat that task's row.
    """
    run = {task["name"] for task in suite["tasks"]}
    kinds = {"category": category_averages(suite), "average": suite["averages"]}
    return {
        average["name"]: kind
        for kind, averages in kinds.items()
        for average in averages
        if len(run & average_weights(suite, average, run).keys()) > 1
    }


def averages_by_name(averages: Iterable[SuiteAverage], suite: str) -> dict[str, dict[int, SuiteAverage]]:
    """A suite's averages by name and length, in the order of the suite."""
    by_name: dict[str, dict[int, SuiteAverage]] = {}
    for average in averages:
        if average.suite == suite:
            by_name.setdefault(average.name, {})[average.length] = average
    return by_name


def _with_error(mean: Mean, percent: bool) -> str:
    error = "" if mean.standard_error is None else f"±{number(mean.standard_error, percent)}"
    return number(mean.value, percent) + error


def _average(run: str, kind: str, average: SuiteAverage | None, label: str, percent: bool) -> Entry:
    if average is None or average.mean.value is None:
        return Entry("–")
    figures = average_record(run, kind, average, label, percent)
    return Entry(_with_error(average.mean, percent), marks=average_marks(average), record=figures)


def _cell(run: str, suite: str, cell: Cell | None, label: str, percent: bool) -> Entry:
    if cell is None:
        return Entry()
    if not cell.fits:
        return Entry("does not fit")
    figures = cell_record(run, suite, cell, label, percent)
    return Entry(_with_error(cell.mean, percent), marks=cell_marks(cell), record=figures)


def average_marks(average: SuiteAverage) -> tuple[str, ...]:
    """What qualifies an average: tasks of it that have no mean."""
    return (f"{average.tasks}/{average.of}",) if average.partial else ()


def cell_marks(cell: Cell) -> tuple[str, ...]:
    """What qualifies a cell: unfinished, failed and truncated samples."""
    marks = {
        f"n={cell.n}/{cell.planned}": cell.n < cell.planned,
        f"e{cell.errors}": cell.errors,
        f"t{cell.truncated}": cell.truncated,
    }
    return tuple(mark for mark, applies in marks.items() if applies)


def sample_counts(cells: Iterable[Cell]) -> str:
    """How many samples the cells were planned with."""
    counts = sorted({cell.planned for cell in cells if cell.fits})
    if len(counts) == 1:
        return f"n = {counts[0]} per cell"
    return f"n = {counts[0]}–{counts[-1]} per cell" if counts else "no cell fits"


def _notes(info: Mapping[str, Any], suite: Mapping[str, Any], scores: Scores) -> list[str]:
    cells = [cell for cell in scores.cells if cell.task.startswith(suite["name"] + "/")]
    lines = [
        f"{sample_counts(cells)} · mean ± standard error of {metrics(suite)}",
        *window_note(info, suite),
        *suite_notes(suite),
    ]
    smallest = {short_name(cell.task): cell.smallest for cell in cells if not cell.fits}
    if smallest:
        lines.append("smallest size: " + ", ".join(f"{task} {size:,}" for task, size in smallest.items()))
    lines += count_notes(cells, is_percent(suite))
    lines += suite.get("notes", [])
    if summary := scores.summaries.get(suite["name"]):
        lines.append(length_summary(summary))
    return lines


def metrics(suite: Mapping[str, Any]) -> str:
    """What a suite's numbers are and what its lengths count."""
    names = ", ".join(dict.fromkeys(task["metric"] for task in suite["tasks"]))
    return f"{names} ({'× 100, ' if is_percent(suite) else ''}lengths in {suite['unit']})"


def window_note(info: Mapping[str, Any], suite: Mapping[str, Any]) -> list[str]:
    """What the stars of `length_labels` mean, when there are any."""
    beyond = any(label.endswith("*") for label in length_labels(info, suite).values())
    return [f"* beyond the trained window of {info['trained_length']:,} tokens"] if beyond else []


def runs_by_window(windows: Mapping[str, int]) -> dict[int, list[str]]:
    """The runs of every trained window."""
    runs: dict[int, list[str]] = {}
    for run, window in windows.items():
        runs.setdefault(window, []).append(run)
    return runs


def suite_notes(suite: Mapping[str, Any]) -> list[str]:
    """Whether tasks of the suite are missing."""
    missing = len(suite["all_tasks"]) - len(suite["tasks"])
    return [f"partial suite: {len(suite['tasks'])}/{len(suite['all_tasks'])} tasks"] if missing else []


def count_notes(cells: Sequence[Cell], bounded: bool) -> list[str]:
    """What went wrong in the cells' samples, counted."""
    counted = {
        "failed, scored 0 (e)" if bounded else "failed, left out of the mean (e)": sum(c.errors for c in cells),
        "truncated (t)": sum(c.truncated for c in cells),
        "empty predictions": sum(c.empty for c in cells),
    }
    return [f"{what}: {count}" for what, count in counted.items() if count]


def length_summary(summary: Mapping[str, Any]) -> str:
    """One line on a suite's averages over lengths."""

    def reached(length: int | None) -> str:
        return f"{length:,}" if length else "not reached"

    partial = " (partial suite)" if summary["partial"] else ""
    mean = summary["mean_over_lengths"]
    interval = "" if mean.low is None else f" ({number(mean.low, True)}–{number(mean.high, True)})"
    return (
        f"effective length (average above {number(summary['threshold'], True)}): {reached(summary['effective_length'])}"
        f"{partial}, by its whole 95 % interval: {reached(summary['certain_length'])} · "
        f"over lengths: mean {number(mean.value, True)}{interval}, "
        f"weighted to long {number(summary['weighted_increasing'], True)}, "
        f"to short {number(summary['weighted_decreasing'], True)}"
    )
