"""The KV cache of one layer, in pages, and its update.

A page of P tokens is made of chunks of `CHUNK` tokens. PaTH keys are carried to the right edge of the page's last
finished chunk and no further, so a full page never changes again: history is not rewritten, a key is rounded at most
P / CHUNK times, and equal prefixes have equal pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from longeval.kernels.chunk import keys_to_right_edge, transition, ut_transform

CHUNK = 64
LEAST_GATE = -60000.0  # log_f below it counts as it, -inf too: no weight is left of such a key, and sums stay finite


class Householder(NamedTuple):
    """PaTH's transitions `H_t = I - beta_t w_t w_t^T` of some tokens: unit vectors w [..., d], beta [...] in (0, 2)."""

    w: Tensor
    beta: Tensor


class Transitions(NamedTuple):
    """What PaTH keeps beside keys and values, in full precision.

    F [N, B, H, d, d]: H_first ... H_last over each page's finished chunks, the identity when there are none.
    open: w [B, H, C, d] and beta [B, H, C] of the open chunk, zero in unused rows.
    """

    F: Tensor
    open: Householder


@dataclass
class Pages:
    """One layer's cache of B sequences; token t of a sequence is row t % P of page t // P.

    k, v   [N, B, H, P, d]  model dtype; rows not yet used are zero. Keys of the page's finished chunks stand at the
                            right edge of the last of them; keys of its open chunk are as they came.
    length [B]              int64, tokens held.
    path                    PaTH only.
    g      [N, B, HQ, P]    sum of log_f from each token to the page's newest, inclusive; zero in unused rows. Gated
                            models only.

    `path` and `g` are float32, or float64 when k is. The layer around it keeps what else it needs from the past (the
    last two inputs of w's short convolution).
    """

    k: Tensor
    v: Tensor
    length: Tensor
    path: Transitions | None = None
    g: Tensor | None = None

    @staticmethod
    def empty(
        batch: int,
        capacity: int,
        kv_heads: int,
        head_dim: int,
        *,
        path: bool = False,
        gate_heads: int = 0,
        page_size: int = 512,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Pages:
        """Room for at least `capacity` tokens per sequence. `path`: PaTH; `gate_heads`: HQ of a gated model."""
        if page_size % CHUNK:
            raise ValueError(f"page_size {page_size} is not a multiple of {CHUNK}")
        N, B, H, P, d = -(-capacity // page_size), batch, kv_heads, page_size, head_dim
        full = full_precision(dtype)

        def zeros(*shape: int, dtype: torch.dtype = full) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        identity = torch.eye(d, dtype=full, device=device)
        open_chunk = Householder(zeros(B, H, CHUNK, d), zeros(B, H, CHUNK))
        return Pages(
            k=zeros(N, B, H, P, d, dtype=dtype),
            v=zeros(N, B, H, P, d, dtype=dtype),
            length=zeros(B, dtype=torch.int64),
            path=Transitions(identity.repeat(N, B, H, 1, 1), open_chunk) if path else None,
            g=zeros(N, B, gate_heads, P) if gate_heads else None,
        )

    @property
    def page_size(self) -> int:
        return self.k.shape[3]

    def select(self, rows: Tensor) -> Pages:
        """The same cache for some of its sequences (int64 indices), copied."""
        path = self.path
        if path is not None:
            path = Transitions(path.F[:, rows], Householder(path.open.w[rows], path.open.beta[rows]))
        g = None if self.g is None else self.g[:, rows]
        return Pages(self.k[:, rows], self.v[:, rows], self.length[rows], path, g)


@dataclass
class Newest:
    """The page that the next token goes to, of S sequences, in full precision.

    k, v [S, H, P, d]. `path` [S, H, P]: zero outside the open chunk. Finished chunks' keys already stand at the edge of
    the last of them, so `beta = 0` there (U = 0, F = I) makes every formula of the chunk algebra true as it is.
    gates [S, HQ, P]: log_f of each token, zero in unused rows; of earlier tokens as good as sums of it need. `seq,
    page` [S]: where it belongs; `end` [S]: how many of its rows are in use.
    """

    seq: Tensor
    page: Tensor
    end: Tensor
    k: Tensor
    v: Tensor
    path: Householder | None
    gates: Tensor | None

    @staticmethod
    def load(pages: Pages, seq: Tensor) -> Newest:
        """`seq` [S] int64: which sequences."""
        page, end = pages.length[seq] // pages.page_size, pages.length[seq] % pages.page_size
        full = full_precision(pages.k.dtype)
        path = None
        if pages.path is not None:
            w, beta = pages.path.open
            S, H, C, d = len(seq), *w.shape[1:]
            some, m = torch.arange(S, device=seq.device), pages.page_size // C
            path = Householder(w.new_zeros(S, H, m, C, d), w.new_zeros(S, H, m, C))
            path.w[some, :, end // C], path.beta[some, :, end // C] = w[seq], beta[seq]
            path = Householder(path.w.flatten(2, 3), path.beta.flatten(2, 3))
        g = None if pages.g is None else pages.g[page, seq]
        gates = None if g is None else g - after(g)
        return Newest(seq, page, end, pages.k[page, seq].to(full), pages.v[page, seq].to(full), path, gates)

    def store(self, pages: Pages) -> None:
        """Writes the page back and sets the sequences' lengths.

        PaTH: carries the page's keys to the right edge of its newly finished chunks and extends the page's F by them.
        """
        keys = self.k
        if self.path is not None and pages.path is not None:
            k, w, beta = chunks(self.k), chunks(self.path.w), chunks(self.path.beta.unsqueeze(-1)).squeeze(-1)
            m = k.shape[2]
            U = ut_transform(w, beta)
            right, F = keys_to_right_edge(k, w, U), transition(w, U)
            finished = self.end // CHUNK
            carried = [k[:, :, c] for c in range(m)]
            over = torch.eye(k.shape[-1], dtype=F.dtype, device=F.device)  # F of all finished chunks after c
            for c in reversed(range(m)):
                done = (c < finished)[:, None, None, None]
                carried[c] = torch.where(done, right[:, :, c] @ over, carried[c])
                over = torch.where(done, F[:, :, c] @ over, over)
            keys = torch.cat(carried, dim=2)
            pages.path.F[self.page, self.seq] = pages.path.F[self.page, self.seq] @ over
            is_open = finished[:, None] == torch.arange(m, device=k.device)  # no chunk when the page is full
            pages.path.open.w[self.seq] = (w * is_open[:, None, :, None, None]).sum(2)
            pages.path.open.beta[self.seq] = (beta * is_open[:, None, :, None]).sum(2)
        pages.k[self.page, self.seq] = keys.to(pages.k.dtype)
        pages.v[self.page, self.seq] = self.v.to(pages.v.dtype)
        if self.gates is not None and pages.g is not None:
            pages.g[self.page, self.seq] = sums_to_last(self.gates)
        pages.length[self.seq] = self.page * pages.page_size + self.end


def keys_at_last_token(pages: Pages) -> Tensor:
    """The cached keys in the basis of each sequence's last token: fla's cache layout, [B, N * P, H, d].

    Row j is H_last ... H_{j+1} k_j in full precision; rows past a sequence's length are zero.
    """
    keys = pages.k.to(full_precision(pages.k.dtype))
    if pages.path is not None:
        F, (w, beta) = pages.path
        U = ut_transform(w, beta)
        over = transition(w, U)
        carried = torch.empty_like(keys)
        for p in reversed(range(len(keys))):
            carried[p] = keys[p] @ over
            over = F[p] @ over
        seq = (pages.length % CHUNK > 0).nonzero()[:, 0]
        at = open_rows(pages, seq)
        carried[at] = keys_to_right_edge(keys[at].transpose(1, 2), w[seq], U[seq]).transpose(1, 2)
        keys = carried
    return keys.permute(1, 0, 3, 2, 4).flatten(1, 2)


def open_rows(pages: Pages, seq: Tensor) -> tuple[Tensor, Tensor, slice, Tensor]:
    """Index of the open chunk in a tensor laid out like `pages.k`; selects [S, C, H, d]."""
    page, row = pages.length[seq] // pages.page_size, pages.length[seq] % pages.page_size
    first = (row - row % CHUNK)[:, None]
    return page[:, None], seq[:, None], slice(None), first + torch.arange(CHUNK, device=row.device)


def sums_to_last(gates: Tensor) -> Tensor:
    """[..., P] -> sums from each entry to the last one, inclusive."""
    return gates.flip(-1).cumsum(-1).flip(-1)


def after(sums: Tensor) -> Tensor:
    """[..., P] of `sums_to_last` -> sums of what stands after each entry."""
    return functional.pad(sums[..., 1:], (0, 1))


def chunks(x: Tensor) -> Tensor:
    """[..., P, d] -> [..., m, C, d]."""
    return x.view(*x.shape[:-2], -1, CHUNK, x.shape[-1])


def full_precision(dtype: torch.dtype) -> torch.dtype:
    """What arithmetic runs in: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)
