"""The same tokens through every backend: how far apart their log-probabilities are, and where greedy texts part.

The reference is the torch backend. Each other backend is measured against it on the same ids, prose of the Python
installation's help topics where the model has a tokenizer (one BOS in front where it has one), random ids otherwise.
Where greedy continuations part, the gap between the two tokens that were chosen, in the reference's log-probabilities,
says whether rounding explains it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from longeval.errors import UserError, one_line
from longeval.models import load_model
from longeval.models.base import Model
from longeval.models.checkpoint import Checkpoint, find_checkpoint
from longeval.models.choice import without_vllm
from longeval.tasks.rng import sample_rng

REFERENCE = "torch"
NEW_TOKENS = 16
LOGITS_HELD = 2**28  # of one text, by transformers' plain forward pass
# Largest and mean difference of a log-probability that rounding explains, by dtype of the model.
TOLERANCES = {"float32": (1e-3, 1e-4), "float16": (0.2, 0.01), "bfloat16": (1.0, 0.05)}


@dataclass(frozen=True)
class Tolerance:
    """How far apart log-probabilities (natural) may be; greedy tokens may differ at gaps below 2 * `largest`."""

    largest: float
    mean: float


@dataclass(frozen=True)
class Answers:
    """What one backend says to one text: logprobs float32 [length - 1], and its greedy continuation."""

    logprobs: npt.NDArray[np.float32]
    continuation: tuple[int, ...]


@dataclass(frozen=True)
class Difference:
    """One backend against the reference at one length. `parted`: index of the first new token that differs, or None.

    `tokens`: the reference's and the other's there; `gap`: log p(first) - log p(second) by the reference.
    """

    backend: str
    length: int
    largest: float
    mean: float
    parted: int | None = None
    tokens: tuple[int, int] | None = None
    gap: float = 0.0

    def within(self, tolerance: Tolerance) -> bool:
        close = self.largest <= tolerance.largest and self.mean <= tolerance.mean
        return close and self.gap <= 2 * tolerance.largest


@dataclass(frozen=True)
class Parity:
    """All differences; `left_out`: backends that could not take part and why."""

    differences: list[Difference]
    left_out: dict[str, str]
    tolerance: Tolerance

    @property
    def passed(self) -> bool:
        return all(difference.within(self.tolerance) for difference in self.differences)


def parity(
    name: str,
    lengths: Sequence[int],
    dtype: str = "auto",
    device: str = "auto",
    tolerance: float | None = None,
    vllm: Sequence[str] = (),
    progress: Callable[[str], None] = lambda message: None,
) -> Parity:
    """Measures every backend that can run `name` against the torch backend at each length (tokens).

    `tolerance`: replaces the dtype's largest difference. UserError when nothing can be compared.
    """
    if not all(length > 0 for length in lengths):
        raise UserError("--lengths must be at least 1 token each")
    if tolerance is not None and not tolerance > 0:
        raise UserError(f"--tolerance must be more than 0, not {tolerance:g}")
    checkpoint = find_checkpoint(name)
    texts = {length: text(checkpoint, length) for length in lengths}
    answers: dict[str, dict[int, Answers]] = {}
    left_out: dict[str, str] = {}
    others: dict[str, Callable[[], Any]] = {
        "vllm": lambda: load_model(checkpoint, "vllm", dtype, device, max(lengths) + NEW_TOKENS, vllm),
        "transformers": lambda: PlainTransformers(checkpoint, dtype, device),
    }
    if reason := without_vllm(checkpoint):
        left_out["vllm"] = reason
        del others["vllm"]
    for backend, load in others.items():  # one after the other: each may fill the device
        progress(backend)
        try:
            answers[backend] = _answer_all(load(), texts)
        except LeftOut as why:
            left_out[backend] = str(why)
    if not answers:
        raise UserError(f"nothing to compare with: {'; '.join(f'{key}: {why}' for key, why in left_out.items())}")
    progress(REFERENCE)
    reference = load_model(checkpoint, REFERENCE, dtype, device, max(lengths) + NEW_TOKENS)
    largest, mean = TOLERANCES[reference.provenance["dtype"]]
    differences = [
        _compare(backend, reference, texts[length], own, exact)
        for length, exact in ((length, _answer(reference, ids)) for length, ids in texts.items())
        for backend, own in ((backend, found[length]) for backend, found in answers.items() if length in found)
    ]
    return Parity(differences, left_out, Tolerance(tolerance or largest, max(mean, tolerance or 0)))


def text(checkpoint: Checkpoint, length: int) -> list[int]:
    """`length` token ids, the same in every call."""
    tokenizer = checkpoint.tokenizer
    if tokenizer is None:
        rng, size = sample_rng(f"parity/{length}"), int(checkpoint.config["vocab_size"])
        return [rng.randrange(size) for _ in range(length)]
    from pydoc_data.topics import topics

    ids: list[int] = []
    pages = sorted(topics.values())
    prose = tokenizer.encode("\n\n".join(pages[: 1 + length // 256]))
    while len(ids) < length:
        ids += prose
    return ids[:length]


class LeftOut(Exception):
    """A backend that cannot take part, and why."""


class PlainTransformers:
    """transformers' own forward pass, uncached and whole: nothing of this package in it."""

    def __init__(self, checkpoint: Checkpoint, dtype: str, device: str) -> None:
        from transformers import AutoModelForCausalLM

        from longeval.models.torch_backend import pick_device, pick_dtype

        where = pick_device(device)
        kind = pick_dtype(dtype, checkpoint.config, where)
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(
                checkpoint.folder, gguf_file=checkpoint.gguf, dtype=kind, local_files_only=True
            )
            self.model = model.to(where)
        except Exception as error:  # it raises many kinds; any of them means that transformers cannot
            raise LeftOut(one_line(error)) from error

    def answer(self, ids: Sequence[int]) -> Answers | None:
        """None for a text whose logits would be too many."""
        import torch

        if len(ids) * self.model.config.get_text_config().vocab_size > LOGITS_HELD:
            return None
        batch = torch.tensor([ids], device=self.model.device)
        with torch.inference_mode():
            logits = self.model(batch, use_cache=False).logits[0, :-1].float()
            chosen = logits.log_softmax(-1).gather(1, batch[0, 1:, None])[:, 0]
            grown = self.model.generate(
                batch, attention_mask=torch.ones_like(batch), max_new_tokens=NEW_TOKENS, do_sample=False
            )
        return Answers(chosen.cpu().numpy(), tuple(grown[0, len(ids) :].tolist()))

    def close(self) -> None:
        del self.model


