"""Decode on the paged cache: one new query per sequence, after `append` has written its token.

1. `carry_queries` (PaTH): a query crosses the open chunk, whose keys it meets on the way, and then page after page; it
   is written down as it stands at every page's right edge. The chain of products is serial, so it has its own kernel.
2. `attend_pages`: split-K flash-decode, pages in parallel, the query heads of a group as the rows of one tile.
3. `merge`: joins the parts by their log-sum-exps.

Grids depend on the batch and on the capacity of the block table only, never on lengths, so a step can be captured in a
CUDA graph.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from longeval.kernels.tiles import SIZES, chunk_transform, dot, dot_add, softmax_step


@triton.jit
def over_open_chunk(
    x, part_o, part_lse, k, v, w, beta, g, pending, gate_scale,
    G: tl.constexpr, D: tl.constexpr, C: tl.constexpr, P: tl.constexpr, OP: tl.constexpr, GATE: tl.constexpr,
):  # fmt: skip
    """The queries x of a group meet `pending` <= C tokens, write down their part, and return at the left edge."""
    i = tl.arange(0, C)
    c = tl.arange(0, D)
    r = tl.arange(0, x.shape[0])
    member = r < G
    live = i < pending
    tile = i[:, None] * D + c[None, :]
    kk = tl.load(k + tile, mask=live[:, None], other=0.0).to(OP)
    ww = tl.load(w + tile, mask=live[:, None], other=0.0).to(OP)
    vv = tl.load(v + tile, mask=live[:, None], other=0.0)
    bb = tl.load(beta + i, mask=live, other=0.0)
    UW, UY = chunk_transform(kk, ww, bb, C, OP)
    x16 = x.to(OP)
    X = dot(x16, tl.trans(ww)).to(OP)
    scores = dot_add(X, UY, dot(x16, tl.trans(kk)))
    if GATE:
        row = g + r[:, None] * P + i[None, :] + 1
        scores += tl.load(row, mask=member[:, None] & (i + 1 < pending)[None, :], other=0.0) * gate_scale
    scores = tl.where(live[None, :], scores, float("-inf"))
    top = tl.max(scores, 1)
    p = tl.exp2(scores - top[:, None])
    norm = tl.sum(p, 1)
    tl.store(part_o, dot(p.to(vv.dtype), vv) / norm[:, None], mask=member[:, None])
    tl.store(part_lse, top + tl.log2(norm), mask=member)
    return dot_add(X, UW, x)


@triton.jit(do_not_specialize=SIZES)
def carry_queries(
    q, q_t, q_h, q_scale, xs, part_o, part_lse,
    pk, pk_b, pk_h, pv, pv_b, pv_h, pf, pf_b, pf_h, pw, pw_b, pw_h, pb, pb_b, pb_h, pg, pg_b, pg_h,
    lengths, table, table_n, parts, gate_scale,
    G: tl.constexpr, ROWS: tl.constexpr, H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, P: tl.constexpr,
    OP: tl.constexpr, GATE: tl.constexpr,
):  # fmt: skip
    """One sequence and kv head. q [N, HQ, D] by strides -> xs [N, H, table_n, G, D] in OP (log2 units) and, as the
    last of `parts`, the open chunk's part_o [N, HQ, parts, D] and part_lse [N, HQ, parts], float32.
    """
    seq = tl.program_id(0)
    head = tl.program_id(1)
    held = tl.load(lengths + seq)
    if held == 0:
        return
    page = (held - 1) // P
    count = held - page * P
    finished = count // C * C
    c = tl.arange(0, D)
    r = tl.arange(0, ROWS)
    member = r < G
    q += seq.to(tl.int64) * q_t + head * G * q_h + r[:, None] * q_h + c[None, :]
    x = tl.load(q, mask=member[:, None], other=0.0).to(tl.float32) * q_scale
    part = ((seq * H + head) * G + r).to(tl.int64) * parts + parts - 1
    pf += head * pf_h + c[:, None] + c[None, :] * D  # F^T
    F = tl.load(pf + tl.load(table + seq * table_n + page).to(tl.int64) * pf_b)  # not used if none is finished

    pending = count - finished
    if pending > 0:
        number = tl.load(table + seq * table_n + page).to(tl.int64)
        to = part_o + part[:, None] * D + c[None, :]
        k = pk + number * pk_b + head * pk_h + finished * D
        v = pv + number * pv_b + head * pv_h + finished * D
        w = pw + number * pw_b + head * pw_h
        beta = pb + number * pb_b + head * pb_h
        g = pg + number * pg_b + head * pg_h + finished
        if pending <= C // 2:
            x = over_open_chunk(
                x, to, part_lse + part, k, v, w, beta, g, pending, gate_scale, G, D, C // 2, P, OP, GATE
            )
        else:
            x = over_open_chunk(x, to, part_lse + part, k, v, w, beta, g, pending, gate_scale, G, D, C, P, OP, GATE)
    else:
        tl.store(part_lse + part, tl.full([ROWS], float("-inf"), tl.float32), mask=member)

    xs += ((seq * H + head).to(tl.int64) * table_n * G + r[:, None]) * D + c[None, :]
    for back in range(0, page + 1):
        at = page - back
        tl.store(xs + at * G * D, x.to(OP), mask=member[:, None])
        before = tl.load(table + seq * table_n + tl.maximum(at - 1, 0)).to(tl.int64)
        F_before = tl.load(pf + before * pf_b)  # on its way while this product runs
        if (at > 0) & ((back > 0) | (finished > 0)):
            x = dot(x.to(OP), F)
        F = F_before


@triton.jit(do_not_specialize=SIZES)
def attend_pages(
    x, x_n, x_h, x_p, x_g, x_scale, part_o, part_lse,
    pk, pk_b, pk_h, pv, pv_b, pv_h, pg, pg_b, pg_h,
    lengths, table, table_n, parts, splits, gate_scale,
    G: tl.constexpr, ROWS: tl.constexpr, H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, N: tl.constexpr,
    P: tl.constexpr, LATER: tl.constexpr, PATH: tl.constexpr, GATE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One of `splits` equal runs of pages of one sequence, and one kv head. x: queries by sequence, kv head, page (0
    when all pages see the same query) and group member. PaTH leaves out the open chunk, whose part exists already.
    """
    seq = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    held = tl.load(lengths + seq)
    pages = (held + P - 1) // P
    each = (pages + splits - 1) // splits
    first = split * each
    last = tl.minimum(first + each, pages)
    i = tl.arange(0, N)
    c = tl.arange(0, D)
    r = tl.arange(0, ROWS)
    member = r < G
    part = ((seq * H + head) * G + r).to(tl.int64) * parts + split
    KEY: tl.constexpr = pk.dtype.element_ty
    pk += head * pk_h + i[None, :] * D + c[:, None]
    pv += head * pv_h + i[:, None] * D + c[None, :]
    x += seq.to(tl.int64) * x_n + head * x_h + r[:, None] * x_g + c[None, :]

    offset = tl.zeros([ROWS], tl.float32)
    if GATE:  # gates of all pages after this run
        pg += head * pg_h
        pg_rows = pg + r[:, None] * P
        for at in range(last, pages, LATER):
            p = at + tl.arange(0, LATER)
            inside = p < pages
            number = tl.load(table + seq * table_n + p, mask=inside, other=0).to(tl.int64)
            sums = tl.load(pg_rows + (number * pg_b)[None, :], mask=member[:, None] & inside[None, :], other=0.0)
            offset += tl.sum(sums, 1)
        offset *= gate_scale

    top = tl.full([ROWS], float("-inf"), tl.float32)
    norm = tl.zeros([ROWS, 1], tl.float32)
    acc = tl.zeros([ROWS, D], tl.float32)
    for back in range(0, last - first):
        page = last - 1 - back
        number = tl.load(table + seq * table_n + page).to(tl.int64)
        count = tl.minimum(held - page * P, P)
        usable = count
        if PATH:
            usable = count // C * C
        q = tl.load(x + page * x_p, mask=member[:, None], other=0.0).to(KEY)
        if GATE:
            whole = tl.load(pg_rows + number * pg_b, mask=member[:, None], other=0.0)
        for t in tl.range(0, (usable + N - 1) // N, num_stages=STAGES):
            seen = t * N + i < usable
            keys = tl.load(pk + number * pk_b + t * N * D, mask=seen[None, :], other=0.0)
            scores = dot(q, keys) * x_scale
            if GATE:
                row = t * N + i + 1
                there = (row < count)[None, :]
                if G == 1:  # one row of gates for the whole tile
                    later = tl.load(pg + number * pg_b + row[None, :], mask=there, other=0.0)
                else:
                    later = tl.load(pg_rows + number * pg_b + row[None, :], mask=member[:, None] & there, other=0.0)
                scores += later * gate_scale + offset[:, None]
            scores = tl.where(seen[None, :], scores, float("-inf"))
            values = tl.load(pv + number * pv_b + t * N * D, mask=seen[:, None], other=0.0)
            top, norm, acc = softmax_step(scores, values, top, norm, acc)
        if GATE:
            offset += tl.sum(whole, 1) * gate_scale
    norm = tl.sum(norm, 1)
    empty = norm == 0.0
    safe = tl.where(empty, 1.0, norm)
    tl.store(part_lse + part, tl.where(empty, float("-inf"), top + tl.log2(safe)), mask=member)
    tl.store(part_o + part[:, None] * D + c[None, :], acc / safe[:, None], mask=member[:, None])


@triton.jit(do_not_specialize=SIZES)
def merge(part_o, part_lse, out, out_t, out_h, lengths, parts, HQ: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr):
    """One sequence and query head: out [N, HQ, D] = sum of parts, weighted by 2^lse; zero for a sequence of length 0.

    part_o [N, HQ, parts, D] and part_lse [N, HQ, parts]; what a part without tokens holds in part_o is never read.
    TILE parts at a time: their number grows to hundreds where heads are few, and one tile of all would spill.
    """
    seq = tl.program_id(0)
    hq = tl.program_id(1)
    c = tl.arange(0, D)
    count = tl.where(tl.load(lengths + seq) > 0, parts, 0)
    at = (seq * HQ + hq).to(tl.int64) * parts
    top = float("-inf")
    norm = 0.0
    acc = tl.zeros([D], tl.float32)
    for first in range(0, count, TILE):
        p = first + tl.arange(0, TILE)
        lse = tl.load(part_lse + at + p, mask=p < count, other=float("-inf"))
        highest = tl.maximum(top, tl.max(lse, 0))
        base = tl.where(highest == float("-inf"), 0.0, highest)
        weight = tl.exp2(lse - base)
        o = tl.load(part_o + (at + p)[:, None] * D + c[None, :], mask=(weight > 0)[:, None], other=0.0)
        kept = tl.exp2(top - base)
        acc = acc * kept + tl.sum(o * weight[:, None], 0)
        norm = norm * kept + tl.sum(weight, 0)
        top = highest
    o = acc / tl.maximum(norm, 1e-30)
    tl.store(out + seq.to(tl.int64) * out_t + hq * out_h + c, o.to(out.dtype.element_ty))
