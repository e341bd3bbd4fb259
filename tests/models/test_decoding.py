"""The decode loop, against a runner whose network is a table, and against real ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from byte_tokenizer import byte_tokenizer
from make_checkpoint import BASE, tensors_of, write
from torch import Tensor

from longeval.errors import UserError
from longeval.models import load_model
from longeval.models.decoding import Limits, generate
from longeval.types import Generation

EOS = 257


class Speller:
    """Says `answers[first token of the prompt]`, one id after the other, then id 0 for ever.

    `room`: tokens, padding included, beyond which it runs out of memory. The runner-up is always id 1.
    """

    vocab_size = 258
    bytes_per_token = 1
    device = torch.device("cpu")

    def __init__(self, answers: dict[int, Sequence[int]], room: int = 10**9, fail_at: int | None = None) -> None:
        self.answers = answers
        self.room = room
        self.fail_at = fail_at
        self.batches: list[list[int]] = []

    def prefill(self, prompts: Sequence[Sequence[int]], room: int) -> tuple[SpellerBatch, Tensor]:
        if len(prompts) * (max(map(len, prompts)) + room) > self.room:
            raise RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"
            )
        self.batches.append([prompt[0] for prompt in prompts])
        batch = SpellerBatch(self, [prompt[0] for prompt in prompts], 0)
        return batch, batch.logits()

    def score(self, ids: Sequence[int]) -> Iterator[Tensor]:
        raise NotImplementedError


class SpellerBatch:
    def __init__(self, runner: Speller, keys: list[int], said: int) -> None:
        self.runner = runner
        self.keys = keys
        self.said = said

    def logits(self) -> Tensor:
        logits = torch.zeros(len(self.keys), 258)
        for row, key in enumerate(self.keys):
            answer = self.runner.answers[key]
            logits[row, 1] = 1.0
            logits[row, answer[self.said] if self.said < len(answer) else 0] = 2.0
        return logits

    def step(self, tokens: Sequence[int]) -> Tensor:
        self.said += 1
        if self.said == self.runner.fail_at:
            self.runner.fail_at = None
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.logits()

    def select(self, rows: Sequence[int]) -> SpellerBatch:
        return SpellerBatch(self.runner, [self.keys[row] for row in rows], self.said)


def spell(text: str) -> list[int]:
    return list(text.encode())


def run(
    runner: Speller, prompts: Sequence[Sequence[int]], limits: Limits, budget: int = 10**9
) -> dict[int, Generation]:
    done = list(generate(runner, byte_tokenizer(), prompts, limits, budget))
    assert len({g.index for g in done}) == len(done) == len(prompts)
    return {g.index: g for g in done}


def test_length_end_of_text_and_order() -> None:
    runner = Speller({1: spell("no end in sight"), 2: [*spell("short"), EOS], 3: [*spell("four"), 9, 9]})
    done = list(generate(runner, byte_tokenizer(), [[1], [2], [3, 3]], Limits(8, eos=frozenset({EOS, 9})), 10**9))
    assert [g.index for g in done] == [2, 1, 0]  # as they finish
    assert done[0] == Generation(2, (*spell("four"), 9), "four\t", "stop")
    assert done[1] == Generation(1, (*spell("short"), EOS), "short", "stop")
    assert done[2] == Generation(0, tuple(spell("no end i")), "no end i", "length")


def test_stop_strings_cut_the_text() -> None:
    """The first of them in the text counts, wherever token borders are; ids keep what was said."""
    runner = Speller({1: spell("yes\n\nno end"), 2: spell("a. b. c.")})
    done = run(runner, [[1], [2]], Limits(20, stop=("\n\n", ". ", "b")))
    assert done[0] == Generation(0, tuple(spell("yes\n\n")), "yes", "stop")
    assert done[1] == Generation(1, tuple(spell("a. ")), "a", "stop")


def test_stop_string_on_the_last_token() -> None:
    done = run(Speller({1: spell("ab\n")}), [[1]], Limits(3, stop=("\n",)))
    assert done[0].finish_reason == "stop"
    assert done[0].text == "ab"


def test_end_of_text_on_the_last_token() -> None:
    done = run(Speller({1: [*spell("ab"), EOS]}), [[1]], Limits(3, eos=frozenset({EOS})))
    assert done[0] == Generation(0, (*spell("ab"), EOS), "ab", "stop")


def test_min_new_tokens() -> None:
    """Neither an end nor a one-token stop string before; the runner-up (id 1) is taken in their place."""
    runner = Speller({1: [EOS, EOS, EOS], 2: spell("\n\n\n")})
    done = run(runner, [[1], [2]], Limits(9, min_new_tokens=2, eos=frozenset({EOS}), stop=("\n",)))
    assert done[0].ids == (1, 1, EOS)
    assert done[1].ids == (1, 1, 10)
    assert done[1].text == "\x01\x01"


def test_batches_stay_within_the_token_budget() -> None:
    prompts = [[key] * length for key, length in [(1, 3), (2, 90), (3, 40), (4, 41), (5, 2), (6, 90)]]
    runner = Speller({key: spell("hello world") for key in range(7)})
    run(runner, prompts, Limits(10), budget=210)
    assert runner.batches == [[2, 6], [4, 3, 1, 5]]  # longest first; 2 * (90 + 10) and 4 * (41 + 10) tokens
    alone = Speller({key: spell("hello world") for key in range(7)})
    run(alone, prompts, Limits(10), budget=1)
    assert [len(batch) for batch in alone.batches] == [1] * 6


def test_halves_when_memory_runs_out() -> None:
    prompts = [[key] * 10 for key in range(8)]
    answers = {key: spell(f"answer {key}") for key in range(8)}
    runner = Speller(answers, room=3 * 20)
    done = run(runner, prompts, Limits(8))
    assert [done[key].text for key in range(8)] == [f"answer {key}" for key in range(8)]
    assert [len(batch) for batch in runner.batches] == [2, 2, 2, 2]  # 8 and 4 did not fit


def test_memory_that_runs_out_late_repeats_only_what_is_unfinished() -> None:
    answers = {1: [*spell("a"), EOS], 2: spell("longer text"), 3: spell("other texts")}
    runner = Speller(answers, fail_at=4)
    done = run(runner, [[1], [2], [3]], Limits(11, eos=frozenset({EOS})))
    assert [done[index].text for index in range(3)] == ["a", "longer text", "other texts"]
    assert runner.batches == [[1, 2, 3], [2], [3]]


def test_one_prompt_too_large() -> None:
    with pytest.raises(MemoryError, match="a prompt of 100 tokens alone does not fit"):
        run(Speller({1: spell("x")}, room=50), [[1] * 100], Limits(3))


def test_a_model_without_numbers_gives_no_answer(path_model) -> None:
    path_model.runner.network.model.norm.weight.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="NaN"):
        list(path_model.generate([[1, 2]], 2))
    with pytest.raises(FloatingPointError, match="NaN"):
        path_model.token_scores([1, 2, 3])


def test_other_errors_are_not_swallowed() -> None:
    class Broken(Speller):
        def prefill(self, prompts: Sequence[Sequence[int]], room: int) -> tuple[SpellerBatch, Tensor]:
            raise RuntimeError("expected scalar type Float but found Half")

    with pytest.raises(RuntimeError, match="Half"):
        run(Broken({}), [[1]], Limits(3))


@pytest.fixture
def path_model(tmp_path: Path) -> object:
    config = BASE | {"model_type": "path_attn", "vocab_size": 258}
    folder = write(tmp_path, config, tensors_of(config))
    byte_tokenizer().save_pretrained(folder)
    return load_model(str(folder))


def test_scores_in_pieces(path_model, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few logits may be held, and of a single token too."""
    ids = np.random.default_rng(0).integers(0, 258, 300).tolist()
    whole = path_model.token_scores(ids)
    assert whole.logprobs.dtype == np.float32
    assert np.all(whole.logprobs < 0)
    logits = torch.cat(list(path_model.runner.score(ids)))
    np.testing.assert_allclose(
        whole.logprobs, logits.double().log_softmax(1)[range(299), ids[1:]].numpy(), rtol=0, atol=1e-5
    )
    assert whole.greedy.tolist() == (logits.argmax(1)[:-1] == torch.tensor(ids[1:])).tolist()
    monkeypatch.setattr("longeval.models.fla.LOGIT_BUDGET", 258 * 7)
    monkeypatch.setattr("longeval.models.fla.TOKENS_PER_CALL", 100)
    np.testing.assert_allclose(path_model.logprobs(ids), whole.logprobs, rtol=0, atol=1e-5)
    assert path_model.logprobs([5]).shape == (0,)


