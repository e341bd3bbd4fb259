"""The kernels' entry points: `prefill`, `decode` and `append` on packed batches, with or without a paged cache.

Tensors are packed over tokens: q [T, HQ, d]; k, v, w [T, H, d]; beta [T, H]; log_f [T, HQ]; the last dimension is
contiguous. Definition: `reference.py`, with the same `ScoreRule`. Forward only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from longeval.kernels.causal_prefill import causal
from longeval.kernels.gates import gate_sums, span_gate_sums
from longeval.kernels.paged import append as append_kernel
from longeval.kernels.paged import close_open_chunks
from longeval.kernels.paged_decode import attend_pages, carry_queries, merge
from longeval.kernels.path_prefill import chunks, far_spans, near_spans, walk
from longeval.kernels.plan import CHUNK, Blocks, Plan
from longeval.kernels.pool import Pool
from longeval.kernels.reference import ScoreRule
from longeval.kernels.tiles import LOG2E


@dataclass(frozen=True)
class New:
    """The tokens of one call. w and beta make it PaTH, log_f gates it."""

    q: Tensor
    k: Tensor
    v: Tensor
    w: Tensor | None = None
    beta: Tensor | None = None
    log_f: Tensor | None = None

    @property
    def operand(self) -> torch.dtype:
        """What PaTH's matrix operands are rounded to."""
        return torch.float32 if self.q.dtype == torch.float32 else torch.float16


