"""Forget gates as the prefill kernels read them: sums inside each chunk, as an operand of the score product."""
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
    below -60000, where the weight is zero, it saturates. total: the same over the whole chunk.
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


@triton.jit
def chunk_suffix(suffix, C: tl.constexpr):
    """The sums of the chunk that `suffix` points to, [C] float32."""
    i = tl.arange(0, C)
    return tl.load(suffix + i).to(tl.float32) + tl.load(suffix + C + i).to(tl.float32)


@triton.jit
def add_suffix(suffix, R: tl.constexpr, C: tl.constexpr):
    """The same for R query rows, [R, C]: a start value for their score product.

    As a product with ones, because the matrix unit adds it at no cost in registers, where 16 columns per thread would
    have to be fetched one by one.
    """
    half = tl.arange(0, 16)
    ones = tl.zeros([R, 16], tl.float16) + tl.where(half < 2, 1.0, 0.0).to(tl.float16)[None, :]
    sums = tl.load(suffix + half[:, None] * C + tl.arange(0, C)[None, :], mask=(half < 2)[:, None], other=0.0)
    return tl.dot(ones, sums)
