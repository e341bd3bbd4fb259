"""The run folder: an append-only record of what a model answered.

    manifest.json    everything that decides the numbers ("decides") and what else is worth knowing ("info")
    samples.jsonl    one row per finished sample, written and flushed as it finishes
    nll/<id>.npy     float32 negative log-likelihoods of a logprob sample, written before its row
    scores.json      derived from the two above, see `aggregate`

A row cut by a crash is dropped when the folder is opened again, nothing else is. When a sample was answered twice
(a failed one is tried again on resume) the last row counts.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from longeval.errors import UserError
from longeval.jsontext import parse_json
from longeval.output import writing_to

FORMAT = 1
_MAKE_ROOM = "make room or allow it, then the same command again goes on"


@dataclass(frozen=True)
class Row:
    """One finished sample. `score` is the headline of `scores`; both are empty when `error` says why it failed.

    `prompt_tail`: the last 400 characters of the prompt. `seconds`: wall time of its prediction.
    `truncated`: whether the prompt was cut to fit.
    """

    id: str
    task: str
    length: int
    prompt_tokens: int
    new_tokens: int = 0
    prediction: str | None = None
    references: list[str] = field(default_factory=list)
    score: float | None = None
    scores: dict[str, float] = field(default_factory=dict)
    finish_reason: str | None = None
    error: str | None = None
    seconds: float = 0.0
    truncated: bool = False
    prompt_tail: str = ""
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether the sample has no score that is a finite number."""
        return self.score is None or not math.isfinite(self.score)


_FIELDS = {f.name for f in fields(Row)}
_REQUIRED = {"id", "task", "length", "prompt_tokens"}
_TEXT, _WHOLE, _NUMBER, _NONE = (str,), (int,), (int, float), (type(None),)
_KINDS: dict[str, tuple[type, ...]] = {
    "id": _TEXT,
    "task": _TEXT,
    "length": _WHOLE,
    "prompt_tokens": _WHOLE,
    "new_tokens": _WHOLE,
    "prediction": _TEXT + _NONE,
    "references": (list,),
    "score": _NUMBER + _NONE,
    "scores": (dict,),
    "finish_reason": _TEXT + _NONE,
    "error": _TEXT + _NONE,
    "seconds": _NUMBER,
    "truncated": (bool,),
    "prompt_tail": _TEXT,
    "meta": (dict,),
}

# What no table can be made without.
_TASK = {"name": _TEXT, "category": _TEXT, "metric": _TEXT, "percent": (bool,)}
_AVERAGE = {"name": _TEXT, "over": _TEXT, "members": [_TEXT]}
_SUITE = {
    "name": _TEXT, "title": _TEXT, "unit": _TEXT, "tasks": [_TASK], "all_tasks": [_TASK], "averages": [_AVERAGE],
}  # fmt: skip
_CELL = {
    "task": _TEXT, "length": _WHOLE, "label": _TEXT, "planned": _WHOLE, "fits": (bool,), "smallest": _WHOLE + _NONE,
}  # fmt: skip
_MANIFEST = {
    "decides": {"longeval": _TEXT, "model": (dict,), "tokenizer_hash": _TEXT, "tasks": (dict,)},
    "info": {"model": _TEXT, "suites": [_SUITE], "cells": [_CELL]},
}


def _misshapen(value: Any, shape: Any, where: str = "") -> str | None:
    """The first place in a JSON value that is missing or of another type than `shape` says, or None.

    A shape is a tuple of types, a dict of the shapes of its keys, or a list of the one shape of all items.
    """
    if isinstance(shape, tuple):
        return None if _is(value, shape) else where
    if not isinstance(value, type(shape)):
        return where
    if isinstance(shape, dict):
        parts = [(value.get(key), part, f"{where}.{key}".lstrip(".")) for key, part in shape.items()]
    else:
        parts = [(item, shape[0], f"{where}[{index}]") for index, item in enumerate(value)]
    return next((found for part in parts if (found := _misshapen(*part)) is not None), None)


_AGAIN = "delete this line, and the same run command makes it again"


def _parse_row(line: bytes, where: str) -> Row:
    record = parse_json(line, where, _AGAIN)
    missing = _REQUIRED - record.keys() if isinstance(record, dict) else _REQUIRED
    if missing:
        raise UserError(f"{where}: not a longeval row, it lacks {', '.join(sorted(missing))}; {_AGAIN}")
    wrong = [name for name, kind in _KINDS.items() if name in record and not _is(record[name], kind)]
    if wrong or not _numbers(record.get("scores", {})):
        raise UserError(f"{where}: not a longeval row (wrong type: {', '.join(wrong or ['scores'])}); {_AGAIN}")
    return Row(**{key: value for key, value in record.items() if key in _FIELDS})


