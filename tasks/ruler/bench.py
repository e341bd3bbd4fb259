"""Benchmark of building: `python -m longeval.tasks.ruler.bench --tokenizer FOLDER|FILE.gguf|HUB-ID`.

For every cell it builds the samples (search, counting and proof of the length included, nothing cached) and then
tokenises the finished prompts once with the same tokenizer in the same batches, ids included: the least that any
builder must do to prove a length. The ratio of the two sums is what counts; both see the same load of the machine.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from longeval.tasks.base import DoesNotFit, TaskOptions
from longeval.tasks.prompt import Prompter
from longeval.tasks.ruler import SUITE
from longeval.tasks.ruler.protocol import LENGTHS

T = TypeVar("T")


@dataclass(frozen=True)
class Measurement:
    """One cell: `build` and `tokenise` in seconds for `samples` prompts of `tokens` tokens together, and in seconds of
    all cores (`_cpu`), which other work on the machine does not blur; `fill` is the mean of (prompt + answer) / length.
    """

    task: str
    length: int
    samples: int
    tokens: int
    build: float
    build_cpu: float
    tokenise: float
    tokenise_cpu: float
    fill: float


def load_tokenizer(name: str) -> Any:
    """A transformers tokenizer from a folder, a hub id or a GGUF file."""
    from transformers import AutoTokenizer

    path = Path(name)
    if path.suffix == ".gguf":
        return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    return AutoTokenizer.from_pretrained(name)


def timed(work: Callable[[], T]) -> tuple[T, float, float]:
    """What `work` returns, the seconds it took, and those of all cores together."""
    started, started_cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, time.perf_counter() - started, time.process_time() - started_cpu


def measure(tokenizer: Any, task_name: str, length: int, count: int, chat: bool, options: TaskOptions) -> Measurement:
    """Builds one cell and tokenises its prompts. Raises DoesNotFit."""
    task, prompter = SUITE.tasks[task_name](task_name, options), Prompter(tokenizer, chat)
    samples, build, build_cpu = timed(lambda: task.build(tokenizer, length, count, chat=chat))
    texts = [prompter.text(sample.prompt, sample.answer_prefix, sample.shots) for sample in samples]
    ids, tokenise, tokenise_cpu = timed(lambda: prompter.encode(texts))
    used = [len(prompt) + sample.max_new_tokens for prompt, sample in zip(ids, samples, strict=True)]
    return Measurement(
        task=task_name,
        length=length,
        samples=count,
        tokens=sum(map(len, ids)),
        build=build,
        build_cpu=build_cpu,
        tokenise=tokenise,
        tokenise_cpu=tokenise_cpu,
        fill=sum(used) / (count * length),
    )


def report(measurements: list[Measurement]) -> Table:
    """Ratio of building to tokenising by task and length, and over all."""
    lengths = sorted({m.length for m in measurements})
    title = "time to build / time to tokenise the finished prompts once"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("task", no_wrap=True)
    for length in lengths:
        table.add_column(f"{length:,}", justify="right")
    table.add_column("all", justify="right")
    table.add_column("fill", justify="right")
    rows = {task: [m for m in measurements if m.task == task] for task in SUITE.tasks}
    rows["all"] = measurements
    for name, chosen in rows.items():
        cells = [_ratio([m for m in chosen if m.length == length]) for length in lengths]
        fill = sum(m.fill for m in chosen) / len(chosen) if chosen else 0.0
        table.add_row(name, *cells, _ratio(chosen), f"{fill:.4f}")
    return table


def _ratio(measurements: list[Measurement]) -> str:
    tokenise = sum(m.tokenise for m in measurements)
    return f"{sum(m.build for m in measurements) / tokenise:.2f}" if tokenise else "–"


def main(
    tokenizer: Annotated[str, typer.Option(help="Folder, GGUF file or hub id.", show_default=False)],
    lengths: Annotated[str, typer.Option(help="Comma-separated, in tokens.")] = ",".join(map(str, LENGTHS)),
    count: Annotated[int, typer.Option(help="Samples per cell.")] = 100,
    tasks: Annotated[str, typer.Option(help="Comma-separated.")] = ",".join(SUITE.tasks),
    chat: Annotated[bool, typer.Option(help="Use the chat template.")] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Where corpora are looked for first.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the measurements here (JSON).")] = None,
) -> None:
    """Time building against tokenising."""
    console = Console()
    loaded = load_tokenizer(tokenizer)
    measurements: list[Measurement] = []
    with console.status("building") as status:
        for length in map(int, lengths.split(",")):
            for task in tasks.split(","):
                status.update(f"{task} {length:,}")
                try:
                    measurements.append(measure(loaded, task, length, count, chat, TaskOptions(data_dir=data_dir)))
                except DoesNotFit as small:
                    console.print(f"{task} at {length:,}: {small}")
                if out is not None:
                    out.write_text(json.dumps([asdict(m) for m in measurements], indent=1), encoding="utf-8")
    console.print(report(measurements))
    build, tokenise = sum(m.build for m in measurements), sum(m.tokenise for m in measurements)
    tokens = sum(m.tokens for m in measurements)
    cores = sum(m.build_cpu for m in measurements) / sum(m.tokenise_cpu for m in measurements)
    console.print(
        f"build {build:.1f} s, tokenise {tokenise:.1f} s, {tokens:,} tokens, {tokens / build:,.0f} tokens/s; "
        f"ratio in seconds of all cores {cores:.2f}"
    )


if __name__ == "__main__":
    typer.run(main)
