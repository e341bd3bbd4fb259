"""The report: a comparison as one HTML file that needs no network. Summary, tables, curves, heatmaps, losses, samples.

Tables are written here; charts are Vega-Lite specifications (`charts`), drawn by the library that the page carries;
samples are data in the page, filtered and shown by its script (`page/report.js`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from longeval.results.charts import curves, heatmap, losses, run_colours
from longeval.results.compare import Comparison
from longeval.results.depths import depth_grids, depths_note
from longeval.results.grid import BETTER, WORSE, Entry, Grid, Line
from longeval.results.position_tables import documents_note, position_grids, positions_by_place
from longeval.results.runs import Run
from longeval.results.side_by_side import column_labels, comparison_grids
from longeval.results.store import Row
from longeval.results.tables import is_percent, length_labels, short_name, shown_averages

MOST_SAMPLES = 50_000
_MARKS = {BETTER: "better", WORSE: "worse"}  # classes of the style sheet


@dataclass
class _Page:
    """What the page is filled with. `charts`: specifications by element id."""

    colours: dict[str, str]
    parts: list[str] = field(default_factory=list)
    charts: dict[str, Any] = field(default_factory=dict)

    def chart(self, spec: Any, title: str, size: str) -> str:
        """The element of a chart; `size` is a class of the style sheet."""
        name = f"chart-{len(self.charts)}"
        self.charts[name] = spec
        caption = f"<figcaption>{escape(title)}</figcaption>"
        return f'<figure class="{size}">{caption}<div id="{name}" class="chart"></div></figure>'


def html_report(comparison: Comparison) -> str:
    """The report as the text of one HTML file."""
    page = _Page(run_colours(_all_names(comparison)))
    grids = comparison_grids(comparison)
    page.parts.append(_head(comparison, grids))
    for suite, grid in zip(comparison.suites, grids, strict=True):
        page.parts.append(f'<section><h2 id="{suite["name"]}">{escape(suite["title"])}</h2>')
        page.parts += _curves(page, comparison, suite, grid)
        page.parts.append(html_table(grid))
        page.parts += _heatmaps(page, comparison, suite)
        page.parts.append("</section>")
    page.parts += _losses(page, comparison)
    samples, note = _samples(comparison.runs)
    assets = files("longeval.results") / "page"
    filled = {
        "title": escape(" · ".join(run.label for run in comparison.runs)),
        "style": (assets / "report.css").read_text("utf-8"),
        "body": "\n".join(page.parts),
        "samples_note": escape(note),
        "library": _script(_vega()),
        "charts": _data(page.charts),
        "samples": _data(samples),
        "script": (assets / "report.js").read_text("utf-8"),
    }
    text = (assets / "report.html").read_text("utf-8")
    parts = text.split("{{")
    return parts[0] + "".join(filled[name] + rest for name, _, rest in (part.partition("}}") for part in parts[1:]))


def _all_names(comparison: Comparison) -> list[str]:
    """Whatever may have a curve: runs, then published models."""
    published = [f"{score.model} (published)" for table in comparison.published for score in table.scores]
    return [*(run.label for run in comparison.runs), *dict.fromkeys(published)]


@cache
def _vega() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script."""
    import vl_convert  # slow to import, and only needed here

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle


def _script(text: str) -> str:
    """Script that may stand in a page: no part of it ends the element."""
    return text.replace("</script", "<\\/script")


def _data(value: Any) -> str:
    """JSON that may stand in a script element."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _head(comparison: Comparison, grids: Sequence[Grid]) -> str:
    warnings = "".join(f"<li>{escape(warning)}</li>" for warning in comparison.warnings)
    return (
        f"<section><h2 id=summary>Summary</h2>{html_table(summary_grid(comparison, grids))}"
        + (f'<ul class="warnings">{warnings}</ul>' if warnings else "")
        + html_table(_runs_grid(comparison))
        + "</section>"
    )


def summary_grid(comparison: Comparison, grids: Sequence[Grid]) -> Grid:
    """Every suite's first average, or its tasks where it has none, in one table: columns are the lengths of all."""
    lengths: dict[str, int] = {}
    rows: list[tuple[str, list[tuple[Line, dict[str, Entry]]]]] = []
    for suite, grid in zip(comparison.suites, grids, strict=True):
        labels = {label.rstrip("*"): length for length, label in column_labels(comparison, suite).items()}
        lengths |= {label: length for label, length in labels.items() if label not in lengths}
        averages = [name for name, kind in shown_averages(suite).items() if kind == "average"]
        for row in averages[:1] or [short_name(task["name"]) for task in suite["tasks"]]:
            lines = [line for line in grid.lines if line.labels[0] == row and line.style != "difference"]
            name = suite["title"] if averages else f"{suite['title']} · {row}"
            rows.append((name, [(line, dict(zip(labels, line.entries, strict=True))) for line in lines]))
    columns = sorted(lengths, key=lengths.__getitem__)
    groups = [
        [
            Line((name, line.labels[1]), [at.get(column, Entry()) for column in columns], _summary_style(line))
            for line, at in lines
        ]
        for name, lines in rows
    ]
    several = any(len(lines) > 1 for _, lines in rows)
    marks = " · best in bold · ▲ ▼ better or worse than the baseline, see the suite's table" if several else ""
    return Grid("Suites", ("suite", "checkpoint"), columns, groups, [f"95 % intervals{marks}"], merged=1)


