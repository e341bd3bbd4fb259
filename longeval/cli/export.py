"""longeval export: results as files."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from longeval.cli.compare import compare_and_warn
from longeval.cli.options import BaselineOption, OutOption, RunsArgument, WithOption
from longeval.errors import UserError, nearest
from longeval.output import json_text, write_text
from longeval.results.compare import Comparison
from longeval.results.leaderboard import leaderboard
from longeval.results.position_tables import position_grids
from longeval.results.report import html_report
from longeval.results.side_by_side import comparison_grids
from longeval.results.text_files import TABLE_FORMATS
from longeval.results.trackers import log_to_mlflow, log_to_wandb

_TRACKERS = {"wandb": log_to_wandb, "mlflow": log_to_mlflow}
_FORMATS = ("leaderboard", *TABLE_FORMATS, "html", *_TRACKERS)


def command(
    runs: RunsArgument,
    format: Annotated[
        str,
        typer.Option(
            "--format",
            help="leaderboard (JSON), csv, markdown, latex or html; wandb or mlflow log to that tracker.",
            show_default=False,
        ),
    ],
    out: OutOption = None,
    baseline: BaselineOption = None,
    published: WithOption = None,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Let partial suites into a leaderboard file, which then says so.")
    ] = False,
) -> int:
    """Write results as a file (to standard output without --out), or log them to a tracker."""
    if format not in _FORMATS:
        raise UserError(f"--format {format!r} is not known{nearest(format, _FORMATS)}")
    comparison = compare_and_warn(runs, baseline, published)
    errors = Console(stderr=True, soft_wrap=True)
    if format in _TRACKERS:
        for run in comparison.runs:
            errors.print(f"{run.label}: {_TRACKERS[format](run)}", markup=False, highlight=False)
        return 0
    text = _text(comparison, format, allow_partial)
    if out is None:
        typer.echo(text, nl=False)
        return 0
    write_text(out, text)
    errors.print(f"wrote {out}", markup=False, highlight=False)
    return 0


def _text(comparison: Comparison, format: str, allow_partial: bool) -> str:
    if format == "leaderboard":
        return json_text(leaderboard(comparison.runs, allow_partial))
    if format == "html":
        return html_report(comparison)
    return TABLE_FORMATS[format]([*comparison_grids(comparison), *position_grids(comparison.runs)])
