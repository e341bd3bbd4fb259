"""PaTH, PaTH-FoX, FoX and plain causal attention in plain PyTorch: the definition of every kernel here.

What it computes, for one head, with `H_t = I - beta_t w_t w_t^T` (columns are vectors) and `j <= i`:

    score(i, j) = scale * k_j^T H_{j+1} ... H_i q_i  +  gate_scale * sum_{s=j+1..i} log_f_s
    o_i         = sum_j softmax_j(score(i, .)) v_j

PaTH has no gate; PaTH-FoX has `gate_scale = scale = d^-1/2`; FoX has no `H` and `gate_scale = 1`; RoPE or NoPE
attention has neither, with q and k already rotated. `w, beta` belong to the kv head, `log_f` to the query head; query
head `a` reads kv head `a // G`, `G = HQ // H`.

- `sequential`: the formula, one token at a time, O(L^2) work. Only tests use it.
- `prefill` and `decode` on `Pages`, the cache: chunk algebra inside the newest page, then an online softmax over pages,
  newest first, with one product with F per page. Never an L x L matrix, no loop over heads or tokens. A prefill may be
  cut anywhere; decode is the case of one token.

Source: Yang et al., "PaTH Attention", arXiv 2505.16381v2; Lin et al., "Forgetting Transformer", arXiv 2503.02130.
Arithmetic is float32, or float64 for float64 inputs; only what a page stores is rounded to the dtype of k and v.

Shapes: B sequences, T new tokens, HQ query heads, H kv heads, d channels, N pages of P tokens, m = P / C chunks of
C = CHUNK tokens, S <= B sequences at work. Arguments take tokens as [B, T, heads, d].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longeval.kernels.chunk import keys_to_right_edge, local_scores, queries_to_left_edge, transition, ut_transform
from longeval.kernels.pages import (
    CHUNK,
    LEAST_GATE,
    Householder,
    Newest,
    Pages,
    after,
    chunks,
    full_precision,
    open_rows,
    sums_to_last,
)


@dataclass(frozen=True)
class ScoreRule:
    """How raw scores become logits: `scale * path + gate_scale * gates`.

    `window`: if set, query i sees only keys `i - window < j <= i`, itself included (RoPE models only).
    """

    scale: float
    gate_scale: float = 1.0
    window: int | None = None

    def visible(self, distance: Tensor) -> Tensor:
        """Whether a key `distance` tokens before the query may be seen."""
        causal = distance >= 0
        return causal if self.window is None else causal & (distance < self.window)


def sequential(
    rule: ScoreRule, q: Tensor, k: Tensor, v: Tensor, path: Householder | None = None, log_f: Tensor | None = None
) -> Tensor:
    """The definition: every past key is multiplied by H_t when token t arrives.

    q [B, L, HQ, d]; k, v and path.w [B, L, H, d]; path.beta [B, L, H]; log_f [B, L, HQ]. Returns o [B, L, HQ, d].
    """
    B, L, HQ, _ = q.shape
    G = HQ // k.shape[2]
    keys = torch.empty_like(k)
    gates = q.new_zeros(B, L, HQ)  # sum of log_f after token j, up to now
    out = []
    for t in range(L):
        if path is not None:
            past, w_t = keys[:, :t], path.w[:, t, None]
            keys[:, :t] = past - path.beta[:, t, None, :, None] * (past * w_t).sum(-1, keepdim=True) * w_t
        keys[:, t] = k[:, t]
        if log_f is not None:
            gates[:, :t] += log_f[:, t, None]
        seen = keys[:, : t + 1].repeat_interleave(G, dim=2)
        scores = rule.scale * torch.einsum("bhd,bjhd->bjh", q[:, t], seen) + rule.gate_scale * gates[:, : t + 1]
        visible = rule.visible(torch.arange(t, -1, -1, device=q.device))
        weights = scores.masked_fill(~visible[:, None], -torch.inf).softmax(1)
        out.append(torch.einsum("bjh,bjhd->bhd", weights, v[:, : t + 1].repeat_interleave(G, dim=2)))
    return torch.stack(out, dim=1)


def prefill(
    pages: Pages,
    rule: ScoreRule,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    path: Householder | None = None,
    log_f: Tensor | None = None,
    new: Tensor | None = None,
) -> Tensor:
    """Appends T tokens to the cache and returns their attention output [B, T, HQ, d], in the dtype of q.

    q [B, T, HQ, d]; k, v [B, T, H, d]; path for PaTH: w [B, T, H, d], beta [B, T, H]; log_f [B, T, HQ], each <= 0, for
    gated models. `new` [B] int64: how many of the T tokens each sequence really has (padding stands on the right, its
    output is zero); all of them by default.
    """
    out = torch.zeros_like(q)
    new = torch.full_like(pages.length, q.shape[1]) if new is None else new
    done = torch.zeros_like(new)
    slot = torch.arange(pages.page_size, device=q.device)
    while bool((done < new).any()):  # one page of every unfinished sequence
        seq = (done < new).nonzero()[:, 0]
        newest = Newest.load(pages, seq)
        start = newest.end
        newest.end = (start + new[seq] - done[seq]).clamp(max=pages.page_size)
        fresh = (slot >= start[:, None]) & (slot < newest.end[:, None])  # [S, P]: rows of the page that come now
        token = (done[seq, None] + slot - start[:, None]).clamp(0, q.shape[1] - 1)  # [S, P]: which of the T tokens
        at = (seq[:, None], token)
        newest.k += _rows(k[at], fresh)
        newest.v += _rows(v[at], fresh)
        if newest.path is not None and path is not None:
            newest.path.w.add_(_rows(path.w[at], fresh))
            newest.path.beta.add_(_rows(path.beta[at], fresh))
        if newest.gates is not None and log_f is not None:
            newest.gates += _rows(log_f[at], fresh).clamp(min=LEAST_GATE)
        result = _attend_newest(pages, rule, _rows(q[at], fresh), newest).to(q.dtype)
        out[seq[:, None].expand_as(token)[fresh], token[fresh]] = result.transpose(1, 2)[fresh]
        newest.store(pages)
        done[seq] += newest.end - start
    return out


def _rows(x: Tensor, fresh: Tensor) -> Tensor:
    """[S, P, heads, ...] -> [S, heads, P, ...] in full precision, zero where `fresh` [S, P] is false."""
    mask = fresh.view(*fresh.shape, *[1] * (x.dim() - 2))
    return torch.where(mask, x.to(full_precision(x.dtype)), 0).transpose(1, 2)


# A CPU takes twenty times as long for exponentials that underflow, and forget gates make most of them do so. A weight
# of exp(LEAST) = 9e-27 beside one of 1 is lost in rounding, in float64 too.
LEAST = -60.0


class _OnlineSoftmax:
    """Running softmax(scores) @ values for rows [S, H, c, R]: `c` groups of R rows, each with keys of its own."""

    def __init__(self, x: Tensor) -> None:
        self.top = x.new_full(x.shape[:-1], -torch.inf)
        self.total = x.new_zeros(x.shape[:-1])
        self.out = torch.zeros_like(x)

    def add(self, scores: Tensor, values: Tensor, since: int = 0) -> None:
        """scores [S, H, c - since, R, K] (destroyed) and values [S, H, c - since, K, d] for the groups from `since`.

        The first call must give every row a finite score.
        """
        top, total, out = self.top[:, :, since:], self.total[:, :, since:], self.out[:, :, since:]
        new_top = torch.maximum(top, scores.amax(-1))
        shrink = torch.exp(top - new_top)
        weights = scores.sub_(new_top.unsqueeze(-1)).clamp_(min=LEAST).exp_()
        total.mul_(shrink).add_(weights.sum(-1))
        out.mul_(shrink.unsqueeze(-1)).add_(weights @ values)
        top.copy_(new_top)

    def one_group(self) -> None:
        """From now on all rows share their keys: [S, H, c, R] becomes [S, H, 1, c * R]."""
        self.top, self.total, self.out = (x.flatten(2, 3).unsqueeze(2) for x in (self.top, self.total, self.out))


def _attend_newest(pages: Pages, rule: ScoreRule, q: Tensor, newest: Newest) -> Tensor:
    """Attention of the newest page's queries, [S, HQ, P, d] -> the same; rows that are no queries come out as rubbish.

    A sweep from each query's own chunk back to page 0. Rows are ordered [m, G, C], so that the G query heads of a
    group are one matrix against their kv head.
    """
    S, HQ, P, d = q.shape
    H = newest.k.shape[1]
    G, m, C = HQ // H, P // CHUNK, CHUNK
    x = (rule.scale * q).view(S, H, G, m, C, d).transpose(2, 3)  # [S, H, m, G, C, d]
    k, v = chunks(newest.k), chunks(newest.v)  # [S, H, m, C, d]
    F = None
    local = x @ k.unsqueeze(3).mT
    if newest.path is not None:
        w = chunks(newest.path.w)
        U = ut_transform(w, newest.path.beta.view(S, H, m, C))
        local = local_scores(x, k.unsqueeze(3), w.unsqueeze(3), U.unsqueeze(3))
        x = queries_to_left_edge(x, w.unsqueeze(3), U.unsqueeze(3))
        k, F = keys_to_right_edge(k, w, U), transition(w, U)
    gates = None  # [S, H, m, G, C]: sum from the left edge of the chunk, then page, in hand to the query
    if newest.gates is not None:
        each = rule.gate_scale * newest.gates.view(S, H, G, m, C).transpose(2, 3)
        suffix = after(sums_to_last(each))
        gates = each.cumsum(-1)
    slot = torch.arange(C, device=q.device)

    x = x.flatten(3, 4)  # [S, H, m, G * C, d]
    softmax = _OnlineSoftmax(x)
    for back in range(m):  # query chunk c meets key chunk c - back
        scores = local if back == 0 else (x[:, :, back:] @ k[:, :, : m - back].mT).view(S, H, m - back, G, C, C)
        if gates is not None and back == 0:
            scores = scores + _between(each)
        elif gates is not None:
            scores = scores + gates[:, :, back:].unsqueeze(-1) + suffix[:, :, : m - back].unsqueeze(-2)
            gates[:, :, back:] += each[:, :, : m - back].sum(-1, keepdim=True)
        scores = scores.masked_fill(~rule.visible(back * C + slot[:, None] - slot), -torch.inf)
        softmax.add(scores.flatten(3, 4), v[:, :, : m - back], since=back)
        if F is not None and back:
            x[:, :, back:] = x[:, :, back:] @ F[:, :, : m - back].mT
    softmax.one_group()
    x = x.flatten(2, 3).unsqueeze(2)  # [S, H, 1, m * G * C, d]
    if pages.path is not None:
        x = x @ pages.path.F[newest.page, newest.seq].unsqueeze(2).mT  # over the chunks that were finished before
    _attend_older(pages, rule, x, gates, newest, softmax)
    o = softmax.out / softmax.total.unsqueeze(-1)
    return o.view(S, H, m, G, C, d).transpose(2, 3).reshape(S, HQ, P, d)


def _between(gates: Tensor) -> Tensor:
    """Gates [..., C] of a chunk -> their sum from the token after each key to each query, [..., C, C].

    Not as a difference of sums: where both count a strong gate that is not between key and query, it costs digits.
    """
    C = gates.shape[-1]
    return gates.unsqueeze(-2).expand(*gates.shape, C).tril() @ gates.new_ones(C, C).tril(-1)


def _attend_older(
    pages: Pages, rule: ScoreRule, x: Tensor, gates: Tensor | None, newest: Newest, softmax: _OnlineSoftmax
) -> None:
    """The pages before the newest, latest first: plain attention to a page's keys, then one product with its F."""
    P, C = pages.page_size, CHUNK
    slot = torch.arange(P, device=x.device)
    for back in range(1, int(newest.page.max()) + 1):
        if rule.window is not None and back * P - (P - 1) >= rule.window:
            return
        at = ((newest.page - back).clamp(min=0), newest.seq)
        scores = x @ pages.k[at].to(x.dtype).unsqueeze(2).mT  # [S, H, 1, m * G * C, P]
        if gates is not None and pages.g is not None:
            S, H, m, G, _ = gates.shape
            page_gates = rule.gate_scale * pages.g[at].view(S, H, 1, G, 1, P)
            scores.view(S, H, m, G, C, P).add_(after(page_gates)).add_(gates.unsqueeze(-1))
            gates = gates + page_gates[..., 0]
        if rule.window is not None:
            hidden = ~rule.visible(back * P + slot[:, None] - slot).view(P // C, 1, C, P)
            scores.view(*scores.shape[:2], P // C, -1, C, P).masked_fill_(hidden, -torch.inf)
        if bool((newest.page < back).any()):  # shorter sequences have no such page
            scores.masked_fill_((newest.page < back).view(-1, 1, 1, 1, 1), -torch.inf)
        softmax.add(scores, pages.v[at].to(x.dtype).unsqueeze(2))
        if pages.path is not None:
            x = x @ pages.path.F[at].unsqueeze(2).mT


def decode(
    pages: Pages,
    rule: ScoreRule,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    path: Householder | None = None,
    log_f: Tensor | None = None,
) -> Tensor:
    """`prefill` of one token per sequence (T = 1), with work for one query only. Shapes as there.

    The query crosses the open chunk and then one page after the other (a chain of small products with F); then all
    pages are attended at once, each by the query as it stands at the page's right edge.
    """
    B, _, HQ, d = q.shape
    H, P = k.shape[2], pages.page_size
    seq, page, row = torch.arange(B, device=q.device), pages.length // P, pages.length % P
    n = int(page.max()) + 1
    pages.k[page, seq, :, row] = k[:, 0]
    pages.v[page, seq, :, row] = v[:, 0]
    full = full_precision(q.dtype)
    x = rule.scale * q.to(full).view(B, H, HQ // H, d)
    keys, values = pages.k[:n].to(full), pages.v[:n].to(full)
    scores = x @ keys.mT if path is None else _path_scores(pages, x, keys, path)  # [n, B, H, G, P]

    if pages.g is not None and log_f is not None:
        until = torch.arange(P, device=q.device) <= row[:, None]  # [B, P]
        pages.g[page, seq] += until[:, None] * log_f[:, 0, :, None].to(full).clamp(min=LEAST_GATE)
        g = pages.g[:n].view(n, B, H, HQ // H, P)
        later = after(sums_to_last(g[..., 0].movedim(0, -1))).movedim(-1, 0)  # of the pages after each
        scores += rule.gate_scale * (after(g) + later.unsqueeze(-1))

    position = torch.arange(n * P, device=q.device).view(n, 1, P)
    visible = rule.visible(pages.length[:, None] - position)  # [n, B, P]
    scores.masked_fill_(~visible[:, :, None, None], -torch.inf)
    weights = scores.movedim(0, 3).flatten(3).softmax(-1)  # [B, H, G, n * P]
    out = (weights.view(*weights.shape[:3], n, P).movedim(3, 0) @ values).sum(0)  # [B, H, G, d]

    filled = ((row + 1) % CHUNK == 0).nonzero()[:, 0]
    if pages.path is not None and len(filled):
        newest = Newest.load(pages, filled)
        newest.end = row[filled] + 1
        newest.store(pages)
    pages.length = page * P + row + 1
    return out.reshape(B, 1, HQ, d).to(q.dtype)


def _path_scores(pages: Pages, x: Tensor, keys: Tensor, path: Householder) -> Tensor:
    """Puts the token's H into the open chunk; scores [n, B, H, G, P] of x [B, H, G, d] with keys [n, B, H, P, d]."""
    assert pages.path is not None
    F, (w, beta) = pages.path
    seq, page, row = torch.arange(len(x), device=x.device), pages.length // pages.page_size, pages.length % CHUNK
    w[seq, :, row] = path.w[:, 0].to(w.dtype)
    beta[seq, :, row] = path.beta[:, 0].to(beta.dtype)
    at = open_rows(pages, seq)
    open_keys = keys[at].transpose(1, 2)  # [B, H, C, d]
    y = x @ w.mT @ ut_transform(w, beta)  # the newest query meets every w so far; unused rows of w are zero
    open_scores = x @ open_keys.mT - y @ (w @ open_keys.mT).tril(-1)  # [B, H, G, C]
    x = x - y @ w
    chain = [x]
    for p in reversed(range(1, len(keys))):  # a sequence enters the chain at its newest page
        chain.append(torch.where((page >= p)[:, None, None, None], chain[-1] @ F[p].mT, x))
    scores = torch.stack(chain[::-1]) @ keys.mT
    scores.transpose(3, 4)[at] = open_scores.permute(0, 3, 1, 2)
    return scores
