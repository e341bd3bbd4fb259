"""What the reference checkpoints learn from: short documents of every task, each with the stretches that are answers.

The prompts are those of `tasks`, so that evaluation asks what training taught, about values never seen: everything is
drawn anew per document. To learn from every look-up that a document allows, a phone book or haystack is asked several
times. Text is the Python installation's own prose and sources, without the repositories that evaluation reads, and
stories.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice

from longeval.models.reference.stories import story
from longeval.tasks.perplexity.documents import stdlib_documents
from longeval.tasks.phonebook import ENTRY, full_names
from longeval.tasks.rng import sample_rng
from longeval.tasks.ruler import protocol
from longeval.tasks.ruler.data import stdlib_prose
from longeval.tasks.ruler.niah import singular
from longeval.tasks.ruler.vt import draw_chain
from longeval.tasks.ruler.words import draws, word_list
from longeval.tasks.state_tracking.flip_flop import flip_flop
from longeval.tasks.state_tracking.mqrar import VARIABLES, mqrar, smallest
from longeval.tasks.state_tracking.symbols import SymbolSequence

END = "</s>"
# Evaluation reads the first repositories of the standard library that are long enough; training reads from here on.
FIRST_TRAINED = "j"  # json, keyword, lib2to3, ...
SOURCES = 3_000_000  # characters of it
STORIES = 1_000  # of about 800 characters


@dataclass
class Document:
    """Text under construction. `answers`: half-open ranges of its characters that a model should predict."""

    text: str = ""
    answers: list[tuple[int, int]] = field(default_factory=list)

    def say(self, text: str) -> Document:
        self.text += text
        return self

    def answer(self, text: str) -> Document:
        self.answers.append((len(self.text), len(self.text) + len(text)))
        return self.say(text)


def phone_book(rng: random.Random, entries: int) -> Document:
    """PhoneBook's prompt, with more questions after the first one. The two shots are look-ups already."""
    entries = max(entries, 3)
    names = list(islice(_distinct_names(rng), entries))
    numbers = [str(rng.randrange(6_000_000_000, 10_000_000_000)) for _ in names]
    asked = rng.sample(range(entries), 2 + rng.randint(1, max(1, entries // 2 - 1)))
    document = Document("\n".join(map(_entry, names, numbers)) + "\n\n")
    for place, index in enumerate(asked):
        document.say(f"{names[index]}:").answer(f" {numbers[index]}\n")
        if place == 1:
            document.say("\n")
    return document.answer(END)


def _entry(name: str, number: str) -> str:
    return ENTRY.format(name=name, number=number)


def _distinct_names(rng: random.Random) -> Iterator[str]:
    seen = set()
    for name in full_names(rng):
        if name not in seen:
            seen.add(name)
            yield name


def needles(rng: random.Random, lines: int) -> Document:
    """RULER's needles with words as keys and numbers as values, in noise or among each other, asked one at a time."""
    lines = max(lines, 5)
    questions = rng.choices([1, 2, 4], [50, 25, 25])[0]
    noise = rng.random() < 0.5
    keys = list(islice(draws(rng, "words"), questions if noise else lines))
    values = list(islice(draws(rng, "numbers"), len(keys)))
    hay = [protocol.NEEDLE.format(type_needle_v="numbers", key=k, value=v) for k, v in zip(keys, values, strict=True)]
    if noise:
        hay += [protocol.NOISE] * (lines - questions)
        rng.shuffle(hay)
    context = "\n".join(hay)
    head, question = singular(protocol.NIAH.template).split("{context}")
    document = Document(head.format(type_needle_v="number") + context)
    for index in rng.sample(range(len(keys)), questions):
        about = {"type_needle_v": "number", "query": keys[index]}
        document.say((question + singular(protocol.NIAH.answer_prefix)).format(**about)).answer(f" {values[index]}.")
    return document.answer(END)


def chain(rng: random.Random, lines: int) -> Document:
    """RULER's variable tracking without its worked example, which alone is nearly as long as a training sequence."""
    made = draw_chain(rng, protocol.VT_NAME_LENGTH)
    lines = max(lines, len(made.names))
    places = sorted(rng.sample(range(lines), len(made.names)))
    document = Document(made.prompt(places, lines) + made.answer_prefix().rstrip())
    return document.answer(f" {' '.join(made.names)}{END}")


def memory(rng: random.Random, pairs: int) -> Document:
    """The flip-flop language at the papers' p = 0.8."""
    return _symbols(flip_flop(rng, max(pairs, 2), ignore=0.8))


def recall(rng: random.Random, steps: int) -> Document:
    """Repeated recall of a variable's last value, or of the one before it; of few variables where all have no room."""
    variables = VARIABLES if steps >= smallest(1) else rng.sample(VARIABLES, max(2, steps // 3))
    back = 2 if steps > smallest(2) and rng.random() < 0.5 else 1
    return _symbols(mqrar(rng, max(steps, smallest(back, variables)), back, variables))


def _symbols(sequence: SymbolSequence) -> Document:
    document, targets = Document(), set(sequence.targets)
    for index, symbol in enumerate(sequence.symbols):
        spaced = f" {symbol}" if index else symbol
        (document.answer if index in targets else document.say)(spaced)
    return document.say(END)


def copy(rng: random.Random, words: int) -> Document:
    """A list of words or of letters, twice."""
    drawn = rng.choices(word_list() if rng.random() < 0.5 else list(string.ascii_uppercase), k=max(words, 2))
    text = " ".join(drawn)
    return Document(f"Copy: {text}\nCopy:").answer(f" {text}{END}")


TEXT_SHARES = (20, 60, 20)  # of `texts`, in percent


@lru_cache(maxsize=1)
def texts() -> tuple[str, str, str]:
    """Python's prose, sources of its standard library from FIRST_TRAINED on, and stories."""
    parts = (part for doc in stdlib_documents() if doc.name >= FIRST_TRAINED for part in doc.parts)
    rng = sample_rng("reference/stories")
    return stdlib_prose(), "\n\n".join(parts)[:SOURCES], "\n\n".join(story(rng) for _ in range(STORIES))


@dataclass(frozen=True)
class Kind:
    """One kind of document. `share`: of all documents that are no text, in percent. `unit`, `rest`: about how many
    tokens a unit (an entry, line, pair, step, word) has, and what stands beside them. `smallest`: room that it needs.
    """

    make: Callable[[random.Random, int], Document]
    share: float
    unit: float
    rest: int
    smallest: int = 0


KINDS: dict[str, Kind] = {
    "phone book": Kind(phone_book, 36, unit=23, rest=32, smallest=128),
    "needles": Kind(needles, 26, unit=25, rest=110, smallest=256),
    "chain": Kind(chain, 4, unit=27, rest=130, smallest=512),
    "flip-flop": Kind(memory, 9, unit=2, rest=2),
    "recall": Kind(recall, 17, unit=2.5, rest=2),
    "copy": Kind(copy, 8, unit=4, rest=8),
}
