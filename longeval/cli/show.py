"""longeval show: tables of finished or unfinished runs."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from longeval.cli.options import RunsArgument
from longeval.results.aggregate import aggregate, rebuild_scores
from longeval.results.store import RunFolder
from longeval.results.view import run_view


def command(
    runs: RunsArgument,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Write scores.json anew from the samples.")] = False,
) -> int:
    """Print the tables of runs, finished or not."""
    console = Console()
    for path in runs:
        folder = RunFolder(path)
        scores = rebuild_scores(folder) if rebuild else aggregate(folder.manifest, folder.rows().values())
        console.print(run_view(folder, scores, console.width))
    return 0
