"""The definition in float64 for single rows of long sequences, where `reference.sequential` would take hours."""

from __future__ import annotations

import torch
from torch import Tensor

from longeval.kernels.chunk import keys_to_right_edge, local_scores, queries_to_left_edge, transition, ut_transform
from longeval.kernels.pages import CHUNK
from longeval.kernels.reference import ScoreRule


def rows_of(
    rule: ScoreRule, rows: list[int], q: Tensor, k: Tensor, v: Tensor,
    w: Tensor | None = None, beta: Tensor | None = None, log_f: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Output of tokens `rows` of one sequence, [len(rows), HQ, d] float64, by the chunk algebra of `chunk.py`.

    q [L, HQ, d]; k, v, w [L, H, d]; beta [L, H]; log_f [L, HQ]. Work is len(rows) * L, a chunk at a time.
    """
    return torch.stack([_row(rule, i, q, k, v, w, beta, log_f) for i in rows])


def _row(
    rule: ScoreRule, i: int, q: Tensor, k: Tensor, v: Tensor, w: Tensor | None, beta: Tensor | None, log_f: Tensor | None
) -> Tensor:
    HQ, H = q.shape[1], k.shape[1]
    x = q[i].double().view(H, HQ // H, -1)  # [H, G, d]
    scores = []
    end = i + 1
    while end > 0:
        first = (end - 1) // CHUNK * CHUNK
        key = k[first:end].double().transpose(0, 1)  # [H, c, d]
        if w is None or beta is None:
            scores.append(x @ key.mT)
        else:
            ww = w[first:end].double().transpose(0, 1)
            U = ut_transform(ww, beta[first:end].double().T)
            if end == i + 1:  # the row's own chunk: it is the chunk's last query
                full = torch.zeros(*x.shape[:2], end - first, x.shape[-1], dtype=x.dtype, device=x.device)
                full[:, :, -1] = x
                scores.append(local_scores(full, key.unsqueeze(1), ww.unsqueeze(1), U.unsqueeze(1))[:, :, -1])
                x = queries_to_left_edge(full, ww.unsqueeze(1), U.unsqueeze(1))[:, :, -1]
            else:
                scores.append(x @ keys_to_right_edge(key, ww, U).mT)
                x = x @ transition(ww, U).mT
        end = first
    logits = rule.scale * torch.cat(scores[::-1], -1).flatten(0, 1)  # [HQ, i + 1]
    if log_f is not None:
        sums = log_f[: i + 1].double().cumsum(0).T
        logits = logits + rule.gate_scale * (sums[:, -1:] - sums)
    values = v[: i + 1].double().repeat_interleave(HQ // H, 1)  # [i + 1, HQ, d]
    return torch.einsum("hj,jhd->hd", logits.softmax(-1), values)
