"""Loss by position, checkpoints side by side: per bucket of positions and cumulative (see `positions`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from longeval.results.grid import Entry, Grid, Line
from longeval.results.positions import PositionLoss, Span, run_positions
from longeval.results.runs import Run
from longeval.results.statistics import Mean, student_interval
from longeval.results.tables import interval, number, record, runs_by_window, short_name

Place = tuple[str, int]  # task, length


def positions_by_place(runs: Iterable[Run]) -> dict[Place, dict[str, PositionLoss]]:
    """The loss by position of every task and length that has documents, by run label."""
    found: dict[Place, dict[str, PositionLoss]] = {}
    for run in runs:
        for place, loss in run_positions(run.folder).items():
            found.setdefault(place, {})[run.label] = loss
    return found


def position_grids(runs: Sequence[Run]) -> list[Grid]:
    """Two tables for every task and length that has documents: lines are positions, columns checkpoints."""
    windows = {run.label: run.info.get("trained_length") for run in runs}
    return [
        grid
        for place, losses in positions_by_place(runs).items()
        for grid in (
            _grid(place, "per bucket", losses, {label: loss.buckets for label, loss in losses.items()}, windows),
            _grid(place, "cumulative", losses, {label: loss.prefixes for label, loss in losses.items()}, windows),
        )
    ]


def _grid(
    place: Place,
    kind: str,
    losses: Mapping[str, PositionLoss],
    spans: Mapping[str, Sequence[Span]],
    windows: Mapping[str, int | None],
) -> Grid:
    by_run = {label: {(span.first, span.last): span for span in of_run} for label, of_run in spans.items()}
    rows = sorted({bounds for of_run in by_run.values() for bounds in of_run})
    reached = {label: n for label in losses if (n := windows[label]) is not None and n < losses[label].last}
    lines = []
    for first, last in rows:
        found = {label: of_run.get((first, last)) for label, of_run in by_run.items()}
        values = {span.loss for span in found.values() if span is not None}
        best = min(values) if len(values) > 1 else None
        entries = [_entry(place, kind, label, span, losses[label], best) for label, span in found.items()]
        star = "*" if any(last > window for window in reached.values()) else ""
        lines.append(Line((f"{first:,}–{last:,}{star}",), entries))
    task, length = place
    notes = [f"{documents_note(losses)} · loss (nats per token) with 95 % intervals"]
    notes += _window_notes(reached, everyone=len(reached) == len(losses))
    return Grid(f"{task} · {length:,} tokens · loss by position, {kind}", ("positions",), list(losses), [lines], notes)


def _window_notes(reached: Mapping[str, int], everyone: bool) -> list[str]:
    """What stars mean, once for all runs with the same trained window."""
    runs = runs_by_window(reached)
    if everyone and len(runs) == 1:
        return [f"* beyond the trained window of {next(iter(runs)):,} tokens"]
    return [f"* beyond the trained window of {', '.join(labels)}, {window:,} tokens" for window, labels in runs.items()]


def documents_note(losses: Mapping[str, PositionLoss]) -> str:
    """How many documents each run's losses are over, said once where it is the same."""
    counts = {label: f"n = {loss.documents} documents" for label, loss in losses.items()}
    if len(set(counts.values())) == 1:
        return next(iter(counts.values()))
    return ", ".join(f"{label}: {count}" for label, count in counts.items())


def _entry(place: Place, kind: str, label: str, span: Span | None, loss: PositionLoss, best: float | None) -> Entry:
    if span is None:
        return Entry()
    low, high = student_interval(span.loss, span.standard_error, loss.documents - 1.0)
    mean = Mean(span.loss, span.standard_error, low, high)
    (suite, _, _), short = place[0].partition("/"), short_name(place[0])
    perplexity = span.perplexity if math.isfinite(span.perplexity) else None
    more = {"n": loss.documents, "first": span.first, "last": span.last, "perplexity": perplexity}
    figures = record(label, suite, kind, short, place[1], "", mean, percent=False, **more)
    return Entry(
        number(span.loss, percent=False), interval(mean, percent=False), best=span.loss == best, record=figures
    )
