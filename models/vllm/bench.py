"""Speed and memory of the vLLM backend by position method, in one run: `python -m longeval.models.vllm.bench`.

Checkpoints of 760M parameters with random weights in bfloat16, started as `longeval run` starts them: compiled, with
CUDA graphs. RoPE runs on vLLM's own attention, FlashAttention 3 on a Hopper GPU, and is what the others are measured
against. Each model has a process for itself and, while it is timed, a GPU; all GPUs there are take their share of the
models. Prompts are random, so that no prefix is shared. Times are the best of two rounds after a short one that
compiles.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file

from longeval.models.architecture import read_architecture
from longeval.models.checkpoint import Checkpoint
from longeval.models.network import Network
from longeval.models.vllm.backend import VllmModel, load_vllm
from longeval.models.vllm.configs import implied_shapes

BASELINE = "rope"
KINDS: dict[str, dict[str, Any]] = {
    BASELINE: {"model_type": "transformer", "architectures": ["TransformerForCausalLM"]},
    "fox": {"model_type": "forgetting_transformer", "architectures": ["ForgettingTransformerForCausalLM"]},
    "path": {"model_type": "path_attn", "architectures": ["PaTHAttentionForCausalLM"]},
    "path-fox": {"model_type": "path_attn", "architectures": ["PaTHAttentionForCausalLM"], "use_forget_gate": True},
}
SIZE = {"num_hidden_layers": 24, "hidden_size": 1536, "num_heads": 24, "intermediate_size": 4096, "vocab_size": 32_000}


@dataclass(frozen=True)
class Batch:
    """`prompts` prompts of `length` tokens at once, `new` tokens each."""

    prompts: int
    length: int
    new: int

    def __str__(self) -> str:
        return f"{self.prompts} × {self.length} + {self.new}"


T = TypeVar("T")
ROUNDS = 2
BATCHES = (Batch(64, 4096, 128), Batch(4, 16_384, 64), Batch(4, 65_536, 16))
DOCUMENT = 65_536  # tokens of the document that is scored
turn: AbstractContextManager[Any] = nullcontext()  # in a worker: the lock of its GPU


@dataclass(frozen=True)
class Memory:
    """GiB of the cache, and of everything else that PyTorch allocated at its peak, weights included.

    bytes_per_token: of the cache, all layers; `relative`: over keys and values in the model's dtype. concurrent: texts
    of the longest length that the cache holds at once.
    """

    cache: float
    others: float
    bytes_per_token: float
    relative: float
    concurrent: float


@dataclass(frozen=True)
class Measured:
    """One model: seconds by batch and for the document, and of batches with one new token; engine start included."""

    kind: str
    facts: dict[str, Any]
    start: float
    seconds: dict[str, float]
    prefill: dict[str, float]
    memory: Memory


def checkpoint(kind: str, size: Mapping[str, int], folder: Path, dtype: torch.dtype = torch.bfloat16) -> Checkpoint:
    """A checkpoint of that kind with random weights, written to `folder`; its forget gates start nearly open."""
    config = {**KINDS[kind], **size, "eos_token_id": None, "dtype": str(dtype).removeprefix("torch.")}
    arch, names = read_architecture(config, implied_shapes(config), kind)
    with torch.device("meta"):
        network = Network(arch)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rng = torch.Generator(device).manual_seed(0)
    weights = {}
    for name, parameter in network.named_parameters():
        for theirs, ours in names.items():
            name = name.replace(ours, theirs)
        values = torch.empty(parameter.shape, dtype=dtype, device=device).normal_(0, 0.02, generator=rng)
        if parameter.dim() == 1:
            values.fill_(6 if name.endswith("bias") else 1)
        weights[name] = values
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return Checkpoint(kind, folder)


def measure(
    kind: str, size: Mapping[str, int], batches: Sequence[Batch], document: int, options: Sequence[str], dtype: str
) -> Measured:
    """Starts the engine and, when its turn comes, runs every batch and the document."""
    longest = max(document, *(batch.length + batch.new for batch in batches))
    with tempfile.TemporaryDirectory() as folder:
        source = checkpoint(kind, size, Path(folder), getattr(torch, dtype))
        start, model = _timed(lambda: load_vllm(source, dtype, "auto", longest, options))
    with turn:
        seconds, prefill = _times(model, random_texts(size["vocab_size"]), batches, document)
    facts = {key: value for key, value in model.provenance.items() if not key.startswith("checkpoint")}
    plain = 2 * size["hidden_size"] * size["num_hidden_layers"] * getattr(torch, dtype).itemsize
    measured = Measured(kind, facts, start, seconds, prefill, _memory(model, longest, plain))
    model.close()
    return measured


def _times(
    model: VllmModel, text: Callable[[int], list[int]], batches: Sequence[Batch], document: int
) -> tuple[dict[str, float], dict[str, float]]:
    """`seconds` and `prefill` of `Measured`."""
    _generate(model, text, Batch(2, min(batch.length for batch in batches), 4))
    model.logprobs(text(min(document, 8192)))
    seconds = {str(batch): min(_generate(model, text, batch) for _ in range(ROUNDS)) for batch in batches}
    prefill = {
        str(batch): min(_generate(model, text, replace(batch, new=1)) for _ in range(ROUNDS)) for batch in batches
    }
    seconds[f"log-probabilities of {document}"] = min(_score(model, text(document)) for _ in range(ROUNDS))
    return seconds, prefill


def _memory(model: VllmModel, longest: int, plain: int) -> Memory:
    """`plain`: bytes of one token's keys and values."""
    specs = [spec for specs in model.engine.collective_rpc("get_kv_cache_spec") for spec in specs.values()]
    blocks = model.engine.vllm_config.cache_config.num_gpu_blocks
    cache = blocks * sum(spec.page_size_bytes for spec in specs) / 2**30
    others = max(0, torch.cuda.max_memory_allocated() / 2**30 - cache)
    per_token = sum(spec.page_size_bytes / spec.block_size for spec in specs)
    return Memory(cache, others, per_token, per_token / plain, model.provenance["cache_tokens"] / longest)


