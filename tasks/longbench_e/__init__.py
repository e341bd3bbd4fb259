"""LongBench-E: question answering, summaries, few-shot tasks, code and synthetic retrieval at real lengths.

Paper: LongBench (arXiv 2308.14508). Follows THUDM/LongBench at 2e00731f, LongBench/pred.py and eval.py: prompts, the
middle cut, which datasets see a chat template, stops, first-line rule and metrics (`scorers.py`, with their quirks).

Lengths are buckets. Upstream's go by the words that the data's `length` field counts: under 4000, under 8000, and the
rest; they are called 4000, 8000 and 16000 here after their upper ends (the last is open), and 4096, 8192 and 16384
mean the same. With `--buckets tokens` the same bounds go by tokens of the whole prompt, special tokens included,
before any cut: what the PaTH paper (arXiv 2505.16381, Table 7) probably did. Averages: over the categories' means
(LongBench's own), over all 13 datasets, and over the 11 that the PaTH paper has (`path`); `--first-line all` scores
only the first line of every prediction, as the FoX repository does.

The code datasets have `levenshtein` beside their score: `code_sim_score` is another one where python-Levenshtein is
installed, which LongBench's requirements do not ask for, and published numbers may be either.

Known deviations: `all_classes` of each row is used for that row (upstream takes the last row's of a file; they are all
equal); samsum's generation stops at the text of a newline, not at one newline token, which changes no score as only the
first line counts. The middle cut goes to `--max-length`, by default the trained window less 500 as upstream has it
per model; without either nothing is cut.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from longeval.errors import UserError
from longeval.tasks.base import DoesNotFit, Sample, Task, TaskOptions, checked_text, one_of
from longeval.tasks.corpora import file_hash
from longeval.tasks.longbench_e.data import LONGBENCH, Row, read_rows, source_file
from longeval.tasks.longbench_e.protocol import DATASETS
from longeval.tasks.longbench_e.scorers import first_line
from longeval.tasks.prompt import Prompter
from longeval.tasks.registry import Average, Suite
from longeval.types import TokenScores

_LABELS = {4000: "0–4k", 8000: "4–8k", 16000: "8k+"}
_CALLED = {4096: 4000, 8192: 8000, 16384: 16000} | {length: length for length in _LABELS}


class LongBenchTask(Task):
    """One dataset. The score of a sample is the best over its references."""

    suite = "longbench_e"
    truncates = True
    version = "THUDM/LongBench 2e00731f"
    corpora = (LONGBENCH,)
    lengths = tuple(_LABELS)
    count = 300  # all that a dataset has

    def __init__(self, short_name: str, options: TaskOptions) -> None:
        super().__init__(short_name, options)
        self.dataset = DATASETS[short_name]
        self.metric = self.dataset.metric.__name__
        self.category = self.dataset.category
        self._metrics = [metric for metric in (self.dataset.metric, self.dataset.beside) if metric]
        self.beside = tuple(metric.__name__ for metric in self._metrics[1:])
        self.unit = one_of("buckets", options.buckets, ("words", "tokens"))
        every_first_line = one_of("first-line", options.first_line, ("protocol", "all")) == "all"
        self._first_line = self.dataset.first_line or every_first_line
        self._counted: tuple[Any, list[int]] | None = None
        if options.max_length is not None and options.max_length < 2:
            raise UserError(f"--max-length {options.max_length} leaves nothing of a prompt; it must be at least 2")

    @cached_property
    def _rows(self) -> list[Row]:
        return read_rows(self.short_name, self.options.data_dir)

    def bucket(self, length: int) -> int:
        """The bucket of a sample of `length` words (tokens with `--buckets tokens`)."""
        return 4000 if length < 4000 else 8000 if length < 8000 else 16000

    def length_label(self, length: int) -> str:
        return _LABELS[_CALLED.get(length) or self.bucket(length)]

    def build(
        self, tokenizer: Any, length: int, count: int | None = None, seed: int = 0, *, chat: bool = False
    ) -> list[Sample]:
        """The bucket's samples in file order, fewer than `count` when it has no more; nothing is random.

        `meta`: the row's `_id`, `words` and `all_classes`, `tokens` of its prompt before the cut, `truncated`.
        An empty bucket does not fit.
        """
        if length not in _CALLED:
            raise UserError(f"LongBench-E has no bucket {length}; its lengths are 4k (0–4k), 8k (4–8k) and 16k (8k+)")
        sizes = self._sizes(tokenizer)
        chosen = [row for row, size in zip(self._rows, sizes, strict=True) if self.bucket(size) == _CALLED[length]]
        if not chosen:
            raise DoesNotFit(min(sizes))
        prompter = Prompter(tokenizer, chat and self.dataset.chat)
        prompts = [self._prompt(row) for row in chosen[:count]]
        encoded = prompter.encode(prompts)
        tokens = [len(ids) + _special_tokens(tokenizer) for ids in encoded]
        limit = self.options.max_length
        kept = [
            middle_cut(tokenizer, prompt, limit) if limit is not None and size > limit else prompt
            for prompt, size in zip(prompts, tokens, strict=True)
        ]
        texts = [prompter.text(prompt) for prompt in kept]
        if texts != prompts:
            encoded = prompter.encode(texts)
        return [
            Sample(
                id=f"{self.name}/{length}/{seed}/{index}",
                task=self.name,
                length=length,
                prompt=kept[index],
                ids=prompter.with_bos(encoded[index]),
                references=row.answers,
                max_new_tokens=self.dataset.max_new_tokens,
                min_new_tokens=self.dataset.min_new_tokens,
                stop=self.dataset.stop,
                meta={
                    "_id": row.id,
                    "words": row.words,
                    "tokens": tokens[index],
                    "all_classes": row.classes,
                    "truncated": limit is not None and tokens[index] > limit,
                },
            )
            for index, row in enumerate(chosen[:count])
        ]

    def _prompt(self, row: Row) -> str:
        return self.dataset.prompt.format(context=row.context, input=row.input)

    def _sizes(self, tokenizer: Any) -> list[int]:
        """What the buckets go by, for every row: the file's word counts, or tokens of the whole prompts."""
        if self.unit == "words":
            return [row.words for row in self._rows]
        if self._counted is None or self._counted[0] is not tokenizer:
            counts = Prompter(tokenizer, chat=False).count([self._prompt(row) for row in self._rows])
            self._counted = tokenizer, [count + _special_tokens(tokenizer) for count in counts]
        return self._counted[1]

    def score(self, prediction: str | TokenScores, sample: Sample) -> dict[str, float]:
        """Each metric's best value over the references, under its own name."""
        text = checked_text(prediction, sample)
        text = first_line(text) if self._first_line else text
        classes = sample.meta.get("all_classes")
        return {
            metric.__name__: max((metric(text, reference, classes) for reference in sample.references), default=0.0)
            for metric in self._metrics
        }

    def fingerprint(self) -> dict[str, Any]:
        file = source_file(self.short_name, self.options.data_dir)
        return {"longbench": file_hash(file), "buckets": self.unit, "max_length": self.options.max_length}

    def notes(self) -> list[str]:
        limit = self.options.max_length
        cut = f"prompts of more than {limit:,} tokens lose their middle" if limit else "no prompt is cut"
        return [
            cut,
            *(["only the first line of every prediction is scored"] if self.options.first_line == "all" else []),
        ]


def _special_tokens(tokenizer: Any) -> int:
    """How many special tokens the tokenizer adds to a text: upstream counts them before the cut."""
    return len(tokenizer("a")["input_ids"]) - len(tokenizer("a", add_special_tokens=False)["input_ids"])


def middle_cut(tokenizer: Any, prompt: str, limit: int) -> str:
    """The first and the last `limit // 2` tokens of `prompt` as text, without a mark between them.

    As upstream: special tokens count among the first ones and are left out of the text, an odd `limit` loses one token,
    and encoding the result again can give a few tokens more or less.
    """
    ids = tokenizer(prompt)["input_ids"]
    half = limit // 2
    return "".join(tokenizer.decode(part, skip_special_tokens=True) for part in (ids[:half], ids[-half:]))


_PATH = tuple(name for name in DATASETS if name not in ("passage_count", "passage_retrieval_en"))

SUITE = Suite(
    name="longbench_e",
    title="LongBench-E",
    tasks=dict.fromkeys(DATASETS, LongBenchTask),
    averages=(Average("macro", over="categories"), Average("mean"), Average("path", members=_PATH)),
)
