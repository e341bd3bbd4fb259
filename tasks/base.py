"""Sample, Task and TaskOptions: the contract between benchmarks and the run loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from longeval.errors import UserError, nearest
from longeval.tasks.corpora import Corpus
from longeval.types import TokenScores


@dataclass(frozen=True)
class Shot:
    """An in-context exchange before the question: `prompt` is a user turn, `answer` what the assistant wrote."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class Sample:
    """One question to a model.

    `id`: suite/task/length/seed/index, stable. `prompt`: the user turn before any chat template.
    `answer_prefix`: text after the chat template's assistant header, verbatim. `shots`: earlier exchanges.
    `ids`: exactly the token ids a run sends (BOS, chat template, shots and answer prefix included); for a
    logprob sample the whole scored sequence. `references`: accepted answers. `length`: nominal, in the task's unit.
    `meta`: JSON-able facts for scoring and analysis (depths, `all_classes`, `question`, truncated, ...).
    """

    id: str
    task: str
    length: int
    prompt: str
    ids: tuple[int, ...]
    references: list[str] = field(default_factory=list)
    answer_prefix: str = ""
    shots: tuple[Shot, ...] = ()
    max_new_tokens: int = 0
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    meta: dict[str, Any] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """`meta[name]`; UserError naming the field when a predictions row came without it or with no text in it."""
        value = self.meta.get(name)
        if value is None:
            raise UserError(f"{self.task} is scored with the field {name!r}, which is missing; add it to the row")
        if not isinstance(value, str):
            raise UserError(f"{self.task}: the field {name!r} must be a string, not {value!r}")
        return value


def _option(default: Any, help: str) -> Any:
    """A field of TaskOptions (a real one, whatever RUF009 makes of the call) with the help of its option."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class TaskOptions:
    """What a user may set about tasks; each field is a command-line option of the same name, `help` its text."""

    data_dir: Path | None = _option(  # noqa: RUF009
        None, "Folder where corpora are looked for first (for LongBench-E also data.zip itself)."
    )
    haystack: str = _option(
        "essay",
        "Prose around RULER's needles: essay (the protocol), or stdlib (the Python installation's own prose, "
        "no download, not comparable).",
    )
    corpus: Path | None = _option(  # noqa: RUF009
        None, "Documents for perplexity/text: a .txt or .jsonl file, or a folder of them."
    )
    max_length: int | None = _option(
        None,
        "Most prompt tokens. LongBench-E cuts its middle to this (default: trained window less 500, if above 1,000); "
        "for other suites see --overflow.",
    )
    babilong_data: str = _option(
        "auto",
        "BABILONG's samples: 100 (RMT-team/babilong), 1k (babilong-1k-samples up to 32k, 100 beyond, as upstream's "
        "scripts), own (built from bAbI stories and books), or auto: 100, and own where there are none.",
    )
    babilong_parts: str = _option(
        "instruction,examples,post_prompt",
        "Parts of BABILONG's prompt, comma-separated (none: the bare context and question).",
    )
    books: str = _option(
        "pg19",
        "Background of BABILONG's own build: pg19 (the protocol), kjv, stdlib, or a text file or folder, looked for "
        "in --data-dir first.",
    )
    buckets: str = _option("words", "LongBench-E's buckets: words (the protocol), or tokens of the whole prompt.")
    first_line: str = _option(
        "protocol",
        "LongBench-E predictions cut to their first line before scoring: protocol (trec, triviaqa, samsum) or all.",
    )
    strict: bool = _option(False, "PhoneBook: upstream's comparison, special tokens kept (an end-of-text is wrong).")

    def __post_init__(self) -> None:
        place = self.data_dir
        if place is not None and not (place.is_dir() or (place.is_file() and place.suffix == ".zip")):
            raise UserError(f"--data-dir {place} is no folder or zip file; name the one that holds the corpora")


def one_of(option: str, value: str, allowed: Iterable[str]) -> str:
    """`value` of a command-line option when it is allowed; UserError with the nearest ones otherwise."""
    if value not in allowed:
        raise UserError(f"--{option} {value!r} is not known{nearest(value, allowed)}")
    return value


def checked_text(prediction: str | TokenScores, sample: Sample) -> str:
    """`prediction` as generated text; token scores are an error of the caller, not of a model."""
    if not isinstance(prediction, str):
        raise UserError(f"{sample.task} is scored from generated text, not from token log-probabilities")
    return prediction


class DoesNotFit(Exception):
    """The length is below the task's smallest sample: shown as "does not fit", not an error of the run."""

    def __init__(self, smallest: int) -> None:
        super().__init__(f"needs at least {smallest} tokens")
        self.smallest = smallest


