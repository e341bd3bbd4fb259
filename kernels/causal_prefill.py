"""Plain causal and FoX prefill: attention of new tokens to each other and to their cached prefix, newest keys first.

Gates enter as in `path_prefill`, a bias of keys alone except in a query's own chunk, but in units of the raw score:
`scale` applies to both.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from longeval.kernels.gates import add_suffix, gates_between, gates_since
from longeval.kernels.paged import over_pages
from longeval.kernels.tiles import LOWEST, SIZES, dot, dot_add, softmax_step


@triton.jit(do_not_specialize=SIZES)
def causal(
    q, q_t, q_h, k, k_t, k_h, v, v_t, v_h, since, suffix, total, out, out_t, out_h, scale,
    pk, pk_b, pk_h, pv, pv_b, pv_h, pf, pf_b, pf_h, pg, pg_b, pg_h, open_k, open_f, context, table, table_n, gate_scale,
    items, starts, chunk_base, slots,
    G: tl.constexpr, D: tl.constexpr, C: tl.constexpr, P: tl.constexpr, OP: tl.constexpr,
    GATE: tl.constexpr, PREFIX: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Two chunks of queries of one head. q, out [tokens, HQ, D], k, v [tokens, H, D] by their strides.

    The pages' arguments are those of `over_pages`.
    """
    slot = tl.num_programs(0) - 1 - tl.program_id(0)  # longest walks first
    seq = tl.load(items + 2 * slot)
    if seq < 0:
        return
    first = tl.load(items + 2 * slot + 1) * 2 * C
    hq = tl.program_id(1)
    head = hq // G
    start = tl.load(starts + seq).to(tl.int64)
    length = (tl.load(starts + seq + 1) - start).to(tl.int32)
    r = tl.arange(0, 2 * C)
    i = tl.arange(0, C)
    c = tl.arange(0, D)
    row = first + r
    live = row < length
    q += (start + row)[:, None] * q_t + hq * q_h + c[None, :]
    x = tl.load(q, mask=live[:, None], other=0.0)
    acc = tl.zeros([2 * C, D], tl.float32)
    top = tl.full([2 * C], LOWEST, tl.float32)
    norm = tl.zeros([2 * C, 8], tl.float32)
    k += (start + first) * k_t + head * k_h + i[None, :] * k_t + c[:, None]
    v += (start + first) * v_t + head * v_h + i[:, None] * v_t + c[None, :]
    k_step = C * k_t.to(tl.int32)
    v_step = C * v_t.to(tl.int32)

    if GATE:
        slot0 = hq.to(tl.int64) * slots + tl.load(chunk_base + seq) + first // C
        since += slot0 * 4 * C
        suffix += slot0 * 2 * C
        total += slot0
    for own in tl.static_range(1, -1, -1):  # the block's own chunks
        edge = first + own * C
        if edge < length:
            kept = edge + i < length
            kk = tl.load(k + own * k_step, mask=kept[None, :], other=0.0)
            vv = tl.load(v + own * v_step, mask=kept[:, None], other=0.0)
            last = tl.minimum(r - own * C, C - 1)  # the chunk's last token that a query has passed
            gates = since + own * 4 * C
            passed = gates_since(gates, last, C) * scale if GATE else 0.0
            scores = dot_add(x, kk, gates_between(gates, last, C)) if GATE else dot(x, kk)
            scores = tl.where(row[:, None] >= (edge + i)[None, :], scores, float("-inf"))
            top, norm, acc = softmax_step(scores, vv, top, norm, acc, scale)
            top -= passed
    for t in tl.range(1, first // C + 1, num_stages=STAGES):  # earlier ones
        kk = tl.load(k - t * k_step)
        if GATE:
            passed = tl.load(total - t) * scale
            scores = dot_add(x, kk, add_suffix(suffix - t * (2 * C), 2 * C, C))
        else:
            scores = dot(x, kk)
        top, norm, acc = softmax_step(scores, tl.load(v - t * v_step), top, norm, acc, scale)
        if GATE:
            top -= passed

    if PREFIX:
        norm, acc = over_pages(
            x, scale, top, norm, acc, seq, hq,
            pk, pk_b, pk_h, pv, pv_b, pv_h, pf, pf_b, pf_h, pg, pg_b, pg_h, open_k, open_f,
            context, table, table_n, gate_scale, G, D, C, P, OP, False, GATE, 1 if STAGES == 1 else 2,
        )  # fmt: skip
    out += (start + row)[:, None] * out_t + hq * out_h + c[None, :]
    tl.store(out, (acc * (1 / tl.sum(norm, 1))[:, None]).to(out.dtype.element_ty), mask=live[:, None])
