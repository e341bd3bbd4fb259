"""Attention for training: the float64 definition, and its gradient."""

import pytest
import torch

from longeval.kernels import dense
from longeval.kernels.pages import Householder
from longeval.kernels.reference import ScoreRule, sequential


def draw(L, heads, path, gate, seed=0):
    """q, k, v, w, beta, log_f in float64, requiring gradients; None for what the method does not have."""
    rng = torch.Generator().manual_seed(seed)
    HQ, H = heads

    def normal(*shape):
        return torch.randn(2, L, *shape, generator=rng, dtype=torch.float64)

    w = torch.nn.functional.normalize(normal(H, 16), dim=-1) if path else None
    beta = 2 * torch.sigmoid(normal(H)) if path else None
    log_f = torch.nn.functional.logsigmoid(normal(HQ)) if gate else None
    drawn = [normal(HQ, 16), normal(H, 16), normal(H, 16), w, beta, log_f]
    return [None if x is None else x.requires_grad_() for x in drawn]


def output(attention, q, k, v, w, beta, log_f):
    return attention(ScoreRule(0.25, 0.3), q, k, v, None if w is None else Householder(w, beta), log_f)


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("path", [False, True])
@pytest.mark.parametrize(("L", "heads"), [(130, (4, 2)), (64, (2, 2)), (5, (3, 1))])
def test_output_and_gradients_are_the_definitions(L, heads, path, gate):
    """The definition changes its keys in place, so its gradient is taken of a step-by-step copy of it."""
    inputs = draw(L, heads, path, gate)
    torch.testing.assert_close(
        output(dense.attend, *inputs), output(sequential, *[x if x is None else x.detach() for x in inputs])
    )
    present = [x for x in inputs if x is not None]
    weight = torch.randn(2, L, heads[0], 16, dtype=torch.float64)
    found = torch.autograd.grad((output(dense.attend, *inputs) * weight).sum(), present)
    expected = torch.autograd.grad((output(step_by_step, *inputs) * weight).sum(), present)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def step_by_step(rule, q, k, v, path, log_f):
    """`sequential` without changes in place."""
    B, L, HQ, _ = q.shape
    G = HQ // k.shape[2]
    keys, gates, out = k[:, :0], q.new_zeros(B, 0, HQ), []
    for t in range(L):
        if path is not None:
            w = path.w[:, t, None]
            keys = keys - path.beta[:, t, None, :, None] * (keys * w).sum(-1, keepdim=True) * w
        keys = torch.cat([keys, k[:, t, None]], dim=1)
        if log_f is not None:
            gates = torch.cat([gates + log_f[:, t, None], q.new_zeros(B, 1, HQ)], dim=1)
        seen = keys.repeat_interleave(G, dim=2)
        scores = rule.scale * torch.einsum("bhd,bjhd->bjh", q[:, t], seen)
        scores = scores + rule.gate_scale * gates if log_f is not None else scores
        out.append(torch.einsum("bjh,bjhd->bhd", scores.softmax(1), v[:, : t + 1].repeat_interleave(G, dim=2)))
    return torch.stack(out, dim=1)


def test_numerical_gradient():
    inputs = [x if x is None else x[:1, :70:2].detach().requires_grad_() for x in draw(70, (2, 1), True, True)]
    assert torch.autograd.gradcheck(lambda *x: output(dense.attend, *x)[:, -1].sum(), inputs, fast_mode=True)