def test_prefill_in_pieces(path_model, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [[n % 251 for n in range(length)] for length in (1200, 1025, 1024, 700, 3)]
    whole = {g.index: g.ids for g in path_model.generate(prompts, 5)}
    monkeypatch.setattr("longeval.models.fla.TOKENS_PER_CALL", 1)
    assert {g.index: g.ids for g in path_model.generate(prompts, 5)} == whole


def test_bad_requests(path_model) -> None:
    for prompts, more, message in [
        ([[1], []], {}, "prompt 1 has no tokens"),
        ([[1, 258]], {}, "token id 258 is outside the model's vocabulary of 258"),
        ([[-1]], {}, "token id -1 is outside"),
        ([[1]], {"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ([[1]], {"stop": "\n"}, "stop must be a list"),
    ]:
        with pytest.raises(UserError, match=message):
            path_model.generate(prompts, **more)
    with pytest.raises(UserError, match="no tokens"):
        path_model.logprobs([])
    assert list(path_model.generate([], 3)) == []


def test_memory_grows_with_the_text_and_not_its_square() -> None:
    """Peak of a process that scores 9,000 tokens: L x L scores would be 1.3 GB, L x vocabulary logits 290 MB."""
    script = (
        "import resource\n"
        "from longeval.models.bench_cpu import random_path_network\n"
        "from longeval.models.decoding import score_tokens\n"
        "from longeval.models.fla import FlaRunner\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024\n"
        "runner = FlaRunner(random_path_network(vocab_size=8000))\n"
        "for _ in range(3): score_tokens(runner, [1] * 4200)\n"  # the allocator's own memory grows for a while
        "before = peak()\n"
        "score_tokens(runner, [1] * 9000)\n"
        "print(before, peak())\n"
    )
    root = Path(__file__).parent.parent.parent
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    cache = 2 * 2 * 4800 * 4 * 64 * 4 / 2**20  # keys and values of 4,800 more tokens, MiB
    assert before < 1000
    assert after - before < cache + 60
