"""Which implementation of attention a model's layers run: the seam between networks and kernels.

A layer keeps one `Attention` per batch of sequences. It owns the layer's KV cache and answers `attend`; everything
around it (projections, convolutions, gates) is the network's. `start_attention` chooses the implementation.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from longeval.kernels import reference
from longeval.kernels.pages import Householder, Pages
from longeval.kernels.reference import ScoreRule

IMPLEMENTATION = "reference"  # what a run's manifest says


class Attention(Protocol):
    """The attention of one layer over B sequences, with their cache. `length` [B]: tokens held."""

    @property
    def length(self) -> Tensor: ...

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        path: Householder | None,
        log_f: Tensor | None,
        new: Tensor,
    ) -> Tensor:
        """Appends up to T tokens per sequence and returns their attention output [B, T, HQ, d].

        q [B, T, HQ, d]; k, v [B, T, H, d]; w [B, T, H, d] and beta [B, T, H] of PaTH; log_f [B, T, HQ]. `new` [B]: how
        many of the T tokens each sequence has, the rest is padding on the right.
        """
        ...

    def select(self, rows: Tensor) -> Attention:
        """The same for some of the sequences."""
        ...


class ReferenceAttention:
    """The readable PyTorch definition on `Pages`."""

    def __init__(self, pages: Pages, rule: ScoreRule) -> None:
        self.pages = pages
        self.rule = rule

    @property
    def length(self) -> Tensor:
        return self.pages.length

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        path: Householder | None,
        log_f: Tensor | None,
        new: Tensor,
    ) -> Tensor:
        if q.shape[1] == 1 and bool((new == 1).all()):
            return reference.decode(self.pages, self.rule, q, k, v, path, log_f)
        return reference.prefill(self.pages, self.rule, q, k, v, path, log_f, new)

    def select(self, rows: Tensor) -> ReferenceAttention:
        return ReferenceAttention(self.pages.select(rows), self.rule)


def start_attention(
    rule: ScoreRule,
    batch: int,
    capacity: int,
    kv_heads: int,
    head_dim: int,
    *,
    path: bool,
    gate_heads: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Attention:
    """An empty cache for `batch` sequences of up to `capacity` tokens."""
    pages = Pages.empty(
        batch, capacity, kv_heads, head_dim, path=path, gate_heads=gate_heads, dtype=dtype, device=device
    )
    return ReferenceAttention(pages, rule)
