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
from longeval.kernels.pool import Shape, supports
from longeval.kernels.reference import ScoreRule


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


def kernel_gaps(shape: Shape, window: int | None, device: torch.device) -> list[str]:
    """Why the Triton kernels do not serve a layer on `device`; empty when they do."""
    return supports(shape, window=window) if device.type == "cuda" else [f"device {device.type}"]


def implementation(shape: Shape, window: int | None, device: torch.device) -> str:
    """What a run's manifest says of its attention, with the reasons when the kernels do not run."""
    gaps = kernel_gaps(shape, window, device)
    return f"reference ({'; '.join(gaps)})" if gaps else "triton"


def start_attention(rule: ScoreRule, shape: Shape, batch: int, capacity: int, device: torch.device) -> Attention:
    """An empty cache for `batch` sequences of up to `capacity` tokens: the kernels' where they serve the layer."""
    if not kernel_gaps(shape, rule.window, device):
        from longeval.kernels.batched import PagedAttention  # needs Triton

        return PagedAttention.empty(rule, shape, batch, capacity, device)
    pages = Pages.empty(
        batch,
        capacity,
        shape.kv_heads,
        shape.head_dim,
        path=shape.path,
        gate_heads=shape.heads if shape.gate else 0,
        dtype=shape.dtype,
        device=device,
    )
    return ReferenceAttention(pages, rule)
