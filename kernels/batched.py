"""The kernels for a padded batch: what `reference.prefill` and `decode` do on `Pages`."""

from __future__ import annotations

import torch
from torch import Tensor

from longeval.kernels.attention import Cached, New, append, decode, prefill
from longeval.kernels.pages import Householder
from longeval.kernels.plan import Plan
from longeval.kernels.pool import PageLayout, Pool, Shape
from longeval.kernels.reference import ScoreRule


class PagedAttention:
    """One layer's attention over B sequences, with their paged cache. `length` [B] int64: tokens held."""

    def __init__(self, rule: ScoreRule, pool: Pool, table: Tensor, length: Tensor) -> None:
        self.rule = rule
        self.pool = pool
        self.table = table
        self.length = length

    @staticmethod
    def empty(
        rule: ScoreRule, shape: Shape, batch: int, capacity: int, device: torch.device | str, page_size: int = 512
    ) -> PagedAttention:
        """Room for `capacity` tokens in each of `batch` sequences. The caller has asked `supports`."""
        pages = -(-capacity // page_size)
        pool = PageLayout(shape, page_size).empty(batch * pages, device)
        table = torch.arange(batch * pages, dtype=torch.int32, device=device).view(batch, pages)
        return PagedAttention(rule, pool, table, torch.zeros(batch, dtype=torch.int64, device=device))

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        path: Householder | None,
        log_f: Tensor | None,
        new: Tensor,
    ) -> Tensor:
        """Appends up to T tokens per sequence and returns their attention output [B, T, HQ, d], zero on padding.

        q [B, T, HQ, d]; k, v [B, T, H, d]; w [B, T, H, d] and beta [B, T, H] of PaTH; log_f [B, T, HQ]. `new` [B]: how
        many of the T tokens each sequence has; the rest is padding on the right.
        """
        B, T = q.shape[:2]
        real = torch.arange(T, device=q.device) < new[:, None]
        w, beta = (None, None) if path is None else path
        gates = (None if x is None else x[real].contiguous() for x in (w, beta, log_f))
        packed = New(q[real].contiguous(), k[real].contiguous(), v[real].contiguous(), *gates)
        tokens = packed.q.shape[0]
        starts = torch.nn.functional.pad(new.cumsum(0), (1, 0)).int()
        out = torch.zeros_like(q)
        if tokens:
            cached = Cached.of(self.pool, self.table, self.length, starts, tokens)
            if T == 1 and tokens == B:
                append(packed, starts, cached)
                capacity = self.table.shape[1] * self.pool.layout.size
                out[:, 0] = decode(self.rule, packed.q, self.pool, self.table, (self.length + 1).int(), capacity)
            else:
                out[real] = prefill(self.rule, packed, Plan.of(starts, tokens), cached)
                append(packed, starts, cached)
        self.length = self.length + new
        return out

    def select(self, rows: Tensor) -> PagedAttention:
        """The same for some of the sequences, each once; they keep their pages."""
        return PagedAttention(self.rule, self.pool, self.table[rows], self.length[rows])
