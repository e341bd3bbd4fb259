"""Forget gates as the prefill kernels read them: sums over chunks and spans, as operands of the score product."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from longeval.kernels.tiles import SIZES


@triton.jit(do_not_specialize=SIZES)
def gate_sums(
    log_f, stride_t, suffix, total, items, starts, slots, scale, HQ: tl.constexpr, HEADS: tl.constexpr, C: tl.constexpr
):
    """One chunk, HEADS query heads. suffix [HQ, slots, 2, C] float16, total [HQ, slots] float32.

    suffix: sum of scale * log_f [tokens, HQ] over the tokens after each in its chunk, as high and low halves (22 bits);
    below -60000 it saturates. total: the same over the whole chunk.

    To keys and queries before strong gates of their own chunk these are one large summand that cancels: of float32's
    digits they lose as many as it takes (log f = -30 on a third of a chunk: 1e-4), and all once it saturates, which for
    FoX at d = 64 takes log f below -300 on a third of a chunk.
    """
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
    gates = tl.load(log_f, mask=(i < n)[:, None] & known, other=0.0).to(tl.float32) * scale
    # summed backwards from one token on, so that near keys get small, exact sums
    after = tl.load(log_f + stride_t, mask=(i < tl.minimum(n, C) - 1)[:, None] & known, other=0.0).to(tl.float32)
    sums = tl.maximum(tl.cumsum(after * scale, 0, reverse=True), -60000.0)
    high = sums.to(tl.float16)
    low = (sums - high.to(tl.float32)).to(tl.float16)
    suffix += (heads[None, :].to(tl.int64) * slots + slot) * 2 * C + i[:, None]
    tl.store(suffix, high, mask=known)
    tl.store(suffix + C, low, mask=known)
    tl.store(total + heads * slots + slot, tl.sum(gates, 0), mask=heads < HQ)


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
        longer = tl.maximum(sums + after[None, :], -60000.0)
        high = longer.to(tl.float16)
        tl.store(halves + kind * level * 2 * C, high, mask=known[None, :])
        tl.store(halves + kind * level * 2 * C + C, (longer - high.to(tl.float32)).to(tl.float16), mask=known[None, :])
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
