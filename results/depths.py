"""Accuracy by depth: where in the context an answer stands, against the context's length.

Tasks put `depths` in a sample's `meta`: percents of the context, 0 its beginning, one for every needle or supporting
fact. A sample with several of them counts at each with its whole score, as rows do not say which one was missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from longeval.errors import UserError
from longeval.results.aggregate import counted_score
from longeval.results.store import Row

_BINS = (10, 5, 2)


@dataclass(frozen=True)
class DepthGrid:
    """One task's mean scores by depth and length. `means[length][bin]` is None where no sample falls; `counts` alike.

    `depths`: the bins' names, in percent. `several`: whether some sample has more than one depth.
    """

    depths: list[str]
    means: dict[int, list[float | None]]
    counts: dict[int, list[int]]
    several: bool

    @property
    def lengths(self) -> list[int]:
        return list(self.means)


def depth_grids(by_cell: Mapping[tuple[str, int], Sequence[Row]]) -> dict[str, DepthGrid]:
    """The grid of every task whose samples have depths."""
    tasks: dict[str, dict[int, list[Row]]] = {}
    for (task, length), rows in sorted(by_cell.items(), key=lambda item: item[0][1]):
        if positional := [row for row in rows if _depths(row)]:
            tasks.setdefault(task, {})[length] = positional
    return {task: _grid(by_length) for task, by_length in tasks.items()}


def depths_note(grids: Iterable[DepthGrid]) -> str:
    """What a reader of the pictures has to know."""
    several = any(grid.several for grid in grids)
    return "blank: no sample" + (
        "; a sample with several depths counts at each with its whole score" if several else ""
    )


def _grid(by_length: Mapping[int, Sequence[Row]]) -> DepthGrid:
    """In as many bins as a length has depths on average, so that few fields stay empty."""
    places = sum(len(_depths(row)) for rows in by_length.values() for row in rows)
    bins = next((bins for bins in _BINS if places >= bins * len(by_length)), _BINS[-1])
    means: dict[int, list[float | None]] = {}
    counts: dict[int, list[int]] = {}
    for length, rows in by_length.items():
        sums, counts[length] = [0.0] * bins, [0] * bins
        for row in rows:
            for depth in _depths(row):
                index = min(bins - 1, int(depth * bins // 100))
                sums[index] += counted_score(row, bounded=True) or 0.0
                counts[length][index] += 1
        means[length] = [total / n if n else None for total, n in zip(sums, counts[length], strict=True)]
    depths = [f"{index * 100 // bins}–{(index + 1) * 100 // bins}" for index in range(bins)]
    return DepthGrid(depths, means, counts, any(len(_depths(row)) > 1 for rows in by_length.values() for row in rows))


def _depths(row: Row) -> list[float]:
    depths = row.meta.get("depths", [])
    if not isinstance(depths, list) or not all(isinstance(d, int | float) and 0 <= d <= 100 for d in depths):
        raise UserError(
            f"sample {row.id}: its depths are no list of percents; remove its row in samples.jsonl, run again"
        )
    return depths