@dataclass(frozen=True)
class DataStatus:
    """Where a task's data comes from; `problem` says how to get it when this machine cannot bring it by itself.

    `fetched`: whether a run would download a part of it first.
    """

    source: str
    problem: str | None = None
    fetched: bool = False

    @property
    def at_hand(self) -> str:
        """yes, from the hub, or no and what to do."""
        return f"no: {self.problem}" if self.problem else "from the hub" if self.fetched else "yes"


class Task(ABC):
    """One benchmark task. Class attributes describe it; `build` makes samples and `score` judges predictions.

    `kind`: "generate" or "logprob". `unit`: of lengths, as tables print it. `lengths`, `count`: the defaults.
    `metric`: name of the headline score. `percent`: whether it lies in [0, 1] and is shown times 100 (a loss is not).
    `beside`: names of further scores that tables show in rows of their own.
    `truncates`: whether the protocol itself cuts prompts to `options.max_length`.
    `keep_special_tokens`: whether the prediction to score has the special tokens that the model wrote.
    `version`: protocol version, part of every cache key and manifest.
    `corpora`: the texts it reads; from them follow `data_status`, `fingerprint` and the list of `longeval data`.
    """

    suite: ClassVar[str]
    kind: ClassVar[Literal["generate", "logprob"]] = "generate"
    unit: str = "tokens"
    percent: ClassVar[bool] = True
    beside: tuple[str, ...] = ()
    truncates: ClassVar[bool] = False
    keep_special_tokens: bool = False
    version: ClassVar[str]
    corpora: tuple[Corpus, ...] = ()
    metric: str
    category: str
    lengths: tuple[int, ...]
    count: int

    def __init__(self, short_name: str, options: TaskOptions) -> None:
        self.short_name = short_name
        self.name = f"{self.suite}/{short_name}"
        self.options = options

    @abstractmethod
    def build(
        self, tokenizer: Any, length: int, count: int | None = None, seed: int = 0, *, chat: bool = False
    ) -> list[Sample]:
        """`count` samples of `length`, deterministic in the arguments and the task's options.

        Sample i does not depend on `count`. Raises DoesNotFit when the length is too small for the task and
        UserError when its data is missing or broken.
        """

    def build_range(
        self, tokenizer: Any, length: int, indices: range, seed: int = 0, *, chat: bool = False
    ) -> list[Sample]:
        """Samples `indices` of `build`, with which the cache extends a cell. Override where earlier ones cost time."""
        return self.build(tokenizer, length, indices.stop, seed, chat=chat)[indices.start :]

    @abstractmethod
    def score(self, prediction: str | TokenScores, sample: Sample) -> dict[str, float]:
        """Named scores; the first is the headline, in [0, 1] for generation tasks. Never raises on any text."""

    def data_status(self) -> DataStatus:
        """Where the data comes from and whether it is at hand."""
        if not self.corpora:
            return DataStatus("generated")
        data_dir = self.options.data_dir
        sources = ", ".join(corpus.source(data_dir) for corpus in self.corpora)
        absent = [corpus for corpus in self.corpora if corpus.locate(data_dir) is None]
        missing = [corpus for corpus in absent if not corpus.reachable()]
        problem = "; ".join(f"{corpus.name} not found: {corpus.remedy()}" for corpus in missing)
        return DataStatus(sources, problem or None, fetched=bool(absent))

    def fingerprint(self) -> dict[str, Any]:
        """Everything beside tokenizer, length, count and seed that decides the samples (corpus hashes, options)."""
        return {corpus.name: corpus.digest(self.options.data_dir) for corpus in self.corpora}

    def notes(self) -> list[str]:
        """Lines that belong under every table of this task's scores ("own build", "not comparable: ...")."""
        return []

    def cell_note(self, samples: Sequence[Sample]) -> str | None:
        """What to say under the tables of these samples, which are all of one length."""
        return None

    def bucket(self, length: int) -> int:
        """The table column of a predictions row whose `length` field is `length`."""
        return length

    def length_label(self, length: int) -> str:
        """How tables name a length."""
        return f"{length // 1024}k" if length % 1024 == 0 else str(length)
