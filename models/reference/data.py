"""Training sequences of the reference checkpoints: documents, fitted and packed into rows.

    python -m longeval.models.reference.data DATA

writes ROWS[length] rows of `length` + 1 tokens for each length. A row is cut into cells of equal size, each with a
document behind a BOS that is about as long as fits; what is left is filled with text. A row depends on its length and
number and on nothing else. The first HELD_OUT of each length are for validation only. In the folder are the tokenizer's
tokenizer.json and, for each length:

    tokens-LENGTH.npy  uint16 [rows, length + 1]
    labels-LENGTH.npy  uint8  [rows, length + 1]   what a token is, as its place in LABELS
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from longeval.errors import UserError
from longeval.models.reference import TRAINED_LENGTH, tokenizer
from longeval.models.reference.documents import KINDS, TEXT_SHARES, Document, Kind, texts
from longeval.tasks.rng import sample_rng

ROWS = {32: 131_072, 128: 65_536, TRAINED_LENGTH: 49_152}
HELD_OUT = 256
# sizes of their cells, and how often
_CELLS = {32: ((32,), (1,)), 128: ((128,), (1,)), TRAINED_LENGTH: ((512, 256, 128), (2, 1, 1))}
_TEXT_SHARE = 0.08  # of what is in cells
_BLOCK = 1024  # rows that a worker makes at a time
LABELS = ("prompt", "text", *KINDS)  # what a token is: to be read only, or to be predicted in a text or as an answer
PROMPT, TEXT = 0, 1

Pair = tuple[list[int], list[int]]  # token ids, labels
Row = tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint8]]


@lru_cache(maxsize=1)
def _backend() -> Any:
    return tokenizer.load().backend_tokenizer


def encode(document: Document, label: int) -> Pair:
    """Token ids behind a BOS, and their labels: `label` where a token begins inside an answer."""
    encoding = _backend().encode(document.text)
    starts = [start for start, _ in encoding.offsets]
    labels = [PROMPT] * len(starts)
    token = 1  # the BOS is no answer
    for first, last in document.answers:
        while token < len(starts) and starts[token] < first:
            token += 1
        while token < len(starts) and starts[token] < last:
            labels[token] = label
            token += 1
    return encoding.ids, labels


def fitted(kind: Kind, label: int, seed: int, room: int) -> Pair:
    """A document of at most `room` tokens, about as long as fits; nothing when the kind's smallest is longer."""
    units = max(1, int((room - kind.rest) / kind.unit))
    while True:
        ids, labels = encode(kind.make(random.Random(seed), units), label)
        if len(ids) <= room:
            return ids, labels
        if units == 1:
            return [], []
        units = max(1, units - max(1, int((len(ids) - room) / kind.unit)))


@lru_cache(maxsize=len(TEXT_SHARES))
def _text_tokens(number: int) -> npt.NDArray[np.uint16]:
    """All tokens of one of `texts`."""
    return np.array(_backend().encode(texts()[number], add_special_tokens=False).ids, np.uint16)


def _text(rng: random.Random, room: int) -> Pair:
    """A stretch of one of `texts` behind a BOS."""
    source = _text_tokens(rng.choices(range(len(TEXT_SHARES)), TEXT_SHARES)[0])
    start = rng.randrange(len(source) - room)
    return [tokenizer.BOS, *source[start : start + room - 1].tolist()], [PROMPT, *[TEXT] * (room - 1)]


def _document(rng: random.Random, room: int) -> Pair:
    """A document of some kind that fits."""
    kinds = [name for name, kind in KINDS.items() if kind.smallest <= room]
    while True:
        kind, seed = rng.choices(kinds, [KINDS[kind].share for kind in kinds])[0], rng.getrandbits(64)
        ids, labels = fitted(KINDS[kind], LABELS.index(kind), seed, room)
        if ids:
            return ids, labels


def make_row(length: int, number: int) -> Row:
    """Tokens and labels of a row."""
    rng = sample_rng(f"reference/{length}/{number}")
    cell = rng.choices(*_CELLS[length])[0]
    ids: list[int] = []
    labels: list[int] = []
    for _ in range(length // cell):
        some, of = _text(rng, cell) if rng.random() < _TEXT_SHARE else _document(rng, cell)
        ids, labels = ids + some, labels + of
    some, of = _text(rng, length + 1 - len(ids))
    return np.array(ids + some, np.uint16), np.array(labels + of, np.uint8)


def make_rows(length: int, start: int, stop: int) -> Row:
    """Rows start:stop, stacked."""
    tokens, labels = zip(*(make_row(length, number) for number in range(start, stop)), strict=True)
    return np.stack(tokens), np.stack(labels)


def row_files(folder: Path, length: int) -> tuple[Path, Path]:
    """Tokens and labels of all rows of a length."""
    return folder / f"tokens-{length}.npy", folder / f"labels-{length}.npy"


def write(folder: Path, rows: Mapping[int, int], workers: int | None = None) -> None:
    """Makes `rows`, a number for each length, on `workers` processes (all cores by default)."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(tokenizer.FILE, folder / tokenizer.FILE.name)
    for number in range(len(texts())):
        _text_tokens(number)  # once, for all workers that are forked
    with ProcessPoolExecutor(workers) as pool:
        for length, count in rows.items():
            starts = range(0, count, _BLOCK)
            stops = [min(start + _BLOCK, count) for start in starts]
            tokens, labels = zip(*pool.map(make_rows, [length] * len(stops), starts, stops), strict=True)
            for file, parts in zip(row_files(folder, length), (tokens, labels), strict=True):
                with open(f"{file}.new", "wb") as new:
                    np.save(new, np.concatenate(parts))
            for file in row_files(folder, length):
                os.replace(f"{file}.new", file)


def read(folder: Path, length: int) -> Row:
    """Tokens and labels of all rows of a length. UserError when they are missing or damaged, or another tokenizer's."""
    again = f"python -m longeval.models.reference.data {folder}"
    files = row_files(folder, length)
    for file in (*files, folder / tokenizer.FILE.name):
        if not file.is_file():
            raise UserError(f"no {file}: {again}")
    if (folder / tokenizer.FILE.name).read_bytes() != tokenizer.FILE.read_bytes():
        raise UserError(f"{folder} holds tokens of another tokenizer than {tokenizer.FILE}: {again}")
    try:
        tokens, labels = map(np.load, files)
    except (ValueError, EOFError) as error:
        raise UserError(f"{files[0]} or {files[1].name} is damaged ({error}): {again}") from None
    if not tokens.shape == labels.shape == (len(tokens), length + 1):
        raise UserError(f"{files[0]} and {files[1].name} have no rows of {length} + 1 tokens in common: {again}")
    return tokens, labels


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    try:
        write(parser.parse_args().folder, ROWS)
    except OSError as error:
        parser.error(str(error))