def _answer_all(backend: Any, texts: dict[int, list[int]]) -> dict[int, Answers]:
    """Answers to all texts that the backend takes; then it gives back its memory."""
    answer = backend.answer if isinstance(backend, PlainTransformers) else lambda ids: _answer(backend, ids)
    found = {length: own for length, ids in texts.items() if (own := answer(ids)) is not None}
    backend.close()
    gc.collect()
    return found


def _answer(model: Model, ids: Sequence[int]) -> Answers:
    (generation,) = model.generate([ids], NEW_TOKENS)
    return Answers(model.logprobs(ids), generation.ids)


def _compare(backend: str, reference: Model, ids: list[int], own: Answers, exact: Answers) -> Difference:
    apart = np.abs(own.logprobs - exact.logprobs)
    pairs: Iterator[tuple[int, tuple[int, int]]] = enumerate(zip(exact.continuation, own.continuation, strict=False))
    parted = next(((index, pair) for index, pair in pairs if pair[0] != pair[1]), None)
    difference = (backend, len(ids), float(apart.max(initial=0)), float(apart.mean()) if len(apart) else 0.0)
    if parted is None:
        return Difference(*difference)
    index, tokens = parted
    before = [*ids, *exact.continuation[:index]]
    first, second = (float(reference.logprobs([*before, token])[-1]) for token in tokens)
    return Difference(*difference, index, tokens, first - second)