def _summary_style(line: Line) -> str:
    return "published" if line.style == "published" else ""


def _runs_grid(comparison: Comparison) -> Grid:
    lines = []
    for run in comparison.runs:
        decides = run.folder.manifest["decides"]
        bad = sum(row.failed for row in run.rows.values())
        window = run.info.get("trained_length")
        values = (
            Path(run.info["model"]).name,
            decides["model"].get("backend", ""),
            decides["model"].get("dtype", ""),
            f"{window:,}" if window else "unknown",
            decides.get("seed", ""),
            f"{len(run.rows):,}",
            f"{bad:,}",
            "yes" if run.scores.complete else "no",
            run.info.get("created", "")[:16].replace("T", " "),
            f"longeval {decides.get('longeval', '')}",
        )
        lines.append(Line((run.label,), [Entry(str(value)) for value in values]))
    columns = [
        "model", "backend", "dtype", "trained window", "seed", "samples", "failed", "complete", "begun (UTC)",
        "made by",
    ]  # fmt: skip
    return Grid("Runs", ("checkpoint",), columns, [lines])


def html_table(grid: Grid) -> str:
    """A grid as HTML; hovering over a number shows what is behind it."""
    if not grid.columns:
        return ""
    head = "".join(f'<th class="stub">{escape(text)}</th>' for text in grid.stubs)
    head += "".join(f"<th>{escape(text)}</th>" for text in grid.columns)
    bodies = []
    for group in grid.groups:
        rows = []
        above: Line | None = None
        for line in group:
            labels = "".join(f"<th>{escape(label)}</th>" for label in grid.shown_labels(line, above))
            rows.append(f'<tr class="{line.style}">{labels}{"".join(map(_html_entry, line.entries))}</tr>')
            above = line
        bodies.append(f"<tbody>{''.join(rows)}</tbody>")
    notes = "".join(f"<li>{escape(note)}</li>" for note in grid.notes)
    table = f"<table><thead><tr>{head}</tr></thead>{''.join(bodies)}</table>"
    below = f'<ul class="notes">{notes}</ul>' if notes else ""
    return f'<h3>{escape(grid.title)}</h3><div class="scroll">{table}</div>{below}'


def _html_entry(entry: Entry) -> str:
    record = {key: value for key, value in (entry.record or {}).items() if value is not None}
    about = ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in record.items()
    )
    marks = "".join(f' <span class="{_MARKS.get(mark, "mark")}">{escape(mark)}</span>' for mark in entry.marks)
    interval = f" <small>{escape(entry.interval)}</small>" if entry.interval else ""
    text = f"<b>{escape(entry.text)}</b>" if entry.best else escape(entry.text)
    return f'<td title="{escape(about)}">{text}{interval}{marks}</td>'