def _is(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not (isinstance(value, bool) and bool not in kinds)


def _numbers(scores: dict[str, Any]) -> bool:
    """Whether every score is a number: one that a mean can be taken of, or infinity or NaN, which count as failed."""
    return all(_is(score, _NUMBER) and not 1e100 < abs(score) < math.inf for score in scores.values())


class RunFolder:
    """A run folder for reading. `create_or_resume` gives one for writing, for one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        manifest = path / "manifest.json"
        if not manifest.is_file():
            raise UserError(f"{path} is not a run folder: it has no manifest.json")
        try:
            self.manifest: dict[str, Any] = parse_json(manifest.read_bytes(), str(manifest), "choose another run")
        except OSError as error:
            raise UserError(f"{manifest} cannot be read ({error.strerror}); choose another run") from error
        if not isinstance(self.manifest, dict) or self.manifest.get("format") != FORMAT:
            raise UserError(f"{manifest} is not of run format {FORMAT}, which this version reads")
        if place := _misshapen(self.manifest, _MANIFEST):
            raise UserError(f"{manifest}: {place} is missing or of the wrong type; choose another run")
        if strangers := self._undescribed_tasks():
            raise UserError(f"{manifest} does not describe {', '.join(sorted(strangers))}; choose another run")

    def _undescribed_tasks(self) -> set[str]:
        """Tasks of cells that no suite has, and of suites without a protocol."""
        info = self.manifest["info"]
        tasks: set[str] = {task["name"] for suite in info["suites"] for task in suite["tasks"]}
        planned: set[str] = {cell["task"] for cell in info["cells"]}
        return (planned - tasks) | (tasks - set(self.manifest["decides"]["tasks"]))

    def rows(self) -> dict[str, Row]:
        """The last row of every finished sample, by sample id. A torn last line is ignored."""
        return {row.id: row for row in self._rows()}

    def _rows(self) -> Iterator[Row]:
        path = self.path / "samples.jsonl"
        if not path.is_file():
            return
        planned = {(cell["task"], cell["length"]) for cell in self.manifest["info"]["cells"]}
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    where = f"{path} line {number}"
                    row = _parse_row(line, where)
                    if (row.task, row.length) not in planned:
                        raise UserError(f"{where}: {row.task} at {row.length} is no part of this run; delete this line")
                    yield row

    def nll_path(self, sample_id: str) -> Path:
        """Where the per-token losses of a logprob sample are."""
        return self.path / "nll" / f"{sample_id.replace('/', '_')}.npy"

    def nll(self, sample_id: str) -> npt.NDArray[np.float32]:
        """float32 [tokens]: negative log-likelihood of every scored token."""
        path = self.nll_path(sample_id)
        try:
            array: npt.NDArray[np.float32] = np.load(path)
        except (OSError, EOFError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"{path} cannot be read ({reason}); the same run command again replaces it") from error
        if array.ndim != 1:
            raise UserError(f"{path} is no list of losses; the same run command again replaces it")
        return array

    def has_nll(self, sample_id: str) -> bool:
        """Whether `nll` can be read."""
        try:
            self.nll(sample_id)
        except UserError:
            return False
        return True


class RunWriter(RunFolder):
    """The one writer of a run folder; a context manager that holds its lock."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._lock = self._acquire_lock()
        self._drop_torn_row()
        self._file: IO[str] = (path / "samples.jsonl").open("a", encoding="utf-8")

    def _acquire_lock(self) -> IO[str]:
        lock = (self.path / ".lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.close()
            raise UserError(
                f"another process is writing to {self.path}; wait for it or choose another --out"
            ) from error
        return lock

    def _drop_torn_row(self) -> None:
        path = self.path / "samples.jsonl"
        if not path.is_file():
            return
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(path, whole)

    def append(self, row: Row, nll: npt.NDArray[np.float32] | None = None) -> None:
        """Persists one finished sample: losses first, then its row, flushed. UserError when that fails."""
        with writing_to(self.path, _MAKE_ROOM):
            if nll is not None:
                target = self.nll_path(row.id)
                target.parent.mkdir(exist_ok=True)
                partial = target.with_suffix(".tmp")
                with partial.open("wb") as file:
                    np.save(file, nll)
                partial.replace(target)
            self._file.write(json.dumps(asdict(row), ensure_ascii=False) + "\n")
            self._file.flush()

    def close(self) -> None:
        with suppress(OSError):  # of a row that could not be flushed, and was said to be lost
            self._file.close()
        self._lock.close()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def write_json(path: Path, content: Any) -> None:
    """Writes JSON so that a reader sees the old file or the new one, never half of one. UserError when it cannot."""
    partial = path.with_suffix(path.suffix + ".tmp")
    with writing_to(path, _MAKE_ROOM):
        partial.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
        partial.replace(path)


def create_or_resume(path: Path, decides: dict[str, Any], info: dict[str, Any]) -> RunWriter:
    """Opens `path` for writing: new, or resumed when its manifest agrees in everything that decides the numbers.

    UserError, with the differing keys, when it does not; other errors as in `reserve`.
    """
    with writing_to(path):
        reserve(path)
        if (path / "manifest.json").exists():
            _refuse_difference(path, RunFolder(path).manifest.get("decides", {}), decides)
        else:
            write_json(path / "manifest.json", {"format": FORMAT, "decides": decides, "info": info})
        return RunWriter(path)


def reserve(path: Path) -> None:
    """Makes sure, before any work, that `path` is a folder for a run: new, empty, or a run's.

    UserError when it holds anything else or cannot be made or written.
    """
    with writing_to(path):
        path.mkdir(parents=True, exist_ok=True)
        inside = sorted(file.name for file in path.iterdir() if file.name != ".lock")
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, "no permission")
    if inside and "manifest.json" not in inside:
        raise UserError(f"{path} is no run folder: it holds {inside[0]} and no manifest.json; choose another --out")


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dicts as one, with keys like `tasks.ruler/vt.version`."""
    if isinstance(value, dict) and value:
        pairs = (flatten(item, f"{prefix}.{key}" if prefix else key) for key, item in value.items())
        return {key: item for pair in pairs for key, item in pair.items()}
    return {prefix: value}


def _refuse_difference(path: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    before, now = flatten(old), flatten(json.loads(json.dumps(new)))
    absent = "(absent)"
    differing = [key for key in sorted(before.keys() | now.keys()) if before.get(key, absent) != now.get(key, absent)]
    if differing:
        shown = "; ".join(
            f"{key}: {before.get(key, absent)} there, {now.get(key, absent)} now" for key in differing[:6]
        )
        more = f"; and {len(differing) - 6} more" if len(differing) > 6 else ""
        raise UserError(f"{path} holds a run with another configuration ({shown}{more}); choose another --out")
