"""Needle in a haystack, eight tasks: one or several needles `key: value` in repeated noise, essays or other needles.

Known deviation beside those of the suite: keys and values are distinct within a sample, distractors included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from longeval.tasks.base import DataStatus, TaskOptions
from longeval.tasks.fitting import Draft, Rendered, piece_costs
from longeval.tasks.prompt import Prompter
from longeval.tasks.rng import sample_rng
from longeval.tasks.ruler import protocol
from longeval.tasks.ruler.base import RulerTask
from longeval.tasks.ruler.data import ESSAYS, read_essays, stdlib_prose
from longeval.tasks.ruler.haystack import Prose, prose_for
from longeval.tasks.ruler.protocol import NIAH, NIAH_TASKS, NOISE, Niah
from longeval.tasks.ruler.words import draws, fixed_permutation

_BLOCK = 256  # distractors drawn and counted at a time


def singular(text: str) -> str:
    """RULER's rewrite of template and prefix when there is one answer."""
    for plural, one in protocol.SINGULAR:
        text = text.replace(plural, one)
    return text


def enumerated(keys: Sequence[str]) -> str:
    """`a, b, c, and d`; one alone as it is."""
    return keys[0] if len(keys) == 1 else f"{', '.join(keys[:-1])}, and {keys[-1]}"


class NeedleDraft(Draft):
    """Needles, question and answers of one sample; subclasses bring the haystack."""

    def __init__(self, spec: Niah, sample_id: str) -> None:
        self.spec = spec
        self.sample_id = sample_id
        self.key_draws = draws(sample_rng(f"{sample_id}/keys"), spec.key_type)
        self.value_draws = draws(sample_rng(f"{sample_id}/values"), spec.value_type)
        self.keys = list(islice(self.key_draws, spec.keys))
        self.values = [list(islice(self.value_draws, spec.values)) for _ in self.keys]
        self.queries = sample_rng(f"{sample_id}/queries").sample(range(spec.keys), spec.queries)
        needles = [
            self.needle(key, value) for key, values in zip(self.keys, self.values, strict=True) for value in values
        ]
        self.needles = [needles[index] for index in fixed_permutation(len(needles))]

    def needle(self, key: str, value: str) -> str:
        return protocol.NEEDLE.format(type_needle_v=self.spec.value_type, key=key, value=value)

    def about(self, context: str, meta: dict[str, Any]) -> Rendered:
        """The question about `context`."""
        template, prefix, kind = NIAH.template, NIAH.answer_prefix, str(self.spec.value_type)
        if self.spec.single:
            template, prefix, kind = singular(template), singular(prefix), kind.removesuffix("s")
        query = enumerated([self.keys[index] for index in self.queries])
        return Rendered(
            prompt=template.format(context=context, type_needle_v=kind, query=query),
            references=[value for index in self.queries for value in self.values[index]],
            answer_prefix=prefix.format(type_needle_v=kind, query=query),
            meta={"query": query, **meta},
        )


class LineDraft(NeedleDraft):
    """A haystack of lines; the needles are lines of their own before distinct random ones."""

    def __init__(self, spec: Niah, sample_id: str, short: bool) -> None:
        super().__init__(spec, sample_id)
        self.smallest = protocol.SMALLEST_LINES_SHORT if short else protocol.SMALLEST_LINES
        self.lines: list[str] = []
        self.tokens = np.zeros(1, np.int64)  # of the first 0 ... n lines

    def haystack_tokens(self, size: int) -> int:
        return int(self.tokens[size])

    def render(self, size: int) -> Rendered:
        places = sorted(sample_rng(f"{self.sample_id}/places/{size}").sample(range(size), len(self.needles)))
        lines = self.lines[:size]
        for place, needle in zip(reversed(places), self.needles, strict=True):  # from the last place, so none moves
            lines.insert(place, needle)
        depths = [round(100 * place / size, 2) for place in places]
        return self.about("\n".join(lines), {"lines": size, "depths": depths})


