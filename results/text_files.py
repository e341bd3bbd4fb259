"""Tables as CSV, Markdown and LaTeX: the numbers of the terminal, in CSV unrounded and with all that is known."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence

from longeval.results.grid import BETTER, WORSE, Entry, Grid, Line

# The columns of a CSV file; a value that a row does not have stays empty.
COLUMNS = (
    "run", "suite", "kind", "name", "length", "label", "score", "standard_error", "low", "high", "n", "planned",
    "errors", "empty", "cut", "truncated", "tasks", "of", "baseline", "difference", "difference_low",
    "difference_high", "effect", "p", "p_corrected", "pairs", "test", "first", "last", "perplexity",
)  # fmt: skip


def as_csv(grids: Sequence[Grid]) -> str:
    """One row per number of the tables, in the tables' scale (fractions times 100), unrounded."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for grid in grids:
        writer.writerows(entry.record for line in grid.lines for entry in line.entries if entry.record)
    return out.getvalue()


def as_markdown(grids: Sequence[Grid]) -> str:
    """GitHub's tables under headings, notes as lists; the best in bold."""
    return "\n".join(_markdown_grid(grid) for grid in grids)


def _markdown_grid(grid: Grid) -> str:
    rows = [[*grid.stubs, *grid.columns], [*["---"] * len(grid.stubs), *["---:"] * len(grid.columns)]]
    above: Line | None = None
    for line in grid.lines:
        labels = [_markdown_text(label) for label in grid.shown_labels(line, above)]
        labels = [f"*{label}*" if line.style and label else label for label in labels]
        rows.append([*labels, *(_markdown_entry(entry) for entry in line.entries)])
        above = line
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    notes = "".join(f"- {_markdown_text(note)}\n" for note in grid.notes)
    return f"## {_markdown_text(grid.title)}\n\n{table}\n\n{notes}"


def _markdown_text(text: str) -> str:
    for character in "\\|*_`<":
        text = text.replace(character, "\\" + character)
    return text


def _markdown_entry(entry: Entry) -> str:
    text = f"**{entry.text}**" if entry.best else entry.text
    return " ".join(part for part in (text, entry.interval, *(_markdown_text(mark) for mark in entry.marks)) if part)


def as_latex(grids: Sequence[Grid]) -> str:
    """booktabs tables with captions, notes below; intervals small beside the numbers, the best in bold."""
    return "% needs \\usepackage{booktabs,amssymb}\n" + "\n".join(_latex_grid(grid) for grid in grids)


def _latex_grid(grid: Grid) -> str:
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_latex_text(grid.title)}}}",
        rf"\begin{{tabular}}{{{'l' * len(grid.stubs)}{'r' * len(grid.columns)}}}",
        r"\toprule",
        _latex_row([_latex_text(text) for text in (*grid.stubs, *grid.columns)]),
    ]
    for group in grid.groups:
        lines.append(r"\midrule")
        above: Line | None = None
        for line in group:
            labels = [_latex_text(label) for label in grid.shown_labels(line, above)]
            labels = [rf"\emph{{{label}}}" if line.style and label else label for label in labels]
            lines.append(_latex_row([*labels, *(_latex_entry(entry) for entry in line.entries)]))
            above = line
    notes = r" \\ ".join(_latex_text(note) for note in grid.notes)
    below = rf"\par\smallskip\parbox{{\linewidth}}{{\footnotesize {notes}}}"
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", below, r"\end{table}", ""])


def _latex_row(cells: Sequence[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _latex_entry(entry: Entry) -> str:
    text = rf"\textbf{{{_latex_text(entry.text)}}}" if entry.best else _latex_text(entry.text)
    interval = rf"{{\scriptsize {_latex_text(entry.interval)}}}" if entry.interval else ""
    return " ".join(part for part in (text, interval, *map(_latex_text, entry.marks)) if part)


TABLE_FORMATS: dict[str, Callable[[Sequence[Grid]], str]] = {
    "csv": as_csv,
    "markdown": as_markdown,
    "latex": as_latex,
}

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "…": r"\dots{}", "–": "--",
    "±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$", "Δ": r"$\Delta$", BETTER: r"$\blacktriangle$",
    WORSE: r"$\blacktriangledown$",
}  # fmt: skip


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
