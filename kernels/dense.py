"""Attention of whole sequences as one expression that autograd goes through: what training needs.

Every score is an entry of an [L, L] matrix, so memory grows with L²: for training lengths, not for evaluation. The
scores of PaTH come chunk by chunk from the UT form (`chunk`): keys of earlier chunks are carried to the left edge of
the chunk in hand, where its queries meet them. `reference.sequential` is the definition.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from longeval.kernels.chunk import keys_to_right_edge, local_scores, queries_to_left_edge, transition, ut_transform
from longeval.kernels.pages import CHUNK, Householder, chunks
from longeval.kernels.reference import ScoreRule


def attend(
    rule: ScoreRule, q: Tensor, k: Tensor, v: Tensor, path: Householder | None = None, log_f: Tensor | None = None
) -> Tensor:
    """q [B, L, HQ, d]; k, v and path.w [B, L, H, d]; path.beta [B, L, H]; log_f [B, L, HQ]. Returns o [B, L, HQ, d]."""
    B, L, HQ, d = q.shape
    H = k.shape[2]
    q = q.view(B, L, H, HQ // H, d).permute(0, 2, 3, 1, 4)  # [B, H, G, L, d]
    k, v = (x.transpose(1, 2).unsqueeze(2) for x in (k, v))  # [B, H, 1, L, d]
    if path is None:
        raw = q @ k.mT
    else:
        w, beta = path.w.transpose(1, 2).unsqueeze(2), path.beta.transpose(1, 2).unsqueeze(2)
        raw = path_scores(q, k, Householder(w, beta))
    scores = rule.scale * raw
    if log_f is not None:
        g = log_f.cumsum(1).view(B, L, H, HQ // H).permute(0, 2, 3, 1)
        scores = scores + rule.gate_scale * (g.unsqueeze(-1) - g.unsqueeze(-2))
    token = torch.arange(L, device=q.device)
    weights = scores.masked_fill(~rule.visible(token[:, None] - token), -torch.inf).softmax(-1)
    return (weights @ v).permute(0, 3, 1, 2, 4).reshape(B, L, HQ, d)


def path_scores(q: Tensor, k: Tensor, path: Householder) -> Tensor:
    """k_j^T H_{j+1} ... H_i q_i for j <= i, [..., L, L]; what stands above the diagonal means nothing.

    q, k and path.w [..., L, d], path.beta [..., L].
    """
    L = q.shape[-2]
    short = -L % CHUNK  # rows of zeros fill the last chunk: with beta = 0 they change nothing
    q, k, w = (chunks(F.pad(x, (0, 0, 0, short))) for x in (q, k, path.w))  # [..., m, C, d]
    U = ut_transform(w, F.pad(path.beta, (0, short)).unflatten(-1, (-1, CHUNK)))
    left, right, across = queries_to_left_edge(q, w, U), keys_to_right_edge(k, w, U), transition(w, U)
    local = local_scores(q, k, w, U)
    past, rows = k[..., 0, :0, :], []  # keys before the chunk in hand, at its left edge
    for c in range(q.shape[-3]):
        row = torch.cat([left[..., c, :, :] @ past.mT, local[..., c, :, :]], dim=-1)
        rows.append(F.pad(row, (0, L + short - row.shape[-1])))
        past = torch.cat([past @ across[..., c, :, :], right[..., c, :, :]], dim=-2)
    return torch.cat(rows, dim=-2)[..., :L, :L]
