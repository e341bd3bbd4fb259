"""Checkpoints side by side: what they share, and their differences to a baseline, tested.

A cell is tested on the samples that both runs answered (same id, same references, same document), or, when they share
none, without pairs. Averages are tested where both runs have the same tasks at that length. Holm's correction is
over everything that one table tests. See `significance` for the tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from longeval.errors import UserError, nearest
from longeval.results.aggregate import average_weights, category_averages, counted_score
from longeval.results.fairness import unfair_differences
from longeval.results.published import Published
from longeval.results.runs import Run, load_runs, merged_suites
from longeval.results.significance import LEVEL, Difference, TwoRuns, difference, enough_draws, holm
from longeval.results.store import Row
from longeval.results.tables import is_percent, shown_averages

Place = tuple[str, int, str]  # table row (a full task name, or an average's name), length, run label


@dataclass(frozen=True)
class Tested:
    """A difference to the baseline and its p-value after Holm's correction over its table."""

    difference: Difference
    corrected: float

    @property
    def significant(self) -> bool:
        return self.corrected < LEVEL


@dataclass(frozen=True)
class Comparison:
    """Runs side by side. `warnings`: what makes the comparison unfair, one line each. `tested`: by suite and place."""

    runs: list[Run]
    baseline: Run
    published: list[Published]
    warnings: list[str]
    suites: list[dict[str, Any]]
    tested: dict[str, dict[Place, Tested]]


def compare(paths: Sequence[Path], baseline: Path | None = None, published: Sequence[Published] = ()) -> Comparison:
    """Compares the runs in `paths` with `baseline`, one of them (by default the first)."""
    runs = load_runs(paths)
    chosen = runs[0]
    if baseline is not None:
        matching = [
            run for run in runs if run.label == str(baseline) or run.folder.path.resolve() == baseline.resolve()
        ]
        if not matching:
            raise UserError(
                f"--baseline {baseline} is none of the runs{nearest(str(baseline), [r.label for r in runs])}"
            )
        chosen = matching[0]
    suites = merged_suites(runs)
    others = [run for run in runs if run is not chosen]
    return Comparison(
        runs=runs,
        baseline=chosen,
        published=list(published),
        warnings=[f"not the same in all runs: {line}" for line in unfair_differences(runs)],
        suites=suites,
        tested={suite["name"]: _test(suite, chosen, others) for suite in suites},
    )


def _test(suite: Mapping[str, Any], baseline: Run, others: Iterable[Run]) -> dict[Place, Tested]:
    """Every difference to the baseline that a suite's table shows, Holm's correction over all of them."""
    parts: dict[Place, list[TwoRuns]] = {}
    shown = shown_averages(suite)
    averages = [a for a in [*category_averages(suite), *suite["averages"]] if a["name"] in shown]
    for run in others:
        cells = _shared_cells(suite, baseline, run)
        parts |= {(task, length, run.label): [pair] for (task, length), pair in cells.items()}
        for average in averages:
            for length in sorted({length for _, length in cells}):
                if members := _members(suite, average, length, cells, baseline, run):
                    parts[average["name"], length, run.label] = members
    bounded = {task["name"]: task["percent"] for task in suite["tasks"]}
    draws = enough_draws(len(parts))
    found = {
        place: difference(cells, bounded.get(place[0], is_percent(suite)), draws) for place, cells in parts.items()
    }
    corrected = holm(difference.p for difference in found.values())
    return {place: Tested(found[place], p) for place, p in zip(found, corrected, strict=True)}


def _shared_cells(suite: Mapping[str, Any], baseline: Run, run: Run) -> dict[tuple[str, int], TwoRuns]:
    """The two runs' scores in every cell of the suite where both have some."""
    bounded = {task["name"]: task["percent"] for task in suite["tasks"]}
    found = {
        (task, length): two_runs(rows, run.by_cell.get((task, length), []), bounded[task])
        for (task, length), rows in baseline.by_cell.items()
        if task in bounded
    }
    return {place: pair for place, pair in found.items() if pair is not None}


def two_runs(first: Sequence[Row], second: Sequence[Row], bounded: bool) -> TwoRuns | None:
    """The scores of one cell's rows: of the samples in both, or of all when they share none; None when one has none."""

    def scores(rows: Iterable[Row]) -> dict[Any, float]:
        identified = ((_identity(row), counted_score(row, bounded)) for row in rows)
        return {identity: score for identity, score in identified if score is not None}

    ours, theirs = scores(first), scores(second)
    shared = [identity for identity in ours if identity in theirs]
    if shared:
        return TwoRuns(np.array([ours[i] for i in shared]), np.array([theirs[i] for i in shared]), paired=True)
    if ours and theirs:
        return TwoRuns(np.array(list(ours.values())), np.array(list(theirs.values())), paired=False)
    return None


def _identity(row: Row) -> tuple[str, tuple[str, ...], str]:
    """What two runs' rows must have in common to be the same question."""
    return row.id, tuple(row.references), str(row.meta.get("document", ""))


def _members(
    suite: Mapping[str, Any],
    average: Mapping[str, Any],
    length: int,
    cells: Mapping[tuple[str, int], TwoRuns],
    baseline: Run,
    run: Run,
) -> list[TwoRuns]:
    """The weighted cells of an average at `length`; none unless both runs have the same tasks there."""
    present = {task["name"] for task in suite["tasks"] if (task["name"], length) in cells}
    weights = average_weights(suite, average, present)
    members = present & weights.keys()
    for one in (baseline, run):
        if any(one.by_cell.get((task, length)) for task in weights.keys() - members):
            return []
    pairs = ((task, cells[task, length]) for task in weights if task in members)
    return [TwoRuns(pair.first, pair.second, pair.paired, weights[task]) for task, pair in pairs]
