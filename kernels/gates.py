"""Forget gates as the prefill kernels read them: sums over chunks and spans, as operands of the score product.

Strong gates cost no digits elsewhere: a key's bias counts what lies between it and the query, or up to the edge of its
chunk or span, and then loses digits only where the key's weight is nothing beside the others.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from longeval.kernels.tiles import SIZES

LEAST = tl.constexpr(-8192.0)  # 64 such gates sum up to -2^19, the least that digits of `gates_between` hold
UNIT = tl.constexpr(16.0)  # of coarse digits: 2^19 is 32768 of them, which float16 holds


@triton.jit
def at_least(x, least):
    """Where x is below `least`, that; NaN stays NaN, which `tl.maximum` would hide."""
    return tl.where(x < least, least, x)


@triton.jit
def store_halves(to, x, mask, C: tl.constexpr):
    """x in float32 as a float16 and a float16 that corrects it, C apart: 22 bits. Below -60000 it saturates."""
    x = at_least(x, -60000.0)
    high = x.to(tl.float16)
    tl.store(to, high, mask=mask)
    tl.store(to + C, (x - high.to(tl.float32)).to(tl.float16), mask=mask)


@triton.jit(do_not_specialize=SIZES)
def gate_sums(
    log_f, stride_t, since, suffix, total, items, starts, slots, scale,
    HQ: tl.constexpr, HEADS: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """One chunk, HEADS query heads, of scale * log_f [tokens, HQ], which counts as LEAST below that.

    since [HQ, slots, 4, C] float16: sums from the chunk's first token to each, in the digits of `gates_between`. suffix
    [HQ, slots, 2, C] float16: sums over the tokens after each, as `store_halves`. total [HQ, slots]: over the chunk.
    """
    tl.static_assert(-LEAST * C <= 2**19)
    slot = tl.program_id(0)
    seq = tl.load(items + 2 * slot)
    if seq < 0:
        return
    first = tl.load(items + 2 * slot + 1) * C
    start = tl.load(starts + seq)
    n = tl.load(starts + seq + 1) - start - first
    i = tl.arange(0, C)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    known = (heads < HQ)[None, :]
    log_f += (start + first).to(tl.int64) * stride_t + i[:, None] * stride_t + heads[None, :]
    gates = tl.load(log_f, mask=(i < n)[:, None] & known, other=0.0).to(tl.float32)
    gates = at_least(gates * scale, LEAST)
    at = (heads.to(tl.int64) * slots + slot)[None, :]
    sums = tl.cumsum(gates.to(tl.float64), 0)  # float64: what is left of a difference of sums is as good as its terms
    whole = tl.sum(gates.to(tl.float64), 0)
    tl.store(total + heads * slots + slot, whole.to(tl.float32), mask=heads < HQ)
    store_halves(suffix + at * 2 * C + i[:, None], (whole[None, :] - sums).to(tl.float32), known, C)
    quarters = (sums * 4).to(tl.int32)
    high = quarters & -1024  # 2^11 values, and 2^10 for the rest: float16 holds both
    since += at * 4 * C + i[:, None]
    tl.store(since, (high.to(tl.float32) / (4 * UNIT)).to(tl.float16), mask=known)
    tl.store(since + C, ((quarters - high).to(tl.float32) / (4 * UNIT)).to(tl.float16), mask=known)
    store_halves(since + 2 * C, (sums - quarters.to(tl.float64) / 4).to(tl.float32), known, C)


@triton.jit(do_not_specialize=SIZES)
def span_gate_sums(
    suffix, total, items, starts, slots, each,
    HQ: tl.constexpr, HEADS: tl.constexpr, C: tl.constexpr, S: tl.constexpr, LATER: tl.constexpr,
):  # fmt: skip
    """One chunk, HEADS query heads: `gate_sums` once more, to the right edges of the chunk's near and far span.

    suffix [3, HQ, slots, 2, C] and total [3, HQ, slots]: of chunks, near spans of S tokens, far spans of S * each; a
    span's total stands where its first chunk's would. `total` is summed over LATER chunks at a time.
    """
    slot = tl.program_id(0)
    seq = tl.load(items + 2 * slot)
    if seq < 0:
        return
    chunk = tl.load(items + 2 * slot + 1)
    i = tl.arange(0, C)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    known = heads < HQ
    level = slots.to(tl.int64) * HQ
    at = heads.to(tl.int64) * slots + slot
    halves = suffix + at[None, :] * 2 * C + i[:, None]
    sums = tl.load(halves, mask=known[None, :], other=0.0).to(tl.float32)
    sums += tl.load(halves + C, mask=known[None, :], other=0.0).to(tl.float32)
    mine = tl.load(total + at, mask=known, other=0.0)
    left = (tl.load(starts + seq + 1) - tl.load(starts + seq) + C - 1) // C - chunk  # chunks from this one on
    for kind in tl.static_range(1, 3):
        size = S // C if kind == 1 else S // C * each
        left_in_span = tl.minimum(size - chunk % size, left)
        after = tl.zeros([HEADS], tl.float32)
        for first in range(1, left_in_span, LATER):
            later = first + tl.arange(0, LATER)
            there = known[:, None] & (later < left_in_span)[None, :]
            after += tl.sum(tl.load(total + at[:, None] + later[None, :], mask=there, other=0.0), 1)
        store_halves(halves + kind * level * 2 * C, sums + after[None, :], known[None, :], C)
        tl.store(total + kind * level + at, mine + after, mask=known)


@triton.jit
def add_suffix(suffix, R: tl.constexpr, C: tl.constexpr):
    """The sums of the chunk that `suffix` points to, once for each of R query rows, [R, C]: where their product starts.

    As a product with ones, because the matrix unit adds it at no cost in registers, where 16 columns per thread would
    have to be fetched one by one.
    """
    half = tl.arange(0, 16)
    ones = tl.zeros([R, 16], tl.float16) + tl.where(half < 2, 1.0, 0.0).to(tl.float16)[None, :]
    sums = tl.load(suffix + half[:, None] * C + tl.arange(0, C)[None, :], mask=(half < 2)[:, None], other=0.0)
    return tl.dot(ones, sums)


@triton.jit
def gates_between(since, row, C: tl.constexpr):
    """Sum of a chunk's gates from the token after each key to each query, [R, C]: where their product starts.

    since points to the chunk's sums; row [R] < C: the queries' tokens, counted from the chunk's first. For a key behind
    the query, as all are for a negative row, it is some large positive number, and no score.

    It is a difference of two sums, which may both count strong gates before the key, and yet loses no digit: of a sum's
    four digits the first two are multiples of 1/4 up to 2^19, whose differences the matrix unit's 24 bits hold exactly;
    the other two, halves of what is left below 1/4, are added to that.
    """
    sums = tl.zeros([row.shape[0], C], tl.float32)
    digit = tl.arange(0, 16) % 2
    kind = tl.arange(0, 16) // 2  # 0: digits of queries, 1: of keys, then nothing
    for pair in tl.static_range(2):
        one = UNIT if pair == 0 else 1.0
        mine = (kind == 0)[None, :] & (row >= 0)[:, None]
        queries = tl.load(since + digit[None, :] * C + row[:, None], mask=mine, other=0.0)
        queries = tl.where((kind == 1)[None, :], one, queries).to(tl.float16)
        keys = tl.load(since + digit[:, None] * C + tl.arange(0, C)[None, :], mask=(kind == 1)[:, None], other=0.0)
        keys = tl.where((kind == 0)[:, None], one, -keys).to(tl.float16)
        sums = tl.dot(queries, keys, sums)
        since += 2 * C
    return sums


@triton.jit
def gates_since(since, row, C: tl.constexpr):
    """Sum of a chunk's gates from its first token to each query, [R], 0 for negative rows; else as `gates_between`."""
    passed = row >= 0
    coarse = tl.load(since + row, mask=passed, other=0.0).to(tl.float32)
    coarse += tl.load(since + C + row, mask=passed, other=0.0).to(tl.float32)
    fine = tl.load(since + 2 * C + row, mask=passed, other=0.0).to(tl.float32)
    fine += tl.load(since + 3 * C + row, mask=passed, other=0.0).to(tl.float32)
    return coarse * UNIT + fine
