"""longeval leaderboard: checks and ranks leaderboard files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from longeval.cli.options import OutOption
from longeval.output import json_text, write_text
from longeval.results.leaderboard import check_file, merge
from longeval.results.ranking import ranking_grids

app = typer.Typer(
    help="Check and rank leaderboard files (`longeval export --format leaderboard`).", no_args_is_help=True
)

FilesArgument = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Leaderboard files.", show_default=False)]


@app.command()
def validate(files: FilesArgument) -> int:
    """Check files against the schema and recompute their headline numbers; exit status 1 when one is not valid."""
    console = Console(soft_wrap=True)
    status = 0
    for path in files:
        problems = check_file(path)
        for problem in problems:
            console.print(f"{path}: {problem}", style="red", markup=False, highlight=False)
            status = 1
        if not problems:
            console.print(f"{path}: valid", markup=False, highlight=False)
    return status


@app.command(name="merge")
def merge_files(files: FilesArgument, out: OutOption = None) -> int:
    """Print the ranked tables of files together; --out writes them as one file."""
    content = merge(files)
    if out is not None:
        write_text(out, json_text(content))
    console = Console()
    for grid in ranking_grids(content):
        console.print(grid)
    return 0
