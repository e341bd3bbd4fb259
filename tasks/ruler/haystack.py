"""The essay haystack: the first words of a text, its sentences, and needles between them.

As in RULER, whitespace runs are one space, a text shorter than the haystack is repeated, and sentences are joined by
single spaces: where a sentence ends inside a word (`so?(see` ) a space comes in.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, pairwise, zip_longest
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from longeval.errors import UserError
from longeval.tasks.fitting import piece_costs
from longeval.tasks.prompt import Prompter
from longeval.tasks.sentences import sentence_spans

_BLOCK = 8192  # words counted at a time


class Prose:
    """`text`: words and sentences joined by single spaces. `word_ends`: int [words + 1], characters of the first n
    words; `starts`, `ends`: int [sentences], where each sentence begins and ends in `text`."""

    def __init__(self, words: Sequence[str]) -> None:
        plain = " ".join(words)
        spans = np.asarray(sentence_spans(plain), np.int64)
        starts, ends = spans[:, 0], spans[:, 1]
        inside = starts[1:][starts[1:] == ends[:-1]]  # boundaries within a word, each widened by a space
        word_ends = np.cumsum([0, *(len(word) + 1 for word in words)]) - 1
        self.text = " ".join([plain[start:end] for start, end in spans.tolist()])
        self.word_ends = np.maximum(word_ends + np.searchsorted(inside, word_ends, "left"), 0)
        self.starts = starts + np.searchsorted(inside, starts, "right")
        self.ends = ends + np.searchsorted(inside, ends, "left")
        self._tokens: WeakKeyDictionary[Any, npt.NDArray[np.int64]] = WeakKeyDictionary()

    def sentences(self, words: int) -> int:
        """How many sentences the first `words` words have, the last one possibly cut."""
        return int(np.searchsorted(self.starts, self.word_ends[words], "left"))

    def with_needles(self, words: int, needles: Sequence[str], places: Sequence[int]) -> str:
        """The first `words` words with a needle before each of the sentences `places` (ascending), all joined by
        single spaces: an empty stretch of haystack still has its space."""
        edges = [0, *places, self.sentences(words)]
        stretches = [self._stretch(first, last, words) for first, last in pairwise(edges)]
        return " ".join(part for part in chain(*zip_longest(stretches, needles)) if part is not None)

    def _stretch(self, first: int, last: int, words: int) -> str:
        """Sentences `first` to `last` - 1 as one text."""
        if first == last:
            return ""
        return self.text[self.starts[first] : min(self.ends[last - 1], self.word_ends[words])]

    def tokens(self, prompter: Prompter, budget: int) -> npt.NDArray[np.int64]:
        """int64 [n + 1]: tokens of the first 0 ... n words, as far as needed to exceed `budget` (or to the end)."""
        known = self._tokens.get(prompter.tokenizer, np.zeros(1, np.int64))
        costs = piece_costs(prompter, after="a")
        while known[-1] <= budget and len(known) < len(self.word_ends):
            edges = self.word_ends[len(known) - 1 : len(known) + _BLOCK].tolist()
            pieces = [self.text[start:end] for start, end in pairwise(edges)]
            known = np.concatenate([known, known[-1] + np.cumsum(costs.of(pieces))])
        self._tokens[prompter.tokenizer] = known
        return known


@lru_cache(maxsize=4)
def _prose(text: str, copies: int) -> Prose:
    return Prose(text.split() * copies)


def prose_for(text: str, words: int, prompter: Prompter, budget: int) -> tuple[Prose, npt.NDArray[np.int64]]:
    """`text`, repeated until it has `words` words and more than `budget` tokens, with the tokens of its first words."""
    once = len(text.split())
    prose = _prose(text, -(-words // once))
    tokens = prose.tokens(prompter, budget)
    if tokens[-1] > budget:
        return prose, tokens
    if tokens[-1] < 1:
        raise UserError("this tokenizer has no tokens for English text")
    prose = _prose(text, (budget // int(tokens[-1]) + 1) * -(-words // once))
    return prose, prose.tokens(prompter, budget)
