"""longeval score: official scores of an existing predictions file, no model needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from longeval.score import score_file


def command(
    file: Annotated[
        Path,
        typer.Argument(
            help='JSONL rows {"task": "suite/task", "prediction": "…", "references": ["…"], "length": 4096}, '
            'with "question" for BABILONG and "all_classes" for LongBench-E\'s trec.',
            show_default=False,
        ),
    ],
    out: Annotated[Path | None, typer.Option("--out", help="Write the rows with their score here (JSONL).")] = None,
) -> int:
    """Score a predictions file by the official rules and print the table."""
    Console().print(score_file(file, out))
    return 0
