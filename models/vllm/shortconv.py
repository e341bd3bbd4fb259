"""w over packed tokens: its short convolution, whose past is read from and left in the pages, and its unit length.

y_t[c] = SiLU(sum_m weight[c, m] * x_{t - 2 + m}[c]),  x before the first token is zero;  w_t = y_t / ||y_t|| per head.
float32 inside, y rounded to the model's dtype. This is the readable definition; CUDA runs `shortconv_kernel.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

L2_EPS = 1e-6  # under the root of the norm, added to the sum of squares


@dataclass(frozen=True)
class TokenPlaces:
    """Where T packed tokens stand; device tensors, none of which is read on the host.

    sequence [T] int64; position [T] int64 in the sequence; fresh [T] int64: tokens of the sequence in this call before
    this one; table [N, pages] int32; keep [T] bool: one of the last two in its page or sequence, and to be written.
    """

    page_size: int
    sequence: Tensor
    position: Tensor
    fresh: Tensor
    table: Tensor
    keep: Tensor

    @staticmethod
    def of(starts: Tensor, held: Tensor, table: Tensor, slots: Tensor, page_size: int) -> TokenPlaces:
        """starts [N + 1] int32; held [N] int32, tokens before this call; slots [T] int64, negative: write nothing."""
        index = torch.arange(len(slots), device=slots.device)
        sequence = (torch.searchsorted(starts, index, right=True, out_int32=False) - 1).clamp(0, len(held) - 1)
        fresh = index - starts[sequence]
        position = held[sequence] + fresh
        after = position + 2
        count = starts[sequence + 1] - starts[sequence]
        last = (fresh + 2 >= count) | (after // page_size != position // page_size)
        return TokenPlaces(page_size, sequence, position, fresh, table, last & (slots >= 0))

    def page(self, position: Tensor) -> Tensor:
        """[T] int64: the block of the sequence's token at `position`; any block for what is no position of it."""
        column = (position // self.page_size).clamp(0, self.table.shape[1] - 1)
        return self.table[self.sequence, column].long()


def short_convolution(x: Tensor, weight: Tensor, tail: Tensor, places: TokenPlaces) -> Tensor:
    """x [T, H, d], weight [H * d, 1, 3], tail [blocks, H, 2, d] (updated) -> [T, H, d] in x's dtype."""
    taps = weight.float().view(*x.shape[1:], -1)  # [H, d, 3]
    width = taps.shape[-1]
    total = taps[..., -1] * x
    for back in range(1, width):
        position = places.position - back
        here = x.roll(back, 0)
        cached = tail[places.page(position), :, position % (width - 1)]
        past = torch.where((places.fresh >= back)[:, None, None], here, cached)
        total += taps[..., width - 1 - back] * torch.where((position >= 0)[:, None, None], past, 0)
    # What is not to be kept goes to block 0, which vLLM gives to no request.
    block = torch.where(places.keep, places.page(places.position), 0)
    tail[block, :, places.position % (width - 1)] = x
    return silu(total).to(x.dtype)


def unit_length(w: Tensor) -> Tensor:
    """w [T, H, d] normalised per head, float32."""
    w = w.float()
    return w * torch.rsqrt(w.square().sum(-1, keepdim=True) + L2_EPS)
