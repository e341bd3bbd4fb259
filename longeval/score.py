"""Scoring a predictions file by the official rules, without a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonlines
from rich.console import Group, RenderableType

from longeval.errors import UserError
from longeval.output import writing_to
from longeval.plan import suite_info
from longeval.results.aggregate import aggregate
from longeval.results.grid import Grid
from longeval.results.store import Row
from longeval.results.tables import run_grids
from longeval.tasks import Sample, Task, TaskOptions, get_task, select_tasks
from longeval.tasks.rows import DataRow, json_lines

_FIELDS = ("task", "prediction", "references")


@dataclass(frozen=True)
class Scored:
    """A `row` of a predictions file as a run would have it. `label`: of its length, None where it has none.

    `written`: the row as it came, with its scores.
    """

    row: Row
    label: str | None
    written: dict[str, Any]


def score_file(file: Path, out: Path | None = None) -> RenderableType:
    """Scores JSONL rows `{"task", "prediction", "references", ...}`: the tables of a run that answered so.

    `out` gets the same rows with `score`. UserError names file and line of anything that is not a scoreable row;
    nothing is written then.
    """
    tasks: dict[str, Task] = {}
    scored = []
    for data in _read(file):
        try:
            scored.append(_score(data, tasks))
        except UserError as error:
            raise UserError(f"{data.where}: {error}") from error
    if not scored:
        raise UserError(f"{file} has no rows")
    parts = ([one for one in scored if (one.label is None) is missing] for missing in (False, True))
    tables = [_tables(file.name, part) for part in parts if part]
    if out is not None:
        with writing_to(out), jsonlines.open(out, "w") as writer:
            writer.write_all(one.written for one in scored)
    return Group(*tables)


def _read(file: Path) -> Iterator[DataRow]:
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"cannot read {file} ({error.strerror})") from error
    return json_lines(lines, str(file))


def _score(data: DataRow, tasks: dict[str, Task]) -> Scored:
    record = data.record
    if missing := [name for name in _FIELDS if name not in record]:
        raise UserError(f"the row lacks {', '.join(missing)}")
    name, prediction, references = (record[field] for field in _FIELDS)
    if not isinstance(name, str) or not isinstance(prediction, str):
        raise UserError("task and prediction must be strings")
    if not isinstance(references, list) or not all(isinstance(reference, str) for reference in references):
        raise UserError('references must be a list of strings, for example ["1234567"]')
    if not any(references):
        raise UserError("references is empty: there is nothing to score against")
    task = tasks.setdefault(name, get_task(name))
    length = _length(record.get("length"), task)
    meta = {key: value for key, value in record.items() if key not in (*_FIELDS, "length")}
    sample = Sample(id="", task=name, length=length or 0, prompt="", ids=(), references=references, meta=meta)
    scores = task.score(prediction, sample)
    headline = next(iter(scores.values()))
    row = Row(data.where, name, length or 0, 0, prediction=prediction, score=headline, scores=scores)
    label = None if length is None else task.length_label(length)
    return Scored(row, label, {**record, "score": headline, "scores": scores})


def _length(value: Any, task: Task) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UserError(f"length must be a whole number, not {value!r}")
    return task.bucket(value)


def _tables(name: str, scored: Sequence[Scored]) -> RenderableType:
    """Tables of rows that all have a length, or all have none."""
    suites = list(dict.fromkeys(get_task(one.row.task).suite for one in scored))
    tasks = select_tasks(suites, list({one.row.task for one in scored}), TaskOptions())
    described = [suite_info(suite, tasks) for suite in suites]
    if scored[0].label is None:
        described = [{**suite, "effective_threshold": None} for suite in described]  # no length to be effective at
    counts = Counter((one.row.task, one.row.length, one.label or "all") for one in scored)
    cells = [
        {"task": task, "length": length, "label": label, "planned": count, "fits": True, "smallest": None}
        for (task, length, label), count in counts.items()
    ]
    manifest = {"info": {"model": name, "trained_length": None, "suites": described, "cells": cells}}
    grids = run_grids(manifest, aggregate(manifest, [one.row for one in scored]))
    return Group(*(replace(grid, notes=[*grid.notes, _means(grid)]) for grid in grids))


def _means(grid: Grid) -> str:
    """The means in the digits of LongBench's result.json and RULER's summary.csv, to hold against published ones."""
    lines = []
    for line in grid.lines:
        means = [entry.record["score"] if entry.record else None for entry in line.entries]
        lines.append(f"{line.labels[0]} " + " / ".join("–" if mean is None else f"{mean:.2f}" for mean in means))
    return "means to two digits: " + ", ".join(lines)
