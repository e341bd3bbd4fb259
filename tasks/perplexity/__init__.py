"""Perplexity by position: does the loss keep falling, stay flat or blow up as the position passes the trained length?

Papers: FoX (arXiv 2503.02130), whose evaluation is followed, and PaTH (arXiv 2505.16381, Figure 3) for the corpora
PG-19, CodeParrot and NarrativeQA. A document is one sequence: the BOS where the tokenizer has one, then its first
`length` tokens, in one forward pass; no sliding window, no concatenation of documents. The loss at position i (1 ...
`length`) is that of the document's i-th token given the BOS and the i - 1 tokens before it. Without a BOS the first
token has no loss, and positions begin at 2. Documents of fewer tokens are left out, so that every position averages
over the same documents, and counted. Averages and curves over positions are made from the stored losses in `results`.

Not established by the PaTH paper, and chosen here: splits, selection (the first documents that reach the length, in
the corpus's order; the seed changes nothing) and the joining of code. `bits_per_byte` is beside the loss because
losses of different tokenizers are not comparable.
"""

from __future__ import annotations

import hashlib
import math
import platform
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from longeval.errors import UserError
from longeval.tasks.base import DataStatus, DoesNotFit, Sample, Task, TaskOptions
from longeval.tasks.corpora import Corpus, file_hash
from longeval.tasks.logprob import checked_scores
from longeval.tasks.perplexity import documents, hub
from longeval.tasks.perplexity.documents import Document
from longeval.tasks.perplexity.prefix import Prefix, document_prefix
from longeval.tasks.prompt import shared_ids
from longeval.tasks.registry import Suite
from longeval.types import TokenScores

_SMALLEST = 3  # fewer may be no text: a word start or an unscored first token, and the end of a file


class PerplexityTask(Task):
    """Losses of a corpus's documents. Scores: `nll` (mean natural-log loss per token), `bits_per_byte`."""

    suite = "perplexity"
    kind = "logprob"
    percent = False
    version = "1"
    metric = "nll"
    category = "documents"
    lengths = (65536,)
    count = 100

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """The corpus's documents in their order. UserError when it is missing or broken."""

    def build(
        self, tokenizer: Any, length: int, count: int | None = None, seed: int = 0, *, chat: bool = False
    ) -> list[Sample]:
        """The first `count` documents (fewer when the corpus has no more) that reach `length` tokens.

        `meta`: `document` its name, `first_position` 1 or 2, `bytes` of its scored tokens, `left_out` how many
        documents were too short up to the next one that is not. `chat` changes nothing: documents are no turns.
        """
        bos = getattr(tokenizer, "bos_token_id", None)
        if length < _SMALLEST:
            raise DoesNotFit(_SMALLEST)
        found = list(islice(self._reaching(tokenizer, length), self.count if count is None else count))
        if not found:
            raise UserError(
                f"{self.name}: no document of the corpus reaches {length:,} tokens; choose shorter --lengths"
            )
        return [
            Sample(
                id=f"{self.name}/{length}/{seed}/{index}",
                task=self.name,
                length=length,
                prompt=prefix.text,
                ids=shared_ids(prefix.ids if bos is None else [bos, *prefix.ids]),
                meta={
                    "document": name,
                    "first_position": 2 if bos is None else 1,
                    "bytes": prefix.bytes - (prefix.first_bytes if bos is None else 0),
                    "left_out": left_out,
                },
            )
            for index, (name, prefix, left_out) in enumerate(found)
        ]

    def _reaching(self, tokenizer: Any, length: int) -> Iterator[tuple[str, Prefix, int]]:
        """Long enough documents, each with the number of too short ones met up to the next long enough one.

        Reading that far ahead makes the last document's number right at the end of the corpus, whatever `count` is.
        """
        held: tuple[str, Prefix] | None = None
        left_out = 0
        for document in self.documents():
            prefix = document_prefix(tokenizer, document, length)
            if prefix is None:
                left_out += 1
                continue
            if held is not None:
                yield *held, left_out
            held = document.name, prefix
        if held is not None:
            yield *held, left_out

    def score(self, prediction: str | TokenScores, sample: Sample) -> dict[str, float]:
        """Mean loss over the scored tokens in nats, and the sum in bits over the bytes of exactly those tokens."""
        total = -math.fsum(checked_scores(prediction, sample).logprobs.tolist())
        return {
            "nll": total / (len(sample.ids) - 1),
            "bits_per_byte": total / math.log(2) / sample.meta["bytes"],
        }


class CorpusTask(PerplexityTask):
    """Documents of a named corpus, read by `reader`."""

    def __init__(
        self, short_name: str, options: TaskOptions, corpus: Corpus, reader: Callable[[Path], Iterator[Document]]
    ) -> None:
        super().__init__(short_name, options)
        self.corpora = (corpus,)
        self._reader = reader

    def documents(self) -> Iterator[Document]:
        return self._reader(self.corpora[0].require(self.options.data_dir))


class CodeTask(CorpusTask):
    """CodeParrot: the files of one repository joined in path order, repositories that reach the length."""

    def notes(self) -> list[str]:
        path = self.corpora[0].locate(self.options.data_dir)
        if path is None or documents.has_repositories(path):
            return []
        return [f"{self.name}: the corpus names no repositories, so its files are joined in dataset order"]


class TextTask(PerplexityTask):
    """A user's own documents: `--corpus` names a `.txt` or `.jsonl` file or a folder of them."""

    def _problem(self) -> str | None:
        path = self.options.corpus
        if path is None:
            return "--corpus is missing: a .txt or .jsonl file, or a folder of them"
        return None if path.exists() else f"--corpus {path} does not exist"

    def _path(self) -> Path:
        if self.options.corpus is None or self._problem():
            raise UserError(f"{self.name}: {self._problem()}")
        return self.options.corpus

    def documents(self) -> Iterator[Document]:
        return documents.text_documents(self._path())

    def data_status(self) -> DataStatus:
        return DataStatus(f"--corpus {self.options.corpus or ''}".strip(), self._problem())

    def fingerprint(self) -> dict[str, Any]:
        return {"corpus": file_hash(self._path())}


class StdlibTask(PerplexityTask):
    """The Python installation's own sources: code without a download."""

    def documents(self) -> Iterator[Document]:
        return documents.stdlib_documents()

    def data_status(self) -> DataStatus:
        return DataStatus(f"sources of Python {platform.python_version()} (PSF licence)")

    @cached_property
    def _hash(self) -> str:
        digest = hashlib.sha256()
        for document in self.documents():
            for part in document.parts:
                digest.update(part.encode())
        return digest.hexdigest()[:16]

    def fingerprint(self) -> dict[str, Any]:
        return {"python": platform.python_version(), "corpus": self._hash}

    def notes(self) -> list[str]:
        return [f"{self.name}: sources of Python {platform.python_version()}, comparable only within one version"]


def _stories(path: Path) -> Iterator[Document]:
    return documents.text_documents(path, unique_ids=True)


SUITE = Suite(
    name="perplexity",
    title="Perplexity by position",
    tasks={
        "pg19": lambda name, options: CorpusTask(name, options, hub.PG19, documents.text_documents),
        "codeparrot": lambda name, options: CodeTask(name, options, hub.CODEPARROT, documents.code_documents),
        "narrativeqa": lambda name, options: CorpusTask(name, options, hub.NARRATIVEQA, _stories),
        "stdlib": StdlibTask,
        "kjv": lambda name, options: CorpusTask(name, options, hub.KJV, documents.kjv_documents),
        "text": TextTask,
    },
    averages=(),
    on_request=frozenset({"stdlib", "kjv", "text"}),
)
