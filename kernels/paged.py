"""The paged cache of one layer, its update, and prefill's walk over it.

A page of P tokens per kv head holds (`Pool` lists shapes): values; keys, those of finished chunks carried to the right
edge of the page's last finished chunk, those of the open chunk as they came; F, the product of the page's finished
chunks; w and beta of its open chunk; per query head the sum of log f from each token to the page's newest. It is the
layout of `pages.py`, with a block table: a full page never changes again, and depends on nothing after it.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from longeval.kernels.gates import at_least
from longeval.kernels.pages import LEAST_GATE
from longeval.kernels.tiles import SIZES, chunk_transform, dot, keys_to_right_edge, softmax_step, transition

LEAST = tl.constexpr(LEAST_GATE)


@triton.jit
def append_gates(log_f, gate_t, pg, lo, hi, C: tl.constexpr):
    """Rows lo to hi of a page's gate sums pg [P], from log_f by its stride, and their sum on top of the rows before.

    log f counts as LEAST_GATE of `pages` below that.
    """
    i = tl.arange(0, C)
    after = 0.0  # gates of the page's tokens behind the chunk at hand
    chunks = (hi + C - 1) // C
    for back in range(1, chunks - lo // C + 1):
        row = (chunks - back) * C + i
        fresh = (row >= lo) & (row < hi)
        here = at_least(tl.load(log_f + row * gate_t, mask=fresh, other=0.0).to(tl.float32), LEAST)
        tl.store(pg + row, tl.cumsum(here, 0, reverse=True) + after, mask=fresh)
        after += tl.sum(here, 0)
    for first in range(0, lo, 4 * C):
        row = first + tl.arange(0, 4 * C)
        tl.store(pg + row, tl.load(pg + row, mask=row < lo, other=0.0) + after, mask=row < lo)


@triton.jit(do_not_specialize=SIZES)
def append(
    k, k_t, k_h, v, v_t, v_h, w, w_t, w_h, beta, beta_t, log_f, gate_t,
    pk, pk_b, pk_h, pv, pv_b, pv_h, pf, pf_b, pf_h, pw, pw_b, pw_h, pb, pb_b, pb_h, pg, pg_b, pg_h,
    items, starts, context, table, table_n,
    G: tl.constexpr, D: tl.constexpr, C: tl.constexpr, P: tl.constexpr, OP: tl.constexpr,
    PATH: tl.constexpr, GATE: tl.constexpr,
):  # fmt: skip
    """Writes the new tokens of one page and kv head. Item (n, j): the j-th page that sequence n writes to.

    New tokens k, v, w [tokens, H, D], beta [tokens, H], log_f [tokens, HQ] by their strides; pages p* by page and head
    strides; context [N]: tokens held before; table [N, table_n]: pages of each sequence.
    """
    slot = tl.program_id(0)
    seq = tl.load(items + 2 * slot)
    if seq < 0:
        return
    head = tl.program_id(1)
    start = tl.load(starts + seq)
    held = tl.load(context + seq)
    end = held + tl.load(starts + seq + 1) - start
    page = held // P + tl.load(items + 2 * slot + 1)
    lo = tl.maximum(held - page * P, 0)
    hi = tl.minimum(end - page * P, P)
    if hi <= lo:
        return
    number = tl.load(table + seq * table_n + page).to(tl.int64)
    token0 = (start + page * P - held).to(tl.int64)  # the page's row 0, counted among the new tokens
    i = tl.arange(0, C)
    c = tl.arange(0, D)
    pk += number * pk_b + head * pk_h
    pv += number * pv_b + head * pv_h
    k += token0 * k_t + head * k_h
    v += token0 * v_t + head * v_h
    if GATE:
        for g in range(G):
            log_f_g = log_f + token0 * gate_t + head * G + g
            append_gates(log_f_g, gate_t, pg + number * pg_b + head * pg_h + g * P, lo, hi, C)
    if PATH:
        w += token0 * w_t + head * w_h
        beta += token0 * beta_t + head
        pw += number * pw_b + head * pw_h
        pb += number * pb_b + head * pb_h
        pf += number * pf_b + head * pf_h + c[:, None] * D + c[None, :]

    for chunk in range(lo // C, (hi + C - 1) // C):
        row = chunk * C + i
        fresh = (row >= lo) & (row < hi)
        vv = tl.load(v + row[:, None] * v_t + c[None, :], mask=fresh[:, None], other=0.0)
        kk = tl.load(k + row[:, None] * k_t + c[None, :], mask=fresh[:, None], other=0.0)
        tl.store(pv + row[:, None] * D + c[None, :], vv.to(pv.dtype.element_ty), mask=fresh[:, None])
        if PATH:
            bb = tl.load(beta + row * beta_t, mask=fresh, other=0.0).to(tl.float32)
            ww = tl.load(w + row[:, None] * w_t + c[None, :], mask=fresh[:, None], other=0.0).to(OP)
            if (chunk + 1) * C <= hi:
                # The chunk is finished: bring back its pending tokens, then carry all keys of the page over it.
                pending = row < lo
                key = kk.to(OP)
                if lo > chunk * C:
                    key += tl.load(pk + row[:, None] * D + c[None, :], mask=pending[:, None], other=0.0).to(OP)
                    ww += tl.load(pw + i[:, None] * D + c[None, :], mask=pending[:, None], other=0.0).to(OP)
                    bb += tl.load(pb + i, mask=pending, other=0.0)
                UW, UY = chunk_transform(key, ww, bb, C, OP)
                F = transition(ww, UW, D).to(OP)
                for old_chunk in range(0, chunk):
                    at = (old_chunk * C + i)[:, None] * D + c[None, :]
                    tl.store(pk + at, dot(tl.load(pk + at).to(OP), F).to(pk.dtype.element_ty))
                carried = keys_to_right_edge(key, ww, UY).to(pk.dtype.element_ty)
                tl.debug_barrier()  # pending keys are read, old F not yet overwritten
                tl.store(pk + row[:, None] * D + c[None, :], carried)
                if chunk > 0:
                    F = dot(tl.load(pf), F).to(OP)
                    tl.debug_barrier()
                tl.store(pf, F)
                tl.debug_barrier()
            else:
                tl.store(pk + row[:, None] * D + c[None, :], kk.to(pk.dtype.element_ty), mask=fresh[:, None])
                tl.store(pw + i[:, None] * D + c[None, :], ww.to(pw.dtype.element_ty), mask=fresh[:, None])
                tl.store(pb + i, bb, mask=fresh)
        else:
            tl.store(pk + row[:, None] * D + c[None, :], kk.to(pk.dtype.element_ty), mask=fresh[:, None])


@triton.jit(do_not_specialize=SIZES)
def close_open_chunks(
    pk, pk_b, pk_h, pw, pw_b, pw_h, pb, pb_b, pb_h, open_k, open_f, context, table, table_n,
    H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, P: tl.constexpr, OP: tl.constexpr,
):  # fmt: skip
    """Keys [N, H, C, D] and transition [N, H, D, D] of each sequence's open chunk, as if it ended at its last token."""
    seq = tl.program_id(0)
    head = tl.program_id(1)
    held = tl.load(context + seq)
    pending = held % C
    if pending == 0:
        return
    number = tl.load(table + seq * table_n + held // P).to(tl.int64)
    i = tl.arange(0, C)
    c = tl.arange(0, D)
    live = i < pending
    row = held % P - pending + i
    k = tl.load(pk + number * pk_b + head * pk_h + row[:, None] * D + c[None, :], mask=live[:, None], other=0.0).to(OP)
    w = tl.load(pw + number * pw_b + head * pw_h + i[:, None] * D + c[None, :], mask=live[:, None], other=0.0).to(OP)
    beta = tl.load(pb + number * pb_b + head * pb_h + i, mask=live, other=0.0)
    UW, UY = chunk_transform(k, w, beta, C, OP)
    to = (seq * H + head).to(tl.int64)
    keys = keys_to_right_edge(k, w, UY).to(open_k.dtype.element_ty)
    tl.store(open_k + to * C * D + i[:, None] * D + c[None, :], keys)
    tl.store(open_f + to * D * D + c[:, None] * D + c[None, :], transition(w, UW, D).to(OP))


@triton.jit
def over_pages(
    x, x_scale, top, norm, acc, seq, hq,
    pk, pk_b, pk_h, pv, pv_b, pv_h, pf, pf_b, pf_h, pg, pg_b, pg_h, open_k, open_f, context, table, table_n, gate_scale,
    G: tl.constexpr, D: tl.constexpr, C: tl.constexpr, P: tl.constexpr, OP: tl.constexpr,
    PATH: tl.constexpr, GATE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Queries of one head go on over their sequence's cached prefix, newest page first; returns norm and acc.

    x: the queries as they stand at the prefix's right edge, brought to log2 units by x_scale; top, norm, acc: their
    softmax over this call's tokens. Grids have the query heads as their second dimension.
    """
    held = tl.load(context + seq)
    head = hq // G
    i = tl.arange(0, C)
    c = tl.arange(0, D)
    KEY: tl.constexpr = pk.dtype.element_ty
    pk += head * pk_h
    pv += head * pv_h + i[:, None] * D + c[None, :]
    x = x.to(KEY)
    offset = 0.0  # gates from the right edge of the page at hand to the prefix's right edge

    pages = (held + P - 1) // P
    count = held - (pages - 1) * P  # tokens in the page at hand
    finished = count
    if PATH:
        finished = count // C * C
        if finished < count:
            number = tl.load(table + seq * table_n + pages - 1).to(tl.int64)
            pending = i < count - finished
            at = (seq * (tl.num_programs(1) // G) + head).to(tl.int64)
            scores = dot(x, tl.load(open_k + at * C * D + i[None, :] * D + c[:, None])) * x_scale
            if GATE:
                gates = pg + number * pg_b + head * pg_h + (hq % G) * P + finished
                later = tl.load(gates + i + 1, mask=i + 1 < count - finished, other=0.0)
                scores += later[None, :] * gate_scale
            scores = tl.where(pending[None, :], scores, float("-inf"))
            values = tl.load(pv + number * pv_b + finished * D, mask=pending[:, None], other=0.0)
            top, norm, acc = softmax_step(scores, values, top, norm, acc)
            x = dot(x.to(OP), tl.load(open_f + at * D * D + c[:, None] + c[None, :] * D)).to(KEY)

    for back in range(0, pages):
        number = tl.load(table + seq * table_n + pages - 1 - back).to(tl.int64)
        if GATE:
            gates = pg + number * pg_b + head * pg_h + (hq % G) * P
        for t in tl.range(0, (finished + C - 1) // C, num_stages=STAGES):
            seen = t * C + i < finished
            keys = tl.load(pk + number * pk_b + (t * C + i)[None, :] * D + c[:, None], mask=seen[None, :], other=0.0)
            scores = dot(x, keys) * x_scale
            if GATE:
                later = tl.load(gates + t * C + i + 1, mask=t * C + i + 1 < count, other=0.0)
                scores += (later * gate_scale + offset)[None, :]
            scores = tl.where(seen[None, :], scores, float("-inf"))
            values = tl.load(pv + number * pv_b + t * C * D, mask=seen[:, None], other=0.0)
            top, norm, acc = softmax_step(scores, values, top, norm, acc)
        if PATH and finished > 0:
            F = tl.load(pf + number * pf_b + head * pf_h + c[:, None] + c[None, :] * D)
            x = dot(x.to(OP), F).to(KEY)
        if GATE:
            offset += tl.load(gates) * gate_scale
        count = P
        finished = P
    return norm, acc
