"""Loss by position: from the per-token losses of documents to curves, buckets and their uncertainty.

Losses are natural logarithms per token. Every average is one of losses, in float64, over documents that all have the
same positions; perplexities are exponentials of averages, never averages of perplexities. Three views, as they look
different past the trained length (a cumulative curve hides a late blow-up):

- the loss at each position, smoothed by a centred moving average of 101 positions that is cut at the ends (FoX, arXiv
  2503.02130, its left plot);
- the perplexity of each bucket of 2,048 positions (as in flash-linear-attention), smaller ones for short documents;
- the cumulative perplexity of the first l positions, at powers of two (FoX's right plot).

A standard error is s / √n over the documents' own averages (s from n - 1); None with fewer than two documents.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from longeval.errors import UserError
from longeval.results.store import Row, RunFolder

Array = npt.NDArray[np.float64]

WINDOW = 101
BUCKET = 2048
_SHORTEST_PREFIX = 128  # below it a cumulative average is mostly noise
_CURVE_POINTS = 512


@dataclass(frozen=True)
class Span:
    """The average over positions `first` ... `last`, both counted. `loss` in nats per token."""

    first: int
    last: int
    loss: float
    standard_error: float | None

    @property
    def perplexity(self) -> float:
        """exp(loss); infinite where that exceeds a float."""
        try:
            return math.exp(self.loss)
        except OverflowError:
            return math.inf


@dataclass(frozen=True)
class PositionLoss:
    """Loss by position of `documents` documents; `mean` and `standard_error` are float64 [positions].

    `first`: the position of the first entry, from 1 (2 where there was no token before the first one to predict it).
    `buckets`, `prefixes`: the averages of the second and third view; the last prefix is the whole length.
    `bits_per_byte`: all losses in bits over all bytes. `left_out`: documents that were too short.
    """

    documents: int
    left_out: int
    first: int
    mean: Array
    buckets: list[Span]
    prefixes: list[Span]
    bits_per_byte: float | None

    @property
    def last(self) -> int:
        return self.first + len(self.mean) - 1

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        """int64 [positions]: first ... last."""
        return np.arange(self.first, self.last + 1)

    @property
    def total(self) -> Span:
        """The average over every position."""
        return self.prefixes[-1]

    def smoothed(self, window: int = WINDOW) -> Array:
        """float64 [positions]: mean loss of the `window` positions around each one, fewer at the ends."""
        return moving_average(self.mean, window)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; the smoothed curve thinned to some 512 points (the loss files have them all)."""

        def span(of: Span) -> dict[str, Any]:
            return {
                "first": of.first,
                "last": of.last,
                "loss": of.loss,
                "standard_error": of.standard_error,
                "perplexity": of.perplexity if math.isfinite(of.perplexity) else None,  # JSON knows no infinity
            }

        step = max(1, len(self.mean) // _CURVE_POINTS)
        return {
            "documents": self.documents,
            "left_out": self.left_out,
            "bits_per_byte": self.bits_per_byte,
            "total": span(self.total),
            "buckets": [span(bucket) for bucket in self.buckets],
            "cumulative": [span(prefix) for prefix in self.prefixes],
            "smoothed": {
                "window": WINDOW,
                "positions": self.positions[::step].tolist(),
                "loss": self.smoothed()[::step].tolist(),
            },
        }


def moving_average(values: Array, window: int) -> Array:
    """Mean of the `window` values centred on each one; at the ends, of those that exist. `window` is odd."""
    if window % 2 == 0:
        raise ValueError(f"a centred window has an odd size, not {window}")
    half = window // 2
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    low, high = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    averages: Array = (sums[high] - sums[low]) / (high - low)
    return averages


def bucket_size(length: int) -> int:
    """2,048; where two do not fit, the largest power of two of which eight fit in `length` (16 at least)."""
    return BUCKET if length >= 2 * BUCKET else max(16, 1 << max(0, (length // 8).bit_length() - 1))


def loss_by_position(
    losses: Iterable[npt.NDArray[np.floating]],
    *,
    first: int = 1,
    bytes_total: int | None = None,
    left_out: int = 0,
    bucket: int | None = None,
) -> PositionLoss:
    """Averages the `losses` of documents, arrays of one length whose first entry is position `first`.

    `bytes_total`: UTF-8 bytes of all scored text, for bits per byte. `bucket`: its size, by default `bucket_size`.
    One document is in memory at a time. UserError when there are none, or they differ in length.
    """
    total: Array | None = None
    bounds: list[tuple[int, int]] = []
    spans: list[Array] = []
    for loss in losses:
        document = np.asarray(loss, dtype=np.float64)
        if not len(document):
            raise UserError("a document without losses cannot be averaged by position")
        if total is None:
            total = np.zeros(len(document))
            last = first + len(document) - 1
            buckets = _bucket_bounds(first, last, bucket or bucket_size(last))
            bounds = buckets + _prefix_bounds(first, last)
        if len(document) != len(total):
            raise UserError(f"documents of {len(total):,} and {len(document):,} losses cannot be averaged by position")
        total += document
        sums = np.concatenate([[0.0], np.cumsum(document)])
        spans.append(np.array([(sums[b - first + 1] - sums[a - first]) / (b - a + 1) for a, b in bounds]))
    if total is None:
        raise UserError("no document has losses to average")
    averaged = [_span(a, b, values) for (a, b), values in zip(bounds, np.stack(spans).T, strict=True)]
    bits = float(total.sum()) / math.log(2) / bytes_total if bytes_total else None
    return PositionLoss(
        documents=len(spans),
        left_out=left_out,
        first=first,
        mean=total / len(spans),
        buckets=averaged[: len(buckets)],
        prefixes=averaged[len(buckets) :],
        bits_per_byte=bits,
    )


def _bucket_bounds(first: int, last: int, size: int) -> list[tuple[int, int]]:
    """Positions 1 ... size, size + 1 ... 2 size, and so on; the first and the last may be shorter."""
    return [
        (max(start, first), min(start + size - 1, last)) for start in range(1, last + 1, size) if start + size > first
    ]


def _prefix_bounds(first: int, last: int) -> list[tuple[int, int]]:
    ends = [1 << power for power in range(_SHORTEST_PREFIX.bit_length() - 1, last.bit_length())]
    return [(first, end) for end in sorted({end for end in ends if first <= end < last} | {last})]


def _span(first: int, last: int, values: Array) -> Span:
    """`values`: the average of each document."""
    error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None
    return Span(first, last, float(values.mean()), error)


def run_positions(folder: RunFolder) -> dict[tuple[str, int], PositionLoss]:
    """Loss by position of every task and length of a run whose samples are documents, failed ones left out."""
    cells: dict[tuple[str, int], list[Row]] = {}
    for row in folder.rows().values():
        if "first_position" in row.meta and not row.failed:
            cells.setdefault((row.task, row.length), []).append(row)
    return {cell: _cell(folder, rows) for cell, rows in cells.items()}


def _cell(folder: RunFolder, rows: Sequence[Row]) -> PositionLoss:
    return loss_by_position(
        (folder.nll(row.id) for row in rows),
        first=rows[0].meta["first_position"],
        bytes_total=sum(row.meta["bytes"] for row in rows),
        left_out=max(row.meta["left_out"] for row in rows),
    )


def positions_table(loss: PositionLoss, title: str, trained_length: int | None = None) -> RenderableType:
    """Two tables, per bucket and cumulative, side by side where that fits; a star is beyond the trained length."""
    per_bucket = _table("per bucket", loss.buckets, trained_length)
    cumulative = _table("cumulative", loss.prefixes, trained_length)
    counts = f"n = {loss.documents} documents, {loss.left_out} too short and left out"
    notes = [f"{counts} · loss in nats per token ± standard error"]
    if loss.bits_per_byte is not None:
        notes.append(f"{loss.bits_per_byte:.4f} bits per byte")
    if trained_length is not None and trained_length < loss.last:
        notes.append(f"* reaches beyond the trained window of {trained_length:,} tokens")
    tables = Columns([per_bucket, cumulative], padding=(0, 4))
    return Group(Text(title, style="italic"), tables, Text("\n".join(notes) + "\n", style="dim"))


def _table(title: str, spans: Sequence[Span], trained_length: int | None) -> Table:
    table = Table(title=title, title_justify="left", pad_edge=False)
    for column in ("positions", "loss", "perplexity"):
        table.add_column(column, justify="right", no_wrap=True)
    for span in spans:
        beyond = "*" if trained_length is not None and span.last > trained_length else ""
        error = "" if span.standard_error is None else f"±{span.standard_error:.4f}"
        table.add_row(f"{span.first:,}–{span.last:,}{beyond}", f"{span.loss:.4f}{error}", f"{span.perplexity:.3f}")
    return table
