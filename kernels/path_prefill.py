"""PaTH and PaTH-FoX prefill: attention of new tokens to each other, in three passes over spans.

1. `own_spans`: one program walks a near span of NEAR tokens, chunk by chunk. Keys seen so far in the span are kept at
   the left edge of the current chunk, so its queries meet them by plain attention; then keys cross the chunk. What is
   left is the span's keys at its right edge, its transition F, and for each query the softmax state of its own span
   and the query itself, carried to the span's left edge.
2. `far_spans`: keys once more, to the right edge of their far span, and the far spans' transitions.
3. `walk_spans`: every query block goes on over the earlier near spans of its far span and then over earlier far spans:
   plain attention inside a span, one product with F after it.

Scores are in log2 units. The gate enters as a bias of keys alone: `suffix[j]` = sum of gates after j in its chunk, plus
the chunks' totals from there to the span's left edge; what is common to all keys of a row is dropped from scores and
log-sum-exp alike. Sums never reach beyond what lies between key and query, so they keep their digits at any length.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import triton
import triton.language as tl

from longeval.kernels.tiles import chunk_transform, dot, keys_to_right_edge, softmax_step, transition


@triton.jit
def gate_sums(
    log_f, stride_t, suffix, total, items, starts, tokens, slots, scale,
    HQ: tl.constexpr, HEADS: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Per chunk and query head: suffix [HQ, tokens] = sum of scale * log_f after each token, total [HQ, slots]."""
    slot = tl.program_id(0)
    seq = tl.load(items + 2 * slot)
    if seq < 0:
        return
    first = tl.load(items + 2 * slot + 1) * C
    start = tl.load(starts + seq)
    length = tl.load(starts + seq + 1) - start
    i = tl.arange(0, C)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    live = (first + i < length)[:, None] & (heads < HQ)[None, :]
    token = (start + first + i).to(tl.int64)
    gates = tl.load(log_f + token[:, None] * stride_t + heads[None, :], mask=live, other=0.0).to(tl.float32) * scale
    # "after each token" = from each token, one token on; summed backwards so that near keys get small, exact sums
    after = tl.load(
        log_f + (token + 1)[:, None] * stride_t + heads[None, :],
        mask=live & (i < C - 1)[:, None] & (first + i + 1 < length)[:, None], other=0.0,
    ).to(tl.float32) * scale  # fmt: skip
    tl.store(suffix + heads[None, :].to(tl.int64) * tokens + token[:, None], tl.cumsum(after, 0, reverse=True), mask=live)
    tl.store(total + heads * slots + slot, tl.sum(gates, 0), mask=heads < HQ)


