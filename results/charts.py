"""The report's charts as Vega-Lite specifications: what is drawn; colours of text and ground come from the page."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

from longeval.results.depths import DepthGrid
from longeval.results.positions import WINDOW, PositionLoss
from longeval.results.statistics import student_quantile
from longeval.results.tables import runs_by_window

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_FIRST_POSITION = 128
_PALETTE = [
    "#4c78a8",
    "#e45756",
    "#54a24b",
    "#f58518",
    "#b279a2",
    "#72b7b2",
    "#9d755d",
    "#eeca3b",
    "#79706e",
    "#ff9da6",
]
_NEUTRAL = "#888888"  # on light ground and on dark
Point = dict[str, Any]
Colours = dict[str, str]


def curves(
    points: Sequence[Point], colours: Colours, labels: Mapping[int, str], unit: str, percent: bool, legend: bool
) -> dict[str, Any]:
    """Scores against length, one line a run with its 95 % band.

    `points`: run, kind ("measured" or "published"), length, label, score, low, high, n and window (the run's trained
    length, or None). `labels` of every length, `unit`: what lengths count.
    """
    x = _length_axis(labels, unit)
    y_scale = {"domain": [0, 100]} if percent else {"zero": False}
    colour = _colour(colours, {point["run"] for point in points}, legend)
    dashes = {"domain": ["measured", "published"], "range": [[1, 0], [4, 3]]}
    dash = {"field": "kind", "type": "nominal", "legend": None, "scale": dashes}
    tooltip = [
        {"field": name, "title": title, **({"type": "quantitative", "format": ".3~f"} if number else {})}
        for name, title, number in (
            ("run", "checkpoint", False),
            ("label", "length", False),
            ("score", "score", True),
            ("low", "95 % from", True),
            ("high", "to", True),
            ("n", "n", False),
        )
    ]
    y_title = "score × 100" if percent else "loss (nats)"
    y = {"field": "score", "type": "quantitative", "title": y_title, "scale": y_scale}
    layers: list[Any] = [
        {
            "mark": {"type": "area", "opacity": 0.18, "clip": True},
            "encoding": {
                "x": x,
                "y": {"field": "low", "type": "quantitative", "title": y_title},
                "y2": {"field": "high"},
                "color": colour,
            },
        },
        {"mark": {"type": "line", "clip": True}, "encoding": {"x": x, "y": y, "color": colour, "strokeDash": dash}},
        {
            "mark": {"type": "point", "filled": True, "size": 45, "opacity": 1},
            "encoding": {"x": x, "y": y, "color": colour, "tooltip": tooltip},
        },
    ]
    if x["type"] == "quantitative":
        last, first = max(point["length"] for point in points), min(point["length"] for point in points)
        windows = {p["run"]: p["window"] for p in points if p["window"] and first <= p["window"] <= last}
        layers += _window_rules(windows, x)
    return _spec({"values": list(points)}, layers)


def _length_axis(labels: Mapping[int, str], unit: str) -> dict[str, Any]:
    """Logarithmic with every length as a tick; lengths of 0 and buckets, which no logarithm fits, side by side."""
    lengths = sorted(labels)
    if lengths[0] <= 0 or any("–" in label for label in labels.values()):
        return {"field": "label", "type": "ordinal", "sort": [labels[n] for n in lengths], "title": f"length ({unit})",
                "axis": {"labelAngle": 0}}  # fmt: skip
    names = json.dumps({str(length): labels[length] for length in lengths}, ensure_ascii=False)
    return {
        "field": "length",
        "type": "quantitative",
        "title": f"length ({unit})",
        "scale": {"type": "log", "base": 2, "nice": False, "padding": 12},
        "axis": {"values": lengths, "labelExpr": f"{names}[datum.value]", "grid": False, "labelOverlap": True},
    }


def _window_rules(windows: Mapping[str, int], x: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Dotted lines at trained windows, each with its name; none without windows, as a layer without data is a warning
    in the browser."""
    if not windows:
        return []
    runs = runs_by_window(windows)
    names = {window: f" ({', '.join(of_window)})" if len(runs) > 1 else "" for window, of_window in runs.items()}
    values = [{x["field"]: window, "about": f"trained window {window:,}{names[window]}"} for window in runs]
    encoding = {"x": dict(x), "color": {"value": _NEUTRAL}}
    name = {"y": {"value": 0}, "text": {"field": "about"}}
    layers: list[dict[str, Any]] = [
        {"mark": {"type": "rule", "strokeDash": [2, 4], "strokeWidth": 1.5}, "encoding": encoding},
        {"mark": {"type": "text", "baseline": "bottom", "dy": -3}, "encoding": encoding | name},
    ]
    return [{"data": {"values": values}, **layer} for layer in layers]


