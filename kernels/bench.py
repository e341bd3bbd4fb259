"""Correctness and speed of the kernels beside their peers, in one run: `python -m longeval.kernels.bench`.

Prefill is everything from q, k, v, w, beta, log f to the output. Its rate is attention-equivalent, 4 B H d L^2 / 2
FLOP, what plain causal attention needs; PaTH's own work is not counted. Decode is one CUDA graph of `append` and
`decode`; its rate counts K and V once. Prefill is checked in float64 on a sample of rows, and so are its peers; one
case is float32. Peers: PyTorch's SDPA with cuDNN and with FlashAttention 2, fla's kernels and its layer's step,
FlashAttention 3 as vLLM ships it and vLLM's own TRITON_ATTN for decode; what is not installed is listed as such. For
decode also one pass that rewrites all keys, `k <- H k`, which is what a cache without pages needs for every token.

Gates are near 1 (log f about -0.02) and nothing is skipped: every kernel does the whole triangle.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import triton
from rich.console import Console
from rich.table import Table
from torch import Tensor

from longeval.kernels.attention import Cached, New, append, decode, prefill
from longeval.kernels.check import rows_of
from longeval.kernels.peers import Calls, causal_peers, fla_peers, paged_peers, rewriting_peers
from longeval.kernels.plan import Plan
from longeval.kernels.pool import PageLayout, Pool, Shape
from longeval.kernels.reference import ScoreRule

PREFILL = [  # B, L, query heads, kv heads, d
    (1, 65536, 16, 16, 64),
    (4, 16384, 32, 32, 64),
    (8, 8192, 32, 32, 64),
    (16, 4096, 32, 32, 64),
    (32, 2048, 32, 32, 64),
    (4, 8192, 16, 16, 128),
    (4, 16384, 32, 8, 64),
]
FLOAT32 = (1, 4097, 16, 16, 64)
DECODE = [(n, length) for n in (1, 8, 64) for length in (4096, 16384, 65536) if n * length <= 64 * 16384]
MODES = {"path-fox": (True, True), "path": (True, False), "fox": (False, True), "causal": (False, False)}
PAGE = 512
ROUNDS = 4


@dataclass(frozen=True)
class Row:
    """One measurement. `rate`: TFLOP/s of a prefill, TB/s of a decode; None with `ms` if the kernel is not installed.

    error: ||o - ref|| / ||ref|| on sampled rows. extra: memory beyond inputs and output, in sizes of K.
    """

    case: str
    kernel: str
    ms: float | None
    rate: float | None
    error: float | None = None
    extra: float | None = None


def medians_ms(calls: Calls) -> dict[str, float | None]:
    """Medians over rounds of medians. Rounds go through all calls, to and fro: a warm card slows all of them alike."""
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for _ in range(ROUNDS):
        for name in order:
            if (call := calls[name]) is not None:
                rounds[name].append(triton.testing.do_bench(call, warmup=15, rep=60, return_mode="median"))
        order.reverse()
    return {name: statistics.median(times) if times else None for name, times in rounds.items()}


def random_tokens(batch: int, length: int, shape: Shape) -> tuple[ScoreRule, New]:
    """A packed batch of equal sequences; w in the dtype that the kernels would round it to."""
    g = torch.Generator("cuda").manual_seed(length)
    T, H, d = batch * length, shape.kv_heads, shape.head_dim

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=g, device="cuda")

    q, k, v = (normal(T, heads, d).to(shape.dtype) for heads in (shape.heads, H, H))
    w = beta = log_f = None
    if shape.path:
        w = torch.nn.functional.normalize(normal(T, H, d), dim=-1)
        w = w if shape.dtype == torch.float32 else w.half()
        beta = 2 * normal(T, H).sigmoid()
    if shape.gate:
        log_f = torch.nn.functional.logsigmoid(normal(T, shape.heads) + 4)
    return ScoreRule(d**-0.5, gate_scale=d**-0.5 if shape.path else 1.0), New(q, k, v, w, beta, log_f)


def sampled_error(rule: ScoreRule, new: New, length: int) -> Callable[[Tensor], float]:
    """Of an output [L, HQ, d] of the first sequence, on eight rows of all heads."""
    rows = [length * (i + 1) // 8 - 1 for i in range(8)]
    gates = (None if x is None else x[:length] for x in (new.w, new.beta, new.log_f))
    exact = rows_of(rule, rows, new.q[:length], new.k[:length], new.v[:length], *gates)
    return lambda out: float((out[rows].double() - exact).norm() / exact.norm())


def prefill_rows(
    batch: int, length: int, heads: int, kv_heads: int, d: int, fla: bool = False, dtype: torch.dtype = torch.bfloat16
) -> Iterator[Row]:
    """float32 without peers. fla's kernels are measured by themselves: the card cools down under them."""
    flop = 4 * batch * heads * d * length * length / 2
    size = f"{batch} x {length}, {heads}/{kv_heads} heads of {d}" + ", float32" * (dtype == torch.float32)
    plan = Plan.of(torch.arange(0, batch * length + 1, length, device="cuda"), batch * length)
    calls: Calls = {}
    slow: Calls = {}
    errors: dict[str, float] = {}
    extra: dict[str, float] = {}
    for mode, (path, gate) in MODES.items():
        rule, new = random_tokens(batch, length, Shape(heads, kv_heads, d, dtype, path, gate))

        def ours(rule: ScoreRule = rule, new: New = new) -> Tensor:
            return prefill(rule, new, plan).view(batch, length, heads, d)

        error = sampled_error(rule, new, length)
        extra[mode] = extra_memory(ours) / new.k.nbytes
        fast: Calls = {mode: ours}
        if mode == "causal" and dtype != torch.float32:
            fast |= causal_peers(new, batch, length)
        theirs = fla_peers(mode, new, batch, length) if fla and mode != "causal" else {}
        errors |= {name: error(call()[0]) for name, call in (fast | theirs).items() if call}
        calls |= fast
        slow |= theirs
    for name, ms in (medians_ms(calls) | medians_ms(slow)).items():
        yield Row(size, name, ms, ms and flop / ms / 1e9, errors.get(name), extra.get(name))


