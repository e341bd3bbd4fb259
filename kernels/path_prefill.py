"""PaTH and PaTH-FoX prefill: attention of new tokens to each other and to their cached prefix.

1. `chunks`: each chunk by itself. Its UT form, its keys carried to its right edge, and its queries' softmax over it.
2. `near_spans`: two chunks. The second one's queries meet the first one's keys, which then go on to the right edge of
   the span; and the product F of the span's transitions.
3. `far_spans`: a few near spans. Keys once more, to its right edge, and its F.
4. `walk`: every near span's queries go on over earlier keys, newest first: near span by near span to the edge of their
   far span, then far span by far span. Inside a span it is plain attention; a span ends with one product of the
   queries with F. Then pages, where there is a prefix.

Queries at the left edge of their near span are kept between the passes where each has a kv head to itself (CARRIED); a
group's would take G times the memory of the keys, so `walk` carries them again.

Scores are in log2 units. The gate enters as a bias of keys alone, `suffix[j]` = sum of gates after j in its chunk or
span; what lies between the span and the query is the same for all keys of the span, so instead of adding it to them,
the row's maximum is lowered by the span's total when the walk moves on. Sums never reach beyond one span, and keep
their digits at any length. In its own chunk a query counts the gates up to itself alone (`gates_between`).
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from longeval.kernels.gates import add_suffix, gates_between, gates_since
from longeval.kernels.paged import over_pages
from longeval.kernels.tiles import (
    SIZES,
    dot,
    dot_add,
    keys_to_right_edge,
    negated_inverse,
    softmax_step,
    transition,
    ut_keys,
    ut_queries,
)


@triton.jit
def cross(x, w, UW, OP: tl.constexpr, seen=None):
    """Query rows x [R, D] go left over the tokens of a chunk, or those they have seen [R, C]: w, UW [C, D]."""
    X = dot(x, tl.trans(w))
    if seen is not None:
        X = tl.where(seen, X, 0.0)
    return dot_add(X.to(OP), UW, x.to(tl.float32)).to(OP)


@triton.jit(do_not_specialize=SIZES)
def chunks(
    q, q_t, q_h, k, k_t, k_h, v, v_t, v_h, w, w_t, w_h, beta, beta_t,
    since, partial, out_t, out_h, lse, uw, near_k, carried, carried_t, carried_h,
    items, starts, tokens, slots, scale,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, C: tl.constexpr, OP: tl.constexpr,
    GATE: tl.constexpr, CARRIED: tl.constexpr,
):  # fmt: skip
    """One chunk and kv head; heads vary fastest in the grid, as in memory. Each operand is loaded where it is needed:
    one more wait costs less than the registers that would hold it.

    q [tokens, HQ, D], k, v, w [tokens, H, D], beta [tokens, H] by their strides -> uw of `ut_queries` and keys near_k,
    both [H, tokens, D] in OP; partial [tokens, HQ, D] (out's memory) and lse [HQ, tokens]: attention inside the chunk,
    as seen from its left edge; carried [tokens, HQ, D]: queries there, with CARRIED.
    """
    slot = tl.program_id(0) // H
    seq = tl.load(items + 2 * slot)
    if seq < 0:
        return
    first = tl.load(items + 2 * slot + 1) * C
    head = (tl.program_id(0) % H).to(tl.int64)
    start = tl.load(starts + seq)
    n = tl.load(starts + seq + 1) - start - first
    base = (start + first).to(tl.int64)
    i = tl.arange(0, C)
    c = tl.arange(0, D)
    live = i < n
    kept = live[:, None]
    seen = i[:, None] >= i[None, :]
    at = (head * tokens + base) * D
    tile = i[:, None] * D + c[None, :]
    ww = tl.load(w + base * w_t + head * w_h + i[:, None] * w_t + c[None, :], mask=kept, other=0.0).to(OP)
    bb = tl.load(beta + base * beta_t + head + i * beta_t, mask=live, other=0.0).to(tl.float32)
    minus_T = negated_inverse(ww, bb, C, OP)
    if D >= 64:  # while no keys hold registers
        UW = ut_queries(minus_T, ww, bb, OP)
        tl.store(uw + at + tile, UW, mask=kept)
    kk = tl.load(k + base * k_t + head * k_h + i[:, None] * k_t + c[None, :], mask=kept, other=0.0).to(OP)
    Y = ut_keys(ww, bb, kk, C).to(OP)
    if D < 64:  # ptxas 12.8, see `chunk_transform`
        UW = ut_queries(minus_T, ww, bb, OP)
        tl.store(uw + at + tile, UW, mask=kept)
    UY = dot(minus_T, Y).to(OP)
    tl.store(near_k + at + tile, keys_to_right_edge(kk, ww, UY).to(OP), mask=kept)
    for g in range(G):
        hq = head * G + g
        q_tile = q + base * q_t + hq * q_h + i[:, None] * q_t + c[None, :]
        x = (tl.load(q_tile, mask=kept, other=0.0).to(tl.float32) * scale).to(OP)
        X = tl.where(seen, dot(x, tl.trans(ww)), 0.0).to(OP)
        if CARRIED:
            left = carried + base * carried_t + hq * carried_h + i[:, None] * carried_t + c[None, :]
            tl.store(left, dot_add(X, UW, x.to(tl.float32)).to(OP), mask=kept)
        vv = tl.load(v + base * v_t + head * v_h + i[:, None] * v_t + c[None, :], mask=kept, other=0.0)
        gates = since + (hq * slots + slot) * 4 * C
        passed = gates_since(gates, i, C) if GATE else 0.0
        scores = dot_add(x, tl.trans(kk), gates_between(gates, i, C)) if GATE else dot(x, tl.trans(kk))
        scores = tl.where(seen, dot_add(X, UY, scores), float("-inf"))
        top = tl.max(scores, 1)
        p = tl.exp2(scores - top[:, None])
        norm = tl.sum(p, 1)
        acc = dot(p.to(vv.dtype), vv) * (1 / norm)[:, None]
        to = base * out_t + hq * out_h + i[:, None] * out_t + c[None, :]
        tl.store(partial + to, acc.to(partial.dtype.element_ty), mask=kept)
        tl.store(lse + hq * tokens + base + i, top + tl.log2(norm) - passed, mask=live)


@triton.jit(do_not_specialize=SIZES)
def near_spans(
    q, q_t, q_h, v, v_t, v_h, w, w_t, w_h, suffix, total, partial, out_t, out_h, lse,
    uw, near_k, near_f, items, starts, chunk_base, tokens, slots, nears, scale,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, C: tl.constexpr, OP: tl.constexpr,
    GATE: tl.constexpr, CARRIED: tl.constexpr,
):  # fmt: skip
    """One near span, chunks a and b, and one kv head, in the order of `chunks`; shapes as in `chunks`.

    partial and lse of b's queries take in a's keys. With CARRIED, q are the queries that `chunks` has carried, and b's
    go on to the span's left edge. In near_k, a's keys go on to its right edge; transitions near_f [H, nears, D, D]. A
    sequence's last span leaves out these two: no query stands to its right.
    """
    slot = tl.program_id(0) // H
    seq = tl.load(items + 2 * slot)
    if seq < 0:
        return
    first = tl.load(items + 2 * slot + 1) * 2 * C
    head = (tl.program_id(0) % H).to(tl.int64)
    start = tl.load(starts + seq)
    n = tl.load(starts + seq + 1) - start - first
    chunk = tl.load(chunk_base + seq) + first // C
    base = (start + first).to(tl.int64)
    i = tl.arange(0, C)
    c = tl.arange(0, D)
    live = C + i < n
    in_a = (i < n)[:, None]
    in_b = live[:, None]
    w += base * w_t + head * w_h + i[:, None] * w_t + c[None, :]
    uw += (head * tokens + base + i[:, None]) * D + c[None, :]
    near_k += (head * tokens + base + i[:, None]) * D + c[None, :]
    v += base * v_t + head * v_h + i[:, None] * v_t + c[None, :]
    k_a = tl.load(near_k, mask=in_a, other=0.0)
    v_a = tl.load(v, mask=in_a, other=0.0)
    w_a = tl.load(w, mask=in_a, other=0.0).to(OP)
    UW_a = tl.load(uw, mask=in_a, other=0.0)
    if not CARRIED:
        w_b = tl.load(w + C * w_t, mask=in_b, other=0.0).to(OP)
        UW_b = tl.load(uw + C * D, mask=in_b, other=0.0)
    for g in range(G):
        hq = head * G + g
        q_b = q + (base + C) * q_t + hq * q_h + i[:, None] * q_t + c[None, :]
        partial_b = partial + (base + C) * out_t + hq * out_h + i[:, None] * out_t + c[None, :]
        lse_b = lse + hq * tokens + base + C + i
        x = tl.load(q_b, mask=in_b, other=0.0)
        own = tl.load(partial_b, mask=in_b, other=0.0)
        top = tl.load(lse_b, mask=live, other=0.0)
        if not CARRIED:
            x = cross((x.to(tl.float32) * scale).to(OP), w_b, UW_b, OP, i[:, None] >= i[None, :])
        if GATE:
            at = hq * slots + chunk
            scores = dot_add(x, tl.trans(k_a), add_suffix(suffix + at * 2 * C, C, C))
        else:
            scores = dot(x, tl.trans(k_a))
        norm = tl.full([C, 8], 1 / 8, tl.float32)
        top, norm, acc = softmax_step(scores, v_a, top, norm, own.to(tl.float32))
        norm = tl.sum(norm, 1)
        top += tl.log2(norm)
        if GATE:
            top -= tl.load(total + at)
        tl.store(partial_b, (acc * (1 / norm)[:, None]).to(partial.dtype.element_ty), mask=in_b)
        tl.store(lse_b, top, mask=live)
        if CARRIED:
            tl.store(q_b, cross(x, w_a, UW_a, OP), mask=in_b)
    if n > 2 * C:
        if CARRIED:  # not before: at D = 128 two programs share the shared memory of a processor
            w_b = tl.load(w + C * w_t).to(OP)
            UW_b = tl.load(uw + C * D)
        F_b = transition(w_b, UW_b, D)
        over = F_b.to(OP)
        carried_k = dot(k_a, over).to(OP)
        F = dot_add(tl.trans(UW_a), dot(w_a, over).to(OP), F_b).to(OP)
        tl.debug_barrier()  # all threads have read the keys
        tl.store(near_k, carried_k)
        tl.store(near_f + (head * nears + slot) * D * D + c[:, None] * D + c[None, :], F)


@triton.jit(do_not_specialize=SIZES)
def far_spans(
    near_k, near_f, far_k, far_f, items, starts, near_base, tokens, nears, fars, each,
    D: tl.constexpr, C: tl.constexpr, S: tl.constexpr, OP: tl.constexpr,
):  # fmt: skip
    """One far span of `each` near spans of S tokens, and one kv head.

    near_k, near_f as in `near_spans` -> keys far_k [H, tokens, D] and transitions far_f [H, fars, D, D]; a sequence's
    last far span is left out.
    """
    slot = tl.program_id(0)
    seq = tl.load(items + 2 * slot)
    if seq < 0:
        return
    far = tl.load(items + 2 * slot + 1)
    head = tl.program_id(1).to(tl.int64)
    start = tl.load(starts + seq)
    if (far + 1) * S * each >= tl.load(starts + seq + 1) - start:
        return
    c = tl.arange(0, D)
    rows = tl.arange(0, C)[:, None] * D
    near_f += (head * nears + tl.load(near_base + seq) + far * each) * D * D + c[:, None] * D + c[None, :]
    at = (head * tokens + start + far * S * each) * D
    over = tl.where(c[:, None] == c[None, :], 1.0, 0.0).to(OP)
    for back in range(0, each):
        near = each - 1 - back
        F = tl.load(near_f + near * D * D)
        for chunk in tl.static_range(S // C):
            keys = at + (near * S + chunk * C) * D + rows
            tl.store(far_k + keys + c[None, :], dot(tl.load(near_k + keys + c[None, :]), over).to(OP))
        over = dot(F, over).to(OP)
    tl.store(far_f + (head * fars + slot) * D * D + c[:, None] * D + c[None, :], over)


@triton.jit(do_not_specialize=SIZES)
def walk(
    q, q_t, q_h, v, v_t, v_h, w, w_t, w_h, suffix, total, out, partial, out_t, out_h, lse, scale,
    uw, near_k, near_f, far_k, far_f,
    pk, pk_b, pk_h, pv, pv_b, pv_h, pf, pf_b, pf_h, pg, pg_b, pg_h, open_k, open_f, context, table, table_n, gate_scale,
    items, starts, chunk_base, far_base, tokens, slots, nears, fars, each,
    G: tl.constexpr, D: tl.constexpr, C: tl.constexpr, S: tl.constexpr, P: tl.constexpr, OP: tl.constexpr,
    CARRIED: tl.constexpr, GATE: tl.constexpr, PREFIX: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The queries of a near span of S tokens and one head over all keys before it; shapes as above.

    With CARRIED, q are queries at the span's left edge. The pages' arguments are those of `over_pages`. near_f and
    far_f in OP or, as its bits, in integers: numbers go to shared memory as soon as they are loaded, and are waited
    for; bits stay in registers until their product.
    """
    slot = tl.num_programs(0) - 1 - tl.program_id(0)  # longest walks first
    seq = tl.load(items + 2 * slot)
    if seq < 0:
        return
    first = tl.load(items + 2 * slot + 1) * S
    hq = tl.program_id(1).to(tl.int64)
    head = hq // G
    start = tl.load(starts + seq).to(tl.int64)
    length = (tl.load(starts + seq + 1) - start).to(tl.int32)
    chunk = tl.load(chunk_base + seq) + first // C
    far0 = tl.load(far_base + seq)
    r = tl.arange(0, S)
    c = tl.arange(0, D)
    i = tl.arange(0, C)
    live = first + r < length
    # All loads before the first one is converted, which makes threads wait for each other.
    to = (start + first) * out_t + hq * out_h + r[:, None] * out_t + c[None, :]
    own = tl.load(partial + to, mask=live[:, None], other=0.0)
    top = tl.load(lse + hq * tokens + start + first + r, mask=live, other=0.0)
    x = tl.load(q + (start + first) * q_t + hq * q_h + r[:, None] * q_t + c[None, :], mask=live[:, None], other=0.0)
    keys = (head * tokens + start) * D
    if not CARRIED:
        x = (x.to(tl.float32) * scale).to(OP)
        w += start * w_t + head * w_h + c[None, :]
        uw += keys + c[None, :]
        a, b = (first + i)[:, None], (first + C + i)[:, None]
        w_b = tl.load(w + b.to(tl.int64) * w_t, mask=b < length, other=0.0).to(OP)
        UW_b = tl.load(uw + b * D, mask=b < length, other=0.0)
        w_a = tl.load(w + a.to(tl.int64) * w_t, mask=a < length, other=0.0).to(OP)
        UW_a = tl.load(uw + a * D, mask=a < length, other=0.0)
        x = cross(x, w_b, UW_b, OP, r[:, None] >= (C + i)[None, :])
        x = cross(x, w_a, UW_a, OP, r[:, None] >= i[None, :])
    acc = own.to(tl.float32)
    norm = tl.full([S, 8], 1 / 8, tl.float32)

    near = first // S % each
    far = first // (S * each)
    near_f += (head * nears + slot) * D * D
    far_f += (head * fars + far0 + far) * D * D
    v += start * v_t + head * v_h
    v_step = C * v_t.to(tl.int32)
    k_tile = i[None, :] * D + c[:, None]
    v_tile = i[:, None] * v_t + c[None, :]
    f_tile = c[:, None] + c[None, :] * D  # F^T
    if GATE:
        suffix += (hq * slots + chunk) * 2 * C
        total += hq * slots + chunk
        level = tl.num_programs(1).to(tl.int64) * slots
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
            tiles = S // C * each
        F = tl.load(f + f_tile)
        k_ptr += (edge - C) * D
        v_ptr = v + (edge - C).to(tl.int64) * v_t
        if GATE:
            total -= tiles
            passed = tl.load(total + kind * level)
            sums = suffix + (kind * level - 1) * 2 * C
        for t in tl.range(0, tiles, num_stages=STAGES):
            kk = tl.load(k_ptr - t * (C * D) + k_tile)
            scores = dot_add(x, kk, add_suffix(sums - t * (2 * C), S, C)) if GATE else dot(x, kk)
            top, norm, acc = softmax_step(scores, tl.load(v_ptr - t * v_step + v_tile), top, norm, acc)
        edge -= tiles * C
        x = dot(x, F.to(OP, bitcast=True)).to(OP)
        if GATE:
            suffix -= tiles * 2 * C
            top -= passed

    if PREFIX:
        norm, acc = over_pages(
            x, 1.0, top, norm, acc, seq, tl.program_id(1),
            pk, pk_b, pk_h, pv, pv_b, pv_h, pf, pf_b, pf_h, pg, pg_b, pg_h, open_k, open_f,
            context, table, table_n, gate_scale, G, D, C, P, OP, True, GATE, 1 if STAGES == 1 else 2,
        )  # fmt: skip
    tl.store(out + to, (acc * (1 / tl.sum(norm, 1))[:, None]).to(out.dtype.element_ty), mask=live[:, None])
