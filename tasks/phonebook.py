"""PhoneBook: dense key-value retrieval, where every line of the context is a possible answer.

Paper: "Repeat After Me" (arXiv 2402.01032); at 2K, 4K and 8K tokens also in the PaTH paper (arXiv 2505.16381). Follows
sjelassi/transformers_ssm_copy at 1188c479 (pretrained_exps/data_utils.py, test_utils.py): names drawn by the census
frequencies of the package `names`, 10-digit numbers, three distinct entries of which two are shots and one is the
query, no instruction, no space after the last colon, never a chat template; what stands before the first newline must
equal the number.

A length is in tokens of the tested tokenizer, BOS and 50 new tokens included (upstream's size is a number of entries,
and how the PaTH paper maps tokens to entries is not established). All samples of a length have the same number of
entries: the largest with which the first 96 samples fit (with the tokenizer of Mistral-7B v0.1 110 at 2048 tokens, 227
at 4096 and 461 at 8192). A later sample that does not fit is drawn again.

Known deviations: names are distinct within a book; each sample has its own random numbers; generation ends at the
newline after which nothing is read; special tokens are removed before comparing, which `--strict` leaves out as
upstream does (there an end-of-text right after a correct number makes it wrong).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from longeval.tasks.base import DoesNotFit, Sample, Task, TaskOptions, checked_text
from longeval.tasks.fitting import piece_costs
from longeval.tasks.prompt import Prompter
from longeval.tasks.registry import Suite
from longeval.tasks.rng import sample_rng
from longeval.types import TokenScores

ENTRY = "{name}: {number}"
SHOTS = "\n\n{entry_a}\n{entry_b}\n\n"
QUERY = "{name}:"
NEW_TOKENS = 50
SAMPLES = 96
SMALLEST = 3  # two shots and a query
_BLOCK = 64  # entries counted at a time


@lru_cache(maxsize=1)
def _census() -> tuple[tuple[list[str], list[float]], ...]:
    """Male and female first names, last names: each with its cumulative frequencies in percent of the population."""
    import names

    tables = []
    for key in ("first:male", "first:female", "last"):
        with open(names.FILES[key], encoding="ascii") as lines:
            fields = [line.split() for line in lines]
        tables.append(([row[0].capitalize() for row in fields], [float(row[2]) for row in fields]))
    return tuple(tables)


def full_names(rng: Any) -> Iterator[str]:
    """`names.get_full_name()` again and again, drawn from `rng` in the package's order of draws."""
    male, female, last = _census()

    def draw(table: tuple[list[str], list[float]]) -> str:
        return table[0][bisect_right(table[1], rng.random() * 90)]  # the most frequent 90 % of the population

    while True:
        yield f"{draw(rng.choice((male, female)))} {draw(last)}"


