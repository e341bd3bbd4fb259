"""Options that several subcommands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import Field, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from longeval.tasks.base import TaskOptions

ModelOption = Annotated[
    str, typer.Option("--model", help="Checkpoint folder, GGUF file, hub id, or demo:path-fox.", show_default=False)
]
LengthsOption = Annotated[
    list[str] | None, typer.Option("--lengths", help="Lengths as 4096 or 4k (= 4096), comma-separated.")
]
ChatOption = Annotated[str, typer.Option("--chat", help="Chat template: auto (when the tokenizer has one), on, off.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, metavar="<int>", help="Seed of the samples.")]
VllmOption = Annotated[
    list[str] | None,
    typer.Option("--vllm", help="Engine argument KEY=VALUE of the vllm backend, such as max_num_seqs=64; repeatable."),
]
RunsArgument = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.", show_default=False)]
BaselineOption = Annotated[
    Path | None, typer.Option("--baseline", help="Run that the others are tested against (default: the first).")
]
WithOption = Annotated[
    list[str] | None, typer.Option("--with", help="Published scores beside the measured ones: path-paper.")
]
OutOption = Annotated[Path | None, typer.Option("--out", help="Where to write.")]


def _option(field: Field[Any]) -> Any:
    """Named outright, as Typer would add a --no-… to a flag."""
    return typer.Option(f"--{field.name.replace('_', '-')}", help=field.metadata["help"])


def with_task_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives `command(..., options: TaskOptions)` one command-line option for every field of TaskOptions."""
    hints = get_type_hints(TaskOptions)
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name != "options"]
    added = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=Annotated[hints[field.name], _option(field)],
        )
        for field in fields(TaskOptions)
    ]

    @functools.wraps(command)
    def wrapper(**values: Any) -> Any:
        options = TaskOptions(**{field.name: values.pop(field.name) for field in fields(TaskOptions)})
        return command(**values, options=options)

    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    wrapper.__signature__ = signature.replace(parameters=[*parameters, *added])  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in [*parameters, *added]}
    return wrapper
