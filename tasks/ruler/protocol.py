"""RULER's protocol as data: every string that a model sees and every constant that a score depends on, byte for byte.

Source: NVIDIA/RULER at commit c3f5e3b4f87f (2026-07-22), scripts/synthetic.yaml, scripts/data/synthetic/*.py and
scripts/eval/synthetic/constants.py; Copyright (c) 2024, NVIDIA CORPORATION, Apache License 2.0. Spaces at either end
of a string belong to it. Fields in braces are filled with `str.format`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

VERSION = "NVIDIA/RULER c3f5e3b4f87f, answer prefix kept"
LENGTHS = (4096, 8192, 16384, 32768, 65536, 131072)
# Below this length, vt, cwe and the niah tasks without essays have smaller constants.
SHORT = 4096
# Shuffles of needles, words and documents use a fresh generator with this seed in every sample: the permutation of a
# list depends only on its length, so positions repeat from sample to sample. Kept, because scores depend on it.
SHUFFLE_SEED = 42
# Score of Llama-2-7B-chat at 4K: a longer length counts as effective when its average exceeds it.
EFFECTIVE_THRESHOLD = 0.856

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


@dataclass(frozen=True)
class Protocol:
    """What the tasks of one generator share. `tokens`: most tokens of the answer."""

    template: str
    answer_prefix: str
    tokens: int


# ---- needle in a haystack

NIAH = Protocol(
    template=(
        "Some special magic {type_needle_v} are hidden within the following text. Make sure to memorize it. "
        "I will quiz you about the {type_needle_v} afterwards.\n{context}\n"
        "What are all the special magic {type_needle_v} for {query} mentioned in the provided text?"
    ),
    answer_prefix=" The special magic {type_needle_v} for {query} mentioned in the provided text are",
    tokens=128,
)
NEEDLE = "One of the special magic {type_needle_v} for {key} is: {value}."
# Replaced in this order in template and prefix when one value of one key is asked for.
SINGULAR = (("Some", "A"), ("are all", "is"), ("are", "is"), ("answers", "answer"))
# round(linspace(0, 100, 40)): per cent of an essay haystack's sentences.
DEPTHS = (
    *(0, 3, 5, 8, 10, 13, 15, 18, 21, 23, 26, 28, 31, 33, 36, 38, 41, 44, 46, 49),
    *(51, 54, 56, 59, 62, 64, 67, 69, 72, 74, 77, 79, 82, 85, 87, 90, 92, 95, 97, 100),
)
SMALLEST_WORDS = 500
SMALLEST_LINES = 25
SMALLEST_LINES_SHORT = 5

Values = Literal["words", "numbers", "uuids"]


@dataclass(frozen=True)
class Niah:
    """One needle task: `keys` needles' keys are hidden with `values` values each, and `queries` of them asked for."""

    haystack: Literal["noise", "essay", "needle"]
    key_type: Values = "words"
    value_type: Values = "numbers"
    keys: int = 1
    values: int = 1
    queries: int = 1

    @property
    def single(self) -> bool:
        return self.queries * self.values == 1


NIAH_TASKS = {
    "niah_single_1": Niah("noise"),
    "niah_single_2": Niah("essay"),
    "niah_single_3": Niah("essay", value_type="uuids"),
    "niah_multikey_1": Niah("essay", keys=4),
    "niah_multikey_2": Niah("needle"),
    "niah_multikey_3": Niah("needle", key_type="uuids", value_type="uuids"),
    "niah_multivalue": Niah("essay", values=4),
    "niah_multiquery": Niah("essay", keys=4, queries=4),
}

# ---- variable tracking

VT = Protocol(
    template=(
        "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\n"
        "Question: Find all variables that are assigned the value {query} in the text above."
    ),
    answer_prefix=(
        " Answer: According to the chain(s) of variable assignment in the text above, "
        "{num_v} variables are assigned the value {query}, they are: "
    ),
    tokens=30,
)
VT_FIRST = "VAR {name} = {value}"
VT_NEXT = "VAR {name} = VAR {previous} "
VT_HOPS = 4
VT_NAME_LENGTH = 5
VT_VALUES = range(10000, 99999)
VT_SMALLEST = 10
VT_SMALLEST_SHORT = 5
VT_EXAMPLE_NAME_LENGTH = 3
VT_EXAMPLE_TOKENS = 500
VT_EXAMPLE_SMALLEST = 5

# ---- common and frequent words


@dataclass(frozen=True)
class Repeats:
    """How often a common and any other word stands in a list."""

    common: int
    other: int


CWE = Protocol(
    template=(
        "Below is a numbered list of words. In these words, some appear more often than others. "
        "Memorize the ones that appear most often.\n{context}\n"
        "Question: What are the 10 most common words in the above list?"
    ),
    answer_prefix=" Answer: The top 10 words that appear most often in the list are:",
    tokens=120,
)
CWE_COMMON = 10
CWE_SMALLEST = 10
CWE_REPEATS = Repeats(30, 3)
CWE_REPEATS_SHORT = Repeats(6, 1)
CWE_EXAMPLE_WORDS = 40
CWE_EXAMPLE_REPEATS = Repeats(10, 3)
CWE_EXAMPLE_WORDS_SHORT = 20
CWE_EXAMPLE_REPEATS_SHORT = Repeats(3, 1)

FWE = Protocol(
    template=(
        "Read the following coded text and track the frequency of each coded word. "
        "Find the three most frequently appeared coded words. {context}\n"
        "Question: Do not provide any explanation. Please ignore the dots '....'. "
        "What are the three most frequently appeared words in the above coded text?"
    ),
    answer_prefix=" Answer: According to the coded text above, the three most frequently appeared words are:",
    tokens=50,
)
FWE_ALPHA = 2.0
FWE_WORD_LENGTH = 6
FWE_TOKENS_PER_WORD = 50
FWE_NOISE = "..."
FWE_ANSWERS = 3

# ---- question answering

QA = Protocol(
    template=(
        "Answer the question based on the given documents. Only give me the answer and do not output any other words."
        "\n\nThe following are given documents.\n\n{context}\n\n"
        "Answer the question based on the given documents. Only give me the answer and do not output any other words."
        "\n\nQuestion: {query}"
    ),
    answer_prefix=" Answer:",
    tokens=32,
)
QA_DOCUMENT = "Document {i}:\n{document}"
QA_SEPARATOR = "\n\n"
QA_SMALLEST = 10
