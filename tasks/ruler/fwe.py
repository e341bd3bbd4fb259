"""Frequent words extraction: coded words whose frequencies follow a zeta distribution; name ranks two to four.

Rank one is the noise `...`. Sizes are nominal word counts W: the word of rank r stands int(W · r^-2 / ζ(2)) times.
RULER takes W in steps of a thirty-second of the budget and leaves the last one free (up to 12 % at 4K); here W is the
largest that fits.
"""

from __future__ import annotations

import math
import random
import string
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from longeval.tasks.fitting import Draft, Rendered, piece_costs
from longeval.tasks.prompt import Prompter
from longeval.tasks.rng import sample_rng
from longeval.tasks.ruler import protocol
from longeval.tasks.ruler.base import RulerTask
from longeval.tasks.ruler.protocol import FWE, FWE_ALPHA, FWE_ANSWERS, FWE_NOISE
from longeval.tasks.ruler.words import fixed_permutation

ZETA = math.pi**2 / 6  # ζ(FWE_ALPHA)
# The fewest nominal words from which on the third answer always stands more often than the word after it.
SMALLEST = 53


def shares(ranks: int) -> npt.NDArray[np.float64]:
    """float64 [ranks]: the share of the nominal words that each rank has."""
    return np.arange(1, ranks + 1, dtype=np.float64) ** -FWE_ALPHA / ZETA


def vocabulary(rng: random.Random, size: int) -> list[str]:
    """`size` entries by rank: the noise, then distinct random words of six letters."""
    words: set[str] = set()
    while len(words) < size:
        words.add("".join(rng.choices(string.ascii_lowercase, k=protocol.FWE_WORD_LENGTH)))
    ordered = sorted(words)
    ranked = [ordered[index] for index in fixed_permutation(size)]
    return [FWE_NOISE, *ranked[1:]]


class CodedDraft(Draft):
    """One sample of `size` nominal words."""

    smallest = SMALLEST

    def __init__(self, sample_id: str, prompter: Prompter, budget: int) -> None:
        entries = max(budget // protocol.FWE_TOKENS_PER_WORD, 1 + FWE_ANSWERS)
        self.vocabulary = vocabulary(sample_rng(sample_id), entries)
        self._shares = shares(len(self.vocabulary))
        self._costs = piece_costs(prompter, after="a").once([f" {word}" for word in self.vocabulary])
        self.largest = max(self.smallest, 2 * budget)  # a word is a token at least, and six tenths of W are noise

    def counts(self, size: int) -> npt.NDArray[np.int64]:
        """int64 [ranks]: how often each word stands."""
        return (size * self._shares).astype(np.int64)

    def haystack_tokens(self, size: int) -> int:
        return int(self.counts(size) @ self._costs)

    def render(self, size: int) -> Rendered:
        counts = self.counts(size).tolist()
        words = [word for word, count in zip(self.vocabulary, counts, strict=True) for _ in range(count)]
        context = " ".join([words[index] for index in fixed_permutation(len(words))])
        return Rendered(
            prompt=FWE.template.format(context=context),
            references=self.vocabulary[1 : 1 + FWE_ANSWERS],
            answer_prefix=FWE.answer_prefix,
            meta={"nominal_words": size, "words": len(words), "counts": counts[: 1 + FWE_ANSWERS]},
        )


class FrequentWords(RulerTask):
    """fwe: the three most frequent coded words."""

    wording = FWE
    category = "aggregation"

    def drafts(self, prompter: Prompter, length: int, budget: int, cell: str, indices: range) -> Sequence[Draft]:
        return [CodedDraft(f"{cell}/{index}", prompter, budget) for index in indices]
