"""The UT form of one chunk of tokens: what PaTH's Householder products do to its queries, keys and scores.

Arguments are [..., C, d] (beta [..., C]); rows are the tokens of one chunk, any C. `H_t = I - beta_t w_t w_t^T`.
Source: Yang et al., "PaTH Attention", arXiv 2505.16381v2, section 3; F here is the product in the order that the
scores need.
"""

from __future__ import annotations

import torch
from torch import Tensor


def ut_transform(w: Tensor, beta: Tensor) -> Tensor:
    """U = (I + strictLower(D w w^T))^-1 D with D = diag(beta), [..., C, C] lower triangular.

    Forward substitution: the nilpotent product form loses everything on similar w with beta near 2.
    """
    D = torch.diag_embed(beta)
    A = (beta.unsqueeze(-1) * (w @ w.mT)).tril(-1)
    U: Tensor = torch.linalg.solve_triangular(A, D, upper=False, unitriangular=True)
    return U


def transition(w: Tensor, U: Tensor) -> Tensor:
    """F = H_first ... H_last = I - w^T U^T w, [..., d, d]."""
    eye = torch.eye(w.shape[-1], dtype=w.dtype, device=w.device)
    return eye - w.mT @ (U.mT @ w)


def keys_to_right_edge(k: Tensor, w: Tensor, U: Tensor) -> Tensor:
    """Row j becomes H_last ... H_{j+1} k_j."""
    return k - (U @ (w @ k.mT).tril(-1)).mT @ w


def queries_to_left_edge(q: Tensor, w: Tensor, U: Tensor) -> Tensor:
    """Row i becomes H_first ... H_i q_i."""
    return q - (q @ w.mT).tril() @ U @ w


def local_scores(q: Tensor, k: Tensor, w: Tensor, U: Tensor) -> Tensor:
    """k_j^T H_{j+1} ... H_i q_i for j <= i inside the chunk, [..., C, C]; entries above the diagonal mean nothing."""
    return q @ k.mT - (q @ w.mT).tril() @ U @ (w @ k.mT).tril(-1)
