"""PaTH and PaTH-FoX prefill: attention of new tokens to each other.

1. `chunks`: each chunk by itself. Its keys carried to its right edge, its transition F, and for each of its queries
   the softmax state over the chunk and the query itself, carried to the chunk's left edge.
2. `near_spans`, `far_spans`: keys once more, to the right edges of their near and far spans, and the spans' F.
3. `walk`: every block of queries goes on over earlier keys, newest first, in steps that grow with distance: chunks to
   the edge of its near span, near spans to the edge of its far span, then far spans. Inside a step it is plain
   attention; a step ends with one product of the queries with F.

Scores are in log2 units. The gate enters as a bias of keys alone, `suffix[j]` = sum of gates after j in its chunk; what
lies between the chunk and the query is the same for all keys of the chunk, so instead of adding it to them, the
row's maximum is lowered by the chunk's total when the walk moves on. Sums never reach beyond one chunk, and keep their
digits at any length.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from longeval.kernels.gates import add_suffix, chunk_suffix
from longeval.kernels.tiles import SIZES, chunk_transform, dot, dot_add, keys_to_right_edge, softmax_step, transition


@triton.jit(do_not_specialize=SIZES)
def chunks(
    q, q_t, q_h, k, k_t, k_h, v, v_t, v_h, w, w_t, w_h, beta, beta_t,
    suffix, total, partial, out_t, out_h, lse, left_q, right_k, right_f, items, starts, tokens, slots, scale,
    G: tl.constexpr, D: tl.constexpr, C: tl.constexpr, OP: tl.constexpr, GATE: tl.constexpr,
):  # fmt: skip
    """One chunk and kv head.

    q [tokens, HQ, D], k, v, w [tokens, H, D], beta [tokens, H] by their strides -> right_k [H, tokens, D] and right_f
    [H, slots, D, D] in OP, left_q [HQ, tokens, D] in OP and log2 units, partial [tokens, HQ, D] (out's memory), lse
    [HQ, tokens], which leaves out a row's own gates since the chunk's left edge.
    """
    slot = tl.program_id(0)
    seq = tl.load(items + 2 * slot)
    if seq < 0:
        return
    first = tl.load(items + 2 * slot + 1) * C
    head = tl.program_id(1)
    start = tl.load(starts + seq)
    n = tl.load(starts + seq + 1) - start - first
    base = (start + first).to(tl.int64)
    i = tl.arange(0, C)
    c = tl.arange(0, D)
    live = i < n
    causal = i[:, None] >= i[None, :]
    tile = i[:, None] * D + c[None, :]
    k += base * k_t + head * k_h
    v += base * v_t + head * v_h
    w += base * w_t + head * w_h
    ww = tl.load(w + i[:, None] * w_t + c[None, :], mask=live[:, None], other=0.0).to(OP)
    bb = tl.load(beta + base * beta_t + head + i * beta_t, mask=live, other=0.0).to(tl.float32)
    kk = tl.load(k + i[:, None] * k_t + c[None, :], mask=live[:, None], other=0.0).to(OP)
    vv = tl.load(v + i[:, None] * v_t + c[None, :], mask=live[:, None], other=0.0)
    q += base * q_t + head * G * q_h + i[:, None] * q_t + c[None, :]
    qq = tl.load(q, mask=live[:, None], other=0.0).to(OP)
    UW, UY = chunk_transform(kk, ww, bb, C, OP)
    F = transition(ww, UW, D).to(OP)
    tl.store(right_f + (head.to(tl.int64) * slots + slot) * D * D + c[:, None] * D + c[None, :], F)
    carried = keys_to_right_edge(kk, ww, UY).to(OP)
    tl.store(right_k + (head.to(tl.int64) * tokens + base) * D + tile, carried, mask=live[:, None])

    for g in range(G):
        hq = head * G + g
        at = hq.to(tl.int64) * tokens + base
        if g > 0:
            qq = tl.load(q + g * q_h, mask=live[:, None], other=0.0).to(OP)
        X = tl.where(causal, dot(qq, tl.trans(ww)), 0.0).to(OP)
        left = (qq.to(tl.float32) - dot(X, UW)) * scale
        tl.store(left_q + at * D + tile, left.to(OP), mask=live[:, None])
        scores = (dot(qq, tl.trans(kk)) - dot(X, UY)) * scale
        if GATE:
            mine = chunk_suffix(suffix + (hq.to(tl.int64) * slots + slot) * 2 * C, C)
            scores += mine[None, :] - mine[:, None]
        scores = tl.where(causal & live[None, :], scores, float("-inf"))
        top = tl.max(scores, 1)
        p = tl.exp2(scores - top[:, None])
        norm = tl.sum(p, 1)
        acc = dot(p.to(vv.dtype), vv) / norm[:, None]
        to = base * out_t + hq * out_h + i[:, None] * out_t + c[None, :]
        tl.store(partial + to, acc.to(partial.dtype.element_ty), mask=live[:, None])
        top += tl.log2(norm)
        if GATE:
            top -= tl.load(total + hq * slots + slot) - mine
        tl.store(lse + at + i, top, mask=live)


@triton.jit(do_not_specialize=SIZES)
def near_spans(
    right_k, right_f, near_k, near_f, items, starts, chunk_base, tokens, slots, spans,
    D: tl.constexpr, C: tl.constexpr, M: tl.constexpr, OP: tl.constexpr,
):  # fmt: skip
    """One near span of M chunks and one kv head: its keys [H, tokens, D] and transition [H, spans, D, D].

    The last span of a sequence is left out: no query stands to its right.
    """
    slot = tl.program_id(0)
    seq = tl.load(items + 2 * slot)
    if seq < 0:
        return
    span = tl.load(items + 2 * slot + 1)
    head = tl.program_id(1).to(tl.int64)
    start = tl.load(starts + seq)
    if (span + 1) * C * M >= tl.load(starts + seq + 1) - start:
        return
    c = tl.arange(0, D)
    square = c[:, None] * D + c[None, :]
    tile = tl.arange(0, C)[:, None] * D + c[None, :]
    right_f += (head * slots + tl.load(chunk_base + seq) + span * M) * D * D
    at = (head * tokens + start + span * C * M) * D
    right_k += at
    near_k += at
    tl.store(near_k + (M - 1) * C * D + tile, tl.load(right_k + (M - 1) * C * D + tile))
    run = tl.load(right_f + (M - 1) * D * D + square)
    for back in range(1, M):
        chunk = M - 1 - back
        tl.store(near_k + chunk * C * D + tile, dot(tl.load(right_k + chunk * C * D + tile), run).to(OP))
        run = dot(tl.load(right_f + chunk * D * D + square), run).to(OP)
    tl.store(near_f + (head * spans + slot) * D * D + square, run)


@triton.jit(do_not_specialize=SIZES)
def far_spans(
    near_k, near_f, far_k, far_f, items, starts, near_base, tokens, spans, groups,
    D: tl.constexpr, C: tl.constexpr, S: tl.constexpr, M: tl.constexpr, OP: tl.constexpr,
):  # fmt: skip
    """One far span of M near spans and one kv head: its keys [H, tokens, D] and transition [H, groups, D, D].

    The last far span of a sequence is left out, as above.
    """
    slot = tl.program_id(0)
    seq = tl.load(items + 2 * slot)
    if seq < 0:
        return
    group = tl.load(items + 2 * slot + 1)
    head = tl.program_id(1).to(tl.int64)
    start = tl.load(starts + seq)
    if (group + 1) * S * M >= tl.load(starts + seq + 1) - start:
        return
    c = tl.arange(0, D)
    square = c[:, None] * D + c[None, :]
    rows = tl.arange(0, C)[:, None] * D + c[None, :]
    near_f += (head * spans + tl.load(near_base + seq) + group * M) * D * D + square
    at = (head * tokens + start + group * S * M) * D
    run = tl.load(near_f + (M - 1) * D * D)
    for t in range(0, S // C):  # the last near span stands at the right edge already
        tile = at + ((M - 1) * S + t * C) * D + rows
        tl.store(far_k + tile, tl.load(near_k + tile))
    for back in range(1, M):
        for t in range(0, S // C):
            tile = at + ((M - 1 - back) * S + t * C) * D + rows
            tl.store(far_k + tile, dot(tl.load(near_k + tile), run).to(OP))
        run = dot(tl.load(near_f + (M - 1 - back) * D * D), run).to(OP)
    tl.store(far_f + (head * groups + slot) * D * D + square, run)


@triton.jit(do_not_specialize=SIZES)
def walk(
    v, v_t, v_h, suffix, total, out, partial, out_t, out_h, lse, left_q,
    right_k, right_f, near_k, near_f, far_k, far_f, items, starts, chunk_base, near_base, far_base, context,
    tokens, slots, spans, groups,
    G: tl.constexpr, D: tl.constexpr, C: tl.constexpr, S: tl.constexpr, M: tl.constexpr,
    OP: tl.constexpr, GATE: tl.constexpr, PREFIX: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Two chunks of queries of one head over all keys before their chunks; shapes as in the passes above.

    With a cached prefix the state goes back to left_q, partial and lse, at the left edge of this call's tokens.
    """
    slot = tl.num_programs(0) - 1 - tl.program_id(0)  # longest walks first
    seq = tl.load(items + 2 * slot)
    if seq < 0:
        return
    edge = tl.load(items + 2 * slot + 1) * 2 * C  # keys before it are still to come
    hq = tl.program_id(1)
    head = (hq // G).to(tl.int64)
    start = tl.load(starts + seq)
    length = tl.load(starts + seq + 1) - start
    r = tl.arange(0, 2 * C)
    live = edge + r < length
    c = tl.arange(0, D)
    i = tl.arange(0, C)
    rows = hq.to(tl.int64) * tokens + start + edge
    to = (start + edge).to(tl.int64) * out_t + hq * out_h
    to_tile = r[:, None] * out_t + c[None, :]
    x_tile = r[:, None] * D + c[None, :]
    x = tl.load(left_q + rows * D + x_tile, mask=live[:, None], other=0.0).to(tl.float32)
    acc = tl.load(partial + to + to_tile, mask=live[:, None], other=0.0).to(tl.float32)
    top = tl.load(lse + rows + r, mask=live, other=0.0)
    norm = tl.full([2 * C], 1.0, tl.float32)

    chunk = tl.load(chunk_base + seq) + edge // C
    keys = (head * tokens + start) * D
    k_tile = i[None, :] * D + c[:, None]  # k^T, [D, C]
    v += start.to(tl.int64) * v_t + head * v_h
    v_tile = i[:, None] * v_t + c[None, :]
    f_tile = c[:, None] + c[None, :] * D  # F^T
    right_f += (head * slots + chunk) * D * D
    if GATE:
        suffix += (hq.to(tl.int64) * slots + chunk) * 2 * C
        total += hq * slots + chunk

    if edge + C < length:  # the second chunk's queries over the first chunk
        second = r >= C
        x16 = x.to(OP)
        scores = dot(x16, tl.load(right_k + keys + edge * D + k_tile))
        if GATE:
            scores += add_suffix(suffix, 2 * C, C)
        scores = tl.where(second[:, None], scores, float("-inf"))
        top, norm, acc = softmax_step(scores, tl.load(v + edge.to(tl.int64) * v_t + v_tile), top, norm, acc)
        x = tl.where(second[:, None], dot(x16, tl.load(right_f + f_tile)), x)
        if GATE:
            top -= tl.where(second, tl.load(total), 0.0)

    own = edge % S // C
    near = edge // S % M
    far = edge // (S * M)
    near_f += (head * spans + tl.load(near_base + seq) + edge // S) * D * D
    far_f += (head * groups + tl.load(far_base + seq) + far) * D * D
    for step in range(0, own + near + far):
        if step < own:
            k_ptr = right_k + keys
            right_f -= D * D
            f = right_f
            tiles = 1
        elif step < own + near:
            k_ptr = near_k + keys
            near_f -= D * D
            f = near_f
            tiles = S // C
        else:
            k_ptr = far_k + keys
            far_f -= D * D
            f = far_f
            tiles = S * M // C
        x16 = x.to(OP)
        F = tl.load(f + f_tile)  # on its way while the tiles are walked
        for _ in tl.range(0, tiles, num_stages=STAGES):
            edge -= C
            if GATE:
                total -= 1
                passed = tl.load(total)
                suffix -= 2 * C
                scores = dot_add(x16, tl.load(k_ptr + edge * D + k_tile), add_suffix(suffix, 2 * C, C))
            else:
                scores = dot(x16, tl.load(k_ptr + edge * D + k_tile))
            top, norm, acc = softmax_step(scores, tl.load(v + edge.to(tl.int64) * v_t + v_tile), top, norm, acc)
            if GATE:
                top -= passed
        x = dot(x16, F)

    acc = acc / norm[:, None]
    if PREFIX:
        if tl.load(context + seq) > 0:
            tl.store(left_q + rows * D + x_tile, x.to(OP), mask=live[:, None])
            tl.store(partial + to + to_tile, acc.to(partial.dtype.element_ty), mask=live[:, None])
            tl.store(lse + rows + r, top + tl.log2(norm), mask=live)
        else:
            tl.store(out + to + to_tile, acc.to(out.dtype.element_ty), mask=live[:, None])
    else:
        tl.store(out + to + to_tile, acc.to(out.dtype.element_ty), mask=live[:, None])
