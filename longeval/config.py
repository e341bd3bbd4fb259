"""What a run is: the configuration that the command line and the Python API share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from longeval.errors import UserError, nearest
from longeval.tasks.base import TaskOptions

CHOICES = {
    "backend": ("auto", "torch", "vllm"),
    "chat": ("auto", "on", "off"),
    "dtype": ("auto", "float32", "bfloat16", "float16", "float64"),
    "overflow": ("refuse", "truncate-middle"),
}

LONGEST = 2**30  # no benchmark's texts reach further; a typing slip may
MOST_SAMPLES = 1_000_000  # of a cell, likewise


@dataclass(frozen=True)
class RunConfig:
    """A run. Empty `tasks`, `lengths` and None `limit` mean the suites' own defaults (`longeval tasks` shows them).

    `limit`: samples per cell. `limit_tokens`: fewer, but one at least, where they times the cell's length would be more
    than this. `overflow`: what happens to prompts of more than `options.max_length` tokens: "refuse" the run before it
    starts, or "truncate-middle" and count it. `trained_length`: the trained window to mark where the checkpoint does
    not say it. `vllm`: engine arguments KEY=VALUE of that backend. `out`: the run folder.
    """

    model: str
    suites: tuple[str, ...]
    tasks: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()
    limit: int | None = None
    limit_tokens: int | None = None
    seed: int = 0
    backend: str = "auto"
    dtype: str = "auto"
    device: str = "auto"
    chat: str = "auto"
    overflow: str = "refuse"
    trained_length: int | None = None
    vllm: tuple[str, ...] = ()
    out: Path | None = None
    options: TaskOptions = field(default_factory=TaskOptions)

    def __post_init__(self) -> None:
        if not self.suites:
            raise UserError("no suite chosen: name one, for example --suite ruler")
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise UserError(f"--{name} {value!r} is not known{nearest(value, allowed)}")
        for name, value in self._counts().items():
            if value is not None and value < 1:
                raise UserError(f"--{name} must be at least 1, not {value}")
        if self.limit is not None and self.limit > MOST_SAMPLES:
            raise UserError(f"--limit must be at most {MOST_SAMPLES:,} samples per cell, not {self.limit:,}")
        if self.seed < 0:
            raise UserError(f"--seed must not be negative, but is {self.seed}")
        if any(length < 0 for length in self.lengths):
            raise UserError("--lengths must not be negative")

    def _counts(self) -> dict[str, int | None]:
        return {
            "limit": self.limit,
            "limit-tokens": self.limit_tokens,
            "max-length": self.options.max_length,
            "trained-length": self.trained_length,
        }


def parse_length(text: str) -> int:
    """`4k` and `4K` are 4096, `1m` is 1048576, `1000` is itself; `0k` is BABILONG's length without noise."""
    match = re.fullmatch(r"(\d{1,12})([kKmM]?)", text.strip())
    if not match:
        raise UserError(f"length {text!r} is not understood: write 4096 or 4k (= 4096)")
    length = int(match[1]) * {"": 1, "k": 1024, "m": 1024**2}[match[2].lower()]
    if length > LONGEST:
        raise UserError(f"length {text!r} is more than {LONGEST:,} tokens; choose a shorter one")
    return length


def split_list(values: Sequence[str]) -> tuple[str, ...]:
    """Comma-separated and repeated options as one tuple, order kept, doubles dropped."""
    items = (item.strip() for value in values for item in value.split(","))
    return tuple(dict.fromkeys(item for item in items if item))


def parse_lengths(values: Sequence[str] | None) -> tuple[int, ...]:
    """`--lengths` as given; None means the tasks' own lengths, an empty list is an error."""
    if values is None:
        return ()
    lengths = tuple(parse_length(length) for length in split_list(values))
    if not lengths:
        raise UserError("--lengths names no length: write for example --lengths 4k,8k")
    return lengths
