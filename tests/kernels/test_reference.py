"""The chunk algebra, the paged prefill and the decode against the definition, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from longeval.kernels import chunk, reference
from longeval.kernels.pages import CHUNK, Householder, Pages, keys_at_last_token
from longeval.kernels.reference import ScoreRule

PAGE = 2 * CHUNK


Tokens = dict[str, Any]  # q, k, v, path, log_f


@dataclass(frozen=True)
class Kind:
    """Which inputs an attention has."""

    path: bool
    gate: bool
    rule: ScoreRule


D = 16
KINDS = {
    "path": Kind(True, False, ScoreRule(D**-0.5)),
    "path_fox": Kind(True, True, ScoreRule(D**-0.5, gate_scale=D**-0.5)),
    "fox": Kind(False, True, ScoreRule(D**-0.5)),
    "causal": Kind(False, False, ScoreRule(D**-0.5)),
    "window": Kind(False, False, ScoreRule(D**-0.5, window=70)),
    "window_1": Kind(False, False, ScoreRule(D**-0.5, window=1)),
}


def inputs(kind: Kind, B: int, L: int, HQ: int = 4, H: int = 2, seed: int = 0) -> Tokens:
    """Random tokens in float64, [B, L, heads, ...]; w of unit length, beta in (0, 2)."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    x: Tokens = {"q": 3 * normal(B, L, HQ, D), "k": normal(B, L, H, D), "v": normal(B, L, H, D)}
    if kind.path:
        w = torch.nn.functional.normalize(normal(B, L, H, D), dim=-1)
        x["path"] = Householder(w, 2 * normal(B, L, H).sigmoid())
    if kind.gate:
        x["log_f"] = torch.nn.functional.logsigmoid(normal(B, L, HQ) + 2)
    return x


def each(x: Tokens, change: Callable[[Tensor], Tensor]) -> Tokens:
    """`change` on every tensor."""
    return {
        name: Householder(*map(change, value)) if isinstance(value, Householder) else change(value)
        for name, value in x.items()
    }


def cut(x: Tokens, begin: int, end: int) -> Tokens:
    return each(x, lambda value: value[:, begin:end])


def pages_for(kind: Kind, B: int, capacity: int, HQ: int = 4, H: int = 2, dtype: torch.dtype = torch.float64) -> Pages:
    gate_heads = HQ if kind.gate else 0
    return Pages.empty(B, capacity, H, D, path=kind.path, gate_heads=gate_heads, page_size=PAGE, dtype=dtype)


def householder(w: Tensor, beta: Tensor) -> Tensor:
    return torch.eye(len(w), dtype=w.dtype) - beta * torch.outer(w, w)


def test_sequential_is_the_written_formula() -> None:
    """Score by score, with explicit products of H and explicit sums of gates."""
    kind = KINDS["path_fox"]
    x = inputs(kind, 1, 6)
    out = reference.sequential(kind.rule, **x)
    for head in range(4):
        group = head // 2
        for i in range(6):
            scores = []
            for j in range(i + 1):
                path = x["q"][0, i, head]
                for s in range(i, j, -1):
                    path = householder(x["path"].w[0, s, group], x["path"].beta[0, s, group]) @ path
                gates = sum(float(x["log_f"][0, s, head]) for s in range(j + 1, i + 1))
                scores.append(D**-0.5 * (float(x["k"][0, j, group] @ path) + gates))
            expected = torch.tensor(scores, dtype=torch.float64).softmax(0) @ x["v"][0, : i + 1, group]
            torch.testing.assert_close(out[0, i, head], expected, rtol=0, atol=1e-13)


def test_gate_scale_tells_fox_from_path_fox() -> None:
    """FoX adds the plain gate sum, PaTH-FoX the sum times d^-1/2: with H = I they must differ, by just that factor."""
    x = inputs(KINDS["fox"], 1, 50)
    fox = reference.sequential(KINDS["fox"].rule, **x)
    scaled = reference.sequential(KINDS["path_fox"].rule, **(x | {"log_f": D**0.5 * x["log_f"]}))
    torch.testing.assert_close(fox, scaled, rtol=0, atol=1e-12)
    assert (fox - reference.sequential(KINDS["path_fox"].rule, **x)).abs().max() > 1e-2


