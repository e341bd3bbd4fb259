"""PaTH and PaTH-FoX prefill: attention of new tokens to each other and to their cached prefix.

1. `chunks`: each chunk by itself. Its UT form, its keys carried to its right edge, and its queries' softmax over it.
2. `near_spans`: the keys of a few chunks, carried to the right edge of the last, and the product F of their
   transitions. `far_spans` carries the keys once more, to the edges of larger spans.
3. `walk`: every block of queries goes on over earlier keys, newest first: chunk by chunk to the edge of its near span,
   near span by near span to the edge of its far span, then far span by far span. Inside a span it is plain attention;
   a span ends with one product of the queries with F. Then pages, where there is a prefix.

Scores are in log2 units. The gate enters as a bias of keys alone, `suffix[j]` = sum of gates after j in its chunk; what
lies between the chunk and the query is the same for all keys of the chunk, so instead of adding it to them, the
row's maximum is lowered by the chunk's total when the walk moves on. Sums never reach beyond one chunk, and keep their
digits at any length.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from longeval.kernels.gates import add_suffix
from longeval.kernels.paged import over_pages
from longeval.kernels.tiles import SIZES, chunk_transform, dot, dot_add, keys_to_right_edge, softmax_step


@triton.jit(do_not_specialize=SIZES)
def chunks(
    q, q_t, q_h, k, k_t, k_h, v, v_t, v_h, w, w_t, w_h, beta, beta_t,
    suffix, total, partial, out_t, out_h, lse, uw, right_k, items, starts, tokens, slots, scale,
    G: tl.constexpr, D: tl.constexpr, C: tl.constexpr, OP: tl.constexpr, GATE: tl.constexpr,
):  # fmt: skip
    """One chunk and kv head.

    q [tokens, HQ, D], k, v, w [tokens, H, D], beta [tokens, H] by their strides -> uw of `chunk_transform` and keys
    right_k, both [H, tokens, D] in OP; partial [tokens, HQ, D] (out's memory) and lse [HQ, tokens]: attention inside
    the chunk, as seen from its left edge.
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
    kept = live[:, None]
    seen = (i[:, None] >= i[None, :]) & live[None, :]
    tile = i[:, None] * D + c[None, :]
    ww = tl.load(w + base * w_t + head * w_h + i[:, None] * w_t + c[None, :], mask=kept, other=0.0).to(OP)
    bb = tl.load(beta + base * beta_t + head + i * beta_t, mask=live, other=0.0).to(tl.float32)
    kk = tl.load(k + base * k_t + head * k_h + i[:, None] * k_t + c[None, :], mask=kept, other=0.0).to(OP)
    vv = tl.load(v + base * v_t + head * v_h + i[:, None] * v_t + c[None, :], mask=kept, other=0.0)
    q += base * q_t + head * G * q_h + i[:, None] * q_t + c[None, :]
    qq = tl.load(q, mask=kept, other=0.0)
    UW, UY = chunk_transform(kk, ww, bb, C, OP)
    at = (head.to(tl.int64) * tokens + base) * D
    tl.store(uw + at + tile, UW, mask=kept)
    tl.store(right_k + at + tile, keys_to_right_edge(kk, ww, UY).to(OP), mask=kept)
    for g in range(G):
        hq = head * G + g
        if g > 0:
            qq = tl.load(q + g * q_h, mask=kept, other=0.0)
        x = (qq.to(tl.float32) * scale).to(OP)
        X = tl.where(seen, dot(x, tl.trans(ww)), 0.0).to(OP)
        scores = dot(x, tl.trans(kk))
        if GATE:
            scores += add_suffix(suffix + (hq.to(tl.int64) * slots + slot) * 2 * C, C, C)
        scores = tl.where(seen, dot_add(X, UY, scores), float("-inf"))
        top = tl.max(scores, 1)
        p = tl.exp2(scores - top[:, None])
        norm = tl.sum(p, 1)
        acc = dot(p.to(vv.dtype), vv) / norm[:, None]
        to = base * out_t + hq * out_h + i[:, None] * out_t + c[None, :]
        tl.store(partial + to, acc.to(partial.dtype.element_ty), mask=kept)
        top += tl.log2(norm)
        if GATE:
            top -= tl.load(total + hq * slots + slot)
        tl.store(lse + hq.to(tl.int64) * tokens + base + i, top, mask=live)


@triton.jit(do_not_specialize=SIZES)
def near_spans(
    w, w_t, w_h, uw, right_k, near_k, near_f, items, starts, tokens, spans,
    D: tl.constexpr, N: tl.constexpr, C: tl.constexpr, M: tl.constexpr, OP: tl.constexpr,
):  # fmt: skip
    """N columns of one near span of M chunks and one kv head: its keys [H, tokens, D], transition [H, spans, D, D].

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
    base = (start + span * C * M).to(tl.int64)
    w += base * w_t + head * w_h
    at = (head * tokens + base) * D
    i = tl.arange(0, C)
    c = tl.arange(0, D)
    n = tl.program_id(2) * N + tl.arange(0, N)
    run = tl.where(c[:, None] == n[None, :], 1.0, 0.0)
    for back in range(0, M):
        first = (M - 1 - back) * C
        rows = at + (first + i[:, None]) * D
        ww = tl.load(w + first * w_t + i[:, None] * w_t + c[None, :]).to(OP)
        UW = tl.load(uw + rows + c[None, :])
        over = run.to(OP)
        tl.store(near_k + rows + n[None, :], dot(tl.load(right_k + rows + c[None, :]), over).to(OP))
        run = dot_add(tl.trans(UW), dot(ww, over).to(OP), run)
    tl.store(near_f + (head * spans + slot) * D * D + c[:, None] * D + n[None, :], run.to(OP))


@triton.jit(do_not_specialize=SIZES)
def far_spans(
    near_k, near_f, far_k, far_f, items, starts, near_base, tokens, spans, groups,
    D: tl.constexpr, N: tl.constexpr, C: tl.constexpr, S: tl.constexpr, M: tl.constexpr, OP: tl.constexpr,
):  # fmt: skip
    """N columns of one far span of M near spans: its keys [H, tokens, D] and transition [H, groups, D, D].

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
    n = tl.program_id(2) * N + tl.arange(0, N)
    rows = tl.arange(0, C)[:, None] * D
    near_f += (head * spans + tl.load(near_base + seq) + group * M) * D * D + c[:, None] * D
    at = (head * tokens + start + group * S * M) * D
    run = tl.load(near_f + (M - 1) * D * D + n[None, :])
    for t in range(0, S // C):  # the last near span stands at the right edge already
        tile = at + ((M - 1) * S + t * C) * D + rows
        tl.store(far_k + tile + n[None, :], tl.load(near_k + tile + n[None, :]))
    for back in range(1, M):
        for t in range(0, S // C):
            tile = at + ((M - 1 - back) * S + t * C) * D + rows
            tl.store(far_k + tile + n[None, :], dot(tl.load(near_k + tile + c[None, :]), run).to(OP))
        run = dot(tl.load(near_f + (M - 1 - back) * D * D + c[None, :]), run).to(OP)
    tl.store(far_f + (head * groups + slot) * D * D + c[:, None] * D + n[None, :], run)


@triton.jit
def cross(x, w, UW, seen, OP: tl.constexpr):
    """Query rows x [R, D] go left over the tokens of a chunk that they have seen: w^T [D, C], UW [C, D]."""
    X = tl.where(seen, dot(x, w), 0.0).to(OP)
    return dot_add(X, UW, x.to(tl.float32)).to(OP)


@triton.jit(do_not_specialize=SIZES)
def walk(
    q, q_t, q_h, v, v_t, v_h, w, w_t, w_h, suffix, total, out, partial, out_t, out_h, lse, scale,
    uw, right_k, near_k, near_f, far_k, far_f,
    pk, pk_b, pk_h, pv, pv_b, pv_h, pf, pf_b, pf_h, pg, pg_b, pg_h, open_k, open_f, context, table, table_n, gate_scale,
    items, starts, chunk_base, near_base, far_base, tokens, slots, spans, groups,
    G: tl.constexpr, D: tl.constexpr, C: tl.constexpr, S: tl.constexpr, M: tl.constexpr, P: tl.constexpr,
    OP: tl.constexpr, HOLD: tl.constexpr, GATE: tl.constexpr, PREFIX: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Two chunks of queries of one head over all keys before their chunks; shapes as in the passes above.

    The pages' arguments are those of `over_pages`. HOLD: dtype of the queries from span to span. In OP the matrix unit
    reads them from shared memory, as it does whatever a loop carries; in float32 they are converted in each span and
    come from registers.
    """
    slot = tl.num_programs(0) - 1 - tl.program_id(0)  # longest walks first
    seq = tl.load(items + 2 * slot)
    if seq < 0:
        return
    first = tl.load(items + 2 * slot + 1) * 2 * C
    hq = tl.program_id(1)
    head = (hq // G).to(tl.int64)
    start = tl.load(starts + seq).to(tl.int64)
    length = (tl.load(starts + seq + 1) - start).to(tl.int32)
    r = tl.arange(0, 2 * C)
    i = tl.arange(0, C)
    c = tl.arange(0, D)
    row = first + r
    live = row < length
    q += (start + first) * q_t + hq * q_h
    x = (tl.load(q + r[:, None] * q_t + c[None, :], mask=live[:, None], other=0.0).to(tl.float32) * scale).to(OP)
    to = (start + first) * out_t + hq * out_h
    to_tile = r[:, None] * out_t + c[None, :]
    acc = tl.load(partial + to + to_tile, mask=live[:, None], other=0.0).to(tl.float32)
    top = tl.load(lse + hq.to(tl.int64) * tokens + start + row, mask=live, other=0.0)
    norm = tl.full([2 * C], 1.0, tl.float32)

    keys = (head * tokens + start) * D
    uw += keys
    right_k += keys
    w += start * w_t + head * w_h
    v += start * v_t + head * v_h
    w_tile = i[None, :] * w_t + c[:, None]  # w^T, [D, C]
    k_tile = i[None, :] * D + c[:, None]
    v_tile = i[:, None] * v_t + c[None, :]
    f_tile = c[:, None] + c[None, :] * D  # F^T
    edge = first + C
    if edge < length:
        ww = tl.load(w + edge.to(tl.int64) * w_t + w_tile, mask=(edge + i < length)[None, :], other=0.0).to(OP)
        UW = tl.load(uw + (edge + i)[:, None] * D + c[None, :], mask=(edge + i < length)[:, None], other=0.0)
        x = cross(x, ww, UW, r[:, None] >= C + i[None, :], OP)
    if GATE:
        slot0 = hq.to(tl.int64) * slots + tl.load(chunk_base + seq) + edge // C
        suffix += slot0 * 2 * C
        total += slot0
    for _ in tl.range(0, (edge - first // S * S) // C, num_stages=1):
        edge -= C  # keys before it are still to come
        kept = edge + i < length
        ww = tl.load(w + edge.to(tl.int64) * w_t + w_tile, mask=kept[None, :], other=0.0).to(OP)
        UW = tl.load(uw + (edge + i)[:, None] * D + c[None, :], mask=kept[:, None], other=0.0)
        kk = tl.load(right_k + edge * D + k_tile, mask=kept[None, :], other=0.0)
        vv = tl.load(v + edge.to(tl.int64) * v_t + v_tile, mask=kept[:, None], other=0.0)
        later = row >= edge + C  # the chunk's own queries have met its keys
        if GATE:
            total -= 1
            suffix -= 2 * C
            scores = dot_add(x, kk, add_suffix(suffix, 2 * C, C))
        else:
            scores = dot(x, kk)
        top, norm, acc = softmax_step(tl.where(later[:, None], scores, float("-inf")), vv, top, norm, acc)
        x = cross(x, ww, UW, row[:, None] >= (edge + i)[None, :], OP)
        if GATE:
            top -= tl.where(later, tl.load(total), 0.0)

    near = edge // S % M
    far = edge // (S * M)
    near_f += (head * spans + tl.load(near_base + seq) + edge // S) * D * D
    far_f += (head * groups + tl.load(far_base + seq) + far) * D * D
    x = x.to(HOLD)
    for step in range(0, near + far):
        if step < near:
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
        x = dot(x16, F).to(HOLD)

    if PREFIX:
        norm, acc = over_pages(
            x.to(OP), 1.0, top, norm, acc, seq, hq,
            pk, pk_b, pk_h, pv, pv_b, pv_h, pf, pf_b, pf_h, pg, pg_b, pg_h, open_k, open_f,
            context, table, table_n, gate_scale, G, D, C, P, OP, True, GATE, 1 if STAGES == 1 else 2,
        )  # fmt: skip
    tl.store(out + to + to_tile, (acc / norm[:, None]).to(out.dtype.element_ty), mask=live[:, None])
