"""Where each piece of a packed batch lies: lookup tables that turn a program id into (sequence, block).

Built on the device from `cu_seqlens` alone, without a host synchronisation, and reused by every layer of a model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 64  # tokens per UT form: fixed by the page layout
NEAR = 2 * CHUNK  # tokens per near span, and query rows per program of a walk


@dataclass(frozen=True)
class Blocks:
    """Blocks of `size` tokens, counted from each sequence's first token of this call.

    items [bound, 2] int32: (sequence, block) of the i-th block, sequences in order, (-1, 0) past the last.
    base [N] int32: number of blocks before each sequence.
    """

    size: int
    items: Tensor
    base: Tensor

    @property
    def bound(self) -> int:
        return self.items.shape[0]

    @staticmethod
    def of(lengths: Tensor, size: int, bound: int, skipped: Tensor | None = None) -> Blocks:
        """`bound` >= the number of blocks. `skipped` [N]: tokens to be counted in front of each sequence's first."""
        before = torch.zeros_like(lengths) if skipped is None else skipped
        counts = torch.where(lengths > 0, (before + lengths + size - 1) // size, 0)
        ends = counts.cumsum(0)
        base = ends - counts
        index = torch.arange(bound, device=lengths.device)
        seq = torch.searchsorted(ends, index, right=True)
        inside = seq < lengths.shape[0]
        seq = seq.clamp(max=lengths.shape[0] - 1)
        items = torch.stack([torch.where(inside, seq, -1), torch.where(inside, index - base[seq], 0)], dim=1)
        return Blocks(size, items.int().contiguous(), base.int())


@dataclass(frozen=True)
class Plan:
    """A packed batch of N sequences with T new tokens in all: token `starts[n] + i` is new token i of sequence n.

    starts [N + 1] int32 is cu_seqlens. A far span is as long as `each` near spans.
    """

    tokens: int
    starts: Tensor
    chunks: Blocks
    near: Blocks
    far: Blocks
    each: int

    @staticmethod
    def of(cu_seqlens: Tensor, tokens: int, each: int | None = None) -> Plan:
        """cu_seqlens [N + 1] int32 or int64 on the device, from 0 to `tokens`.

        A walk over L tokens crosses up to `each` near spans and L / (NEAR each) far ones: fewest when each is near the
        root of L / NEAR. It is a power of two, by the mean length, which is all the host knows.
        """
        starts = cu_seqlens.int().contiguous()
        lengths = (starts[1:] - starts[:-1]).long()
        n = lengths.shape[0]
        if each is None:
            each = 1 << round(math.log2(max(16, tokens / n / NEAR)) / 2)

        def blocks(size: int) -> Blocks:
            return Blocks.of(lengths, size, bound=min(tokens, tokens // size + n))

        return Plan(tokens, starts, blocks(CHUNK), blocks(NEAR), blocks(NEAR * each), each)