@pytest.mark.parametrize("similar", [False, True])
def test_chunk_algebra(similar: bool) -> None:
    """Every formula against explicit products; also for nearly equal w with beta near 2, where bad inverses explode."""
    x = inputs(KINDS["path"], 1, CHUNK)
    q, k, w, beta = (value[0, :, 0] for value in (x["q"], x["k"], *x["path"]))
    if similar:
        w = torch.nn.functional.normalize(w[:1] + 0.1 * w, dim=-1)
        beta = torch.full_like(beta, 1.99)
    U = chunk.ut_transform(w, beta)
    product = torch.eye(D, dtype=torch.float64)
    left = torch.empty_like(q)
    for t in range(CHUNK):
        product = product @ householder(w[t], beta[t])
        left[t] = product @ q[t]
    torch.testing.assert_close(chunk.transition(w, U), product, rtol=0, atol=1e-11)
    torch.testing.assert_close(chunk.queries_to_left_edge(q, w, U), left, rtol=0, atol=1e-11)
    right, scores = k.clone(), torch.zeros(CHUNK, CHUNK, dtype=torch.float64)
    for t in range(CHUNK):
        right[:t] -= beta[t] * (right[:t] @ w[t])[:, None] * w[t]
        scores[t, : t + 1] = right[: t + 1] @ q[t]
    torch.testing.assert_close(chunk.keys_to_right_edge(k, w, U), right, rtol=0, atol=1e-11)
    torch.testing.assert_close(chunk.local_scores(q, k, w, U).tril(), scores, rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("L", [1, 2, CHUNK, CHUNK + 1, PAGE, 3 * PAGE + 77])
def test_prefill_equals_definition(kind: Kind, L: int) -> None:
    x = inputs(kind, 2, L)
    out = reference.prefill(pages_for(kind, 2, L), kind.rule, **x)
    torch.testing.assert_close(out, reference.sequential(kind.rule, **x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("heads", [(4, 4), (4, 1), (6, 2)])
def test_head_groups(heads: tuple[int, int]) -> None:
    HQ, H = heads
    kind = KINDS["path_fox"]
    x = inputs(kind, 1, 200, HQ, H)
    out = reference.prefill(pages_for(kind, 1, 200, HQ, H), kind.rule, **x)
    torch.testing.assert_close(out, reference.sequential(kind.rule, **x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("cuts", [(1, 2, 3), (63, 64, 65), (100, 128, 300), (10, 330)])
def test_any_split_of_a_prefill(kind: Kind, cuts: tuple[int, ...]) -> None:
    L = 350
    x = inputs(kind, 1, L)
    pages = pages_for(kind, 1, L)
    parts = [reference.prefill(pages, kind.rule, **cut(x, a, b)) for a, b in zip((0, *cuts), (*cuts, L), strict=True)]
    torch.testing.assert_close(torch.cat(parts, 1), reference.sequential(kind.rule, **x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("prompt", [0, 60, 130])
def test_decode_equals_definition(kind: Kind, prompt: int) -> None:
    """Prefill, then one token at a time across chunk and page edges; prompt 0 is decoding from an empty cache."""
    L = prompt + 140
    x = inputs(kind, 2, L)
    pages = pages_for(kind, 2, L)
    parts = [reference.prefill(pages, kind.rule, **cut(x, 0, prompt))] if prompt else []
    parts += [reference.decode(pages, kind.rule, **cut(x, t, t + 1)) for t in range(prompt, L)]
    torch.testing.assert_close(torch.cat(parts, 1), reference.sequential(kind.rule, **x), rtol=0, atol=1e-12)
    assert pages.length.tolist() == [L, L]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_unequal_sequences(kind: Kind) -> None:
    """Right-padded prefills in two calls and decode steps, each sequence as if it were alone."""
    first, second, steps = [0, 5, 64, 190, 300], [3, 130, 0, 64, 20], 70
    x = inputs(kind, 5, 400)
    pages = pages_for(kind, 5, 400)
    outs: list[list[Tensor]] = [[] for _ in first]
    done = torch.zeros(5, dtype=torch.int64)

    def next_tokens(count: int) -> Tokens:
        index = (done[:, None] + torch.arange(count)).clamp(max=399)
        return each(x, lambda value: value[torch.arange(5)[:, None], index])

    for new in (torch.tensor(first), torch.tensor(second)):
        out = reference.prefill(pages, kind.rule, **next_tokens(int(new.max())), new=new)
        for b, count in enumerate(new.tolist()):
            assert not out[b, count:].any()
            outs[b].append(out[b, :count])
        done += new
    for _ in range(steps):
        out = reference.decode(pages, kind.rule, **next_tokens(1))
        for b in range(5):
            outs[b].append(out[b])
        done += 1
    assert pages.length.tolist() == done.tolist()
    expected = reference.sequential(kind.rule, **x)
    for b, length in enumerate(done.tolist()):
        torch.testing.assert_close(torch.cat(outs[b]), expected[b, :length], rtol=0, atol=1e-12)


def test_select_keeps_sequences() -> None:
    kind = KINDS["path_fox"]
    x = inputs(kind, 3, 201)
    pages = pages_for(kind, 3, 201)
    reference.prefill(pages, kind.rule, **cut(x, 0, 200))
    rows = torch.tensor([2, 0])
    out = reference.decode(pages.select(rows), kind.rule, **each(cut(x, 200, 201), lambda value: value[rows]))
    torch.testing.assert_close(out, reference.sequential(kind.rule, **x)[rows, 200:], rtol=0, atol=1e-12)


def test_keys_at_last_token() -> None:
    """fla's layout, for lengths with and without an open chunk, full pages included."""
    kind = KINDS["path"]
    lengths = [1, 64, 100, 128, 200, 384]
    x = inputs(kind, len(lengths), 384)
    pages = pages_for(kind, len(lengths), 384)
    reference.prefill(pages, kind.rule, **x, new=torch.tensor(lengths))
    folded = keys_at_last_token(pages)
    for b, length in enumerate(lengths):
        keys = x["k"][b].clone()
        for t in range(length):
            w, beta = x["path"].w[b, t], x["path"].beta[b, t]
            keys[:t] -= beta[:, None] * (keys[:t] * w).sum(-1, keepdim=True) * w
        torch.testing.assert_close(folded[b, :length], keys[:length], rtol=0, atol=1e-12)
        assert not folded[b, length:].any()


def test_full_pages_never_change() -> None:
    """What a prefix cache relies on."""
    kind = KINDS["path_fox"]
    x = inputs(kind, 1, 400)
    pages = pages_for(kind, 1, 400)
    reference.prefill(pages, kind.rule, **cut(x, 0, PAGE + 10))
    assert pages.path is not None
    assert pages.g is not None
    before = [tensor[0].clone() for tensor in (pages.k, pages.v, pages.path.F, pages.g)]
    reference.prefill(pages, kind.rule, **cut(x, PAGE + 10, 390))
    for t in range(390, 400):
        reference.decode(pages, kind.rule, **cut(x, t, t + 1))
    for old, tensor in zip(before, (pages.k, pages.v, pages.path.F, pages.g), strict=True):
        assert torch.equal(old, tensor[0])


def test_bfloat16_pages_round_once_per_fold() -> None:
    """bf16 keys and values, float32 inside: the error stays near the rounding of the inputs."""
    kind = KINDS["path_fox"]
    x = inputs(kind, 1, 500)
    low = each(x, Tensor.float) | {name: x[name].bfloat16() for name in "qkv"}
    exact = reference.sequential(kind.rule, **each(low, Tensor.double))
    out = reference.prefill(pages_for(kind, 1, 500, dtype=torch.bfloat16), kind.rule, **low)
    assert out.dtype == torch.bfloat16
    assert (out - exact).norm() / exact.norm() < 6e-3


@pytest.mark.parametrize("page_size", [64, 512])
@pytest.mark.parametrize("name", ["fox", "path_fox"])
def test_strong_gates_cost_no_digits(name: str, page_size: int) -> None:
    """In float32. A sum that counts a gate of -30 or less not between key and query would lose four digits or all."""
    kind = KINDS[name]
    x = inputs(kind, 1, 400)
    token = torch.arange(400)
    for weak, strong in ((token % 64 < 40, -1000.0), (token < 150, -math.inf), (token % 50 > 0, -30.0)):
        log_f = torch.where(weak, -0.1, strong).double()[None, :, None].expand_as(x["log_f"])
        low = each(x | {"log_f": log_f}, Tensor.float)
        exact = reference.sequential(kind.rule, **each(low, Tensor.double))
        gate_heads = x["log_f"].shape[2]
        pages = Pages.empty(1, 400, 2, D, path=kind.path, gate_heads=gate_heads, page_size=page_size)
        out = [reference.prefill(pages, kind.rule, **cut(low, lo, hi)) for lo, hi in ((0, 90), (90, 380))]
        out += [reference.decode(pages, kind.rule, **cut(low, t, t + 1)) for t in range(380, 400)]
        assert (torch.cat(out, dim=1) - exact).norm() / exact.norm() < 1e-6
