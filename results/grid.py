"""A table before it is written down: the same numbers for the terminal, CSV, Markdown, LaTeX and HTML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

BETTER, WORSE = "▲", "▼"
_GAP = 2  # characters between columns: the padding and the box's
_LINE_STYLES = {
    "average": "bold",
    "category": "italic",
    "beside": "italic",
    "difference": "italic",
    "published": "italic dim",
}
_MARK_STYLES = {BETTER: "green", WORSE: "red", "e": "red"}


@dataclass(frozen=True)
class Entry:
    """One table cell. `text`: the number as shown; `interval`: its 95 % interval; `marks`: what qualifies it.

    `best`: the best of its comparison. `record`: the numbers behind it by name, unrounded, in the scale of `text`;
    None where there is none.
    """

    text: str = ""
    interval: str = ""
    marks: tuple[str, ...] = ()
    best: bool = False
    record: Mapping[str, Any] | None = None

    @property
    def plain(self) -> str:
        """Everything in one string."""
        return " ".join(part for part in (self.text, self.interval, *self.marks) if part)


@dataclass(frozen=True)
class Line:
    """One row: its labels and an entry for every column.

    `style`: "" (a task), "beside" (its further scores), "category", "average", "difference" (to a baseline) or
    "published".
    """

    labels: tuple[str, ...]
    entries: list[Entry]
    style: str = ""


@dataclass(frozen=True)
class Grid:
    """`stubs` name the label columns, of which the first `merged` show a label once for lines below each other that
    share it. `groups` are separated by rules. `notes` stand below the table."""

    title: str
    stubs: tuple[str, ...]
    columns: list[str]
    groups: list[list[Line]]
    notes: list[str] = field(default_factory=list)
    merged: int = 0

    def shown_labels(self, line: Line, above: Line | None) -> list[str]:
        """A line's labels as they are shown below the line `above`."""
        labels = line.labels
        known = above.labels if above else ()
        return ["" if i < self.merged and known[: i + 1] == labels[: i + 1] else labels[i] for i in range(len(labels))]

    @property
    def lines(self) -> Iterator[Line]:
        for group in self.groups:
            yield from group

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """The table in as many blocks of columns as the width needs, then its notes."""
        yield Text(self.title, style="bold")
        for start, stop in self._blocks(options.max_width):
            if start:
                yield Text()
            yield self._block(start, stop)
        yield Text("\n".join(self.notes) + "\n", style="dim")

    def _blocks(self, width: int) -> list[tuple[int, int]]:
        """Half-open ranges of columns that fit beside the labels; a column too wide for any width stands alone."""
        stubs = sum(
            _GAP + max(len(text) for text in [stub, *(line.labels[index] for line in self.lines)])
            for index, stub in enumerate(self.stubs)
        )
        blocks, start, used = [], 0, stubs
        for index, column in enumerate(self.columns):
            needed = max(len(text) for text in [column, *(line.entries[index].plain for line in self.lines)])
            if used + needed > width and index > start:
                blocks.append((start, index))
                start, used = index, stubs
            used += needed + _GAP
        return [*blocks, (start, len(self.columns))]

    def _block(self, start: int, stop: int) -> Table:
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        for stub in self.stubs:
            table.add_column(stub, no_wrap=True)
        for column in self.columns[start:stop]:
            table.add_column(column, justify="right", overflow="fold")  # a number cut short would be another number
        for group in self.groups:
            table.add_section()
            above: Line | None = None
            for line in group:
                entries = line.entries[start:stop]
                if any(entry.plain for entry in entries):
                    style = _LINE_STYLES.get(line.style, "")
                    labels = [Text(label, style=style) for label in self.shown_labels(line, above)]
                    table.add_row(*labels, *(_rich_entry(entry, style) for entry in entries))
                    above = line
        return table


def _rich_entry(entry: Entry, style: str) -> Text:
    """Bold means best where anything is compared, so that averages of a comparison are not bold by themselves."""
    compared = bool(entry.interval)
    text = Text(entry.text, style="bold" if entry.best else "" if compared and style == "bold" else style)
    if entry.interval:
        text.append(f" {entry.interval}", style="not bold dim")
    for mark in entry.marks:
        text.append(f" {mark}", style=_MARK_STYLES.get(mark[0], "yellow"))
    return text