def random_texts(vocab_size: int) -> Callable[[int], list[int]]:
    """A function of a length: each text is another."""
    rng = torch.Generator().manual_seed(0)
    return lambda length: torch.randint(3, vocab_size, (length,), generator=rng).tolist()


def _generate(model: VllmModel, text: Callable[[int], list[int]], batch: Batch) -> float:
    """Seconds from the first request to the last token."""
    prompts = [text(batch.length) for _ in range(batch.prompts)]
    return _timed(lambda: list(model.generate(prompts, batch.new)))[0]


def _score(model: VllmModel, ids: list[int]) -> float:
    return _timed(lambda: model.logprobs(ids))[0]


def _timed(call: Callable[[], T]) -> tuple[float, T]:
    begun = time.perf_counter()
    result = call()
    return time.perf_counter() - begun, result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS), help="comma-separated: %(default)s")
    parser.add_argument("--json", type=Path, help="also write all of it to this file")
    parser.add_argument("--vllm", action="append", default=[], help="engine argument KEY=VALUE for all; repeatable")
    parser.add_argument(
        "--together", type=int, default=1, help="engines that start on a GPU at once (--vllm kv_cache_memory_bytes=N)"
    )
    args = parser.parse_args()
    gpus = torch.cuda.device_count()
    if not gpus:
        raise SystemExit("the benchmark needs a CUDA device; PyTorch sees none")
    found: list[Measured] = []
    for row in measure_all(args.kinds.split(","), gpus, args.together, args.vllm):
        found.append(row)
        Console(width=110).print(table(found))
        if args.json:
            args.json.write_text(json.dumps([asdict(row) for row in found], indent=1) + "\n")


def measure_all(kinds: Sequence[str], gpus: int, together: int, options: Sequence[str]) -> Iterator[Measured]:
    """Kinds in their order, dealt to the GPUs in turn. Starting takes the processor, timing a GPU for itself."""
    spawn = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pools = [
            stack.enter_context(
                ProcessPoolExecutor(together, spawn, _worker, (gpu, spawn.Lock()), max_tasks_per_child=1)
            )
            for gpu in range(gpus)
        ]
        rows = [
            pools[index % gpus].submit(measure, kind, SIZE, BATCHES, DOCUMENT, options, "bfloat16")
            for index, kind in enumerate(kinds)
        ]
        for row in rows:
            yield row.result()


def _worker(gpu: int, lock: AbstractContextManager[Any]) -> None:
    """In a new process, before anything there asks for a GPU."""
    global turn
    turn = lock
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[gpu] if visible else str(gpu)


def table(found: Sequence[Measured]) -> Table:
    """Seconds, with the speed relative to the baseline where it was measured; then memory."""
    result = Table("", *(row.kind for row in found), title="seconds (speed relative to rope)", title_justify="left")
    for case in found[0].seconds:
        result.add_row(case, *_speeds({row.kind: row.seconds[case] for row in found}))
        if case in found[0].prefill:
            result.add_row("  its prefill", *_speeds({row.kind: row.prefill[case] for row in found}))
            result.add_row("  the rest", *_speeds({row.kind: row.seconds[case] - row.prefill[case] for row in found}))
    memory = [row.memory for row in found]
    result.add_row("cache bytes per token", *(f"{m.bytes_per_token:,.0f} ({m.relative:.2f} × K+V)" for m in memory))
    result.add_row("cache, GiB", *(f"{m.cache:.1f}" for m in memory))
    result.add_row("everything else at its peak, GiB", *(f"{m.others:.1f}" for m in memory))
    result.add_row("longest texts at once", *(f"{m.concurrent:.1f}" for m in memory))
    result.add_row("engine start, s", *(f"{row.start:.0f}" for row in found))
    return result


def _speeds(seconds: Mapping[str, float]) -> list[str]:
    plain = seconds.get(BASELINE)
    return [f"{s:.2f}" + (f" ({plain / s:.2f})" if plain else "") for s in seconds.values()]


if __name__ == "__main__":
    main()
