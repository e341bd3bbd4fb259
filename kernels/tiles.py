"""Tile functions that the Triton kernels share: the UT form of a chunk, and one step of the online softmax.

Each is the counterpart of a function in `chunk.py`, on one tile in registers. `OP` is the dtype of matrix operands
(float16 for 16-bit models, float32 for float32, where every product is three tf32 products); sums are float32.
float16 rather than bfloat16 because w, U and F, and what they carry, have entries near or below 1: three more bits.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = 1.4426950408889634
LOWEST = tl.constexpr(-1e30)  # a softmax's maximum before its first key: -inf would make NaN of a tile without any

# Arguments that change from call to call: one compiled kernel must serve every value.
SIZES = ["tokens", "slots", "nears", "fars", "each", "table_n", "parts", "splits"]


@triton.jit
def dot(a, b):
    """a @ b with float32 sums; float32 operands as three tf32 products each, which keeps 22 of their 24 bits."""
    return tl.dot(a, b, input_precision="tf32x3")


@triton.jit
def dot_add(a, b, c):
    """c + a @ b, as `dot`."""
    return tl.dot(a, b, c, input_precision="tf32x3")


@triton.jit
def unit_lower_inverse(A, C: tl.constexpr, OP: tl.constexpr):
    """(I + A)^-1, [C, C] in OP, for strictly lower A in float32.

    Diagonal blocks of 8 by elimination, then doubling, `T <- T - T A_level T`. Entries of T and of both products stay
    below 4 in size (each is some beta * w^T H ... H w), so rounding their operands to float16 is harmless; the
    nilpotent product (I - A)(I + A^2)... has no such bound and loses everything on similar w.
    """
    B: tl.constexpr = 8
    row = tl.arange(0, C)
    same = (row[:, None] // B) == (row[None, :] // B)
    D = tl.sum(tl.reshape(tl.where(same, A, 0.0), (C // B, B, C // B, B)), 2)  # [C / B, B, B]
    i = tl.arange(0, B)
    T = tl.zeros_like(D) + tl.where(i[:, None] == i[None, :], 1.0, 0.0)[None, :, :]
    for j in tl.static_range(B - 1):
        below = tl.sum(tl.where(i[None, None, :] == j, D, 0.0), 2)  # column j of D
        pivot = tl.sum(tl.where(i[None, :, None] == j, T, 0.0), 1)  # row j of T
        T -= below[:, :, None] * pivot[:, None, :]
    b = tl.arange(0, C // B)
    T = tl.where((b[:, None] == b[None, :])[:, None, :, None], T[:, :, None, :], 0.0)
    T = tl.reshape(T, (C, C)).to(OP)
    A = A.to(OP)
    for level in tl.static_range(3):
        if (B << level) < C:
            half = row // (B << level)
            pair = row // (B << (level + 1))
            off = (pair[:, None] == pair[None, :]) & (half[:, None] > half[None, :])
            T -= dot(T, dot(tl.where(off, A, 0.0), T).to(OP)).to(OP)  # where T is still zero: rounded once
    return T


@triton.jit
def negated_inverse(w, beta, C: tl.constexpr, OP: tl.constexpr):
    """w [C, D] in OP, beta [C] -> -T [C, C] in OP: T = (I + strictLower(diag(beta) w w^T))^-1; U = T diag(beta)."""
    return -unit_lower_inverse(ut_keys(w, beta, w, C), C, OP)


@triton.jit
def ut_queries(minus_T, w, beta, OP: tl.constexpr):
    """-T of `negated_inverse`, w [C, D] in OP, beta [C] -> UW = -U w, [C, D] in OP."""
    return dot(minus_T, (beta[:, None] * w.to(tl.float32)).to(OP)).to(OP)


@triton.jit
def ut_keys(w, beta, k, C: tl.constexpr):
    """w, k [C, D] in OP, beta [C] -> Y = strictLower(diag(beta) w k^T), [C, C] float32."""
    i = tl.arange(0, C)
    return tl.where(i[:, None] > i[None, :], beta[:, None] * dot(w, tl.trans(k)), 0.0)


@triton.jit
def chunk_transform(k, w, beta, C: tl.constexpr, OP: tl.constexpr):
    """k, w [C, D] in OP, beta [C] -> UW = -U w [C, D], UY = -U strictLower(w k^T) [C, C], both in OP.

    From these two follow, with X = lower(q w^T): q at the chunk's left edge = q + X UW;  k at its right edge =
    k + UY^T w;  F = I + UW^T w;  local scores = q k^T + X UY.
    """
    minus_T = negated_inverse(w, beta, C, OP)
    Y = ut_keys(w, beta, k, C).to(OP)
    UW = ut_queries(minus_T, w, beta, OP)  # after Y: before it, where D < 64, ptxas 12.8 misaddresses its operand
    return UW, dot(minus_T, Y).to(OP)


@triton.jit
def keys_to_right_edge(k, w, UY):
    """Row j becomes H_last ... H_{j+1} k_j, [C, D] float32."""
    return dot_add(tl.trans(UY), w, k.to(tl.float32))


@triton.jit
def transition(w, UW, D: tl.constexpr):
    """F = H_first ... H_last = I + UW^T w, [D, D] float32. A query row crosses to the left as q <- q F^T."""
    c = tl.arange(0, D)
    return dot_add(tl.trans(UW), w, tl.where(c[:, None] == c[None, :], 1.0, 0.0))


@triton.jit
def softmax_step(scores, v, top, norm, acc, scale=1.0):
    """Adds one tile, scores [M, N] and v [N, D], to the running softmax (top [M], norm [M, W], acc [M, D]).

    scale > 0 brings scores to log2 units, in which `top` is. norm holds sums of every W-th column: with W = 8 each
    thread of the matrix unit's layout keeps its own, and they are added up across threads once, at the end. The maximum
    is taken the same way, which halves its chain of comparisons.
    """
    M: tl.constexpr = scores.shape[0]
    W: tl.constexpr = norm.shape[1]
    L: tl.constexpr = scores.shape[1] // W
    new_top = tl.maximum(top, tl.max(tl.max(tl.reshape(scores, (M, L, W)), 1), 1) * scale)
    shrink = tl.exp2(top - new_top)
    p = tl.exp2(scores * scale - new_top[:, None])
    norm = norm * shrink[:, None] + tl.sum(tl.reshape(p, (M, L, W)), 1)
    acc = dot_add(p.to(v.dtype), v, acc * shrink[:, None])
    return new_top, norm, acc