@dataclass(frozen=True)
class Cached:
    """Where the sequences of a call live: pool, block table [N, pages] int32, tokens held before the call [N] int32."""

    pool: Pool
    table: Tensor
    context: Tensor
    pages: Blocks

    @staticmethod
    def of(pool: Pool, table: Tensor, context: Tensor, cu_seqlens: Tensor, tokens: int) -> Cached:
        """Also lists the pages that the call writes to."""
        P = pool.layout.size
        context = context.int().contiguous()
        lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).long()
        n = lengths.shape[0]
        pages = Blocks.of(lengths, P, bound=min(tokens, tokens // P + 2 * n), skipped=context.long() % P)
        return Cached(pool, table.int().contiguous(), context, pages)


def _tl(dtype: torch.dtype) -> Any:
    return {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}[dtype]


def _rows(x: Tensor) -> tuple[Tensor, int, int]:
    """A [T, heads, d] tensor with its two strides."""
    assert x.stride(-1) == 1, "the last dimension must be contiguous"
    return x, x.stride(0), x.stride(1)


def _field(x: Tensor | None, like: Tensor) -> tuple[Tensor, int, int]:
    """A page field with its page and head strides; a field the layer lacks is never touched."""
    return (like, 0, 0) if x is None else (x, x.stride(0), x.stride(1))


def prefill(rule: ScoreRule, new: New, plan: Plan, cached: Cached | None = None) -> Tensor:
    """Attention output [T, HQ, d] of new tokens, over each other and, with `cached`, over their sequences' prefixes.

    Reads the cache as it was before these tokens; `append` writes them to it afterwards.
    """
    out = torch.empty_like(new.q)
    gates = _gates(rule, new, plan)
    attend = _causal if new.w is None else _path
    attend(rule, new, plan, cached, out, gates)
    return out


def _prefix(rule: ScoreRule, new: New, plan: Plan, cached: Cached | None) -> tuple[Any, ...]:
    """The arguments that `over_pages` needs; placeholders without a cache."""
    q = new.q
    if cached is None:
        return (*_field(None, q) * 4, q, q, plan.starts, plan.starts, 0, 0.0)
    pool, N = cached.pool, cached.table.shape[0]
    H, D = new.k.shape[1:]
    open_k, open_f = pool.k, pool.k
    if new.w is not None:
        open_k = torch.empty(N, H, CHUNK, D, dtype=pool.k.dtype, device=q.device)
        open_f = torch.empty(N, H, D, D, dtype=new.operand, device=q.device)
        close_open_chunks[(N, H)](
            *_field(pool.k, pool.k), *_field(pool.w, pool.k), *_field(pool.beta, pool.k), open_k, open_f,
            cached.context, cached.table, cached.table.stride(0),
            H=H, D=D, C=CHUNK, P=pool.layout.size, OP=_tl(new.operand), num_warps=4,
        )  # fmt: skip
    fields = (part for field in (pool.k, pool.v, pool.f, pool.g) for part in _field(field, pool.k))
    gate_scale = rule.gate_scale * LOG2E
    return (*fields, open_k, open_f, cached.context, cached.table, cached.table.stride(0), gate_scale)


class _Gates(NamedTuple):
    """What `gate_sums` makes of a batch's gates; empty tensors without any.

    since [HQ, chunks, 4, C], suffix [kinds, HQ, chunks, 2, C], total [kinds, HQ, chunks]. PaTH has three kinds, chunks
    and both spans, in log2 units, because its queries carry the scale. The others have chunks alone, in units of q k,
    whose scale comes after.
    """

    since: Tensor
    suffix: Tensor
    total: Tensor


def _gates(rule: ScoreRule, new: New, plan: Plan) -> _Gates:
    if new.log_f is None:
        none = torch.empty(0, dtype=torch.float32, device=new.q.device)
        return _Gates(none, none, none)
    HQ, bound, path = new.log_f.shape[1], plan.chunks.bound, new.w is not None
    kinds, unit = (3, LOG2E) if path else (1, 1 / rule.scale)

    def work(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=new.q.device)

    since = work(HQ, bound, 4, CHUNK, dtype=torch.float16)
    suffix = work(kinds, HQ, bound, 2, CHUNK, dtype=torch.float16)
    total = work(kinds, HQ, bound)
    heads = min(16, triton.next_power_of_2(HQ))
    grid = (bound, triton.cdiv(HQ, heads))
    gate_sums[grid](
        new.log_f, new.log_f.stride(0), since, suffix, total,
        plan.chunks.items, plan.starts, bound, rule.gate_scale * unit, HQ=HQ, HEADS=heads, C=CHUNK, num_warps=4,
    )  # fmt: skip
    if path:
        span_gate_sums[grid](
            suffix, total, plan.chunks.items, plan.starts, bound, plan.each,
            HQ=HQ, HEADS=heads, C=CHUNK, S=plan.near.size, LATER=32, num_warps=4,
        )  # fmt: skip
    return _Gates(since, suffix, total)


def _causal(rule: ScoreRule, new: New, plan: Plan, cached: Cached | None, out: Tensor, gates: _Gates) -> None:
    T, HQ, D = new.q.shape
    assert T * max(new.k.stride(0), new.v.stride(0)) < 2**31, "keys and values count their elements in 32 bits"
    causal[(plan.near.bound, HQ)](
        *_rows(new.q), *_rows(new.k), *_rows(new.v), *gates, *_rows(out), rule.scale * LOG2E,
        *_prefix(rule, new, plan, cached), plan.near.items, plan.starts, plan.chunks.base, plan.chunks.bound,
        G=HQ // new.k.shape[1], D=D, C=CHUNK, P=_page_size(cached), OP=_tl(new.q.dtype),
        GATE=new.log_f is not None, PREFIX=cached is not None,
        STAGES=_stages(new.q), num_warps=8, maxnreg=128 if D <= 64 else 255,
    )  # fmt: skip


def _path(rule: ScoreRule, new: New, plan: Plan, cached: Cached | None, out: Tensor, gates: _Gates) -> None:
    q, k, w, beta = new.q, new.k, new.w, new.beta
    assert w is not None
    assert beta is not None
    T, HQ, D = q.shape
    H = k.shape[1]
    chunk, near, far = plan.chunks, plan.near, plan.far
    G, scale, carried = HQ // H, rule.scale * LOG2E, HQ == H

    def work(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=new.operand, device=q.device)

    uw, near_k, near_f = work(H, T, D), work(H, T, D), work(H, near.bound, D, D)
    far_k, far_f = work(H, T if far.size < T else 0, D), work(H, far.bound, D, D)
    x = work(HQ, T, D).transpose(0, 1) if carried else q  # [T, HQ, D]: queries as the passes hand them on
    partial = out if q.dtype == torch.float32 else out.view(torch.float16)
    lse = torch.empty(HQ, T, dtype=torch.float32, device=q.device)
    OP, GATE = _tl(new.operand), new.log_f is not None
    small = D <= 64
    chunks[(chunk.bound * H,)](
        *_rows(q), *_rows(k), *_rows(new.v), *_rows(w), beta, beta.stride(0),
        gates.since, *_rows(partial), lse, uw, near_k, *_rows(x), chunk.items, plan.starts, T, chunk.bound, scale,
        H=H, G=G, D=D, C=CHUNK, OP=OP, GATE=GATE, CARRIED=carried, num_warps=4, num_stages=1,
        maxnreg=128 if small and new.operand == torch.float16 else 168,  # float32 operands need them
    )  # fmt: skip
    near_spans[(near.bound * H,)](
        *_rows(x), *_rows(new.v), *_rows(w), gates.suffix, gates.total, *_rows(partial), lse,
        uw, near_k, near_f, near.items, plan.starts, chunk.base, T, chunk.bound, near.bound, scale,
        H=H, G=G, D=D, C=CHUNK, OP=OP, GATE=GATE, CARRIED=carried, num_warps=4, num_stages=1,
        maxnreg=168 if small else 255,
    )  # fmt: skip
    far_spans[(far.bound, H)](
        near_k, near_f, far_k, far_f, far.items, plan.starts, near.base, T, near.bound, far.bound, plan.each,
        D=D, C=CHUNK, S=near.size, OP=OP, num_warps=4, num_stages=1,
    )  # fmt: skip
    if not small:  # read as bits the walk is 2 % faster here, and 2 % slower at D = 64, where registers run out
        near_f, far_f = near_f.view(torch.int16), far_f.view(torch.int16)
    walk[(near.bound, HQ)](
        *_rows(x), *_rows(new.v), *_rows(w), gates.suffix, gates.total, out, *_rows(partial), lse, scale,
        uw, near_k, near_f, far_k, far_f, *_prefix(rule, new, plan, cached),
        near.items, plan.starts, chunk.base, far.base, T, chunk.bound, near.bound, far.bound, plan.each,
        G=G, D=D, C=CHUNK, S=near.size, P=_page_size(cached), OP=OP, CARRIED=carried, GATE=GATE,
        PREFIX=cached is not None, STAGES=_stages(q), num_warps=8, maxnreg=128 if small else 255,
    )  # fmt: skip


def _page_size(cached: Cached | None) -> int:
    return CHUNK if cached is None else cached.pool.layout.size


def _stages(q: Tensor) -> int:
    """As many tiles on their way as fit into 227 KiB of shared memory."""
    return (2 if q.dtype == torch.float32 else 3) - (q.shape[2] * q.element_size() > 256)


def append(new: New, starts: Tensor, cached: Cached) -> None:
    """Writes new tokens to the cache: `starts` [N + 1] int32 is cu_seqlens; only k, v, w, beta, log_f are read.

    Each token once, and none can be taken back: its page's earlier keys and gate sums take it in.
    """
    k, pool = new.k, cached.pool
    _, H, D = k.shape
    w = k if new.w is None else new.w
    beta = k if new.beta is None else new.beta
    gate = k if new.log_f is None else new.log_f
    append_kernel[(cached.pages.bound, H)](
        *_rows(k), *_rows(new.v), *_rows(w), beta, beta.stride(0), gate, gate.stride(0),
        *(part for field in (pool.k, pool.v, pool.f, pool.w, pool.beta, pool.g) for part in _field(field, pool.k)),
        cached.pages.items, starts, cached.context, cached.table, cached.table.stride(0),
        G=pool.layout.shape.group, D=D, C=CHUNK, P=pool.layout.size, OP=_tl(new.operand),
        PATH=new.w is not None, GATE=new.log_f is not None, num_warps=4, num_stages=1,
    )  # fmt: skip


def decode(rule: ScoreRule, q: Tensor, pool: Pool, table: Tensor, lengths: Tensor, max_length: int) -> Tensor:
    """Attention output [N, HQ, d] of each sequence's newest token, which `append` has already put into the cache.

    q [N, HQ, d]; table [N, pages] int32; lengths [N] int32, the new token included; 0 for an unused row, whose output
    is zero. max_length bounds them on the host: it decides the grid, and nothing else does.
    """
    N, HQ, D = q.shape
    layout = pool.layout
    H, G, P = layout.shape.kv_heads, layout.shape.group, layout.size
    path, gate = layout.shape.path, layout.shape.gate
    scale, gate_scale = rule.scale * LOG2E, rule.gate_scale * LOG2E
    splits = _splits(N * H, triton.cdiv(max_length, P), q.device)
    parts = splits + path
    table_n = table.stride(0)
    out = torch.empty_like(q)
    part_o = torch.empty(N, HQ, parts, D, dtype=torch.float32, device=q.device)
    part_lse = torch.empty(N, HQ, parts, dtype=torch.float32, device=q.device)
    rows = max(16, triton.next_power_of_2(G))
    k, v, g = _field(pool.k, pool.k), _field(pool.v, pool.k), _field(pool.g, pool.k)
    if path:
        operand = torch.float32 if q.dtype == torch.float32 else torch.float16
        x = torch.empty(N, H, table_n, G, D, dtype=operand, device=q.device)
        x_strides, x_scale = (x.stride(0), x.stride(1), x.stride(2), x.stride(3)), 1.0
        carry_queries[(N, H)](
            *_rows(q), scale, x, part_o, part_lse, *k, *v, *_field(pool.f, pool.k), *_field(pool.w, pool.k),
            *_field(pool.beta, pool.k), *g, lengths, table, table_n, parts, gate_scale,
            G=G, ROWS=rows, H=H, D=D, C=CHUNK, P=P, OP=_tl(operand), GATE=gate,
            num_warps=2 if N * H >= 1024 and D <= 64 else 4,
        )  # fmt: skip
    else:
        x, x_strides, x_scale = q, (q.stride(0), q.stride(1) * G, 0, q.stride(1)), scale
    attend_pages[(N, H, splits)](
        x, *x_strides, x_scale, part_o, part_lse, *k, *v, *g, lengths, table, table_n, parts, splits, gate_scale,
        G=G, ROWS=rows, H=H, D=D, C=CHUNK, N=CHUNK, P=P, LATER=32, PATH=path, GATE=gate,
        STAGES=3 if q.dtype != torch.float32 else 2, num_warps=2 if D <= 64 else 4,
    )  # fmt: skip
    merge[(N, HQ)](
        part_o, part_lse, out, out.stride(0), out.stride(1), lengths, parts,
        HQ=HQ, D=D, TILE=32, num_warps=1,
    )  # fmt: skip
    return out


def _splits(rows: int, pages: int, device: torch.device) -> int:
    """Enough programs for about four waves of the card, at most one per page."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    return max(1, min(pages, math.ceil(4 * processors / rows)))
