"""Shapes in the terminal: scores against length as curves, scores by depth and length as heatmaps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import cycle

from rich.style import Style
from rich.table import Table
from rich.text import Text

from longeval.results.depths import DepthGrid

_COLOURS = (4, 1, 2, 3, 5, 6, 12, 9, 10, 11)
# Viridis at scores of 0, 10, ... 100: lightness alone tells the score. Ink is white on the dark half.
_SCALE = (
    "#440154", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c",
    "#22a884", "#44bf70", "#7ad151", "#bddf26", "#fde725",
)  # fmt: skip
_DARK = 60


def score_curves(
    series: Mapping[str, Mapping[int, float]],
    labels: Mapping[int, str],
    title: str,
    width: int,
    percent: bool,
    height: int = 16,
) -> Text:
    """Scores as the tables show them, by name and length, in at most `width` columns under a heading and a legend.

    Lengths are spaced by their logarithm, or evenly where one is 0; percents go from 0 to 100.
    """
    import plotext

    figure = plotext.figure.clear()
    figure.theme("simple").plot_size(width, height)
    lengths = sorted(labels)
    place = {n: math.log2(n) if lengths[0] > 0 else float(index) for index, n in enumerate(lengths)}
    names = []
    for (name, points), colour in zip(series.items(), cycle(_COLOURS), strict=False):
        at = sorted(points)
        marker = plotext.marker("braille", colour)
        figure.draw(figure.signal([place[n] for n in at], [points[n] for n in at], marker=marker).lines())
        names.append((f"⣤ {name}", f"color({colour})"))
    if percent:
        figure.ruler("y").lim(0, 100)
    figure.ruler("x").ticks([place[n] for n in lengths], [labels[n] for n in lengths])
    heading = Text.assemble((title, "bold"), "\n", legend(names, width), "\n")
    return heading.append_text(Text.from_ansi(str(figure.build())))


def legend(names: Iterable[tuple[str, str]], width: int) -> Text:
    """Names with their styles, as many on a line as `width` takes whole."""
    text, used = Text(), 0
    for name, style in names:
        gap = "" if not used else "   " if used + 3 + len(name) <= width else "\n"
        used = len(name) + (used + 3 if gap == "   " else 0)
        text.append(gap).append(name, style)
    return text


def heatmap(grid: DepthGrid, labels: Mapping[int, str], title: str) -> Table:
    """Mean scores × 100 by depth (lines) and length (columns); a blank field has no sample."""
    table = Table(title=title, title_justify="left", title_style="", box=None, padding=0, min_width=len(title))
    table.add_column("", justify="right", style="dim", no_wrap=True)
    for length in grid.lengths:
        table.add_column(f"{labels[length]} ", justify="right", header_style="dim", no_wrap=True)
    for index, depth in enumerate(grid.depths):
        fields = [_field(grid.means[length][index], len(labels[length]) + 1) for length in grid.lengths]
        table.add_row(f"{depth} ", *fields)
    return table


def _field(mean: float | None, width: int) -> Text:
    if mean is None:
        return Text(" " * max(5, width))
    ink = "#ffffff" if 100 * mean < _DARK else "#000000"
    style = Style(color=ink, bgcolor=_SCALE[round(10 * mean)])
    return Text(f"{100 * mean:.0f} ".rjust(max(5, width)), style=style)
