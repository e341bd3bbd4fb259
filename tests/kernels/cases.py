"""Random layers for the kernel tests, and the float64 definition applied to packed batches."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from longeval.kernels.attention import New
from longeval.kernels.pages import Householder
from longeval.kernels.pool import Shape
from longeval.kernels.reference import ScoreRule, sequential


@dataclass(frozen=True)
class Tokens:
    """A packed batch in float64: `starts` are the sequences' offsets, the rest as in `New`."""

    starts: list[int]
    rule: ScoreRule
    q: Tensor
    k: Tensor
    v: Tensor
    w: Tensor | None
    beta: Tensor | None
    log_f: Tensor | None

    def new(self, dtype: torch.dtype, device: str, spans: list[tuple[int, int]] | None = None) -> New:
        """What the kernels get: all tokens, or of each sequence its own range (lo, hi)."""
        spans = spans or [(0, hi - lo) for lo, hi in zip(self.starts, self.starts[1:], strict=False)]
        index = torch.cat([torch.arange(s + lo, s + hi) for s, (lo, hi) in zip(self.starts, spans, strict=False)])

        def cast(x: Tensor | None, to: torch.dtype) -> Tensor | None:
            return None if x is None else x[index].to(to).to(device)

        f32 = torch.float32
        q, k, v = cast(self.q, dtype), cast(self.k, dtype), cast(self.v, dtype)
        assert q is not None
        assert k is not None
        assert v is not None
        return New(q, k, v, cast(self.w, f32), cast(self.beta, f32), cast(self.log_f, f32))

    def rounded(self, dtype: torch.dtype) -> Tokens:
        """The same batch with q, k, v rounded to `dtype` and the rest to float32, still in float64."""

        def cast(x: Tensor | None, to: torch.dtype) -> Tensor | None:
            return None if x is None else x.to(to).double()

        q, k, v = (cast(x, dtype) for x in (self.q, self.k, self.v))
        assert q is not None
        assert k is not None
        assert v is not None
        w, beta, log_f = (cast(x, torch.float32) for x in (self.w, self.beta, self.log_f))
        return Tokens(self.starts, self.rule, q, k, v, w, beta, log_f)

    def expected(self) -> Tensor:
        """The definition, sequence by sequence: [T, HQ, d] float64."""
        parts = []
        for lo, hi in zip(self.starts, self.starts[1:], strict=False):

            def cut(x: Tensor | None, lo: int = lo, hi: int = hi) -> Tensor | None:
                return None if x is None else x[None, lo:hi]

            q, k, v = cut(self.q), cut(self.k), cut(self.v)
            w, beta = cut(self.w), cut(self.beta)
            path = None if w is None or beta is None else Householder(w, beta)
            assert q is not None
            assert k is not None
            assert v is not None
            parts.append(sequential(self.rule, q, k, v, path, cut(self.log_f))[0])
        return torch.cat(parts)


def tokens(
    lengths: list[int],
    shape: Shape,
    seed: int = 0,
    *,
    similar: float = 0.0,
    beta: float | None = None,
    log_f: float | None = None,
) -> Tokens:
    """`similar` in [0, 1): weight of a direction that all w share; `beta`, `log_f`: one value for all."""
    g = torch.Generator().manual_seed(seed)
    T, HQ, H, d = sum(lengths), shape.heads, shape.kv_heads, shape.head_dim

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=g, dtype=torch.float64)

    q, k, v = normal(T, HQ, d), normal(T, H, d), normal(T, H, d)
    w = (1 - similar) * torch.nn.functional.normalize(normal(T, H, d), dim=-1)
    w = torch.nn.functional.normalize(w + similar * torch.nn.functional.normalize(normal(1, H, d), dim=-1), dim=-1)
    b = 2 * normal(T, H).sigmoid() if beta is None else torch.full((T, H), beta, dtype=torch.float64)
    f = torch.nn.functional.logsigmoid(normal(T, HQ) + 2)
    f = f if log_f is None else torch.full_like(f, log_f)
    starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    rule = ScoreRule(d**-0.5, gate_scale=d**-0.5 if shape.path else 1.0)
    return Tokens(
        starts, rule, q, k, v, w if shape.path else None, b if shape.path else None, f if shape.gate else None
    )


def with_gates(batch: Tokens, weak: Tensor, strong: float) -> Tokens:
    """The same with log_f = -0.1 where `weak` [T] is true, and `strong` elsewhere; each head a few tokens later."""
    assert batch.log_f is not None
    heads = [torch.where(weak.roll(5 * head), -0.1, strong) for head in range(batch.log_f.shape[1])]
    return replace(batch, log_f=torch.stack(heads, dim=1).double())


def rows_after(first: int, end: int, *, head: int, like: Tensor) -> Tensor:
    """True in one head of tokens `first` to `end`; `like` [T, heads, d]."""
    found = torch.zeros(like.shape, dtype=torch.bool)
    found[first:end, head] = True
    return found


def error(got: Tensor, expected: Tensor) -> float:
    """||got - expected|| / ||expected||; NaN stays NaN and fails every comparison."""
    got = got.double().cpu()
    return float((got - expected).norm() / expected.norm())
