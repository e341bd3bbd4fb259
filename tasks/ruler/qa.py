"""Question answering: the paragraphs of a question among as many others as fit.

qa_1 is SQuAD 2.0 (answerable questions), qa_2 HotpotQA; sample i asks question i of the file, whatever the seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import cycle, islice

import numpy as np

from longeval.errors import UserError
from longeval.tasks.base import TaskOptions
from longeval.tasks.fitting import Draft, Rendered, piece_costs
from longeval.tasks.prompt import Prompter
from longeval.tasks.rng import sample_rng
from longeval.tasks.ruler import protocol
from longeval.tasks.ruler.base import RulerTask
from longeval.tasks.ruler.data import HOTPOTQA, SQUAD, Question, QuestionSet, read_hotpotqa, read_squad
from longeval.tasks.ruler.protocol import QA
from longeval.tasks.ruler.words import distinct, fixed_permutation

_BLOCK = 64  # documents drawn and counted at a time
_SOURCES = {"qa_1": (SQUAD, read_squad), "qa_2": (HOTPOTQA, read_hotpotqa)}


class DocumentsDraft(Draft):
    """One question among `size` documents: its own, those of the same article as far as they go, then any others.

    A size of the whole corpus or more takes all of it, in order and repeated.
    """

    def __init__(self, sample_id: str, data: QuestionSet, question: Question, prompter: Prompter, budget: int) -> None:
        self.documents = data.documents
        self.question = question
        self.smallest = max(protocol.QA_SMALLEST, len(question.gold))
        related = sample_rng(f"{sample_id}/related").sample(question.related, len(question.related))
        self._chosen = [*question.gold, *related]
        self._rest = self._drawn(sample_rng(f"{sample_id}/others"))
        self._count(prompter, budget)
        self.largest = len(self._tokens) - 1

    def _drawn(self, rng: random.Random) -> Iterator[int]:
        """All other documents in random order, then (only their lengths matter there) the corpus again and again."""
        own = set(self._chosen)
        yield from (number for number in distinct(rng, len(self.documents)) if number not in own)
        yield from cycle(range(len(self.documents)))

    def _count(self, prompter: Prompter, budget: int) -> None:
        """Draws documents until they have more than `budget` tokens, and counts the first 0 ... n of them."""
        headers, bodies = piece_costs(prompter, after="."), piece_costs(prompter, after=":\n")
        self._tokens = np.zeros(1, np.int64)
        while self._tokens[-1] <= budget or len(self._tokens) <= self.smallest:
            done = len(self._tokens) - 1
            self._chosen += islice(self._rest, max(0, done + _BLOCK - len(self._chosen)))
            header = protocol.QA_SEPARATOR + protocol.QA_DOCUMENT
            numbers = range(done + 1, done + _BLOCK + 1)
            added = headers.of([header.format(i=number, document="") for number in numbers])
            added += bodies.of([self.documents[number] for number in self._chosen[done : done + _BLOCK]])
            self._tokens = np.concatenate([self._tokens, self._tokens[-1] + np.cumsum(np.maximum(added, 1))])

    def haystack_tokens(self, size: int) -> int:
        return int(self._tokens[size])

    def _numbers(self, size: int) -> list[int]:
        """The documents of a haystack, before the shuffle."""
        everything, own = len(self.documents), len(self.question.gold) + len(self.question.related)
        if size >= everything:
            return [number % everything for number in range(size)]
        if size > own:  # then those of the article stand in its order
            return [*self.question.gold, *self.question.related, *self._chosen[own:size]]
        return self._chosen[:size]

    def render(self, size: int) -> Rendered:
        numbers = self._numbers(size)
        shuffled = [numbers[index] for index in fixed_permutation(size)]
        context = protocol.QA_SEPARATOR.join(
            protocol.QA_DOCUMENT.format(i=place, document=self.documents[number])
            for place, number in enumerate(shuffled, start=1)
        )
        gold = set(self.question.gold)
        return Rendered(
            prompt=QA.template.format(context=context, query=self.question.text),
            references=self.question.references,
            answer_prefix=QA.answer_prefix,
            meta={
                "question": self.question.text,
                "documents": size,
                "gold": [place for place, number in enumerate(shuffled, start=1) if number in gold],
            },
        )


class QuestionAnswering(RulerTask):
    """qa_1 or qa_2: any annotated answer counts."""

    wording = QA
    category = "question answering"
    match_any = True

    def __init__(self, short_name: str, options: TaskOptions) -> None:
        super().__init__(short_name, options)
        corpus, self._read = _SOURCES[short_name]
        self.corpora = (corpus,)

    def drafts(self, prompter: Prompter, length: int, budget: int, cell: str, indices: range) -> Sequence[Draft]:
        path = self.corpora[0].require(self.options.data_dir)
        data = self._read(path)
        if indices.stop > len(data.questions):
            raise UserError(f"{self.name} has {len(data.questions):,} questions in {path}; choose a lower --limit")
        return [DocumentsDraft(f"{cell}/{index}", data, data.questions[index], prompter, budget) for index in indices]
