"""Built samples on disk: a second model with the same tokenizer, or a second run, builds nothing.

An entry is one cell, named by what decides its samples: task, protocol version, tokenizer, chat markup, corpora and
options, length and seed. It is a folder of segments, one file for each range of samples that was built in one go, so
that asking for more builds only the rest. A file appears whole or not at all, checksums guard it, and a damaged one is
built again. When all entries exceed the limit ($LONGEVAL_CACHE_GB, 10 by default) the least recently used go.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

import longeval
from longeval.errors import UserError
from longeval.paths import cache_dir
from longeval.tasks.base import Sample, Shot, Task
from longeval.tasks.prompt import Prompter, shared_ids

_FORMAT = 1
_CHECKSUM = 16  # bytes
_HASHES: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def build_cached(
    task: Task, tokenizer: Any, length: int, count: int, seed: int = 0, chat: bool = False
) -> list[Sample]:
    """What `task.build` gives: read from the cache as far as it is there, the rest built and kept. Raises what `build`
    raises, and UserError when the cache cannot be written."""
    entry = _folder() / entry_name(task, tokenizer, length, seed, chat)
    samples: list[Sample] = []
    while len(samples) < count:
        start, stop = len(samples), count
        found = None
        if segment := _longest_segment(entry, start):
            stop, found = _stop(segment), read_segment(segment)
            if found is None:
                segment.unlink(missing_ok=True)
        if found is None:
            stop = count
            found = task.build_range(tokenizer, length, range(start, stop), seed, chat=chat)
            _store(entry, start, stop, found)
        samples += found
        if len(found) < stop - start:  # the task has no more
            break
    with suppress(OSError):  # gone, or in a cache that may only be read
        os.utime(entry)
    return samples[:count]


def entry_name(task: Task, tokenizer: Any, length: int, seed: int, chat: bool) -> str:
    """The cell in words, and a digest of everything that decides its samples."""
    decides = {
        "format": _FORMAT,
        "longeval": longeval.__version__,
        "task": task.name,
        "version": task.version,
        "fingerprint": task.fingerprint(),
        "tokenizer": tokenizer_hash(tokenizer),
        "prompt": Prompter(tokenizer, chat).identity(),
        "length": length,
        "seed": seed,
    }
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
    return f"{task.suite}-{task.short_name}-{length}-{digest[:24]}"


def tokenizer_hash(tokenizer: Any) -> str:
    """First 16 hex digits of the SHA-256 of all that a tokenizer does to text; "none" without a tokenizer."""
    if tokenizer is None:
        return "none"
    if tokenizer not in _HASHES:
        _HASHES[tokenizer] = hashlib.sha256(_definition(tokenizer).encode()).hexdigest()[:16]
    return _HASHES[tokenizer]


def _definition(tokenizer: Any) -> str:
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        parts: Any = [type(tokenizer).__name__, tokenizer.get_vocab(), tokenizer.init_kwargs]
        return json.dumps([parts, special], sort_keys=True, default=str)
    definition = json.loads(tokenizer.backend_tokenizer.to_str())
    for state in ("truncation", "padding"):  # left behind by whoever used it last
        definition.pop(state, None)
    return json.dumps([definition, special], sort_keys=True)


# ---- entries


def _folder() -> Path:
    return cache_dir() / "samples"


def _stop(segment: Path) -> int:
    return int(segment.stem.partition("-")[2])


def _longest_segment(entry: Path, start: int) -> Path | None:
    """The file of samples from `start` on; the one that reaches furthest when there are several."""
    return max(entry.glob(f"{start}-*.samples"), key=_stop, default=None)


def _store(entry: Path, start: int, stop: int, samples: Sequence[Sample]) -> None:
    try:
        entry.mkdir(parents=True, exist_ok=True)
        write_segment(entry / f"{start}-{stop}.samples", samples)
        _shrink(keep=entry)
    except OSError as error:
        where = f"the cache {cache_dir()} ({error.strerror})"
        raise UserError(f"cannot write {where}; make room, or set LONGEVAL_CACHE to another folder") from error


def limit_bytes() -> int:
    """The most that all entries may take."""
    text = os.environ.get("LONGEVAL_CACHE_GB", "10")
    try:
        limit = float(text)
    except ValueError:
        limit = -1.0
    if not limit >= 0:
        raise UserError(f"LONGEVAL_CACHE_GB must be a number of gigabytes, not {text!r}")
    return int(min(limit, 1e9) * 1e9)


def _shrink(keep: Path) -> None:
    """Removes the least recently used entries until the rest is within the limit; never `keep`."""
    entries = []
    for entry in _folder().iterdir():
        try:
            entries.append((entry.stat().st_mtime, sum(file.stat().st_size for file in entry.iterdir()), entry))
        except OSError:  # another process has just removed it
            continue
    excess = sum(size for _, size, _ in entries) - limit_bytes()
    for _, size, entry in sorted(entries):
        if excess <= 0:
            break
        if entry != keep:
            shutil.rmtree(entry, ignore_errors=True)
            excess -= size


# ---- one segment: a checksum, then the samples as compressed JSON lines and their ids as one array


def write_segment(path: Path, samples: Sequence[Sample]) -> None:
    """Writes `samples` to `path` as a whole."""
    rows = []
    for sample in samples:
        row = {name: value for name, value in vars(sample).items() if name != "ids"}
        row["shots"] = [asdict(shot) for shot in sample.shots]
        if json.loads(json.dumps(sample.meta)) != sample.meta:
            raise TypeError(f"{sample.id}: meta is not plain JSON")
        rows.append(json.dumps(row))
    content = io.BytesIO()
    np.savez(
        content,
        ids=np.concatenate([np.zeros(0, np.int32), *(np.asarray(sample.ids, np.int32) for sample in samples)]),
        lengths=np.asarray([len(sample.ids) for sample in samples], np.int64),
        rows=np.frombuffer(zlib.compress("\n".join(rows).encode(), level=1), np.uint8),
    )
    partial = path.with_name(f"{path.stem}.{os.getpid()}.part")
    with partial.open("wb") as file:
        file.write(_checksum(content.getbuffer()))
        file.write(content.getbuffer())
    partial.replace(path)


def read_segment(path: Path) -> list[Sample] | None:
    """The samples of a segment; None when the file is damaged or gone."""
    try:
        whole = memoryview(path.read_bytes())
    except OSError:
        return None
    checksum, content = whole[:_CHECKSUM], whole[_CHECKSUM:]
    if checksum != _checksum(content):
        return None
    with np.load(io.BytesIO(content)) as arrays:
        ids, lengths, text = arrays["ids"], arrays["lengths"], arrays["rows"]
    if not len(lengths):
        return []
    rows = zlib.decompress(text.tobytes()).decode().split("\n")
    parts = np.split(ids, np.cumsum(lengths)[:-1])
    return [_sample(json.loads(row), part.tolist()) for row, part in zip(rows, parts, strict=True)]


def _checksum(content: memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=_CHECKSUM).digest()


def _sample(row: dict[str, Any], ids: list[int]) -> Sample:
    shots = tuple(Shot(**shot) for shot in row.pop("shots"))
    return Sample(**{**row, "stop": tuple(row["stop"]), "shots": shots, "ids": shared_ids(ids)})
