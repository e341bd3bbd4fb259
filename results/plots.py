"""The loss-by-position plot, as a PNG and in the terminal: one curve per run, the trained length marked.

What is drawn is the loss at each position, averaged over documents and smoothed (see `positions`): neither per-bucket
nor cumulative perplexity. The first positions, whose loss is high for want of context, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.text import Text

from longeval.results.positions import WINDOW, PositionLoss

_START = 128  # as FoX's plot
_INK = "#1f1f1f"
_COLOURS = ("#3366cc", "#dc3912", "#109618", "#ff9900", "#990099", "#0099c6", "#8b5a2b", "#666666")
_Y_LABEL = f"loss per token (nats), moving average of {WINDOW} positions"


def _curve(loss: PositionLoss, points: int | None = None) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Positions and smoothed losses to draw, at most about `points` of them."""
    start = max(0, min(_START, loss.last // 8) - loss.first)
    step = 1 if points is None else max(1, (len(loss.mean) - start) // points)
    return loss.positions[start::step], loss.smoothed()[start::step]


def _ticks(curves: Mapping[str, PositionLoss]) -> list[int]:
    """About eight positions at multiples of a power of two."""
    last = max(loss.last for loss in curves.values())
    step = 1 << max(0, (last // 6).bit_length() - 1)
    return list(range(step, last + 1, step))


def _label(name: str, loss: PositionLoss) -> str:
    return f"{name} (n = {loss.documents})"


def save_plot(curves: Mapping[str, PositionLoss], path: Path, title: str, trained_length: int | None = None) -> None:
    """Writes the plot of `curves` (name → loss) to `path`; its suffix chooses the format, PNG among others."""
    from matplotlib.figure import Figure  # slow to import, and only needed here

    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    axes = figure.subplots()
    for (name, loss), colour in zip(curves.items(), _cycle(len(curves)), strict=True):
        axes.plot(*_curve(loss), color=colour, linewidth=1.2, label=_label(name, loss))
    if trained_length is not None:
        label = f"trained length {trained_length:,}"
        axes.axvline(trained_length, color=_INK, linestyle="--", linewidth=0.9, label=label)
    ticks = _ticks(curves)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_xlabel("position in the document (tokens)")
    axes.set_ylabel(_Y_LABEL, fontsize=9)
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=9)
    figure.savefig(path)


def _cycle(count: int) -> list[str]:
    return [_COLOURS[index % len(_COLOURS)] for index in range(count)]


def terminal_plot(
    curves: Mapping[str, PositionLoss],
    title: str,
    trained_length: int | None = None,
    width: int = 100,
    height: int = 24,
) -> Text:
    """The same plot in at most `width` × `height` characters; a rich console drops its colours where there are none."""
    import plotext

    figure = plotext.figure.clear()
    figure.theme("simple").plot_size(width, height)
    for name, loss in curves.items():
        positions, losses = _curve(loss, points=4 * width)
        signal = figure.signal(positions.tolist(), losses.tolist(), marker="braille")
        figure.draw(signal.lines().label(_label(name, loss)))
    if trained_length is not None:
        label = f"trained length {trained_length:,}"
        figure.line(trained_length, orientation="vertical", style="dotted", pixel=("gray", "default"), label=label)
    ticks = _ticks(curves)
    figure.ruler("x").ticks(ticks, [f"{tick:,}" for tick in ticks])
    figure.label("position in the document (tokens)")
    # The heading is not plotext's, which drops one that is wider than the plot.
    return Text.assemble(f"{title} · {_Y_LABEL}\n", Text.from_ansi(str(figure.build())))
