"""PaTH and PaTH-FoX prefill: attention of new tokens to each other and to their cached prefix.

1. `chunks`: each chunk by itself. Its UT form, its keys carried to its right edge, and its queries' softmax over it.
2. `spans`: keys carried twice more, to the right edge of their near span, two chunks, and of their far span, a few near
   ones; and the products F of the transitions of either.
3. `walk`: every near span's queries go on over earlier keys, newest first: near span by near span to the edge of their
   far span, then far span by far span. Inside a span it is plain attention; a span ends with one product of the
   queries with F. Then pages, where there is a prefix.

Scores are in log2 units. The gate enters as a bias of keys alone, `suffix[j]` = sum of gates after j in its chunk or
span; what lies between the span and the query is the same for all keys of the span, so instead of adding it to them,
the row's maximum is lowered by the span's total when the walk moves on. Sums never reach beyond one span, and keep
their digits at any length.
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
    seen = i[:, None] >= i[None, :]
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
def spans(
    w, w_t, w_h, uw, right_k, near_k, near_f, far_k, far_f, items, starts, near_base, tokens, nears, fars, each,
    D: tl.constexpr, N: tl.constexpr, C: tl.constexpr, S: tl.constexpr, OP: tl.constexpr,
):  # fmt: skip
    """N columns of one far span of `each` near spans of S tokens, and one kv head.

    Keys [H, tokens, D] at the right edges of their near and far spans; transitions near_f [H, nears, D, D], far_f
    [H, fars, D, D]. A sequence's last span of either kind is left out: no query stands to its right.
    """
    slot = tl.program_id(0)
    seq = tl.load(items + 2 * slot)
    if seq < 0:
        return
    far = tl.load(items + 2 * slot + 1)
    head = tl.program_id(1).to(tl.int64)
    start = tl.load(starts + seq)
    length = tl.load(starts + seq + 1) - start
    followed = (far + 1) * S * each < length
    base = (start + far * S * each).to(tl.int64)
    w += base * w_t + head * w_h
    at = (head * tokens + base) * D
    near_f += (head * nears + tl.load(near_base + seq) + far * each) * D * D
    i = tl.arange(0, C)
    c = tl.arange(0, D)
    n = tl.program_id(2) * N + tl.arange(0, N)
    square = c[:, None] * D + n[None, :]
    one = tl.where(c[:, None] == n[None, :], 1.0, 0.0)
    over_far = one
    count = tl.minimum(each, (length - 1) // S - far * each)
    for back in range(0, count):
        over_near = one
        for chunk in range(S // C - 1, -1, -1):
            first = (count - 1 - back) * S + chunk * C
            rows = at + (first + i[:, None]) * D
            ww = tl.load(w + first * w_t + i[:, None] * w_t + c[None, :]).to(OP)
            UW = tl.trans(tl.load(uw + rows + c[None, :]))
            kk = tl.load(right_k + rows + c[None, :])
            over = over_near.to(OP)
            tl.store(near_k + rows + n[None, :], dot(kk, over).to(OP))
            over_near = dot_add(UW, dot(ww, over).to(OP), over_near)
            if followed:
                over = over_far.to(OP)
                tl.store(far_k + rows + n[None, :], dot(kk, over).to(OP))
                over_far = dot_add(UW, dot(ww, over).to(OP), over_far)
        tl.store(near_f + (count - 1 - back) * D * D + square, over_near.to(OP))
    if followed:
        tl.store(far_f + (head * fars + slot) * D * D + square, over_far.to(OP))


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
    items, starts, chunk_base, near_base, far_base, tokens, slots, nears, fars, each,
    G: tl.constexpr, D: tl.constexpr, C: tl.constexpr, S: tl.constexpr, P: tl.constexpr,
    OP: tl.constexpr, HOLD: tl.constexpr, GATE: tl.constexpr, PREFIX: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The queries of a near span, two chunks, and one head over all keys before their chunks; shapes as above.

    The pages' arguments are those of `over_pages`. HOLD: dtype of the queries from span to span. In OP the matrix unit
    reads them from shared memory, as it does whatever a loop carries; in float32 they are converted in each span and
    come from registers.
    """
    slot = tl.num_programs(0) - 1 - tl.program_id(0)  # longest walks first
    seq = tl.load(items + 2 * slot)
    if seq < 0:
        return
    first = tl.load(items + 2 * slot + 1) * S
    hq = tl.program_id(1)
    head = (hq // G).to(tl.int64)
    start = tl.load(starts + seq).to(tl.int64)
    length = (tl.load(starts + seq + 1) - start).to(tl.int32)
    r = tl.arange(0, S)
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
    norm = tl.full([S, 8], 1 / 8, tl.float32)

    keys = (head * tokens + start) * D
    uw += keys
    right_k += keys
    w += start * w_t + head * w_h
    v += start * v_t + head * v_h
    w_tile = i[None, :] * w_t + c[:, None]  # w^T, [D, C]
    k_tile = i[None, :] * D + c[:, None]
    v_tile = i[:, None] * v_t + c[None, :]
    f_tile = c[:, None] + c[None, :] * D  # F^T
    v_step = C * v_t.to(tl.int32)
    if GATE:
        slot0 = hq.to(tl.int64) * slots + tl.load(chunk_base + seq) + first // C
        suffix += slot0 * 2 * C
        total += slot0
        level = tl.num_programs(1).to(tl.int64) * slots
    # The queries have met the keys of their own chunk, but not yet crossed it. All loads first: they wait together.
    left, right = first + i, first + C + i
    k1 = tl.load(right_k + first * D + k_tile, mask=(left < length)[None, :], other=0.0)
    v1 = tl.load(v + first.to(tl.int64) * v_t + v_tile, mask=(left < length)[:, None], other=0.0)
    w2 = tl.load(w + (first + C).to(tl.int64) * w_t + w_tile, mask=(right < length)[None, :], other=0.0).to(OP)
    UW2 = tl.load(uw + right[:, None] * D + c[None, :], mask=(right < length)[:, None], other=0.0)
    w1 = tl.load(w + first.to(tl.int64) * w_t + w_tile, mask=(left < length)[None, :], other=0.0).to(OP)
    UW1 = tl.load(uw + left[:, None] * D + c[None, :], mask=(left < length)[:, None], other=0.0)
    x = cross(x, w2, UW2, r[:, None] >= (C + i)[None, :], OP)
    later = r >= C
    scores = dot_add(x, k1, add_suffix(suffix, S, C)) if GATE else dot(x, k1)
    top, norm, acc = softmax_step(tl.where(later[:, None], scores, float("-inf")), v1, top, norm, acc)
    x = cross(x, w1, UW1, r[:, None] >= i[None, :], OP)
    if GATE:
        top -= tl.where(later, tl.load(total), 0.0)

    near = first // S % each
    far = first // (S * each)
    near_f += (head * nears + tl.load(near_base + seq) + first // S) * D * D
    far_f += (head * fars + tl.load(far_base + seq) + far) * D * D
    x = x.to(HOLD)
    edge = first  # keys before it are still to come
    for step in range(0, near + far):
        if step < near:
            k_ptr = near_k + keys
            near_f -= D * D
            f = near_f
            kind = 1
            tiles = S // C
        else:
            k_ptr = far_k + keys
            far_f -= D * D
            f = far_f
            kind = 2
            tiles = S * each // C
        x16 = x.to(OP)
        F = tl.load(f + f_tile)  # on its way while the tiles are walked
        k_ptr += (edge - C) * D
        v_ptr = v + (edge - C).to(tl.int64) * v_t
        if GATE:
            total -= tiles
            passed = tl.load(total + kind * level)
            sums = suffix + (kind * level - 1) * 2 * C
        for t in tl.range(0, tiles, num_stages=STAGES):
            kk = tl.load(k_ptr - t * (C * D) + k_tile)
            scores = dot_add(x16, kk, add_suffix(sums - t * (2 * C), S, C)) if GATE else dot(x16, kk)
            top, norm, acc = softmax_step(scores, tl.load(v_ptr - t * v_step + v_tile), top, norm, acc)
        edge -= tiles * C
        x = dot(x16, F).to(HOLD)
        if GATE:
            suffix -= tiles * 2 * C
            top -= passed

    if PREFIX:
        norm, acc = over_pages(
            x.to(OP), 1.0, top, norm, acc, seq, hq,
            pk, pk_b, pk_h, pv, pv_b, pv_h, pf, pf_b, pf_h, pg, pg_b, pg_h, open_k, open_f,
            context, table, table_n, gate_scale, G, D, C, P, OP, True, GATE, 1 if STAGES == 1 else 2,
        )  # fmt: skip
    tl.store(out + to + to_tile, (acc / tl.sum(norm, 1)[:, None]).to(out.dtype.element_ty), mask=live[:, None])
