"""The loss-by-position plot, as a PNG and in the terminal: one curve per run, the trained length marked.

What is drawn is the loss at each position, averaged over documents and smoothed (see `positions`): neither per-bucket
nor cumulative perplexity. The first positions, whose loss is high for want of context, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.text import Text

from longeval.results.pictures import legend
from longeval.results.positions import WINDOW, PositionLoss

_START = 128  # as FoX's plot
_INK = "#1f1f1f"
_COLOURS = ("#3366cc", "#dc3912", "#109618", "#ff9900", "#990099", "#0099c6")
_TERMINAL_COLOURS = (4, 1, 2, 3, 5, 6)  # the same in a terminal's own palette
_Y_LABEL = f"loss per token (nats), moving average of {WINDOW} positions"
_X_LABEL = "position in the document (tokens)"


def _curve(loss: PositionLoss, points: int | None = None) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Positions and smoothed losses to draw, at most about `points` of them."""
    start = max(0, min(_START, loss.last // 8) - loss.first)
    step = 1 if points is None else max(1, (len(loss.mean) - start) // points)
    return loss.positions[start::step], loss.smoothed()[start::step]


def _last(curves: Mapping[str, PositionLoss]) -> int:
    return max(loss.last for loss in curves.values())


def _ticks(curves: Mapping[str, PositionLoss]) -> list[int]:
    """About eight positions at multiples of a power of two."""
    step = 1 << max(0, (_last(curves) // 6).bit_length() - 1)
    return list(range(step, _last(curves) + 1, step))


def _within(curves: Mapping[str, PositionLoss], trained_length: int | None) -> int | None:
    """The trained length where the curves reach it; further out it would only squeeze them."""
    return trained_length if trained_length is not None and trained_length <= _last(curves) else None


def _label(name: str, loss: PositionLoss) -> str:
    return f"{name} (n = {loss.documents})"


def save_plot(curves: Mapping[str, PositionLoss], path: Path, title: str, trained_length: int | None = None) -> None:
    """Writes the plot of `curves` (name → loss) to `path`; its suffix chooses the format, PNG among others."""
    from matplotlib.figure import Figure  # slow to import, and only needed here

    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    axes = figure.subplots()
    for (name, loss), colour in zip(curves.items(), cycle(_COLOURS), strict=False):
        axes.plot(*_curve(loss), color=colour, linewidth=1.2, label=_label(name, loss))
    if (trained := _within(curves, trained_length)) is not None:
        axes.axvline(trained, color=_INK, linestyle="--", linewidth=0.9, label=f"trained length {trained:,}")
    ticks = _ticks(curves)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_xlabel(_X_LABEL)
    axes.set_ylabel(_Y_LABEL, fontsize=9)
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=9)
    figure.savefig(path)


def terminal_plot(
    curves: Mapping[str, PositionLoss],
    title: str,
    trained_length: int | None = None,
    width: int = 100,
    height: int = 24,
) -> Text:
    """The same plot in at most `width` columns, a picture of `height` lines under a heading and a legend.

    Both are not plotext's, which drops a heading that is too wide and lays its legend over data.
    """
    import plotext

    figure = plotext.figure.clear()
    figure.theme("simple").plot_size(width, height)
    names = []
    drawn = [(_curve(loss, points=4 * width), _label(name, loss)) for name, loss in curves.items()]
    for ((positions, losses), label), colour in zip(drawn, cycle(_TERMINAL_COLOURS), strict=False):
        signal = figure.signal(positions.tolist(), losses.tolist(), marker=plotext.marker("braille", colour))
        figure.draw(signal.lines())
        names.append((f"⣤ {label}", f"color({colour})"))
    if (trained := _within(curves, trained_length)) is not None:
        lowest, highest = (float(end([end(losses) for (_, losses), _ in drawn])) for end in (np.min, np.max))
        figure.draw(figure.signal([trained, trained], [lowest, highest], marker="┊").lines())
        names.append((f"┊ trained length {trained:,}", ""))
    ticks = _ticks(curves)
    figure.ruler("x").ticks(ticks, [f"{tick:,}" for tick in ticks])
    figure.label(_X_LABEL)
    heading = Text.assemble(f"{title} · {_Y_LABEL}\n", legend(names, width), "\n")
    return heading.append_text(Text.from_ansi(str(figure.build())))