@triton.jit
def own_spans(
    q, q_t, q_h, k, k_t, k_h, v, v_t, v_h, w, w_t, w_h, beta, beta_t,
    suffix, total, out, partial, out_t, out_h, lse, left_q, right_k, right_f,
    items, starts, chunk_base, chunk_slots, context, tokens, spans, scale,
    G: tl.constexpr, D: tl.constexpr, C: tl.constexpr, S: tl.constexpr, OP: tl.constexpr,
    GATE: tl.constexpr, PREFIX: tl.constexpr,
):  # fmt: skip
    """One near span and kv head.

    q [tokens, HQ, D], k, v, w [tokens, H, D], beta [tokens, H] by their strides -> left_q [HQ, tokens, D] in OP
    (scaled), lse [HQ, tokens], partial [tokens, HQ, D] (out's memory, in OP), right_k [H, tokens, D] in OP,
    right_f [H, spans, D, D] in OP. The first span of a sequence with no cached prefix is complete: it writes `out`.
    """
    slot = tl.program_id(0)
    seq = tl.load(items + 2 * slot)
    if seq < 0:
        return
    span = tl.load(items + 2 * slot + 1)
    head = tl.program_id(1)
    start = tl.load(starts + seq)
    length = tl.load(starts + seq + 1) - start
    complete = span == 0
    if PREFIX:
        complete = complete & (tl.load(context + seq) == 0)
    chunk_slot = tl.load(chunk_base + seq) + span * (S // C)
    first = span * S
    base = (start + first).to(tl.int64)
    n = tl.minimum(length - first, S)
    i = tl.arange(0, C)
    c = tl.arange(0, D)
    causal = i[:, None] >= i[None, :]
    k += base * k_t + head * k_h
    v += base * v_t + head * v_h
    w += base * w_t + head * w_h
    beta += base * beta_t + head
    keys = right_k + (head.to(tl.int64) * tokens + base) * D
    f = right_f + (head.to(tl.int64) * spans + slot) * D * D + c[:, None] * D + c[None, :]

    for chunk in range(0, (n + C - 1) // C):
        row = chunk * C + i
        live = row < n
        kk = tl.load(k + row[:, None] * k_t + c[None, :], mask=live[:, None], other=0.0).to(OP)
        ww = tl.load(w + row[:, None] * w_t + c[None, :], mask=live[:, None], other=0.0).to(OP)
        bb = tl.load(beta + row * beta_t, mask=live, other=0.0).to(tl.float32)
        vv = tl.load(v + row[:, None] * v_t + c[None, :], mask=live[:, None], other=0.0)
        UW, UY = chunk_transform(kk, ww, bb, C, OP)

        for g in range(G):
            hq = head * G + g
            at = hq.to(tl.int64) * tokens + base
            qq = tl.load(q + (base + row)[:, None] * q_t + hq * q_h + c[None, :], mask=live[:, None], other=0.0).to(OP)
            X = tl.where(causal, dot(qq, tl.trans(ww)), 0.0).to(OP)
            scores = (dot(qq, tl.trans(kk)) - dot(X, UY)) * scale
            left = ((qq.to(tl.float32) - dot(X, UW)) * scale).to(OP)
            offset = 0.0
            if GATE:
                mine = tl.load(suffix + at + row, mask=live, other=0.0)
                scores += mine[None, :] - mine[:, None]
            scores = tl.where(causal & live[None, :], scores, float("-inf"))
            top = tl.max(scores, 1)
            p = tl.exp2(scores - top[:, None])
            norm = tl.sum(p, 1)
            acc = dot(p.to(vv.dtype), vv)
            if GATE:  # from here on the row's own gates, from the chunk's left edge, are left out
                top -= tl.load(total + hq * chunk_slots + chunk_slot + chunk) - mine
            for back in range(0, chunk):
                old = (chunk - 1 - back) * C + i
                k_old = tl.load(keys + old[:, None] * D + c[None, :])
                v_old = tl.load(v + old[:, None] * v_t + c[None, :])
                scores = dot(left, tl.trans(k_old))
                if GATE:
                    scores += (tl.load(suffix + at + old) + offset)[None, :]
                    offset += tl.load(total + hq * chunk_slots + chunk_slot + chunk - 1 - back)
                top, norm, acc = softmax_step(scores, v_old, top, norm, acc)
            acc = acc / norm[:, None]
            to = (base + row)[:, None] * out_t + hq * out_h + c[None, :]
            if complete:
                tl.store(out + to, acc.to(out.dtype.element_ty), mask=live[:, None])
            else:
                if chunk > 0:
                    left = dot(left, tl.trans(tl.load(f))).to(OP)
                tl.store(left_q + (at + row)[:, None] * D + c[None, :], left, mask=live[:, None])
                tl.store(partial + to, acc.to(partial.dtype.element_ty), mask=live[:, None])
                tl.store(lse + at + row, top + tl.log2(norm) - offset, mask=live)

        F = transition(ww, UW, D).to(OP)
        for old_chunk in range(0, chunk):
            old = old_chunk * C + i
            k_old = tl.load(keys + old[:, None] * D + c[None, :])
            tl.store(keys + old[:, None] * D + c[None, :], dot(k_old, F).to(OP))
        tl.store(keys + row[:, None] * D + c[None, :], keys_to_right_edge(kk, ww, UY).to(OP), mask=live[:, None])
        if chunk > 0:
            F = dot(tl.load(f), F).to(OP)
            tl.debug_barrier()  # every thread has read the old F
        tl.store(f, F)
        tl.debug_barrier()  # keys and F are read by other threads in the next round


@triton.jit
def far_spans(
    near_k, near_f, far_k, far_f, items, starts, near_base, tokens, spans, groups,
    D: tl.constexpr, C: tl.constexpr, S: tl.constexpr, M: tl.constexpr, OP: tl.constexpr,
):  # fmt: skip
    """One far span of M near spans and one kv head: its keys [H, tokens, D] and transition [H, groups, D, D].

    The last, unfinished far span of a sequence is left out: no query stands to its right.
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


@triton.jit
def walk_spans(
    v, v_t, v_h, suffix, total, out, partial, out_t, out_h, lse, left_q, near_k, near_f, far_k, far_f,
    items, starts, chunk_base, chunk_slots, near_base, far_base, context, tokens, spans, groups,
    G: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, C: tl.constexpr, S: tl.constexpr, M: tl.constexpr,
    OP: tl.constexpr, GATE: tl.constexpr, PREFIX: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """BM queries of one head over all spans before their own, newest first; shapes as in the passes above.

    With a cached prefix the state goes back to left_q, partial and lse, at the left edge of this call's tokens.
    """
    slot = tl.num_programs(0) - 1 - tl.program_id(0)  # longest walks first
    seq = tl.load(items + 2 * slot)
    if seq < 0:
        return
    first = tl.load(items + 2 * slot + 1) * BM
    own = first // S
    if own == 0:
        return
    hq = tl.program_id(1)
    head = hq // G
    start = tl.load(starts + seq)
    length = tl.load(starts + seq + 1) - start
    row = first + tl.arange(0, BM)
    live = row < length
    c = tl.arange(0, D)
    i = tl.arange(0, C)
    at = hq.to(tl.int64) * tokens + start
    to = (start + row).to(tl.int64)[:, None] * out_t + hq * out_h + c[None, :]
    x = tl.load(left_q + (at + row)[:, None] * D + c[None, :], mask=live[:, None], other=0.0).to(tl.float32)
    acc = tl.load(partial + to, mask=live[:, None], other=0.0).to(tl.float32)
    top = tl.load(lse + at + row, mask=live, other=0.0)
    norm = tl.full([BM], 1.0, tl.float32)

    near = own % M
    group = own // M
    near_f += (head.to(tl.int64) * spans + tl.load(near_base + seq) + own - 1) * D * D
    far_f += (head.to(tl.int64) * groups + tl.load(far_base + seq) + group - 1) * D * D
    square = c[:, None] + c[None, :] * D  # F^T
    keys = (head.to(tl.int64) * tokens + start) * D + i[None, :] * D + c[:, None]  # k^T, [D, C]
    v += start.to(tl.int64) * v_t + head * v_h + i[:, None] * v_t + c[None, :]
    edge = own * S  # keys before it are still to come
    chunk = tl.load(chunk_base + seq) + own * (S // C) - 1
    offset = 0.0
    if GATE:
        suffix += at + i
        total += hq * chunk_slots + chunk
        bias = tl.load(suffix + edge - C)
    for step in range(0, near + group):
        if step < near:
            k_ptr = near_k + keys
            f = near_f - step * D * D
            tiles = S // C
        else:
            k_ptr = far_k + keys
            f = far_f - (step - near) * D * D
            tiles = S * M // C
        x16 = x.to(OP)
        for _ in tl.range(0, tiles, num_stages=STAGES):
            edge -= C
            scores = dot(x16, tl.load(k_ptr + edge * D))
            if GATE:
                scores += bias[None, :]
                offset += tl.load(total)
                total -= 1
                bias = tl.load(suffix + tl.maximum(edge - C, 0)) + offset  # of the next tile
            top, norm, acc = softmax_step(scores, tl.load(v + edge.to(tl.int64) * v_t), top, norm, acc)
        x = dot(x16, tl.load(f + square))

    acc = acc / norm[:, None]
    if PREFIX:
        if tl.load(context + seq) > 0:
            tl.store(left_q + (at + row)[:, None] * D + c[None, :], x.to(OP), mask=live[:, None])
            tl.store(partial + to, acc.to(partial.dtype.element_ty), mask=live[:, None])
            tl.store(lse + at + row, top + tl.log2(norm) - offset, mask=live)
        else:
            tl.store(out + to, acc.to(out.dtype.element_ty), mask=live[:, None])
    else:
        tl.store(out + to, acc.to(out.dtype.element_ty), mask=live[:, None])
