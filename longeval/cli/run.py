"""longeval run: evaluate a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from longeval.cli.options import ChatOption, LengthsOption, ModelOption, SeedOption, VllmOption, with_task_options
from longeval.config import RunConfig, parse_length, parse_lengths, split_list
from longeval.evaluate import dry_run, run
from longeval.tasks.base import TaskOptions


@with_task_options
def command(
    model: ModelOption,
    suite: Annotated[list[str], typer.Option("--suite", help="Suites, comma-separated.", show_default=False)],
    tasks: Annotated[
        list[str] | None, typer.Option("--tasks", help="Only these tasks (task or suite/task), comma-separated.")
    ] = None,
    lengths: LengthsOption = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Samples per cell.")] = None,
    limit_tokens: Annotated[
        str | None,
        typer.Option(
            "--limit-tokens", help="Most tokens per cell, as 64k: long cells get fewer samples, one at least."
        ),
    ] = None,
    seed: SeedOption = 0,
    backend: Annotated[str, typer.Option(help="auto, torch or vllm.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16 or float64.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    vllm: VllmOption = None,
    chat: ChatOption = "auto",
    overflow: Annotated[
        str, typer.Option(help="For samples over --max-length: refuse, or truncate-middle and count them.")
    ] = "refuse",
    trained_length: Annotated[
        int | None,
        typer.Option("--trained-length", help="Trained window to mark where the checkpoint does not say it."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Run folder (default: runs/<model>-<suite>-<date>-…).")
    ] = None,
    only_plan: Annotated[bool, typer.Option("--dry-run", help="Build the samples and say what would run.")] = False,
    *,
    options: TaskOptions,
) -> int:
    """Evaluate a checkpoint and print its table by length bucket. The same command again resumes."""
    config = RunConfig(
        model=model,
        suites=split_list(suite),
        tasks=split_list(tasks or []),
        lengths=parse_lengths(lengths),
        limit=limit,
        limit_tokens=None if limit_tokens is None else parse_length(limit_tokens),
        seed=seed,
        backend=backend,
        dtype=dtype,
        device=device,
        chat=chat,
        overflow=overflow,
        trained_length=trained_length,
        vllm=tuple(vllm or ()),
        out=out,
        options=options,
    )
    if only_plan:
        Console().print(dry_run(config, Console(stderr=True)))
        return 0
    result = run(config, Console(stderr=True))
    console = Console()
    console.print(result.table(console.width))
    return 0 if result.complete else 1
