"""longeval compare: checkpoints side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from longeval.results.compare import compare
from longeval.results.published import load_published
from longeval.results.view import comparison_view

BaselineOption = Annotated[
    Path | None, typer.Option("--baseline", help="Run that the others are tested against (default: the first).")
]
WithOption = Annotated[
    list[str] | None, typer.Option("--with", help="Published scores beside the measured ones: path-paper.")
]


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.", show_default=False)],
    baseline: BaselineOption = None,
    published: WithOption = None,
    detect: Annotated[
        float | None,
        typer.Option("--detect", min=0.001, help="Say how many samples a difference of so many points (nats) needs."),
    ] = None,
) -> int:
    """Put checkpoints side by side: intervals, the best in bold, differences tested against a baseline."""
    comparison = compare(runs, baseline, [load_published(name) for name in published or []])
    for warning in comparison.warnings:
        Console(stderr=True, soft_wrap=True).print(f"warning: {warning}", style="yellow", markup=False, highlight=False)
    console = Console()
    console.print(comparison_view(comparison, console.width, detect))
    return 0
