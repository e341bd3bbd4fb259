"""State tracking: the synthetic tasks of the PaTH paper (arXiv 2505.16381, section 4.1) as evaluation tasks.

The paper trains small models on each task from scratch and reports the accuracy of the answers: flip-flop language
(in distribution, p = 0.8, and out of it, sparse 0.98 and dense 0.1), word problems of A5, and MQRAR-N. `flip_flop`,
`a5` and `mqrar` define them and say what is the papers' and what is chosen.

Chosen here for all of them: the sequence is text of one-character symbols between single spaces, so that any
tokenizer has them; lengths are in tokens of the tested tokenizer, BOS included, and a sample is the longest sequence
that does not exceed its length; no instruction, no examples and no chat template, so a model that was not trained on
a task can only pick it up from the sequence itself. Scoring is teacher-forced, as in the papers: the whole sequence
is given, and an answer is right when each of its tokens is the model's first choice among its whole vocabulary.

Scores: `accuracy` (right answers / answers), `exact` (1 when all answers of the sample are right), `nll` (mean loss
per answer, in nats).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from longeval.tasks.base import DoesNotFit, Sample, Task, TaskOptions
from longeval.tasks.logprob import checked_scores
from longeval.tasks.prompt import Prompter
from longeval.tasks.registry import Suite
from longeval.tasks.rng import sample_rng
from longeval.tasks.state_tracking import a5, flip_flop, mqrar
from longeval.tasks.state_tracking.symbols import SymbolSequence
from longeval.types import TokenScores


class StateTrackingTask(Task):
    """Sequences from `make(rng, units)`: a unit is an instruction or a letter, `smallest` the fewest of them."""

    suite = "state_tracking"
    kind = "logprob"
    version = "1"
    metric = "accuracy"
    count = 100

    def __init__(
        self,
        short_name: str,
        options: TaskOptions,
        *,
        category: str,
        lengths: tuple[int, ...],
        make: Callable[[random.Random, int], SymbolSequence],
        smallest: int,
    ) -> None:
        super().__init__(short_name, options)
        self.category = category
        self.lengths = lengths
        self._make = make
        self._smallest = smallest

    def build(
        self, tokenizer: Any, length: int, count: int | None = None, seed: int = 0, *, chat: bool = False
    ) -> list[Sample]:
        """`meta`: `units`, and `targets`, for every answer the half-open range of its tokens in `ids`.

        `references`: the answers, joined. `chat` changes nothing: sequences are no turns.
        """
        return self.build_range(tokenizer, length, range(self.count if count is None else count), seed)

    def build_range(
        self, tokenizer: Any, length: int, indices: range, seed: int = 0, *, chat: bool = False
    ) -> list[Sample]:
        prompter = Prompter(tokenizer, chat=False)
        return [self._sample(prompter, length, f"{self.name}/{length}/{seed}/{index}") for index in indices]

    def _sample(self, prompter: Prompter, length: int, sample_id: str) -> Sample:
        """The longest sequence of at most `length` tokens, BOS included. Raises DoesNotFit when there is none.

        Regula falsi on the number of units: tokens grow with it, nearly in proportion.
        """

        def make(units: int) -> Sample:
            return self._sequence(prompter, length, sample_id, units)

        best, fitting = make(self._smallest), self._smallest
        if len(best.ids) > length:
            raise DoesNotFit(len(best.ids))
        too_many = self._smallest + length  # a unit is at least a token
        excess = len(make(too_many).ids) - length
        while too_many - fitting > 1:
            room = length - len(best.ids)
            units = fitting + room * (too_many - fitting) // (room + excess)
            sample = make(units := min(max(units, fitting + 1), too_many - 1))
            if len(sample.ids) <= length:
                best, fitting = sample, units
            else:
                too_many, excess = units, len(sample.ids) - length
        return best

    def _sequence(self, prompter: Prompter, length: int, sample_id: str, units: int) -> Sample:
        sequence = self._make(sample_rng(sample_id), units)
        bare, ranges = sequence.tokenized(prompter.tokenizer)
        ids = prompter.with_bos(bare)
        shift = len(ids) - len(bare)
        return Sample(
            id=sample_id,
            task=self.name,
            length=length,
            prompt=sequence.text,
            ids=ids,
            references=["".join(sequence.answers)],
            meta={"units": units, "targets": [[first + shift, last + shift] for first, last in ranges]},
        )

    def score(self, prediction: str | TokenScores, sample: Sample) -> dict[str, float]:
        """Over the sample's answers, see the module."""
        scores = checked_scores(prediction, sample)
        right = [bool(scores.greedy[first - 1 : last - 1].all()) for first, last in sample.meta["targets"]]
        loss = [-float(scores.logprobs[first - 1 : last - 1].sum()) for first, last in sample.meta["targets"]]
        return {
            "accuracy": sum(right) / len(right),
            "exact": float(all(right)),
            "nll": sum(loss) / len(loss),
        }


def _flip_flop(ignore: float) -> Callable[[str, TaskOptions], Task]:
    return partial(
        StateTrackingTask,
        category="flip-flop language",
        lengths=(512, 1024, 2048, 4096),
        make=partial(flip_flop.flip_flop, ignore=ignore),
        smallest=flip_flop.SMALLEST,
    )


def _a5(make: Callable[[random.Random, int], SymbolSequence]) -> Callable[[str, TaskOptions], Task]:
    return partial(
        StateTrackingTask,
        category="A5 word problem",
        lengths=(16, 32, 64, 128, 256),
        make=make,
        smallest=a5.SMALLEST,
    )


def _mqrar(back: int) -> Callable[[str, TaskOptions], Task]:
    return partial(
        StateTrackingTask,
        category="repeated recall",
        lengths=(768, 1536, 3072),
        make=partial(mqrar.mqrar, back=back),
        smallest=mqrar.smallest(back),
    )


SUITE = Suite(
    name="state_tracking",
    title="State tracking",
    tasks={
        "flip_flop": _flip_flop(0.8),
        "flip_flop_sparse": _flip_flop(0.98),
        "flip_flop_dense": _flip_flop(0.1),
        "a5_identity": _a5(a5.a5_identity),
        "a5_product": _a5(a5.a5_product),
        **{f"mqrar_{back}": _mqrar(back) for back in (1, 2, 3, 4)},
    },
    averages=(),
)
