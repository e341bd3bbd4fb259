"""From rows to scores: cells task × length, category means, suite averages.

A cell's denominator is every finished sample, failed and empty ones included. A sample failed when it has an error or a
score that is no finite number: it scores 0 where scores lie in [0, 1]; a loss has no such value, so a failed document
is left out of the mean, and counted. Means are in the task's own scale, fractions for tasks and natural logarithms for
losses; `statistics` says how standard errors and intervals are made. None stands for "cannot be computed".
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from longeval.results.positions import run_positions
from longeval.results.statistics import Mean
from longeval.results.store import Row, RunFolder, write_json


@dataclass(frozen=True)
class Cell:
    """One task at one length. `fits` is False below the task's smallest size, given then in `smallest`.

    `n`: finished samples, `planned`: requested ones. `cut`: generations ended by their token limit.
    `scores`: means of the named scores beside the headline.
    """

    task: str
    length: int
    planned: int
    n: int = 0
    mean: Mean = field(default_factory=Mean)
    scores: dict[str, float] = field(default_factory=dict)
    errors: int = 0
    empty: int = 0
    cut: int = 0
    truncated: int = 0
    fits: bool = True
    smallest: int | None = None


@dataclass(frozen=True)
class SuiteAverage:
    """A suite's or category's average at one length. `tasks` of `of` tasks have a mean there: fewer is partial."""

    suite: str
    name: str
    length: int
    mean: Mean
    tasks: int
    of: int

    @property
    def partial(self) -> bool:
        return self.tasks < self.of


@dataclass(frozen=True)
class Scores:
    """Everything `scores.json` says."""

    cells: list[Cell]
    categories: list[SuiteAverage]
    averages: list[SuiteAverage]
    summaries: dict[str, dict[str, Any]] = field(default_factory=dict)

    def cell(self, task: str, length: int) -> Cell | None:
        return next((c for c in self.cells if c.task == task and c.length == length), None)

    @property
    def complete(self) -> bool:
        """Every requested sample has a prediction and a score."""
        return all(cell.n == cell.planned and not cell.errors for cell in self.cells if cell.fits)


def aggregate(manifest: Mapping[str, Any], rows: Iterable[Row]) -> Scores:
    """Scores of a run from its manifest (which cells were planned, which suites they belong to) and its rows."""
    by_cell = rows_by_cell(rows)
    info = manifest["info"]
    bounded = {task["name"]: task["percent"] for suite in info["suites"] for task in suite["tasks"]}
    cells = [
        _cell(plan, by_cell.get((plan["task"], plan["length"]), []), bounded[plan["task"]]) for plan in info["cells"]
    ]
    scores = combine(info["suites"], cells)
    for suite in info["suites"]:
        if summary := scores.summaries.get(suite["name"]):
            points = {point.length: point for point in headline(suite, scores)}
            summary["mean_over_lengths"] = _mean_over_lengths(suite, points, by_cell)
    return scores


def combine(suites: Iterable[Mapping[str, Any]], cells: list[Cell]) -> Scores:
    """Every average that follows from `cells` by the definitions in `suites`.

    What needs samples is left out: the standard errors of means over lengths.
    """
    categories, averages = [], []
    for suite in suites:
        suite_cells = [cell for cell in cells if cell.task.startswith(suite["name"] + "/")]
        categories += [a for average in category_averages(suite) for a in _averages(suite, average, suite_cells)]
        averages += [a for average in suite["averages"] for a in _averages(suite, average, suite_cells)]
    scores = Scores(cells, categories, averages)
    for suite in suites:
        if suite.get("effective_threshold") is not None and (points := headline(suite, scores)):
            scores.summaries[suite["name"]] = _length_summary(suite["effective_threshold"], points)
    return scores


def headline(suite: Mapping[str, Any], scores: Scores) -> list[SuiteAverage]:
    """The suite's first average at every length where it has a value; a suite without averages has none."""
    names = [average["name"] for average in suite["averages"][:1]]
    return [a for a in scores.averages if a.suite == suite["name"] and a.name in names and a.mean.value is not None]


def rows_by_cell(rows: Iterable[Row]) -> dict[tuple[str, int], list[Row]]:
    """The rows of every task and length."""
    cells: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        cells.setdefault((row.task, row.length), []).append(row)
    return cells


def counted_score(row: Row, bounded: bool) -> float | None:
    """What `row` adds to its cell's mean: its score; for a failed sample 0 where scores are `bounded`, else nothing."""
    if row.failed:
        return 0.0 if bounded else None
    return row.score


def _cell(plan: Mapping[str, Any], rows: Sequence[Row], bounded: bool) -> Cell:
    if not plan["fits"]:
        return Cell(plan["task"], plan["length"], plan["planned"], fits=False, smallest=plan["smallest"])
    counted = (counted_score(row, bounded) for row in rows)
    values = [value for value in counted if value is not None]
    scored = [row for row in rows if not row.failed]
    return Cell(
        task=plan["task"],
        length=plan["length"],
        planned=plan["planned"],
        n=len(rows),
        mean=Mean.of(values, bounded),
        scores={
            name: math.fsum(row.scores.get(name, 0.0) for row in scored) / len(values)
            for name in dict.fromkeys(name for row in scored for name in row.scores)
        },
        errors=len(rows) - len(scored),
        empty=sum(row.prediction is not None and not row.prediction.strip() for row in rows),
        cut=sum(row.finish_reason == "length" for row in rows),
        truncated=sum(row.truncated for row in rows),
    )


