"""Sequences of symbols as text, and as tokens of any tokenizer.

A symbol is one letter, digit or sign; text is symbols separated by single spaces. How many tokens a symbol takes
differs between tokenizers, so the tokens of a symbol are found through their character spans.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any

from longeval.errors import UserError
from longeval.tasks.logprob import encode


@dataclass(frozen=True)
class SymbolSequence:
    """`symbols`, of which those at the indices `targets` are what a model has to predict."""

    symbols: list[str]
    targets: list[int]

    @property
    def text(self) -> str:
        return " ".join(self.symbols)

    @property
    def answers(self) -> list[str]:
        """The target symbols, in order."""
        return [self.symbols[target] for target in self.targets]

    def tokenized(self, tokenizer: Any) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids of the text, and for every target the half-open range of tokens that stand for it.

        The token of a separating space alone is not counted to the symbol behind it: it is always the same. UserError
        when a token holds a target together with what follows it, as then no single prediction is the answer.
        """
        tokens = encode(tokenizer, self.text)
        starts = [start for start, _ in tokens.spans]
        ends = [end for _, end in tokens.spans]
        ranges = []
        for target in self.targets:
            start = 2 * target  # symbols are one character, separators too
            first, last = bisect_right(ends, start), bisect_left(starts, start + 1)
            if last <= first or starts[first] < start - 1 or ends[last - 1] > start + 1:
                raise UserError(
                    f"this tokenizer joins the symbol {self.symbols[target]!r} with its neighbours; "
                    "state_tracking needs symbols separated by spaces to be tokens of their own"
                )
            ranges.append((first, last))
        return tokens.ids, ranges
