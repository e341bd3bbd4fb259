"""Scoring and greedy decoding, for every kind of PyTorch model.

A `Runner` knows how to push tokens through its network; what is common to all (batches of unequal prompts within a
token budget, end of sequence, stop strings, memory that runs out) is here, once.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from longeval.errors import UserError
from longeval.models.base import Model
from longeval.types import Generation, TokenScores

LOGIT_BUDGET = 2**25  # logits held at a time when a text is scored
TOKENS_PER_CALL = 4096  # through the network at a time, of all sequences of a batch together


class Batch(Protocol):
    """Sequences in the middle of being decoded."""

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Appends one token to each sequence; logits [B, V] of the next ones, float32."""
        ...

    def select(self, rows: Sequence[int]) -> Batch:
        """The same for some of the sequences; the old batch is used up."""
        ...


class Runner(Protocol):
    """A network and its way of keeping a KV cache. `bytes_per_token`: of cache, per token of a sequence."""

    vocab_size: int
    bytes_per_token: int
    device: torch.device

    def prefill(self, prompts: Sequence[Sequence[int]], room: int) -> tuple[Batch, Tensor]:
        """Reads prompts of any lengths >= 1, with room for that many more tokens each; logits [B, V], float32."""
        ...

    def score(self, ids: Sequence[int]) -> Iterator[Tensor]:
        """Logits after each token, float32, in pieces [n, V] of at most LOGIT_BUDGET numbers (or one row)."""
        ...


@dataclass(frozen=True)
class Limits:
    """When a continuation ends. `eos`: ids that end it; `stop`: strings that end it and are cut off.

    Until `min_new_tokens` are out, neither an `eos` id nor a stop string that is one token of its own can be chosen.
    """

    max_new_tokens: int
    min_new_tokens: int = 0
    eos: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()

    @staticmethod
    def checked(
        model: Model, max_new_tokens: int, min_new_tokens: int, eos: frozenset[int], stop: Sequence[str]
    ) -> Limits:
        """The limits of a `generate` call, for every backend. UserError for what cannot be asked of `model`."""
        if isinstance(stop, str):
            raise UserError(f"stop must be a list of strings, not the string {stop!r}")
        if stop and model.tokenizer is None:
            raise UserError(f"{model.name} has no tokenizer, so stop strings cannot be found; add tokenizer files")
        if max_new_tokens < 1:
            raise UserError(f"max_new_tokens must be at least 1, not {max_new_tokens}")
        return Limits(max_new_tokens, min_new_tokens, eos, tuple(stop))


def score_tokens(runner: Runner, ids: Sequence[int]) -> TokenScores:
    """Log-probabilities of ids[1:], each given all tokens before it, and whether each was the argmax."""
    if len(ids) < 2:
        return TokenScores(np.empty(0, np.float32), np.empty(0, np.bool_))
    targets = torch.tensor(ids[1:], device=runner.device)
    logprobs, greedy, at = [], [], 0
    for logits in runner.score(ids[:-1]):
        _refuse_nan(logits)
        target = targets[at : at + len(logits), None]
        at += len(logits)
        logprobs.append((logits.gather(1, target)[:, 0] - logits.logsumexp(1)).cpu())
        greedy.append((logits.argmax(1) == target[:, 0]).cpu())
    return TokenScores(torch.cat(logprobs).float().numpy(), torch.cat(greedy).numpy())


def generate(
    runner: Runner, tokenizer: Any, prompts: Sequence[Sequence[int]], limits: Limits, token_budget: int
) -> Iterator[Generation]:
    """Greedy continuations, yielded as they finish.

    A batch holds prompts of similar length, at most `token_budget` tokens with padding and continuations (but at least
    one prompt). When memory runs out, what is unfinished is tried again in batches of half the size; MemoryError if
    one prompt alone does not fit.
    """
    ending = Ending(tokenizer, limits)
    waiting = deque(sorted(range(len(prompts)), key=lambda index: -len(prompts[index])))
    largest = len(prompts)
    while waiting:
        size = token_budget // (len(prompts[waiting[0]]) + limits.max_new_tokens)
        batch = [waiting.popleft() for _ in range(min(max(size, 1), largest, len(waiting)))]
        unfinished = set(batch)
        try:
            for generation in _decode_batch(runner, ending, [prompts[index] for index in batch], limits):
                index = batch[generation.index]
                unfinished.discard(index)
                yield Generation(index, generation.ids, generation.text, generation.finish_reason)
        except (RuntimeError, MemoryError) as error:
            if not _out_of_memory(error):
                raise
            if len(batch) == 1:
                length = len(prompts[batch[0]])
                raise MemoryError(f"a prompt of {length:,} tokens alone does not fit into memory") from error
        if unfinished:  # outside the handler, whose exception keeps the failed batch's tensors alive
            largest = max(1, len(batch) // 2)
            waiting.extendleft(index for index in reversed(batch) if index in unfinished)
            gc.collect()
            if runner.device.type == "cuda":
                torch.cuda.empty_cache()


def _out_of_memory(error: BaseException) -> bool:
    text = str(error).lower()
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or "out of memory" in text or "can't allocate memory" in text


def _refuse_nan(logits: Tensor) -> None:
    """A model that computes no numbers has failed; its argmax would look like an answer."""
    if logits.isnan().any():
        raise FloatingPointError("the model's logits are not numbers (NaN); look at its weights or use a wider dtype")


def _decode_batch(
    runner: Runner, ending: Ending, prompts: Sequence[Sequence[int]], limits: Limits
) -> Iterator[Generation]:
    """Generations of one batch; `index` is the prompt's place in it."""
    batch, logits = runner.prefill(prompts, limits.max_new_tokens)
    rows = list(range(len(prompts)))  # prompts still in the batch
    new: list[list[int]] = [[] for _ in prompts]
    for count in range(1, limits.max_new_tokens + 1):
        _refuse_nan(logits)
        if count <= limits.min_new_tokens:
            logits = logits.clone()  # tensors made in inference mode must not be written outside it
            logits[:, ending.forbidden_early] = -torch.inf
        tokens = logits.argmax(-1).tolist()
        going = []
        for place, row in enumerate(rows):
            new[row].append(tokens[place])
            reason, text = ending.check(new[row])
            if reason is not None:
                yield Generation(row, tuple(new[row]), text, reason)
            else:
                going.append(place)
        if not going:
            return
        if len(going) < len(rows):
            batch, rows = batch.select(going), [rows[place] for place in going]
        logits = batch.step([tokens[place] for place in going])


class Ending:
    """Decides whether a continuation ends here, and turns it into text."""

    def __init__(self, tokenizer: Any, limits: Limits) -> None:
        self.tokenizer = tokenizer
        self.limits = limits
        pieces = [tokenizer.encode(text, add_special_tokens=False) for text in limits.stop]
        self.forbidden_early = sorted(limits.eos | {piece[0] for piece in pieces if len(piece) == 1})

    def check(self, ids: list[int]) -> tuple[Literal["stop", "length"] | None, str]:
        """Why `ids` end here (None if they do not), and their text without special tokens, up to a stop string."""
        reason: Literal["stop", "length"] | None = "length" if len(ids) == self.limits.max_new_tokens else None
        if ids[-1] in self.limits.eos:
            reason = "stop"
        if self.tokenizer is None or (reason is None and not self.limits.stop):
            return reason, ""
        text = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        cuts = [at for at in map(text.find, self.limits.stop) if at >= 0]
        if cuts and len(ids) >= self.limits.min_new_tokens:
            return "stop", text[: min(cuts)]
        return reason, text
