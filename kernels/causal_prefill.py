"""Plain causal and FoX prefill: attention of new tokens to each other, one pass, keys from newest to oldest.

The gate enters as in `path_prefill`, a bias of keys alone, but in units of the raw score: `scale` applies to both.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from longeval.kernels.gates import add_suffix, chunk_suffix
from longeval.kernels.tiles import SIZES, dot, dot_add, softmax_step


@triton.jit(do_not_specialize=SIZES)
def causal(
    q, q_t, q_h, k, k_t, k_h, v, v_t, v_h, suffix, total, out, partial, out_t, out_h, lse,
    items, starts, chunk_base, slots, context, tokens, scale,
    G: tl.constexpr, D: tl.constexpr, C: tl.constexpr,
    GATE: tl.constexpr, PREFIX: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Two chunks of queries of one head. q, out [tokens, HQ, D], k, v [tokens, H, D] by strides; lse [HQ, tokens].

    With a cached prefix the state goes to partial (out's memory) and lse, without the row's gates since the left edge
    of this call's tokens.
    """
    slot = tl.num_programs(0) - 1 - tl.program_id(0)  # longest walks first
    seq = tl.load(items + 2 * slot)
    if seq < 0:
        return
    block = tl.load(items + 2 * slot + 1)
    hq = tl.program_id(1)
    head = hq // G
    start = tl.load(starts + seq).to(tl.int64)
    length = (tl.load(starts + seq + 1) - start).to(tl.int32)
    first = block * 2 * C
    r = tl.arange(0, 2 * C)
    row = first + r
    live = row < length
    i = tl.arange(0, C)
    c = tl.arange(0, D)
    at = hq.to(tl.int64) * tokens + start
    x = tl.load(q + (start + row)[:, None] * q_t + hq * q_h + c[None, :], mask=live[:, None], other=0.0)
    k += start * k_t + head * k_h + i[None, :] * k_t + c[:, None]
    v += start * v_t + head * v_h + i[:, None] * v_t + c[None, :]

    # The block's own keys, oldest first, so that every row has seen one after the first tile.
    slot0 = hq.to(tl.int64) * slots + tl.load(chunk_base + seq) + 2 * block
    suffix += slot0 * 2 * C
    total += slot0
    since = tl.zeros([2 * C], tl.float32)  # the row's gates from the left edge of its chunk
    last = 0.0  # total of the second chunk
    if GATE:
        last = tl.load(total + 1, mask=first + C < length, other=0.0)
        halves = suffix + r // C * 2 * C + r % C
        mine = tl.load(halves, mask=live, other=0.0).to(tl.float32)
        mine = (mine + tl.load(halves + C, mask=live, other=0.0).to(tl.float32)) * scale
        since = tl.where(r < C, tl.load(total), last) * scale - mine
    live_k = first + i < length
    scores = dot(x, tl.load(k + first.to(tl.int64) * k_t, mask=live_k[None, :], other=0.0)) * scale
    if GATE:
        scores += chunk_suffix(suffix, C)[None, :] * scale
        scores += tl.where(r < C, -mine, since)[:, None]
    scores = tl.where((r[:, None] >= i[None, :]) & live_k[None, :], scores, float("-inf"))
    top = tl.max(scores, 1)
    p = tl.exp2(scores - top[:, None])
    norm = tl.sum(p, 1)
    vv = tl.load(v + first.to(tl.int64) * v_t, mask=live_k[:, None], other=0.0)
    acc = dot(p.to(vv.dtype), vv)
    if first + C < length:
        second = first + C
        live_k = second + i < length
        scores = dot(x, tl.load(k + second.to(tl.int64) * k_t, mask=live_k[None, :], other=0.0)) * scale
        if GATE:
            scores += chunk_suffix(suffix + 2 * C, C)[None, :] * scale - mine[:, None]
        scores = tl.where((r[:, None] >= C + i[None, :]) & live_k[None, :], scores, float("-inf"))
        vv = tl.load(v + second.to(tl.int64) * v_t, mask=live_k[:, None], other=0.0)
        top, norm, acc = softmax_step(scores, vv, top, norm, acc)

    if GATE:  # from here on a row leaves out its gates since the block's left edge
        top -= since + tl.where(r < C, 0.0, tl.load(total) * scale)
    edge = first
    for _ in tl.range(0, 2 * block, num_stages=STAGES):
        edge -= C
        if GATE:
            total -= 1
            passed = tl.load(total) * scale
            suffix -= 2 * C
            scores = dot_add(x, tl.load(k + edge.to(tl.int64) * k_t), add_suffix(suffix, 2 * C, C)) * scale
        else:
            scores = dot(x, tl.load(k + edge.to(tl.int64) * k_t)) * scale
        top, norm, acc = softmax_step(scores, tl.load(v + edge.to(tl.int64) * v_t), top, norm, acc)
        if GATE:
            top -= passed

    acc = acc / norm[:, None]
    to = (start + row)[:, None] * out_t + hq * out_h + c[None, :]
    if PREFIX:
        if tl.load(context + seq) > 0:
            tl.store(partial + to, acc.to(partial.dtype.element_ty), mask=live[:, None])
            tl.store(lse + at + row, top + tl.log2(norm), mask=live)
        else:
            tl.store(out + to, acc.to(out.dtype.element_ty), mask=live[:, None])
    else:
        tl.store(out + to, acc.to(out.dtype.element_ty), mask=live[:, None])
