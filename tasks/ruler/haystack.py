"""The essay haystack: the first words of a text, its sentences, and needles between them.

As in RULER, whitespace runs are one space, a text shorter than the haystack is repeated, and sentences are joined by
single spaces: where a sentence ends inside a word (`so?(see` ) a space comes in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    """Words as one text, in which any number of first words can be taken as sentences.

    `text`: its sentences joined by single spaces; `starts`, `ends`: int [sentences], where each begins and ends there.
    `word_ends`: int [words + 1], how many characters of `text` the first n words are.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._plain = " ".join(words)
        spans = np.asarray(sentence_spans(self._plain), np.int64)
        starts, ends = spans[:, 0], spans[:, 1]
        word_ends = np.maximum(np.cumsum([0, *(len(word) + 1 for word in words)]) - 1, 0)
        inside = starts[1:][starts[1:] == ends[:-1]]  # boundaries within a word, each widened by a space
        self._plain_starts, self._plain_word_ends = starts, word_ends
        self.text = " ".join([self._plain[start:end] for start, end in spans.tolist()])
        self.starts = starts + np.searchsorted(inside, starts, "right")
        self.ends = ends + np.searchsorted(inside, ends, "left")
        self.word_ends = word_ends + np.searchsorted(inside, word_ends, "left")
        self._tokens: WeakKeyDictionary[Any, npt.NDArray[np.int64]] = WeakKeyDictionary()

    def first(self, words: int) -> Sentences:
        """The sentences of the first `words` words."""
        whole = int(np.searchsorted(self._plain_starts, self._plain_word_ends[words], "left")) - 1
        last = self._plain[self._plain_starts[whole] : self._plain_word_ends[words]]
        # Cut here, the last sentence can come apart (`No!` and `!` when no word follows).
        return Sentences(self, whole, [last[start:end] for start, end in sentence_spans(last)])

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


@dataclass(frozen=True)
class Sentences:
    """The first `whole` sentences of `prose`, then those of `tail`."""

    prose: Prose
    whole: int
    tail: list[str]

    def __len__(self) -> int:
        return self.whole + len(self.tail)

    def with_needles(self, needles: Sequence[str], places: Sequence[int]) -> str:
        """All sentences with a needle before each of `places` (ascending), joined by single spaces; an empty stretch
        between two needles still has its space."""
        stretches = [self._stretch(first, last) for first, last in pairwise([0, *places, len(self)])]
        return " ".join(part for part in chain(*zip_longest(stretches, needles)) if part is not None)

    def _stretch(self, first: int, last: int) -> str:
        """Sentences `first` to `last` - 1."""
        end, parts = min(last, self.whole), []
        if first < end:
            parts.append(self.prose.text[self.prose.starts[first] : self.prose.ends[end - 1]])
        return " ".join(parts + self.tail[max(first - self.whole, 0) : max(last - self.whole, 0)])


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
