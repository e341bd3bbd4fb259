"""What RULER's tasks share: building samples that fill their length, and the two scores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from longeval.tasks.base import Sample, Task, TaskOptions, checked_text, one_of
from longeval.tasks.fitting import Draft, chunks, fit
from longeval.tasks.prompt import Prompter
from longeval.tasks.ruler.protocol import LENGTHS, VERSION, Protocol
from longeval.tasks.ruler.scoring import string_match_all, string_match_part
from longeval.types import TokenScores


class RulerTask(Task):
    """A task of 4K to 32K and 100 samples a cell by default (official: to 128K, 500 samples); any length goes.

    `wording`: its strings. The invariant of every sample: tokens of the whole prompt (chat markup, examples and answer
    prefix included, BOS not) + tokens of the answer ≤ length.
    """

    suite = "ruler"
    version = f"1 ({VERSION})"
    lengths = LENGTHS[:4]
    count = 100
    wording: ClassVar[Protocol]
    match_any: ClassVar[bool] = False

    def __init__(self, short_name: str, options: TaskOptions) -> None:
        super().__init__(short_name, options)
        one_of("haystack", options.haystack, ("essay", "stdlib"))
        self.metric = "string_match_part" if self.match_any else "string_match_all"

    def build(
        self, tokenizer: Any, length: int, count: int | None = None, seed: int = 0, *, chat: bool = False
    ) -> list[Sample]:
        """See Task.build; `length` is in tokens of `tokenizer` and includes the answer."""
        return self.build_range(tokenizer, length, range(self.count if count is None else count), seed, chat=chat)

    def build_range(
        self, tokenizer: Any, length: int, indices: range, seed: int = 0, *, chat: bool = False
    ) -> list[Sample]:
        """See Task.build_range."""
        prompter = Prompter(tokenizer, chat)
        return [sample for chunk in chunks(indices, length) for sample in self._build(prompter, length, chunk, seed)]

    def _build(self, prompter: Prompter, length: int, indices: range, seed: int) -> Iterator[Sample]:
        cell = f"{self.name}/{length}/{seed}"
        budget = length - self.wording.tokens
        drafts = self.drafts(prompter, length, budget, cell, indices)
        for index, (rendered, ids) in zip(indices, fit(prompter, drafts, budget, self.wording.tokens), strict=True):
            yield Sample(
                id=f"{cell}/{index}",
                task=self.name,
                length=length,
                prompt=rendered.prompt,
                ids=prompter.with_bos(ids),
                references=rendered.references,
                answer_prefix=rendered.answer_prefix,
                shots=rendered.shots,
                max_new_tokens=self.wording.tokens,
                meta=rendered.meta,
            )

    @abstractmethod
    def drafts(self, prompter: Prompter, length: int, budget: int, cell: str, indices: range) -> Sequence[Draft]:
        """The samples `indices` of the cell named `cell` before they are fitted to `budget` prompt tokens."""

    def notes(self) -> list[str]:
        """Which of RULER's protocols the scores belong to."""
        return [f"protocol: {VERSION}"]

    def score(self, prediction: str | TokenScores, sample: Sample) -> dict[str, float]:
        """The official score of the task, in [0, 1]; UserError when the references are no list of strings."""
        match = string_match_part if self.match_any else string_match_all
        return {self.metric: match(checked_text(prediction, sample), sample.references)}
