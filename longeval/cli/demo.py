"""longeval demo: the built-in reference checkpoints compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group

from longeval.demo import demo
from longeval.models.reference import ALL_CHECKPOINTS, CHECKPOINTS
from longeval.results.side_by_side import comparison_grids


def command(
    out: Annotated[Path, typer.Option("--out", help="Where the run folders go.")] = Path("runs/demo"),
    seeds: Annotated[bool, typer.Option("--seeds", help="Two more training seeds of RoPE and PaTH-FoX too.")] = False,
) -> int:
    """Compare RoPE, NoPE, FoX, PaTH and PaTH-FoX in miniature, in minutes on a CPU. The same command again resumes.

    `longeval compare` draws the curves of its run folders, `longeval export` writes them to files.
    """
    checkpoints = ALL_CHECKPOINTS if seeds else CHECKPOINTS
    comparison = demo(checkpoints, out, Console(stderr=True))
    Console().print(Group(*comparison_grids(comparison)))
    return 0 if all(run.scores.complete for run in comparison.runs) else 1
