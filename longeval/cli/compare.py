"""longeval compare: checkpoints side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from longeval.cli.options import BaselineOption, RunsArgument, WithOption
from longeval.results.compare import Comparison, compare
from longeval.results.published import load_published
from longeval.results.view import comparison_view


def command(
    runs: RunsArgument,
    baseline: BaselineOption = None,
    published: WithOption = None,
    detect: Annotated[
        float | None,
        typer.Option("--detect", min=0.001, help="Say how many samples a difference of so many points (nats) needs."),
    ] = None,
) -> int:
    """Put checkpoints side by side: intervals, the best in bold, differences tested against a baseline."""
    console = Console()
    console.print(comparison_view(compare_and_warn(runs, baseline, published), console.width, detect))
    return 0


def compare_and_warn(runs: list[Path], baseline: Path | None, published: list[str] | None) -> Comparison:
    """The comparison; what makes it unfair goes to stderr."""
    comparison = compare(runs, baseline, [load_published(name) for name in published or []])
    errors = Console(stderr=True, soft_wrap=True)
    for warning in comparison.warnings:
        errors.print(f"warning: {warning}", style="yellow", markup=False, highlight=False)
    return comparison