def _curves(page: _Page, comparison: Comparison, suite: Mapping[str, Any], grid: Grid) -> Iterator[str]:
    """A chart for every line of the suite's table that has several lengths, averages first."""
    windows = {run.label: run.info.get("trained_length") for run in comparison.runs if suite["unit"] == "tokens"}
    rows: dict[str, list[dict[str, Any]]] = {}
    styles: dict[str, str] = {}
    labels: dict[int, str] = {}
    for line in grid.lines:
        styles.setdefault(line.labels[0], line.style)
        for record in (entry.record for entry in line.entries if entry.record):
            if record["score"] is not None:
                kind = "published" if record["kind"] == "published" else "measured"
                known = {key: record.get(key) for key in ("run", "length", "label", "score", "low", "high", "n")}
                rows.setdefault(line.labels[0], []).append(
                    {**known, "kind": kind, "window": windows.get(record["run"])}
                )
                labels[record["length"]] = record["label"]
    order = ("average", "category", "", "beside")
    drawn = [name for name in rows if len({point["length"] for point in rows[name]}) > 1]
    averaged = any(styles[name] == "average" for name in drawn)
    for name in sorted(drawn, key=lambda name: order.index(styles[name])):
        here = {point["length"]: labels[point["length"]] for point in rows[name]}
        wide = styles[name] == "average" or len(drawn) == 1
        spec = curves(rows[name], page.colours, here, suite["unit"], is_percent(suite), wide or not averaged)
        yield page.chart(spec, name, "wide" if wide else "small")


def _heatmaps(page: _Page, comparison: Comparison, suite: Mapping[str, Any]) -> Iterator[str]:
    """A chart for every task with depths and every run that has it, a task's runs side by side."""
    grids = {run.label: depth_grids(run.by_cell) for run in comparison.runs}
    names = [task["name"] for task in suite["tasks"] if task["percent"]]
    tasks = [name for name in names if any(name in of_run for of_run in grids.values())]
    if tasks:
        shown = [grid for of_run in grids.values() for task, grid in of_run.items() if task in tasks]
        yield f'<h3>Score × 100 by depth and length</h3><ul class="notes"><li>{depths_note(shown)}</li></ul>'
    for task in tasks:
        charts = []
        for run in comparison.runs:
            if grid := grids[run.label].get(task):
                spec = heatmap(grid, length_labels(run.info, suite), suite["unit"])
                charts.append(page.chart(spec, f"{short_name(task)} · {run.label}", "small"))
        yield f'<div class="charts">{"".join(charts)}</div>'


def _losses(page: _Page, comparison: Comparison) -> Iterator[str]:
    """Loss by position for every corpus and length, all runs together."""
    by_place = positions_by_place(comparison.runs)
    windows = {run.label: run.info.get("trained_length") for run in comparison.runs}
    if by_place:
        yield '<section><h2 id="losses">Loss by position</h2>'
        for (task, length), of_runs in by_place.items():
            title = f"{task} at {length:,} tokens · {documents_note(of_runs)}"
            yield page.chart(losses(of_runs, page.colours, windows), title, "wide")
        yield from map(html_table, position_grids(comparison.runs))
        yield "</section>"


def _samples(runs: Sequence[Run]) -> tuple[dict[str, Any], str]:
    """The samples as the page's script reads them, and a line on how many there are."""
    labels = {(c["task"], c["length"]): c["label"] for run in runs for c in run.info["cells"]}
    cells = [(i, cell, rows) for i, run in enumerate(runs) for cell, rows in run.by_cell.items() if cell in labels]
    total = sum(len(rows) for _, _, rows in cells)
    most = MOST_SAMPLES // max(1, len(cells)) if total > MOST_SAMPLES else total
    tasks = {task["name"]: task["percent"] for run in runs for suite in run.suites.values() for task in suite["tasks"]}
    names = list(tasks)
    shown = [
        [index, names.index(task), labels[task, length], *_sample(row)]
        for index, (task, length), rows in cells
        for row in sorted(rows, key=_index)[:most]
    ]
    content = {"runs": [run.label for run in runs], "tasks": names, "percent": list(tasks.values()), "rows": shown}
    if len(shown) == total:
        return content, f"{total:,} samples"
    return content, f"{len(shown):,} of {total:,} samples are in this page, the first {most:,} of every cell"


def _index(row: Row) -> tuple[int, str]:
    last = row.id.rpartition("/")[2]
    return (int(last) if last.isdigit() else 0, row.id)


def _sample(row: Row) -> list[Any]:
    """id, score, prompt end, prediction, references, error, facts."""
    score = None if row.failed else row.score
    error = row.error or (None if score is not None else "the score is not a number")
    facts = {
        "prompt tokens": row.prompt_tokens,
        "new tokens": row.new_tokens,
        "finish": row.finish_reason,
        "depths (%)": row.meta.get("depths"),
        "truncated": row.truncated or None,
        **{name: value for name, value in row.scores.items() if math.isfinite(value)},
    }
    known = {name: value for name, value in facts.items() if value is not None}
    return [row.id, score, row.prompt_tail, row.prediction, row.references, error, known]