def extra_memory(call: Callable[[], Tensor]) -> int:
    """Most bytes that were allocated during the call, without its result."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = call()
    return torch.cuda.max_memory_allocated() - before - out.nbytes


def captured(call: Callable[[], object]) -> Callable[[], object]:
    """`call` as one CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    for capture in (False, True):  # the first round compiles
        with torch.cuda.graph(graph) if capture else nullcontext():
            call()
        torch.cuda.synchronize()

    def replay() -> object:
        graph.replay()
        return call  # what it reads and writes lives as long as it can be replayed

    return replay


def filled_pool(shape: Shape, pages: int) -> Pool:
    pool = PageLayout(shape, PAGE).empty(pages, "cuda")
    pool.k.normal_()
    pool.v.normal_()
    if pool.g is not None:
        pool.g.copy_(torch.full((PAGE,), -0.02, device="cuda").cumsum(0).flip(0).expand_as(pool.g))
    if pool.f is not None and pool.w is not None and pool.beta is not None:
        pool.f.copy_(torch.eye(shape.head_dim, device="cuda").expand_as(pool.f))
        pool.w.copy_(torch.nn.functional.normalize(torch.randn(pool.w.shape, device="cuda"), dim=-1))
        pool.beta.uniform_(0.1, 1.9)
    return pool


def decode_step(shape: Shape, batch: int, length: int) -> Callable[[], object]:
    """`append` and `decode` of one token for each of `batch` sequences with 26 pending tokens, as on average."""
    n = length // PAGE
    pool = filled_pool(shape, batch * n)
    table = torch.randperm(batch * n, device="cuda").view(batch, n).int()
    rule, new = random_tokens(batch, 1, shape)
    held = torch.full((batch,), length - 39, dtype=torch.int32, device="cuda")
    starts = torch.arange(batch + 1, dtype=torch.int32, device="cuda")
    cached = Cached.of(pool, table, held, starts, batch)
    lengths = held + 1

    def step() -> Tensor:
        append(new, starts, cached)  # the same token again and again: gate sums grow, work does not
        out: Tensor = decode(rule, new.q, pool, table, lengths, length)
        return out

    return step


def decode_rows(batch: int, length: int, fla: bool, heads: int = 32, kv_heads: int = 32, d: int = 64) -> Iterator[Row]:
    """`decode causal` is this package's paged flash-decode of plain attention."""
    nbytes = 2 * batch * kv_heads * length * d * 2
    size = f"{batch} x {length}, {heads}/{kv_heads} heads of {d}"
    calls: Calls = {}
    for mode, (path, gate) in MODES.items():
        step = decode_step(Shape(heads, kv_heads, d, torch.bfloat16, path, gate), batch, length)
        calls[f"decode {mode}"] = captured(step)
    rule, new = random_tokens(batch, 1, Shape(heads, kv_heads, d, torch.bfloat16, path=True, gate=True))
    calls |= {name: call and captured(call) for name, call in paged_peers(new.q, kv_heads, length).items()}
    calls |= rewriting_peers(rule, new, batch, length, fla)
    for name, ms in medians_ms(calls).items():
        yield Row(size, name, ms, ms and nbytes / ms / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write every row to this file")
    parser.add_argument("--only", choices=["prefill", "decode"])
    parser.add_argument(
        "--fla",
        choices=["prefill", "decode"],
        nargs="*",
        default=["prefill", "decode"],
        help="what to measure of fla, nothing if empty; its prefill kernels take a minute to compile per case",
    )
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("the benchmark needs a CUDA device; PyTorch sees none")
    torch.manual_seed(0)
    cases = [] if args.only == "decode" else [prefill_rows(*case, fla="prefill" in args.fla) for case in PREFILL]
    cases += [] if args.only == "decode" else [prefill_rows(*FLOAT32, dtype=torch.float32)]
    cases += [] if args.only == "prefill" else [decode_rows(*case, fla="decode" in args.fla) for case in DECODE]
    rows: list[Row] = []
    for number, case in enumerate(cases, 1):
        rows += case
        print(f"case {number} of {len(cases)}: {rows[-1].case}", flush=True)
        if args.json:  # after every case, so that a run cut short leaves what it has
            save(rows, args.json)
    show(rows)


def save(rows: list[Row], path: Path) -> None:
    facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
    path.write_text(json.dumps(facts)[:-1] + f', "rows": [\n{lines}\n]}}\n')


def show(rows: list[Row]) -> None:
    """Ratios are speeds relative to plain attention of the same case: cuDNN's SDPA for prefill, `causal` for decode."""
    table = Table("case", "kernel", "ms", "TFLOP/s or TB/s", "ratio", "error", "extra / K", title="bf16 where not said")
    plain = {row.case: row.ms or 0.0 for row in rows if row.kernel in ("SDPA cudnn", "decode causal")}
    for row in rows:
        if row.ms is None or row.rate is None:
            table.add_row(row.case, row.kernel, "not installed", "", "", "", "")
            continue
        table.add_row(
            row.case, row.kernel, f"{row.ms:.3f}", f"{row.rate:.3g}",
            f"{plain[row.case] / row.ms:.2f}" if row.case in plain else "",
            "" if row.error is None else f"{row.error:.1e}", "" if row.extra is None else f"{row.extra:.1f}",
        )  # fmt: skip
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
