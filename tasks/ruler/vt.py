"""Variable tracking: one chain of five assignments among lines of noise; which variables hold the first one's value?

A worked example stands in the user turn before the question. As in RULER its layout is made once (here: per length and
seed) and its names and value are drawn anew for every sample. Known deviation beside those of the suite: the names of
a chain are distinct and none is `VAR`, and example and question have different values.
"""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass

from longeval.tasks.fitting import Draft, Rendered, piece_costs
from longeval.tasks.prompt import Prompter
from longeval.tasks.rng import sample_rng
from longeval.tasks.ruler import protocol
from longeval.tasks.ruler.base import RulerTask
from longeval.tasks.ruler.protocol import NOISE, VT


@dataclass(frozen=True)
class Chain:
    """Variables of which the first gets `value` and each next one the variable before it."""

    names: list[str]
    value: str

    def statements(self) -> list[str]:
        first = protocol.VT_FIRST.format(name=self.names[0], value=self.value)
        pairs = zip(self.names[1:], self.names, strict=False)
        return [first, *(protocol.VT_NEXT.format(name=name, previous=previous) for name, previous in pairs)]

    def prompt(self, places: Sequence[int], lines: int) -> str:
        """The question about `lines` lines of noise with a statement, in order, before each of `places`."""
        context = [NOISE] * lines
        for place, statement in zip(reversed(places), reversed(self.statements()), strict=True):
            context.insert(place, statement)
        return VT.template.format(context="\n".join(context), query=self.value)

    def answer_prefix(self) -> str:
        return VT.answer_prefix.format(num_v=len(self.names), query=self.value)


def draw_chain(rng: random.Random, name_length: int, taken: Sequence[str] = ()) -> Chain:
    """A chain with names of `name_length` upper-case letters; neither names nor value are in `taken`."""
    names: list[str] = []
    while len(names) <= protocol.VT_HOPS:
        name = "".join(rng.choice(string.ascii_uppercase) for _ in range(name_length))
        if name != "VAR" and name not in names and name not in taken:
            names.append(name)
    value = str(rng.choice(protocol.VT_VALUES))
    while value in taken:
        value = str(rng.choice(protocol.VT_VALUES))
    return Chain(names, value)


def draw_places(rng: random.Random, lines: int) -> list[int]:
    """Where the statements of a chain go among `lines` lines."""
    return sorted(rng.sample(range(lines), protocol.VT_HOPS + 1))


@dataclass(frozen=True)
class Example:
    """The layout of the worked example: `lines` of noise, statements before `places` of them."""

    lines: int
    places: list[int]

    @classmethod
    def fitted(cls, prompter: Prompter, cell: str) -> Example:
        """The most lines with which the answered example has at most 500 tokens."""
        chain = draw_chain(sample_rng(f"{cell}/example"), protocol.VT_EXAMPLE_NAME_LENGTH)
        fitting = cls._drawn(cell, protocol.VT_EXAMPLE_SMALLEST)
        while fitting.lines < protocol.VT_EXAMPLE_TOKENS:  # a line has a token at least
            longer = cls._drawn(cell, fitting.lines + 1)
            if prompter.count([longer.text(chain)])[0] > protocol.VT_EXAMPLE_TOKENS:
                break
            fitting = longer
        return fitting

    @classmethod
    def _drawn(cls, cell: str, lines: int) -> Example:
        return cls(lines, draw_places(sample_rng(f"{cell}/example/{lines}"), lines))

    def text(self, chain: Chain) -> str:
        """The example about `chain`, answered, with what stands between it and the question."""
        answered = f"{chain.prompt(self.places, self.lines)}{chain.answer_prefix()} {' '.join(chain.names)}\n"
        return answered + "\n"


class ChainDraft(Draft):
    """One sample: example, then the chain in `size` lines of noise."""

    def __init__(self, sample_id: str, example: Example, short: bool, prompter: Prompter, budget: int) -> None:
        rng = sample_rng(sample_id)
        self.sample_id = sample_id
        self.chain = draw_chain(rng, protocol.VT_NAME_LENGTH)
        example_chain = draw_chain(rng, protocol.VT_EXAMPLE_NAME_LENGTH, [self.chain.value])
        self.example = example.text(example_chain)
        self.cost = max(1, int(piece_costs(prompter, after=".").of([f"\n{NOISE}"])[0]))
        self.smallest = protocol.VT_SMALLEST_SHORT if short else protocol.VT_SMALLEST
        self.largest = max(self.smallest, budget // self.cost)

    def haystack_tokens(self, size: int) -> int:
        return size * self.cost

    def render(self, size: int) -> Rendered:
        places = draw_places(sample_rng(f"{self.sample_id}/places/{size}"), size)
        return Rendered(
            prompt=self.example + self.chain.prompt(places, size),
            references=self.chain.names,
            answer_prefix=self.chain.answer_prefix(),
            meta={
                "query": self.chain.value,
                "lines": size,
                "depths": [round(100 * place / size, 2) for place in places],
            },
        )


class VariableTracking(RulerTask):
    """vt: five variables of one chain."""

    wording = VT
    category = "multi-hop tracing"

    def drafts(self, prompter: Prompter, length: int, budget: int, cell: str, indices: range) -> Sequence[Draft]:
        example = Example.fitted(prompter, cell)
        short = length < protocol.SHORT
        return [ChainDraft(f"{cell}/{index}", example, short, prompter, budget) for index in indices]
