"""Attention on a paged pool by the readable definition: what the CPU runs, and what the kernels are measured against.

Each step copies the pages of its requests into `kernels.pages.Pages`, runs `kernels.reference` on them and copies the
pages that changed back. It is exact and simple, not fast: on CUDA the Triton kernels work in the pool itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from longeval.kernels import reference
from longeval.kernels.pages import CHUNK, Householder, Pages, Transitions
from longeval.kernels.pool import Pool
from longeval.kernels.reference import ScoreRule


def attend(
    pool: Pool,
    rule: ScoreRule,
    table: Tensor,
    starts: Sequence[int],
    held: Sequence[int],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    path: Householder | None,
    log_f: Tensor | None,
    out: Tensor,
) -> None:
    """Appends the new tokens of every sequence to its pages and writes their attention to `out` [tokens, HQ, d].

    Packed tokens: q [tokens, HQ, d]; k, v, path.w [tokens, H, d]; path.beta [tokens, H]; log_f [tokens, HQ]. Sequence n
    has tokens `starts[n] : starts[n + 1]`, holds `held[n]` in the pages `table[n]` ([N, pages] int) and needs at least
    one new token.
    """
    new = [end - start for start, end in pairwise(starts)]
    decodes = [n for n, count in enumerate(new) if count == 1]
    batches = [decodes] if decodes else []
    batches += [[n] for n, count in enumerate(new) if count > 1]
    for batch in batches:  # of sequences with equally many new tokens
        count = new[batch[0]]
        before = torch.tensor([held[n] for n in batch])
        numbers = table[batch].long()
        pages = _gather(pool, numbers, before, count)
        tokens = torch.tensor([starts[n] for n in batch])[:, None] + torch.arange(count)
        run = reference.decode if count == 1 else reference.prefill
        out[tokens] = run(
            pages,
            rule,
            q[tokens],
            k[tokens].to(pool.k.dtype),
            v[tokens],
            None if path is None else Householder(path.w[tokens], path.beta[tokens]),
            None if log_f is None else log_f[tokens],
        )
        _scatter(pages, pool, numbers, before)


def _gather(pool: Pool, numbers: Tensor, held: Tensor, new: int) -> Pages:
    """The pages that B sequences hold, with room for `new` tokens more. Rows past `held` [B] come out as zeros."""
    P = pool.layout.size
    page = torch.arange(int((held.max() + new - 1) // P) + 1)
    rows = (held - page[:, None] * P).clamp(0, P)  # [N, B]: rows in use
    at = torch.where(rows > 0, numbers[:, : len(page)].T, 0)  # a block table says nothing of pages not in use
    unused = torch.arange(P) >= rows[..., None]  # [N, B, P]

    def fetch(field: Tensor) -> Tensor:
        return field[at].masked_fill(unused.view(*unused.shape[:2], 1, P, 1), 0)

    path = None
    if pool.f is not None and pool.w is not None and pool.beta is not None:
        started = (rows < CHUNK).view(*rows.shape, 1, 1, 1)
        F = torch.where(started, torch.eye(pool.f.shape[-1]), pool.f[at])
        last = numbers.gather(1, (held // P)[:, None])[:, 0]
        blank = (torch.arange(CHUNK) >= (held % CHUNK)[:, None])[:, None]  # [B, 1, C]
        open_w = pool.w[last].to(F.dtype).masked_fill(blank.unsqueeze(-1), 0)
        path = Transitions(F, Householder(open_w, pool.beta[last].masked_fill(blank, 0)))
    g = None
    if pool.g is not None:
        g = fetch(pool.g.mT).mT.flatten(2, 3)
    return Pages(fetch(pool.k), fetch(pool.v), held.clone(), path, g)


def _scatter(pages: Pages, pool: Pool, numbers: Tensor, held: Tensor) -> None:
    """Writes back the pages that took tokens after `held` [B]."""
    P = pages.page_size
    page = torch.arange(len(pages.k))[:, None]
    at, seq = ((page >= held // P) & (page * P < pages.length)).nonzero(as_tuple=True)
    to = numbers[seq, at]
    pool.k[to], pool.v[to] = pages.k[at, seq], pages.v[at, seq]
    if pool.g is not None and pages.g is not None:
        pool.g[to] = pages.g[at, seq].unflatten(1, pool.g.shape[1:3])
    if pages.path is None:
        return
    assert pool.f is not None
    assert pool.w is not None
    assert pool.beta is not None
    pool.f[to] = pages.path.F[at, seq].to(pool.f.dtype)
    seq = (pages.length % CHUNK > 0).nonzero()[:, 0]
    to = numbers[seq, pages.length[seq] // P]
    w, beta = pages.path.open
    pool.w[to], pool.beta[to] = w[seq].to(pool.w.dtype), beta[seq]
