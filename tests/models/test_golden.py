"""Six tiny checkpoints with float64 answers, and what flash-linear-attention 0.6.0 itself answered in bfloat16.

Each folder of tests/golden is a checkpoint (two layers, weights exact in bfloat16) with golden.safetensors: `ids.L` for
several lengths, `ref.*` the float64 definition's logits (64 vocabulary columns), losses, greedy continuation and cached
keys, `fla_bf16.*` fla's. LONGEVAL_GOLDEN names another folder of the same kind, LONGEVAL_TEST_DEVICE another device.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from longeval.kernels.pages import Pages, keys_at_last_token
from longeval.models.attention import ReferenceAttention
from longeval.models.decoding import Limits, generate, score_tokens
from longeval.models.fla import FlaBatch, FlaRunner, load_network

GOLDEN = Path(os.environ.get("LONGEVAL_GOLDEN", Path(__file__).parent.parent / "golden"))
DEVICE = torch.device(os.environ.get("LONGEVAL_TEST_DEVICE", "cpu"))
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/golden.safetensors"))
LENGTHS = (1, 17, 64, 65, 200, 513)


@cache
def golden(case: str, file: str = "golden") -> dict[str, Tensor]:
    return load_file(GOLDEN / case / f"{file}.safetensors")


@cache
def runner(case: str, dtype: torch.dtype = torch.float32) -> FlaRunner:
    config = json.loads((GOLDEN / case / "config.json").read_text())
    return FlaRunner(load_network(GOLDEN / case, config, dtype, DEVICE))


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def all_logits(case: str, length: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """[length, V]"""
    return torch.cat(list(runner(case, dtype).score(golden(case)[f"ids.{length}"].tolist()))).cpu()


def columns(case: str, logits: Tensor) -> Tensor:
    return logits[..., golden(case)["vocab_idx"].long().to(logits.device)]


def farthest(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return float((a.cpu() - b.cpu()).abs().max())


def test_there_are_cases() -> None:
    assert len(CASES) >= 4


@pytest.mark.parametrize("length", LENGTHS)
def test_forward(case: str, length: int) -> None:
    expected, logits = golden(case), all_logits(case, length)
    assert logits.dtype == torch.float32
    rows = columns(case, logits[expected[f"pos.{length}"].long()])
    assert farthest(rows, expected[f"ref.logits.{length}"]) <= 2e-4
    assert farthest(logits.logsumexp(1), expected[f"ref.lse.{length}"]) <= 2e-4
    assert torch.equal(logits.argmax(1), expected[f"ref.argmax.{length}"].long())


@pytest.mark.parametrize("length", LENGTHS[1:])
def test_scores(case: str, length: int) -> None:
    scores = score_tokens(runner(case), golden(case)[f"ids.{length}"].tolist())
    assert scores.logprobs.shape == scores.greedy.shape == (length - 1,)
    assert farthest(-torch.from_numpy(scores.logprobs), golden(case)[f"ref.nll.{length}"]) <= 2e-4


def test_across_many_pages(case: str) -> None:
    """2,500 tokens: five pages of the cache, with the last one open."""
    long = golden(case, "golden_long")
    scores = score_tokens(runner(case), long["ids.2500"].tolist())
    assert farthest(-torch.from_numpy(scores.logprobs), long["ref.nll.2500"]) <= 2e-4
    hits = long["ref.argmax.2500"][:-1] == long["ids.2500"][1:]
    assert torch.equal(torch.from_numpy(scores.greedy), hits)


def forced(batch: FlaBatch, logits: Tensor, tokens: list[int]) -> Iterator[Tensor]:
    """Logits before each of `tokens`, which are fed whatever the model would choose; one sequence."""
    for token in tokens:
        yield logits[0]
        logits = batch.step([token])


def test_cached_decode(case: str) -> None:
    expected = golden(case)
    batch, logits = runner(case).prefill([expected["prompt"].tolist()], room=24)
    steps = torch.stack(list(forced(batch, logits, expected["ref.gen.ids"].tolist())))
    assert farthest(columns(case, steps), expected["ref.gen.logits"]) <= 5e-4


def test_decode_from_the_first_token_on(case: str) -> None:
    """A prompt of one token, everything else through the cache: the same as one forward pass."""
    ids = golden(case)["ids.200"].tolist()
    batch, logits = runner(case).prefill([ids[:1]], room=199)
    steps = torch.stack(list(forced(batch, logits, ids[1:])))
    assert farthest(steps, all_logits(case, 200)[:-1]) <= 2e-4


def test_unequal_batch(case: str) -> None:
    """Prompts of different lengths together: as fla's padded batch, and as each alone, through 70 further tokens."""
    expected = golden(case)
    prompt, ids = expected["prompt"].tolist(), expected["ids.200"].tolist()
    _, logits = runner(case).prefill([prompt[-37:], prompt], room=1)
    assert farthest(columns(case, logits), expected["ref.pad.logits"]) <= 2e-4
    prompts = [ids[:1], ids[:130], ids[:64], ids[:2]]
    batch, logits = runner(case).prefill(prompts, room=70)
    together = [logits]
    for step in range(70):
        together.append(batch.step([ids[len(prompt) + step] for prompt in prompts]))
    for row, prompt in enumerate(prompts):
        alone = all_logits(case, 200)[len(prompt) - 1 : len(prompt) + 70]
        assert farthest(torch.stack(together)[: len(alone), row], alone) <= 2e-4