def heatmap(grid: DepthGrid, labels: Mapping[int, str], unit: str) -> dict[str, Any]:
    """Mean score × 100 by depth and length; a field without samples is empty."""
    values = [
        {"length": labels[length], "depth": grid.depths[index], "score": 100 * mean, "n": grid.counts[length][index]}
        for length in grid.lengths
        for index, mean in enumerate(grid.means[length])
        if mean is not None
    ]
    columns = [labels[length] for length in grid.lengths]
    x = {"field": "length", "type": "ordinal", "scale": {"domain": columns}, "title": f"length ({unit})"}
    y = {"field": "depth", "type": "ordinal", "scale": {"domain": grid.depths}, "title": "depth (%)"}
    score = {"field": "score", "type": "quantitative"}
    layers = [
        {
            "mark": {"type": "rect"},
            "encoding": {
                "color": {**score, "legend": None, "scale": {"domain": [0, 100], "scheme": "viridis"}},
                "tooltip": [
                    {"field": "length"},
                    {"field": "depth", "title": "depth (%)"},
                    {**score, "format": ".1f"},
                    {"field": "n"},
                ],
            },
        },
        {
            "mark": {"type": "text", "fontSize": 9},
            "encoding": {
                "text": {**score, "format": ".0f"},
                "color": {"condition": {"test": "datum.score < 60", "value": "#ffffff"}, "value": "#000000"},
            },
        },
    ]
    axes = {"x": {**x, "axis": {"labelAngle": 0}}, "y": y}
    return _spec({"values": values}, layers, encoding=axes)


def losses(by_run: Mapping[str, PositionLoss], colours: Colours, windows: Mapping[str, int | None]) -> dict[str, Any]:
    """Smoothed loss at each position; bars are 95 % intervals of the buckets' means, documents being the clusters."""
    lines, buckets = [], []
    for run, loss in by_run.items():
        curve = loss.as_dict()["smoothed"]
        start = min(_FIRST_POSITION, loss.last // 8)  # before it the loss is high for want of context
        drawn = zip(curve["positions"], curve["loss"], strict=True)
        lines += [{"run": run, "position": position, "loss": value} for position, value in drawn if position >= start]
        for bucket in loss.buckets:
            if bucket.standard_error is not None and bucket.first >= start:
                half = student_quantile(loss.documents - 1.0) * bucket.standard_error
                middle = (bucket.first + bucket.last) / 2
                buckets.append({"run": run, "position": middle, "low": bucket.loss - half, "high": bucket.loss + half})
    longest = max(loss.last for loss in by_run.values())
    x = {"field": "position", "type": "quantitative", "title": "position in the document (tokens)",
         "scale": {"domain": [0, longest], "nice": False}, "axis": {"tickCount": 12}}  # fmt: skip
    y = {"type": "quantitative", "title": f"loss (nats), moving average of {WINDOW}", "scale": {"zero": False}}
    colour = _colour(colours, by_run, legend=True)
    tooltip = [{"field": name} for name in ("run", "position", "loss")]
    layers: list[dict[str, Any]] = [
        {
            "mark": {"type": "line", "strokeWidth": 1.3},
            "encoding": {"x": x, "y": {**y, "field": "loss"}, "color": colour, "tooltip": tooltip},
        }
    ]
    if buckets:
        error = {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour}
        layers.append({"data": {"values": buckets}, "mark": {"type": "rule", "strokeWidth": 2}, "encoding": error})
    reached = {run: n for run in by_run if (n := windows[run]) is not None and n < longest}
    layers += _window_rules(reached, x)
    return _spec({"values": lines}, layers)


def run_colours(runs: Iterable[str]) -> Colours:
    """A colour for every run, so that it has the same one in every chart."""
    return dict(zip(runs, cycle(_PALETTE), strict=False))


def _colour(colours: Colours, present: Container[str], legend: bool) -> dict[str, Any]:
    runs = [run for run in colours if run in present]
    shown = {"orient": "bottom", "columns": 3, "symbolType": "circle", "symbolOpacity": 1, "labelLimit": 300}
    scale = {"domain": runs, "range": [colours[run] for run in runs]}
    return {"field": "run", "type": "nominal", "title": None, "scale": scale, "legend": shown if legend else None}


def _spec(data: Any, layers: Sequence[Any], **more: Any) -> dict[str, Any]:
    return {"$schema": SCHEMA, "width": "container", "data": data, "layer": list(layers), **more}
