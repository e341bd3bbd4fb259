"""longeval leaderboard: checks and ranks leaderboard files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from longeval.cli.options import OutOption
from longeval.errors import UserError, nearest
from longeval.output import json_text, write_text
from longeval.results.leaderboard import check_file, merge
from longeval.results.ranking import ranking_grids
from longeval.results.text_files import TABLE_FORMATS

app = typer.Typer(
    help="Check and rank leaderboard files (`longeval export --format leaderboard`).", no_args_is_help=True
)

FilesArgument = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Leaderboard files.", show_default=False)]


@app.command()
def validate(files: FilesArgument) -> int:
    """Check files against the schema and recompute their headline numbers; exit status 1 when one is not valid."""
    console = Console(soft_wrap=True)
    status, unreadable = 0, []
    for path in files:
        try:
            problems = check_file(path)
        except UserError as error:
            unreadable.append(str(error))
            continue
        for problem in problems:
            console.print(f"{path}: {problem}", style="red", markup=False, highlight=False)
            status = 1
        if not problems:
            console.print(f"{path}: valid", markup=False, highlight=False)
    if unreadable:
        raise UserError("; ".join(unreadable))
    return status


@app.command(name="merge")
def merge_files(
    files: FilesArgument,
    out: OutOption = None,
    format: Annotated[
        str | None, typer.Option("--format", help="Print the tables as csv, markdown or latex.", show_default=False)
    ] = None,
) -> int:
    """Print the ranked tables of files together; --out writes the files as one."""
    if format is not None and format not in TABLE_FORMATS:
        raise UserError(f"--format {format!r} is not known{nearest(format, TABLE_FORMATS)}")
    content = merge(files)
    if out is not None:
        write_text(out, json_text(content))
    grids = ranking_grids(content)
    if format is None:
        Console().print(*grids, sep="")
    else:
        typer.echo(TABLE_FORMATS[format](grids), nl=False)
    return 0