def test_greedy_batch_is_each_alone(case: str) -> None:
    """Through the shared decode loop, whatever the batch size; and the greedy tokens are the definition's."""
    expected = golden(case)
    prompt = expected["prompt"].tolist()
    prompts = [prompt, prompt[-37:], prompt[:5], prompt[:70]]
    limits = Limits(max_new_tokens=24)
    together = {g.index: g.ids for g in generate(runner(case), None, prompts, limits, token_budget=10_000)}
    for index, ids in enumerate(prompts):
        alone = next(generate(runner(case), None, [ids], limits, token_budget=1))
        assert together[index] == alone.ids
    assert together[0] == tuple(expected["ref.gen.ids"].tolist())


@pytest.mark.skipif(DEVICE.type != "cpu", reason="the conversion reads the reference's pages")
def test_cached_keys(case: str) -> None:
    """fla keeps keys in the basis of the last token; layer 0 after a prefill of 65 tokens, and after one more."""
    expected = golden(case)
    batch, _ = runner(case).prefill([expected["ids.65"].tolist()], room=1)
    attention = batch.states[0].attention
    assert isinstance(attention, ReferenceAttention)

    def keys(pages: Pages) -> Tensor:
        return keys_at_last_token(pages)[0].flatten(1)

    rows = expected["kcache.rows"].long()
    assert farthest(keys(attention.pages)[rows], expected["ref.kcache.0"]) <= 1e-5
    batch.step([int(expected["kcache_step.token"])])
    with_new = torch.cat([rows, torch.tensor([65])])
    assert farthest(keys(attention.pages)[with_new], expected["ref.kcache_step.0"]) <= 1e-5


def test_bfloat16_is_as_exact_as_fla() -> None:
    """Pooled over all cases and lengths >= 64: single cases scatter by more than the difference."""
    ours, theirs = [], []
    for case in CASES:
        expected = golden(case)
        for length in LENGTHS[2:]:
            logits = all_logits(case, length, torch.bfloat16)
            reference = expected[f"ref.logits.{length}"]
            ours.append((columns(case, logits[expected[f"pos.{length}"].long()]) - reference).abs().flatten())
            theirs.append((expected[f"fla_bf16.logits.{length}"] - reference).abs().flatten())
    mine, fla = torch.cat(ours), torch.cat(theirs)
    print(
        f"mean {mine.mean():.4f} against {fla.mean():.4f}, 99.9% {mine.quantile(0.999):.3f} / {fla.quantile(0.999):.3f}"
    )
    assert mine.mean() <= 1.2 * fla.mean()
    assert mine.quantile(0.999) <= 1.5 * fla.quantile(0.999)
