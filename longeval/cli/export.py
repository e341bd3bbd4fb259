"""longeval export: results as files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from longeval.cli.compare import BaselineOption, WithOption
from longeval.cli.options import OutOption
from longeval.errors import UserError, nearest
from longeval.results.compare import Comparison, compare
from longeval.results.leaderboard import leaderboard
from longeval.results.published import load_published
from longeval.results.report import html_report
from longeval.results.side_by_side import comparison_grids
from longeval.results.text_files import as_csv, as_latex, as_markdown
from longeval.results.trackers import log_to_mlflow, log_to_wandb

_FILES: dict[str, Callable[[Comparison, bool], str]] = {
    "leaderboard": lambda comparison, partial: as_json(leaderboard(comparison.runs, partial)),
    "csv": lambda comparison, _: as_csv(comparison_grids(comparison)),
    "markdown": lambda comparison, _: as_markdown(comparison_grids(comparison)),
    "latex": lambda comparison, _: as_latex(comparison_grids(comparison)),
    "html": lambda comparison, _: html_report(comparison),
}
_TRACKERS = {"wandb": log_to_wandb, "mlflow": log_to_mlflow}


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.", show_default=False)],
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
    if format not in (*_FILES, *_TRACKERS):
        raise UserError(f"--format {format!r} is not known{nearest(format, (*_FILES, *_TRACKERS))}")
    errors = Console(stderr=True, soft_wrap=True)
    comparison = compare(runs, baseline, [load_published(name) for name in published or []])
    for warning in comparison.warnings:
        errors.print(f"warning: {warning}", style="yellow", markup=False, highlight=False)
    if format in _TRACKERS:
        for run in comparison.runs:
            errors.print(f"{run.label}: {_TRACKERS[format](run)}", markup=False, highlight=False)
        return 0
    text = _FILES[format](comparison, allow_partial)
    if out is None:
        sys.stdout.write(text)
        return 0
    write_text(out, text)
    errors.print(f"wrote {out}", markup=False, highlight=False)
    return 0


def as_json(content: object) -> str:
    """Indented JSON that any reader takes: no NaN in it."""
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_text(path: Path, text: str) -> None:
    """Writes a file; UserError when it cannot be written."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}); choose another --out") from error
