"""Common words extraction: a numbered list of words in which ten stand more often than all others.

A worked example, a whole exchange of its own, stands before the question. Words are drawn from RULER's list of 8,166;
a length that needs more is an error (RULER goes on with another list).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from longeval.tasks.base import Shot
from longeval.tasks.fitting import Draft, Rendered, piece_costs
from longeval.tasks.prompt import Prompter
from longeval.tasks.rng import sample_rng
from longeval.tasks.ruler import protocol
from longeval.tasks.ruler.base import RulerTask
from longeval.tasks.ruler.protocol import CWE, CWE_COMMON, Repeats
from longeval.tasks.ruler.words import fixed_permutation, word_list


def numbered(words: Sequence[str]) -> str:
    """`1. word 2. word …`"""
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, start=1))


def question(words: Sequence[str], repeats: Repeats) -> str:
    """The question about a list in which the first ten of `words` are the common ones."""
    items = list(words[:CWE_COMMON]) * repeats.common + list(words[CWE_COMMON:]) * repeats.other
    return CWE.template.format(context=numbered([items[index] for index in fixed_permutation(len(items))]))


@dataclass(frozen=True)
class Setting:
    """Repetitions in the sample, and the example's words and repetitions; lists are smaller below 4096 tokens."""

    repeats: Repeats
    example_words: int
    example_repeats: Repeats


LONG = Setting(protocol.CWE_REPEATS, protocol.CWE_EXAMPLE_WORDS, protocol.CWE_EXAMPLE_REPEATS)
SHORT = Setting(protocol.CWE_REPEATS_SHORT, protocol.CWE_EXAMPLE_WORDS_SHORT, protocol.CWE_EXAMPLE_REPEATS_SHORT)


def example(rng: random.Random, setting: Setting) -> Shot:
    """A small list with its answer."""
    words = rng.sample(word_list(), setting.example_words)
    answer = f"{CWE.answer_prefix} {numbered(words[:CWE_COMMON])}"
    return Shot(question(words, setting.example_repeats), answer)


class WordsDraft(Draft):
    """One sample with `size` distinct words."""

    smallest = protocol.CWE_SMALLEST

    def __init__(self, sample_id: str, setting: Setting, prompter: Prompter, budget: int) -> None:
        self.repeats = setting.repeats
        self.shot = example(sample_rng(f"{sample_id}/example"), setting)
        # An item is two tokens at least, so more words than this never fit.
        most = max(self.smallest, CWE_COMMON + budget // (2 * self.repeats.other) + 1)
        every = word_list()
        self.words = sample_rng(f"{sample_id}/words").sample(every, min(most, len(every)))
        self.largest = len(self.words)
        if self.largest == len(every):
            self.shortage = f"cwe needs more than its {len(every):,} words to fill this length; choose a shorter one"
        items = self._items(self.largest)
        numbers = piece_costs(prompter, after="a").of([f" {number}." for number in range(1, items + 1)])
        words = piece_costs(prompter, after=".").of([f" {word}" for word in self.words])
        words[:CWE_COMMON] *= self.repeats.common
        words[CWE_COMMON:] *= self.repeats.other
        self._numbers = np.concatenate([[0], np.cumsum(numbers)])
        self._words = np.concatenate([[0], np.cumsum(words)])

    def _items(self, size: int) -> int:
        return CWE_COMMON * self.repeats.common + (size - CWE_COMMON) * self.repeats.other

    def haystack_tokens(self, size: int) -> int:
        return int(self._numbers[self._items(size)] + self._words[size])

    def render(self, size: int) -> Rendered:
        return Rendered(
            prompt=question(self.words[:size], self.repeats),
            references=self.words[:CWE_COMMON],
            answer_prefix=CWE.answer_prefix,
            shots=(self.shot,),
            meta={"words": size, "items": self._items(size)},
        )


class CommonWords(RulerTask):
    """cwe: ten common words."""

    wording = CWE
    category = "aggregation"

    def drafts(self, prompter: Prompter, length: int, budget: int, cell: str, indices: range) -> Sequence[Draft]:
        setting = SHORT if length < protocol.SHORT else LONG
        return [WordsDraft(f"{cell}/{index}", setting, prompter, budget) for index in indices]
