"""Background text for BABILONG's own build: books, and sentences drawn from them as upstream draws them."""

from __future__ import annotations

import hashlib
import platform
import pydoc_data.topics
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from longeval.errors import UserError
from longeval.tasks.corpora import file_hash
from longeval.tasks.perplexity.documents import Document, kjv_documents, text_documents
from longeval.tasks.perplexity.hub import KJV, PG19
from longeval.tasks.sentences import sentence_spans


@dataclass(frozen=True)
class Books:
    """Books called `name`: `find` brings their file or folder, None stands for the Python installation's own prose."""

    name: str
    find: Callable[[], Path] | None
    read: Callable[[Path], Iterator[Document]] = text_documents

    def texts(self) -> list[str]:
        """Every book, in a fixed order."""
        if self.find is None:
            return ["\n\n".join(text for _, text in sorted(pydoc_data.topics.topics.items()))]
        return ["".join(book.parts) for book in self.read(self.find())]

    def digest(self) -> str:
        """A hash of the text, or of the files that hold it."""
        if self.find is None:
            return hashlib.sha256(self.texts()[0].encode()).hexdigest()[:16]
        return file_hash(self.find())


def choose_books(choice: str, data_dir: Path | None) -> Books:
    """What `--books` names. UserError when it is nowhere; PG-19 may come from the hub when its text is wanted."""
    if choice == "stdlib":
        return Books(f"prose of Python {platform.python_version()}", None)
    for name, corpus, read in (("pg19", PG19, text_documents), ("kjv", KJV, kjv_documents)):
        if choice == name:
            if corpus.locate(data_dir) is None and not corpus.reachable():
                raise UserError(f"no books: {corpus.title} not found; {corpus.remedy()}, or name others with --books")
            return Books(corpus.title, partial(corpus.require, data_dir), read)
    places = [data_dir / choice] if data_dir else []
    path = next((place for place in [*places, Path(choice)] if place.exists()), None)
    if path is None or not choice:
        raise UserError(f"--books {choice!r} is neither pg19, kjv, stdlib nor a file or folder, here or in --data-dir")
    return Books(path.name, lambda: path)


def sentences(texts: Sequence[str], rng: random.Random, characters: int) -> Iterator[list[str]]:
    """Whole sentences of excerpts of at most `characters` from random places of random books, without end.

    An untrained Punkt finds them; an excerpt's first and last are cut ones and are dropped. Each excerpt comes as two
    lists, because half of one mostly fills a sample.
    """
    while True:
        text = rng.choice(texts)
        start = rng.randrange(len(text))
        yield from _halves(text[start : start + characters])


def _halves(excerpt: str) -> Iterator[list[str]]:
    """The sentences that begin in the first half of `excerpt`, less one or two at its end, then the others."""
    first = sentence_spans(excerpt[: len(excerpt) // 2], trained=False)
    # The half's last sentence is cut, and whether it begins there can depend on a cut word.
    safe = first[1:-2]
    yield [excerpt[a:b] for a, b in safe]
    resume = first[-2][0] if safe else 0
    rest = sentence_spans(excerpt[resume:], trained=False)[0 if safe else 1 : -1]
    yield [excerpt[resume + a : resume + b] for a, b in rest]
