"""longeval parity: the same tokens through every backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from longeval.cli.options import LengthsOption, ModelOption, VllmOption
from longeval.config import parse_length, split_list

if TYPE_CHECKING:
    from longeval.parity import Difference, Parity


def command(
    model: ModelOption,
    lengths: LengthsOption = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    tolerance: Annotated[
        float | None, typer.Option(help="Largest difference of a log-probability that passes (default: by dtype).")
    ] = None,
    vllm: VllmOption = None,
) -> int:
    """Compare log-probabilities and greedy tokens of the vllm backend and transformers with the torch backend's."""
    from longeval.models import find_model
    from longeval.parity import parity

    wanted = tuple(parse_length(length) for length in split_list(lengths or ["512,2k"]))
    log = Console(stderr=True)
    result = parity(
        model, wanted, dtype, device, tolerance, vllm or (), lambda backend: log.print(f"[dim]{backend} …[/]")
    )
    Console().print(_table(result, find_model(model).tokenizer))
    for backend, why in result.left_out.items():
        log.print(f"left out: {backend}: {why}", style="yellow", markup=False, highlight=False)
    return 0 if result.passed else 1


def _table(result: Parity, tokenizer: Any) -> Table:
    limits = result.tolerance
    bounds = f"max ≤ {limits.largest:g}, mean ≤ {limits.mean:g}, gap ≤ {2 * limits.largest:g}"
    table = Table(title=f"against the torch backend; passes at {bounds}", title_justify="left", pad_edge=False)
    for column in ("backend", "length", "max |Δ logp|", "mean", "first other token", "gap", ""):
        table.add_column(column, justify="right" if column in ("length", "max |Δ logp|", "mean", "gap") else "left")
    for row in result.differences:
        passed = Text("ok", style="green") if row.within(limits) else Text("beyond", style="red")
        gap = "" if row.parted is None else f"{row.gap:.2g}"
        numbers = (f"{row.length:,}", f"{row.largest:.2g}", f"{row.mean:.2g}")
        table.add_row(row.backend, *numbers, _parted(row, tokenizer), gap, passed)
    return table


def _parted(row: Difference, tokenizer: Any) -> str:
    if row.parted is None or row.tokens is None:
        return "none"
    names = [str(token) if tokenizer is None else repr(tokenizer.decode([token])) for token in row.tokens]
    return f"{row.parted}: {names[1]} for {names[0]}"
