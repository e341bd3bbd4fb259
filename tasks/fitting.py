"""Fitting a sample to its length: the largest haystack with which the prompt and its answer still fit.

A haystack is counted piece by piece, each distinct piece tokenised once, and the sum says how many units fit. Tokens
can merge across pieces, so the sum is only a guess: the finished prompt is tokenised to prove its length, what the
guess missed is corrected, and the proof repeated until one unit more is known, or expected by exactly counted
differences, not to fit. A prompt is never over its length.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from longeval.errors import UserError
from longeval.tasks.base import DoesNotFit, Shot
from longeval.tasks.prompt import Prompter

# Proofs per sample. Two settle it for every tokenizer whose merges stay near piece boundaries.
_ROUNDS = 8
# Tokens proved in one go: enough samples to keep all cores busy, few enough for their encodings to fit in memory.
_CHUNK_TOKENS = 2_000_000


class PieceCosts:
    """How many tokens pieces of text add when they follow the text `after`; `known` keeps those counted before."""

    def __init__(self, prompter: Prompter, after: str, known: dict[str, int]) -> None:
        self._prompter = prompter
        self._after = after
        self._base = prompter.count([after])[0]
        self._known = known

    def of(self, pieces: Sequence[str]) -> npt.NDArray[np.int64]:
        """int64 [len(pieces)]: tokens of each, for pieces that come again (words, lines, documents)."""
        if new := list({piece: None for piece in pieces if piece not in self._known}):
            self._known.update(zip(new, self.once(new).tolist(), strict=True))
        return np.fromiter(map(self._known.__getitem__, pieces), np.int64, len(pieces))

    def once(self, pieces: Sequence[str]) -> npt.NDArray[np.int64]:
        """The same for pieces that will not come again (random values): nothing is remembered."""
        counts = self._prompter.count([self._after + piece for piece in pieces])
        return np.asarray(counts, np.int64) - self._base


# What has been counted, by tokenizer and `after`: shared by all tasks and lengths of a process.
_KNOWN: WeakKeyDictionary[Any, dict[str, dict[str, int]]] = WeakKeyDictionary()


def piece_costs(prompter: Prompter, after: str) -> PieceCosts:
    """The costs of pieces after `after`, with what this process has counted already."""
    return PieceCosts(prompter, after, _KNOWN.setdefault(prompter.tokenizer, {}).setdefault(after, {}))


@dataclass(frozen=True)
class Rendered:
    """A draft at one size: everything of a sample except its tokens."""

    prompt: str
    references: list[str]
    answer_prefix: str = ""
    shots: tuple[Shot, ...] = ()
    meta: dict[str, Any] = field(default_factory=dict)


class Draft(ABC):
    """A sample whose haystack size is still open. Everything drawn at random is drawn before the size is known,
    or from a generator of its own, so that the sample at a given size does not depend on which sizes were tried.

    `smallest`, `largest`: sizes in units of the haystack (lines, words, documents). `shortage`: what to tell the user
    when even the largest fits; None where `largest` is only more than can fit.
    """

    smallest: int
    largest: int
    shortage: str | None = None

    @abstractmethod
    def haystack_tokens(self, size: int) -> int:
        """Estimated tokens of a haystack of `size` units; never falls with `size`. Only differences are used."""

    @abstractmethod
    def render(self, size: int) -> Rendered:
        """The sample with a haystack of exactly `size` units."""


@dataclass
class _Fit:
    """Progress of one draft. `size`, `rendered`, `ids`: the largest proved to fit; `excess`: the smallest proved not
    to, with its tokens (None before one is)."""

    draft: Draft
    size: int
    rendered: Rendered
    ids: list[int]
    excess: tuple[int, int] | None = None

    def next_size(self, budget: int) -> int:
        """The size to prove next: the largest that should fit; `self.size` when no larger one should."""
        estimate = self.draft.haystack_tokens
        room = float(budget - len(self.ids))
        low, high = self.size, self.draft.largest + 1
        if self.excess:  # what was proved at both ends corrects the estimate between them
            high, tokens = self.excess
            room *= (estimate(high) - estimate(low)) / (tokens - len(self.ids))
        most = estimate(low) + room
        while high - low > 1:
            middle = (low + high) // 2
            if estimate(middle) <= most:
                low = middle
            else:
                high = middle
        return low

    def proved(self, size: int, rendered: Rendered, ids: list[int], budget: int) -> None:
        """Takes note of what the prompt of `size` turned out to be."""
        if len(ids) > budget:
            self.excess = size, len(ids)
        else:
            self.size, self.rendered, self.ids = size, rendered, ids


def fit(prompter: Prompter, drafts: Sequence[Draft], budget: int, answer: int) -> list[tuple[Rendered, list[int]]]:
    """Each draft at the largest size whose prompt has at most `budget` tokens, BOS not counted, with those tokens.

    `answer`: tokens set apart for the answer, to say in DoesNotFit what length the smallest sizes would need.
    """
    smallest = [draft.render(draft.smallest) for draft in drafts]
    encoded = _encode(prompter, smallest)
    if (needed := max(map(len, encoded), default=0)) > budget:
        raise DoesNotFit(needed + answer)
    fits = [
        _Fit(draft, draft.smallest, rendered, ids)
        for draft, rendered, ids in zip(drafts, smallest, encoded, strict=True)
    ]
    for _ in range(_ROUNDS):
        trials = [(fit, size) for fit in fits if (size := fit.next_size(budget)) > fit.size]
        if not trials:
            break
        rendered = [fit.draft.render(size) for fit, size in trials]
        for (fit, size), text, ids in zip(trials, rendered, _encode(prompter, rendered), strict=True):
            fit.proved(size, text, ids, budget)
    for fit in fits:
        if fit.size == fit.draft.largest and fit.draft.shortage:
            raise UserError(fit.draft.shortage)
    return [(fit.rendered, fit.ids) for fit in fits]


def _encode(prompter: Prompter, rendered: Sequence[Rendered]) -> list[list[int]]:
    return prompter.encode([prompter.text(r.prompt, r.answer_prefix, r.shots) for r in rendered])


def chunks(indices: range, length: int) -> Iterator[range]:
    """`indices` in pieces of about as many tokens as are worth one batch."""
    step = max(1, _CHUNK_TOKENS // max(length, 1))
    for start in range(indices.start, indices.stop, step):
        yield range(start, min(start + step, indices.stop))
