"""Scoring a predictions file by the official rules, without a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonlines

from longeval.errors import UserError
from longeval.results.tables import PredictionScore
from longeval.tasks import Sample, Task, get_task
from longeval.tasks.rows import DataRow, json_lines

_FIELDS = ("task", "prediction", "references")


def score_file(file: Path, out: Path | None = None) -> list[PredictionScore]:
    """Scores JSONL rows `{"task", "prediction", "references", ...}`; `out` gets the same rows with `score`.

    UserError names file and line of anything that is not a scoreable row; nothing is written then.
    """
    scored, written = [], []
    tasks: dict[str, Task] = {}
    for data in _read(file):
        try:
            result, row = _score(data.record, tasks)
        except UserError as error:
            raise UserError(f"{data.where}: {error}") from error
        scored.append(result)
        written.append(row)
    if not scored:
        raise UserError(f"{file} has no rows")
    if out is not None:
        try:
            with jsonlines.open(out, "w") as writer:
                writer.write_all(written)
        except OSError as error:
            raise UserError(f"cannot write {out} ({error.strerror}); choose another --out") from error
    return scored


def _read(file: Path) -> Iterator[DataRow]:
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"cannot read {file} ({error.strerror})") from error
    return json_lines(lines, str(file))


def _score(record: Mapping[str, Any], tasks: dict[str, Task]) -> tuple[PredictionScore, dict[str, Any]]:
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
    label = "all" if length is None else task.length_label(length)
    result = PredictionScore(name, length, label, headline, empty=not prediction.strip())
    return result, {**record, "score": headline, "scores": scores}


def _length(value: Any, task: Task) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UserError(f"length must be a whole number, not {value!r}")
    return task.bucket(value)