class Book:
    """A sample's phone book while its size is open: entries come one by one, the three chosen ones anew per size."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._draws = self._draw()
        self._numbers: list[str] = []
        self._queries: list[str] = []
        self._lines: list[str] = []

    def _draw(self) -> Iterator[tuple[str, str]]:
        rng = sample_rng(f"{self.name}/entries")
        seen = set()
        for name in full_names(rng):
            if name not in seen:
                seen.add(name)
                yield name, str(rng.randrange(6_000_000_000, 10_000_000_000))

    def lines(self, size: int) -> list[str]:
        """The first `size` entries as the prompt has them."""
        for name, number in islice(self._draws, max(0, size - len(self._lines))):
            self._queries.append(QUERY.format(name=name))
            self._numbers.append(number)
            self._lines.append(ENTRY.format(name=name, number=number))
        return self._lines[:size]

    def chosen(self, size: int) -> list[int]:
        """Which entries of the first `size` are the two shots and the query."""
        return sample_rng(f"{self.name}/chosen/{size}").sample(range(size), 3)

    def prompt(self, size: int) -> str:
        """The whole prompt with `size` entries."""
        lines = self.lines(size)
        first, second, query = self.chosen(size)
        return "\n".join(lines) + SHOTS.format(entry_a=lines[first], entry_b=lines[second]) + self._queries[query]

    def number(self, entry: int) -> str:
        """The number of an entry that `lines` has drawn."""
        return self._numbers[entry]


class PhoneBookTask(Task):
    """The lookup of Jelassi et al."""

    suite = "phonebook"
    version = "sjelassi/transformers_ssm_copy 1188c479"
    metric = "accuracy"
    category = "retrieval"
    lengths = (2048, 4096, 8192)
    count = SAMPLES

    def __init__(self, short_name: str, options: TaskOptions) -> None:
        super().__init__(short_name, options)
        self.keep_special_tokens = options.strict

    def build(
        self, tokenizer: Any, length: int, count: int | None = None, seed: int = 0, *, chat: bool = False
    ) -> list[Sample]:
        """See Task.build. `meta`: `entries` in the book, `query_entry` and `shot_entries` counted from 0, `depths` of
        the query in percent of the book. `chat` changes nothing: the protocol has no chat template."""
        prompter = Prompter(tokenizer, chat=False)
        cell = f"{self.name}/{length}/{seed}"
        budget = length - NEW_TOKENS - (prompter.bos is not None)
        wanted = self.count if count is None else count
        books = [Book(f"{cell}/{index}") for index in range(max(wanted, SAMPLES))]
        size = entries_that_fit(prompter, books[:SAMPLES], budget)
        return [
            self._sample(f"{cell}/{index}", length, size, book, prompter.with_bos(ids))
            for index, (book, ids) in enumerate(_fitting(prompter, books[:wanted], size, budget))
        ]

    def _sample(self, name: str, length: int, size: int, book: Book, ids: tuple[int, ...]) -> Sample:
        *shots, query = book.chosen(size)
        return Sample(
            id=name,
            task=self.name,
            length=length,
            prompt=book.prompt(size),
            ids=ids,
            references=[book.number(query)],
            max_new_tokens=NEW_TOKENS,
            stop=("\n",),
            meta={
                "entries": size,
                "query_entry": query,
                "shot_entries": shots,
                "depths": [round(100 * query / size, 2)],
            },
        )

    def score(self, prediction: str | TokenScores, sample: Sample) -> dict[str, float]:
        """1 if the text before the first newline, stripped, is the number, else 0."""
        answer = checked_text(prediction, sample).split("\n")[0].strip()
        return {self.metric: float(answer in sample.references)}

    def cell_note(self, samples: Sequence[Sample]) -> str:
        return f"{samples[0].meta['entries']} entries"

    def notes(self) -> list[str]:
        return ["strict: special tokens kept, an end-of-text after the number is wrong"] if self.options.strict else []


def entries_that_fit(prompter: Prompter, books: Sequence[Book], budget: int) -> int:
    """The largest number of entries with which the prompt of every book has at most `budget` tokens, BOS not counted.

    Sums of the entries' tokens say where to look; whole prompts prove that the size fits and the next one does not.
    """
    smallest = max(len(ids) for ids in prompter.encode([book.prompt(SMALLEST) for book in books]))
    if smallest > budget:
        raise DoesNotFit(smallest + NEW_TOKENS + (prompter.bos is not None))
    size, doubtful = _expected_size(prompter, books, budget, smallest)
    while size > SMALLEST and not _fits(prompter, doubtful, size, budget):
        size -= 1
    while _fits(prompter, doubtful, size + 1, budget):
        size += 1
    return size


def _expected_size(prompter: Prompter, books: Sequence[Book], budget: int, smallest: int) -> tuple[int, list[Book]]:
    """The size that should fit by the sums of the entries' tokens, and the books, longest prompt first.

    `smallest`: tokens of the longest prompt of SMALLEST entries, which shows what a prompt has beside its entries.
    """
    costs = piece_costs(prompter, after="0")
    tokens = np.zeros((len(books), 0), np.int64)  # of every entry with the newline before it
    while tokens.sum(axis=1).max() <= budget:
        known = tokens.shape[1]
        lines = [f"\n{line}" for book in books for line in book.lines(known + _BLOCK)[known:]]
        tokens = np.hstack([tokens, np.maximum(costs.once(lines), 1).reshape(len(books), _BLOCK)])
    totals = tokens.cumsum(axis=1)

    def prompts(size: int) -> npt.NDArray[np.int64]:
        chosen = np.array([book.chosen(size) for book in books])
        sums: npt.NDArray[np.int64] = totals[:, size - 1] + np.take_along_axis(tokens, chosen, axis=1).sum(axis=1)
        return sums

    beside = smallest - int(prompts(SMALLEST).max())
    size = max(SMALLEST, int(np.searchsorted(totals.max(axis=0), budget, side="right")))
    while size > SMALLEST and prompts(size).max() + beside > budget:
        size -= 1
    return size, [books[index] for index in np.argsort(-prompts(size))]


def _fits(prompter: Prompter, books: Sequence[Book], size: int, budget: int) -> bool:
    """Whether every prompt of `size` entries fits; the first books are the likeliest not to, and are tried first."""
    for some in (books[:8], books[8:]):
        if any(tokens > budget for tokens in prompter.count([book.prompt(size) for book in some])):
            return False
    return True


def _fitting(prompter: Prompter, books: Sequence[Book], size: int, budget: int) -> Iterator[tuple[Book, list[int]]]:
    """Each book with the tokens of its prompt of `size` entries, drawn again where they are too many."""
    encoded = prompter.encode([book.prompt(size) for book in books])
    for book, ids in zip(books, encoded, strict=True):
        while len(ids) > budget:
            book = Book(f"{book.name}/again")
            ids = prompter.encode([book.prompt(size)])[0]
        yield book, ids


SUITE = Suite(name="phonebook", title="PhoneBook", tasks={"lookup": PhoneBookTask})
