"""longeval data: corpora, where each comes from, and fetching them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from longeval.errors import UserError, nearest
from longeval.tasks.corpora import all_corpora, file_hash


def command(
    fetch: Annotated[
        list[str] | None, typer.Option("--fetch", metavar="NAME", help="Bring this corpus into the cache (repeatable).")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(exists=True, file_okay=False, help="Look here first.")] = None,
) -> int:
    """List the corpora (source, licence, hash, where found) and fetch them."""
    console = Console()
    corpora = {corpus.name: corpus for corpus in all_corpora()}
    for name in fetch or []:
        if name not in corpora:
            raise UserError(f"unknown corpus {name!r}{nearest(name, corpora)}")
        console.print(f"{name}: {corpora[name].require(data_dir)}", soft_wrap=True)
    table = Table(title="corpora", title_justify="left", pad_edge=False)
    for column in ("corpus", "what", "used by", "licence", "hash", "found"):
        table.add_column(column, overflow="fold")
    for corpus in corpora.values():
        path = corpus.locate(data_dir)
        found = Text(str(path)) if path else Text(f"no: {corpus.remedy()}", style="yellow")
        digest = file_hash(path) if path else ""
        table.add_row(corpus.name, corpus.title, corpus.used_by, corpus.licence, digest, found)
    console.print(table)
    return 0
