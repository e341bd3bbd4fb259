"""`shortconv.py` in Triton: w's convolution, SiLU and unit length in one pass, then the tails of pages in another.

Two passes because a page's two tail rows are read by the first tokens of a call and written by its last.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longeval.models.vllm.pages import TAIL
from longeval.models.vllm.shortconv import L2_EPS, TokenPlaces

TOKENS = 16  # per program


def unit_w(w: Tensor, conv: Tensor | None, tail: Tensor | None, places: TokenPlaces) -> Tensor:
    """w [T, H, d], contiguous in its last dimension -> [T, H, d] in the dtype of the kernels' operands.

    conv [H * d, 1, 3] and tail [blocks, H, 2, d] (updated), or neither.
    """
    T, H, D = w.shape
    assert w.stride(-1) == 1, "the last dimension must be contiguous"
    out = torch.empty(T, H, D, dtype=torch.float32 if w.dtype == torch.float32 else torch.float16, device=w.device)
    grid = (triton.cdiv(T, TOKENS), H)
    where = (places.sequence, places.position, places.table, places.table.stride(0), T)
    cached = w if tail is None else tail
    ends = (cached, cached.stride(0), cached.stride(1))
    sizes = {"D": D, "P": places.page_size, "TAIL": TAIL, "TOKENS": TOKENS}
    convolve[grid](
        w, w.stride(0), w.stride(1), w if conv is None else conv, *ends, out, places.fresh, *where,
        CONV=conv is not None, EPS=L2_EPS, **sizes,
    )  # fmt: skip
    if conv is not None:
        keep_tails[grid](w, w.stride(0), w.stride(1), *ends, places.keep, *where, **sizes)
    return out


@triton.jit(do_not_specialize=["tokens", "table_n"])
def convolve(
    w, w_t, w_h, conv, tail, tail_b, tail_h, out, fresh, sequence, position, table, table_n, tokens,
    D: tl.constexpr, P: tl.constexpr, TAIL: tl.constexpr, TOKENS: tl.constexpr, CONV: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """TOKENS tokens of one head. An input before this call's first token of its sequence comes from a page's tail."""
    t = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1)
    live = t < tokens
    c = tl.arange(0, D)
    at = t.to(tl.int64)[:, None]
    w += at * w_t + head * w_h + c[None, :]
    y = tl.load(w, mask=live[:, None], other=0.0).to(tl.float32)
    if CONV:
        taps = conv + (head * D + c) * (TAIL + 1)
        y *= tl.load(taps + TAIL).to(tl.float32)[None, :]
        here = tl.load(fresh + t, mask=live, other=0)
        now = tl.load(position + t, mask=live, other=0)
        row = tl.load(sequence + t, mask=live, other=0) * table_n
        for back in tl.static_range(1, TAIL + 1):
            then = now - back
            cached = live & (here < back) & (then >= 0)
            block = tl.load(table + row + then // P, mask=cached, other=0).to(tl.int64)
            old = tail + (block * tail_b + then % TAIL * D)[:, None] + head * tail_h + c[None, :]
            past = tl.load(w - back * w_t, mask=(live & (here >= back))[:, None], other=0.0).to(tl.float32)
            past += tl.load(old, mask=cached[:, None], other=0.0).to(tl.float32)
            y += past * tl.load(taps + TAIL - back).to(tl.float32)[None, :]
        y = (y * tl.sigmoid(y)).to(w.dtype.element_ty).to(tl.float32)
    y *= tl.rsqrt(tl.sum(y * y, 1) + EPS)[:, None]
    out += at * (tl.num_programs(1) * D) + head * D + c[None, :]
    tl.store(out, y.to(out.dtype.element_ty), mask=live[:, None])


@triton.jit(do_not_specialize=["tokens", "table_n"])
def keep_tails(
    w, w_t, w_h, tail, tail_b, tail_h, keep, sequence, position, table, table_n, tokens,
    D: tl.constexpr, P: tl.constexpr, TAIL: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Writes the tokens that are to be kept, of TOKENS tokens and one head, to the tails of their pages."""
    t = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1)
    kept = tl.load(keep + t, mask=t < tokens, other=0) != 0
    c = tl.arange(0, D)
    now = tl.load(position + t, mask=kept, other=0)
    row = tl.load(sequence + t, mask=kept, other=0) * table_n
    block = tl.load(table + row + now // P, mask=kept, other=0).to(tl.int64)
    x = tl.load(w + t.to(tl.int64)[:, None] * w_t + head * w_h + c[None, :], mask=kept[:, None], other=0.0)
    tl.store(tail + (block * tail_b + now % TAIL * D)[:, None] + head * tail_h + c[None, :], x, mask=kept[:, None])
