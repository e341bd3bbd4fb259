"""longeval data: corpora, where each comes from, and fetching them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from longeval.errors import UserError, nearest
from longeval.tasks.corpora import all_corpora, file_hash


def command(
    fetch: Annotated[
        list[str] | None, typer.Option("--fetch", metavar="NAME", help="Bring this corpus into the cache (repeatable).")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(exists=True, help="Look here first.")] = None,
) -> int:
    """List the corpora (source, licence, hash, where found) and fetch them."""
    console = Console()
    corpora = {corpus.name: corpus for corpus in all_corpora()}
    for name in fetch or []:
        if name not in corpora:
            raise UserError(f"unknown corpus {name!r}{nearest(name, corpora)}")
        console.print(f"{name}: {corpora[name].require(data_dir)}", soft_wrap=True)
    for corpus in corpora.values():
        path = corpus.locate(data_dir)
        found = f"found: {path}, hash {file_hash(path)}" if path else f"not here: {corpus.remedy()}"
        console.print(Text.assemble((corpus.name, "bold"), f"  {corpus.title}"))
        for line, style in (
            (f"for {corpus.used_by} · licence: {corpus.licence}", "dim"),
            (found, "green" if path else "yellow"),
        ):
            console.print(Padding(Text(line, style=style, overflow="fold"), (0, 0, 0, 4)))
    return 0
