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
    """Output of tokens `rows` of one sequence, [R, HQ, d] float64: their queries walk back chunk by chunk.

    q [L, HQ, d]; k, v, w [L, H, d]; beta [L, H]; log_f [L, HQ].
    """
    H, G = k.shape[1], q.shape[1] // k.shape[1]
    end = max(rows) + 1
    x = q[rows].double().view(len(rows), H, G, -1)  # [R, H, G, d]
    scores = torch.full((*x.shape[:3], end), -torch.inf, dtype=torch.float64, device=q.device)
    for first in reversed(range(0, end, CHUNK)):
        chunk = slice(first, min(first + CHUNK, end))
        key = k[chunk].double().transpose(0, 1)  # [H, c, d]
        carried, F, ww, U = key, None, None, None
        if w is not None and beta is not None:
            ww = w[chunk].double().transpose(0, 1)
            U = ut_transform(ww, beta[chunk].double().T)
            carried, F = keys_to_right_edge(key, ww, U), transition(ww, U)
        for r, row in enumerate(rows):
            if row >= chunk.stop:
                scores[r, :, :, chunk] = x[r] @ carried.mT
                x[r] = x[r] if F is None else x[r] @ F.mT
            elif row >= first:  # its own chunk, where it is query number `row - first`
                seen = slice(first, row + 1)
                if ww is None or U is None:
                    scores[r, :, :, seen] = (x[r] @ key.mT)[..., : row + 1 - first]
                    continue
                alone = torch.zeros(H, G, *key.shape[1:], dtype=key.dtype, device=key.device)
                alone[:, :, row - first] = x[r]
                near = [t.unsqueeze(1) for t in (key, ww, U)]
                scores[r, :, :, seen] = local_scores(alone, *near)[:, :, row - first, : row + 1 - first]
                x[r] = queries_to_left_edge(alone, near[1], near[2])[:, :, row - first]
    logits = rule.scale * scores.flatten(1, 2)  # [R, HQ, end]
    if log_f is not None:
        sums = log_f[:end].double().cumsum(0).T
        logits += rule.gate_scale * (sums[:, rows].T.unsqueeze(-1) - sums)
    values = v[:end].double().repeat_interleave(G, 1)
    return torch.einsum("rhj,jhd->rhd", logits.softmax(-1), values)
