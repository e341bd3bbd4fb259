"""longeval prompt: exactly what a run would send."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from longeval.cli.options import ChatOption, ModelOption, SeedOption, with_task_options
from longeval.config import parse_length
from longeval.errors import UserError
from longeval.models import find_model
from longeval.plan import wants_chat
from longeval.tasks import DoesNotFit, TaskOptions, get_task


@with_task_options
def command(
    task: Annotated[str, typer.Argument(help="suite/task, for example ruler/niah_single_1.", show_default=False)],
    model: ModelOption,
    length: Annotated[str, typer.Option("--length", help="4096 or 4k (= 4096).")] = "4k",
    index: Annotated[int, typer.Option("--index", min=0, metavar="<int>", help="Which sample.")] = 0,
    seed: SeedOption = 0,
    chat: ChatOption = "auto",
    *,
    options: TaskOptions,
) -> int:
    """Print one prompt's exact text and token ids: BOS, chat template and answer prefix included."""
    chosen = get_task(task, options)
    if problem := chosen.data_status().problem:
        raise UserError(f"{task}: {problem}")
    tokenizer = find_model(model).tokenizer
    tokens = parse_length(length)
    try:
        samples = chosen.build(tokenizer, tokens, index + 1, seed, chat=wants_chat(chat, tokenizer))
    except DoesNotFit as small:
        raise UserError(f"{task} does not fit {length}: it {small}") from small
    if len(samples) <= index:
        raise UserError(f"{task} has {len(samples)} samples at {length}; --index counts from 0")
    sample = samples[index]
    console = Console(soft_wrap=True)
    console.print(Rule(f"{sample.id} · {len(sample.ids):,} tokens + {sample.max_new_tokens} new", align="left"))
    console.print(Text(tokenizer.decode(sample.ids)))
    console.print(Rule("references", align="left"))
    console.print(Text(repr(sample.references)))
    console.print(Rule("token ids", align="left"))
    console.print(Text(" ".join(map(str, sample.ids))))
    return 0
