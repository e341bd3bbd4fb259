"""BABILONG: reasoning over the facts of a bAbI story that are scattered in book text (qa1 to qa5).

Paper: arXiv 2406.10149. Follows booydar/babilong at 7a6efee2: prompt (babilong/prompts.py, with switches for its
parts), 20 new tokens, chat models through their template, and the label rule as the score (babilong/metrics.py);
`substring` beside it is lm-evaluation-harness's rule, since published numbers use either.

Lengths are nominal: GPT-2 tokens of context and 300 more, while the prompt around the context adds several hundred, so
a model's own count differs. 4k is 4000 here, and a length of 4096 tokens means the same. Samples (`--babilong-data`):
- `auto` (default): the published set of 100 per task and length, which has every length and which the PaTH paper's
  numbers fit; where neither this machine nor the hub has it, and for other lengths, an own build.
- `1k`: about 1000 per task up to 32k and the set of 100 beyond, as upstream's run scripts; `100`: only that set.
- `own`: only own builds (`own.py`), marked as such in the manifest and under the tables.

Accuracies are averaged per task first and then over tasks: counts differ (999, 998, 862 ...). Upstream's leaderboard
takes each task's best of several prompt configurations; nothing is best-of here. Known deviation: a model served
through upstream's API path got 16 new tokens, here it is 20 everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from longeval.tasks.babilong import hub, protocol
from longeval.tasks.babilong.counting import GPT2
from longeval.tasks.babilong.hub import check_target
from longeval.tasks.babilong.scoring import label_match, substring_match
from longeval.tasks.babilong.source import OWN_BUILD, Source
from longeval.tasks.babilong.stories import BABI
from longeval.tasks.base import DataStatus, Sample, Task, TaskOptions, checked_text, one_of
from longeval.tasks.perplexity.hub import KJV, PG19
from longeval.tasks.prompt import Prompter
from longeval.tasks.registry import Suite
from longeval.types import TokenScores


def nominal_length(length: int) -> int:
    """The length in BABILONG's names: 4096 and 4000 are both 4k."""
    if length % 1000 == 0:
        return length
    if length % 1024**2 == 0:
        return length // 1024**2 * 1_000_000
    return length // 1024 * 1000 if length % 1024 == 0 else length


class BabilongTask(Task):
    """One task. Scores: `accuracy` by the label rule, `substring`."""

    suite = "babilong"
    unit = "nominal tokens"
    beside = ("substring",)
    version = "booydar/babilong 7a6efee2"
    corpora = (hub.HUNDRED, hub.THOUSAND, BABI, PG19, KJV, GPT2)
    metric = "accuracy"
    category = "babilong"
    lengths = (0, 1000, 2000, 4000, 8000, 16000, 32000, 64000)

    def __init__(self, short_name: str, options: TaskOptions) -> None:
        super().__init__(short_name, options)
        self.wording = protocol.TASKS[short_name]
        self.source = Source(short_name, options)
        self.count = 1000 if options.babilong_data == "1k" else 100
        named = [part.strip() for part in options.babilong_parts.split(",")]
        self.parts = [] if named == ["none"] else [one_of("babilong-parts", part, protocol.PARTS) for part in named]

    def length_label(self, length: int) -> str:
        nominal = nominal_length(length)
        if nominal in protocol.OFFICIAL_LENGTHS:
            return protocol.OFFICIAL_LENGTHS[nominal]
        return f"{nominal // 1000}k" if nominal % 1000 == 0 else str(nominal)

    def bucket(self, length: int) -> int:
        return nominal_length(length)

    def build(
        self, tokenizer: Any, length: int, count: int | None = None, seed: int = 0, *, chat: bool = False
    ) -> list[Sample]:
        """See Task.build; fewer samples than `count` where there are no more. `meta`: `question`, `data` (the published
        set and a hash of its rows, or "own build") and, for own builds, `budget` in tokens, numbers of `facts` and
        background `sentences`, `depths` of the supporting facts in percent, and the numbers of dropped stories."""
        wanted = self.count if count is None else count
        found = self.source.questions(nominal_length(length), wanted, seed, tokenizer)
        prompter = Prompter(tokenizer, chat)
        prompts = [self.wording.prompt(question.context, question.question, self.parts) for question, _ in found]
        encoded = prompter.encode([prompter.text(prompt) for prompt in prompts])
        return [
            Sample(
                id=f"{self.name}/{length}/{seed}/{index}",
                task=self.name,
                length=length,
                prompt=prompts[index],
                ids=prompter.with_bos(encoded[index]),
                references=[question.target],
                max_new_tokens=protocol.NEW_TOKENS,
                meta={"question": question.question, **meta},
            )
            for index, (question, meta) in enumerate(found)
        ]

    def score(self, prediction: str | TokenScores, sample: Sample) -> dict[str, float]:
        """Both are 1 or 0. UserError when the row has no question or its first reference is none of the answers."""
        text, question, target = checked_text(prediction, sample), sample.text("question"), sample.references[0]
        check_target(target, self.short_name, self.name)
        return {
            "accuracy": float(label_match(text, target, question, self.wording.labels)),
            "substring": float(substring_match(text, target)),
        }

    def data_status(self) -> DataStatus:
        return self.source.status()

    def fingerprint(self) -> dict[str, Any]:
        return {"parts": self.parts, **self.source.fingerprint()}

    def cell_note(self, samples: Sequence[Sample]) -> str | None:
        """What was dropped for own builds, and that they are some where other lengths are not."""
        meta = samples[0].meta
        if meta["data"] != OWN_BUILD:
            return None
        whys = {"dropped_long": "lines", "dropped_over_budget": "tokens"}
        dropped = ", ".join(f"{meta[name]} of too many {why}" for name, why in whys.items() if meta.get(name))
        parts = [] if self.source.note() else ["own build"]
        return "; ".join([*parts, *([f"stories left out: {dropped}"] if dropped else [])]) or None

    def notes(self) -> list[str]:
        left_out = [part for part in protocol.PARTS if part not in self.parts]
        lines = [f"prompt without {', '.join(left_out)}"] if left_out else []
        return [*lines, *filter(None, [self.source.note()])]


SUITE = Suite(name="babilong", title="BABILONG", tasks=dict.fromkeys(protocol.TASKS, BabilongTask))