def _bounded(suite: Mapping[str, Any]) -> bool:
    return all(task["percent"] for task in suite["all_tasks"])


def category_averages(suite: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The suite's categories, defined as its averages are; none where all tasks are of one."""
    members: dict[str, list[str]] = {}
    for task in suite["all_tasks"]:
        members.setdefault(task["category"], []).append(task["name"].rpartition("/")[2])
    categories = [{"name": name, "over": "tasks", "members": tasks} for name, tasks in members.items()]
    return categories if len(categories) > 1 else []


def _averages(suite: Mapping[str, Any], average: Mapping[str, Any], cells: Sequence[Cell]) -> list[SuiteAverage]:
    """The average at every length, of those of its tasks that have a mean there."""
    result = []
    for length in sorted({cell.length for cell in cells}):
        there = {cell.task: cell.mean for cell in cells if cell.length == length and cell.mean.value is not None}
        weights = average_weights(suite, average, set(there))
        means = {task: mean for task, mean in there.items() if task in weights}
        mean = Mean.over(list(means.values()), [weights[task] for task in means], _bounded(suite))
        result.append(SuiteAverage(suite["name"], average["name"], length, mean, len(means), len(weights)))
    return result


def average_weights(suite: Mapping[str, Any], average: Mapping[str, Any], present: set[str]) -> dict[str, float]:
    """The weight of every member task of an average when the tasks `present` have a mean.

    Over tasks: equal. Over categories: a task shares its category's weight with the others of it that are present.
    """
    chosen = [f"{suite['name']}/{short}" for short in average["members"]]
    members = {task["name"]: task["category"] for task in suite["all_tasks"] if not chosen or task["name"] in chosen}
    if average["over"] == "tasks":
        return dict.fromkeys(members, 1.0)
    sizes: dict[str, int] = {}
    for task, category in members.items():
        sizes[category] = sizes.get(category, 0) + (task in present)
    return {task: 1.0 / max(1, sizes[category]) for task, category in members.items()}


def _length_summary(threshold: float, points: Sequence[SuiteAverage]) -> dict[str, Any]:
    """RULER's summary over lengths: effective length, mean over lengths, and means weighted 1…k and k…1.

    Effective length: the longest one whose average exceeds the threshold (the longest among all, as in RULER's README);
    `certain_length`: the longest one whose whole 95 % interval does. None: not reached.
    """
    values = [a.mean.value for a in points if a.mean.value is not None]
    weights = range(1, len(values) + 1)
    return {
        "effective_length": max((a.length for a in points if (a.mean.value or 0.0) > threshold), default=None),
        "certain_length": max((a.length for a in points if (a.mean.low or 0.0) > threshold), default=None),
        "threshold": threshold,
        "mean_over_lengths": Mean(statistics.fmean(values)),
        "weighted_increasing": statistics.fmean(values, weights=list(weights)),
        "weighted_decreasing": statistics.fmean(values, weights=list(reversed(weights))),
        "partial": any(a.partial for a in points),
    }


def _mean_over_lengths(
    suite: Mapping[str, Any], points: Mapping[int, SuiteAverage], by_cell: Mapping[tuple[str, int], Sequence[Row]]
) -> Mean:
    """The mean of the headline average over lengths. Questions may recur at every length (the i-th of qa_1 does), so
    samples of one task and index are a cluster, whose deviations are summed over lengths before they are squared."""
    clusters: dict[str, dict[str, float]] = {}
    for length in points:
        cells = {task["name"]: by_cell.get((task["name"], length), []) for task in suite["all_tasks"]}
        weights = average_weights(suite, suite["averages"][0], {task for task, rows in cells.items() if rows})
        members = {task: weight for task, weight in weights.items() if cells[task]}
        for task, weight in members.items():
            share = weight / sum(members.values()) / len(points)
            values = {row.id.rpartition("/")[2]: counted_score(row, bounded=True) or 0.0 for row in cells[task]}
            mean = statistics.fmean(values.values())
            of_task = clusters.setdefault(task, {})
            for index, value in values.items():
                of_task[index] = of_task.get(index, 0.0) + share * (value - mean) / len(values)
    value = statistics.fmean(point.mean.value or 0.0 for point in points.values())
    size = len(points) ** 2 / math.fsum(1 / point.mean.size for point in points.values())
    return Mean.clustered(value, [list(sums.values()) for sums in clusters.values()], size)


def rebuild_scores(folder: RunFolder) -> Scores:
    """Aggregates a run folder's rows and writes its scores.json, with the loss by position of documents."""
    scores = aggregate(folder.manifest, folder.rows().values())
    positions = [
        {"task": task, "length": length, **loss.as_dict()} for (task, length), loss in run_positions(folder).items()
    ]
    write_json(folder.path / "scores.json", {**asdict(scores), "positions": positions})
    return scores
