"""From rows to scores: cells task × length, category means, suite averages.

A cell's denominator is every finished sample, failed and empty ones included (they score 0 where scores lie in
[0, 1]; a loss has no such value, so a failed document is left out of the mean and counted). Means are in the task's own
scale, fractions for tasks and natural logarithms for losses. Standard errors are s / √n with s from n − 1; an average
of k means has √(Σ se²) / k. None stands for "cannot be computed", never a number.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from longeval.results.store import Row, RunFolder, write_json


@dataclass(frozen=True)
class Mean:
    """A mean with its standard error (None when fewer than two values, or one of its parts, cannot give one)."""

    value: float | None
    standard_error: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        if not values:
            return cls(None, None)
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        return cls(statistics.fmean(values), error)

    @classmethod
    def over(cls, means: Sequence[Mean]) -> Mean:
        """The plain mean of independent means."""
        values = [mean.value for mean in means if mean.value is not None]
        if not values or len(values) < len(means):
            return cls(None, None)
        errors = [mean.standard_error for mean in means if mean.standard_error is not None]
        error = math.sqrt(sum(e * e for e in errors)) / len(means) if len(errors) == len(means) else None
        return cls(statistics.fmean(values), error)


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
    mean: Mean = Mean(None, None)
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
    by_cell: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        by_cell.setdefault((row.task, row.length), []).append(row)
    info = manifest["info"]
    bounded = {task["name"]: task["percent"] for suite in info["suites"] for task in suite["tasks"]}
    cells = [_cell(plan, by_cell.get((plan["task"], plan["length"]), []), bounded[plan["task"]]) for plan in info["cells"]]
    categories, averages, summaries = [], [], {}
    for suite in info["suites"]:
        suite_cells = [cell for cell in cells if cell.task.startswith(suite["name"] + "/")]
        categories += _category_means(suite, suite_cells)
        suite_averages = [a for average in suite["averages"] for a in _averages(suite, average, suite_cells)]
        averages += suite_averages
        if suite.get("effective_threshold") is not None:
            summaries[suite["name"]] = _length_summary(suite, suite_averages)
    return Scores(cells, categories, averages, summaries)


def _cell(plan: Mapping[str, Any], rows: Sequence[Row], bounded: bool) -> Cell:
    if not plan["fits"]:
        return Cell(plan["task"], plan["length"], plan["planned"], fits=False, smallest=plan["smallest"])
    failed = [row for row in rows if row.score is None]
    scored = [row for row in rows if row.score is not None]
    values = [row.score for row in scored if row.score is not None] + ([0.0] * len(failed) if bounded else [])
    names = dict.fromkeys(name for row in scored for name in row.scores)
    return Cell(
        task=plan["task"],
        length=plan["length"],
        planned=plan["planned"],
        n=len(rows),
        mean=Mean.of(values),
        scores={
            name: sum(row.scores.get(name, 0.0) for row in scored) / (len(rows) if bounded else len(scored))
            for name in names
        },
        errors=len(failed),
        empty=sum(row.prediction is not None and not row.prediction.strip() for row in rows),
        cut=sum(row.finish_reason == "length" for row in rows),
        truncated=sum(row.truncated for row in rows),
    )


def _lengths(cells: Iterable[Cell]) -> list[int]:
    return sorted({cell.length for cell in cells})


def _category_means(suite: Mapping[str, Any], cells: Sequence[Cell]) -> list[SuiteAverage]:
    members: dict[str, list[str]] = {}
    for task in suite["all_tasks"]:
        members.setdefault(task["category"], []).append(task["name"])
    if len(members) < 2:
        return []
    return [
        _plain(suite["name"], category, length, names, cells)
        for length in _lengths(cells)
        for category, names in members.items()
    ]


def _plain(suite: str, name: str, length: int, members: Sequence[str], cells: Sequence[Cell]) -> SuiteAverage:
    means = [c.mean for c in cells if c.length == length and c.task in members and c.mean.value is not None]
    return SuiteAverage(suite, name, length, Mean.over(means), len(means), len(members))


def _averages(suite: Mapping[str, Any], average: Mapping[str, Any], cells: Sequence[Cell]) -> list[SuiteAverage]:
    chosen = [f"{suite['name']}/{short}" for short in average["members"]]
    members = [task for task in suite["all_tasks"] if not chosen or task["name"] in chosen]
    names = [task["name"] for task in members]
    result = []
    for length in _lengths(cells):
        plain = _plain(suite["name"], average["name"], length, names, cells)
        if average["over"] == "categories":
            categories = dict.fromkeys(task["category"] for task in members)
            parts = [
                _plain("", category, length, [t["name"] for t in members if t["category"] == category], cells).mean
                for category in categories
            ]
            mean = Mean.over([part for part in parts if part.value is not None])
            plain = SuiteAverage(suite["name"], average["name"], length, mean, plain.tasks, plain.of)
        result.append(plain)
    return result


def _length_summary(suite: Mapping[str, Any], averages: Sequence[SuiteAverage]) -> dict[str, Any]:
    """RULER's summary over lengths: effective length, mean over lengths, and means weighted 1…k and k…1.

    Effective length: the longest one whose average exceeds the threshold (the longest among all, as in RULER's README).
    """
    points = [a for a in averages if a.mean.value is not None]
    values = [a.mean.value for a in points if a.mean.value is not None]
    if not points:
        return {}
    weights = range(1, len(values) + 1)
    passing = [a.length for a in points if (a.mean.value or 0.0) > suite["effective_threshold"]]
    return {
        "effective_length": max(passing, default=None),
        "threshold": suite["effective_threshold"],
        "mean_over_lengths": statistics.fmean(values),
        "weighted_increasing": statistics.fmean(values, weights=list(weights)),
        "weighted_decreasing": statistics.fmean(values, weights=list(reversed(weights))),
        "partial": any(a.partial for a in points),
    }


def rebuild_scores(folder: RunFolder) -> Scores:
    """Aggregates a run folder's rows and writes its scores.json."""
    scores = aggregate(folder.manifest, folder.rows().values())
    write_json(folder.path / "scores.json", asdict(scores))
    return scores