class NoiseDraft(LineDraft):
    """The same five sentences on every line."""

    def __init__(self, spec: Niah, sample_id: str, short: bool, prompter: Prompter, budget: int) -> None:
        super().__init__(spec, sample_id, short)
        cost = max(1, int(piece_costs(prompter, after=".").of([f"\n{NOISE}"])[0]))
        self.largest = max(self.smallest, budget // cost)
        self.lines = [NOISE] * self.largest
        self.tokens = np.arange(self.largest + 1, dtype=np.int64) * cost


class DistractorDraft(LineDraft):
    """Other needles of the same kind, with their own keys and values."""

    def __init__(self, spec: Niah, sample_id: str, short: bool, prompter: Prompter, budget: int) -> None:
        super().__init__(spec, sample_id, short)
        costs = piece_costs(prompter, after=".")
        while self.tokens[-1] <= budget or len(self.lines) < self.smallest:
            keys, values = islice(self.key_draws, _BLOCK), islice(self.value_draws, _BLOCK)
            block = [self.needle(key, value) for key, value in zip(keys, values, strict=True)]
            added = np.maximum(costs.once([f"\n{line}" for line in block]), 1)
            self.lines += block
            self.tokens = np.concatenate([self.tokens, self.tokens[-1] + np.cumsum(added)])
        self.largest = len(self.lines)


class EssayDraft(NeedleDraft):
    """The first words of the essays, needles before sentences at distinct ones of the protocol's depths."""

    smallest = protocol.SMALLEST_WORDS

    def __init__(self, spec: Niah, sample_id: str, prose: Prose, tokens: npt.NDArray[np.int64]) -> None:
        super().__init__(spec, sample_id)
        self.prose = prose
        self.tokens = tokens
        self.largest = len(tokens) - 1
        self.depths = sorted(sample_rng(f"{sample_id}/depths").sample(protocol.DEPTHS, len(self.needles)))

    def haystack_tokens(self, size: int) -> int:
        return int(self.tokens[size])

    def render(self, size: int) -> Rendered:
        sentences = self.prose.first(size)
        places = [int(len(sentences) * (depth / 100)) for depth in self.depths]
        context = sentences.with_needles(self.needles, places)
        return self.about(context, {"words": size, "sentences": len(sentences), "depths": self.depths})


class NiahTask(RulerTask):
    """One of the eight needle tasks; `spec` says which."""

    wording = NIAH
    category = "retrieval"

    def __init__(self, short_name: str, options: TaskOptions) -> None:
        super().__init__(short_name, options)
        self.spec = NIAH_TASKS[short_name]
        self.stdlib = self.spec.haystack == "essay" and options.haystack == "stdlib"
        if self.spec.haystack == "essay" and not self.stdlib:
            self.corpora = (ESSAYS,)

    def drafts(self, prompter: Prompter, length: int, budget: int, cell: str, indices: range) -> Sequence[Draft]:
        ids = [f"{cell}/{index}" for index in indices]
        if self.spec.haystack == "essay":
            prose, tokens = prose_for(self._prose(), protocol.SMALLEST_WORDS, prompter, budget)
            return [EssayDraft(self.spec, sample_id, prose, tokens) for sample_id in ids]
        kind = NoiseDraft if self.spec.haystack == "noise" else DistractorDraft
        return [kind(self.spec, sample_id, length < protocol.SHORT, prompter, budget) for sample_id in ids]

    def _prose(self) -> str:
        return stdlib_prose() if self.stdlib else read_essays(ESSAYS.require(self.options.data_dir))

    def data_status(self) -> DataStatus:
        """See Task.data_status."""
        return DataStatus("the Python installation's documentation") if self.stdlib else super().data_status()

    def fingerprint(self) -> dict[str, Any]:
        """See Task.fingerprint."""
        if self.stdlib:
            return {"stdlib": hashlib.sha256(stdlib_prose().encode()).hexdigest()[:16]}
        return super().fingerprint()

    def notes(self) -> list[str]:
        """Which protocol, and which text the needles are in."""
        if self.stdlib:
            text = "not comparable: --haystack stdlib has Python's documentation for essays, and qa only when named"
        elif self.corpora:
            text = f"essays: {ESSAYS.version(self.options.data_dir)}"
        else:
            return super().notes()
        return [*super().notes(), text]
