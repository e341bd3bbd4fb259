"""LongBench's metrics with the behaviour of its code, which differs in places from what the names promise.

Source: THUDM/LongBench, LongBench/metrics.py and the packages it uses (rouge 1.0.1, fuzzywuzzy 0.18.0 without
python-Levenshtein). Every metric takes the prediction, one reference and the dataset's class names (None where there
are none), returns a score in [0, 1], and never raises on any prediction. What looks like a mistake here and is marked
"as upstream" decides published numbers.
"""

from __future__ import annotations

import re
import string
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from itertools import islice

from longeval.errors import UserError

Metric = Callable[[str, str, Sequence[str] | None], float]

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PARAGRAPH = re.compile(r"Paragraph (\d+)")
_DIGITS = re.compile(r"\d+")

# `rouge` walks back through the table of a longest common subsequence by recursion, one step per level. Called as
# upstream calls it, the walk has room for this many steps before Python's limit of 1000 frames; beyond it upstream's
# bare `except` makes the score 0.
_ROUGE_STEPS = 990


def first_line(prediction: str) -> str:
    """The first line after leading newlines: what is scored of trec, triviaqa and samsum."""
    return prediction.lstrip("\n").split("\n")[0]


def qa_f1_score(prediction: str, reference: str, classes: Sequence[str] | None = None) -> float:
    """F1 of the two multisets of normalised words; 0 without a common word, also when both are empty."""
    given, wanted = _normalised_words(prediction), _normalised_words(reference)
    common = (Counter(given) & Counter(wanted)).total()
    if common == 0:
        return 0.0
    precision, recall = common / len(given), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def _normalised_words(text: str) -> list[str]:
    """Lower-cased words without ASCII punctuation and articles; other punctuation (curly quotes, dashes) stays."""
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def classification_score(prediction: str, reference: str, classes: Sequence[str] | None) -> float:
    """1 / (number of class names found in the prediction) when the reference is among them, else 0.

    Names that are proper parts of the reference do not count, but as upstream deletes them from the list it is walking
    through, the name after a deleted one is not looked at: truth `abc` with classes a, ab, abc scores 1/2.
    """
    if not classes or not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise UserError("classification needs the field 'all_classes', a list of class names; add it to the row")
    found = [name for name in classes if name in prediction]
    for name in found:
        if name in reference and name != reference:
            found.remove(name)  # as upstream: shifts the rest under the running loop
    return 1 / len(found) if reference in found else 0.0


def count_score(prediction: str, reference: str, classes: Sequence[str] | None = None) -> float:
    """The share of the prediction's digit runs that equal the reference; 0 without digits."""
    numbers = _DIGITS.findall(prediction)
    return numbers.count(reference) / len(numbers) if numbers else 0.0


def retrieval_score(prediction: str, reference: str, classes: Sequence[str] | None = None) -> float:
    """As `count_score`, against the number in the reference `Paragraph N`."""
    wanted = _PARAGRAPH.search(reference)
    if wanted is None:
        raise UserError(f"the reference {reference!r} must contain 'Paragraph' and a number")
    return count_score(prediction, wanted[1])


def code_sim_score(prediction: str, reference: str, classes: Sequence[str] | None = None) -> float:
    """Similarity of the first line of code to the unstripped reference."""
    return fuzz_ratio(_code_line(prediction), reference) / 100


def levenshtein(prediction: str, reference: str, classes: Sequence[str] | None = None) -> float:
    """What `code_sim_score` is where python-Levenshtein is installed, as it was for some published numbers."""
    return levenshtein_ratio(_code_line(prediction), reference) / 100


def _code_line(prediction: str) -> str:
    """The first line without a backtick, `#` or `//`, else the empty string.

    Leading newlines are dropped first; a later blank line qualifies.
    """
    lines = prediction.lstrip("\n").split("\n")
    return next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")


def fuzz_ratio(left: str, right: str) -> int:
    """fuzzywuzzy's `ratio` without python-Levenshtein: difflib's ratio as a percentage rounded to an integer.

    Equal texts are 100 (two empty ones too), an empty and a non-empty one 0.
    """
    return round(100 * SequenceMatcher(None, left, right).ratio())


def levenshtein_ratio(left: str, right: str) -> int:
    """fuzzywuzzy's `ratio` with python-Levenshtein: twice the longest common subsequence over both lengths."""
    return round(200 * _common_characters(left, right) / (len(left) + len(right))) if left or right else 100


def _common_characters(left: str, right: str) -> int:
    """Length of the longest common subsequence; a 0 bit in `row` stands for a growth of it (Hyyrö 2004)."""
    places: dict[str, int] = {}
    for place, character in enumerate(left):
        places[character] = places.get(character, 0) | 1 << place
    row = every = (1 << len(left)) - 1
    for character in right:
        matches = row & places.get(character, 0)
        row = (row + matches | row - matches) & every
    return len(left) - row.bit_count()


def rouge_score(prediction: str, reference: str, classes: Sequence[str] | None = None) -> float:
    """F of the `rouge` package's "rouge-l": summary level, on sets of words.

    A sentence ends at every full stop; a blank one (after a final ". ") counts as one empty word. For every pair of
    sentences the words of one longest common subsequence go into one set; its size over the number of distinct words
    of the reference is the recall, of the prediction the precision; F = 2PR / (P + R + 1e-8). 0 for a text that is
    empty or only full stops, and where the package's recursion overflows.
    """
    given, wanted = _sentences(prediction), _sentences(reference)
    if not given or not wanted:
        return 0.0
    holders: dict[str, set[int]] = {}  # which of the reference's sentences have a word
    for number, sentence in enumerate(wanted):
        for word in sentence:
            holders.setdefault(word, set()).add(number)
    common: set[str] = set()
    for sentence in dict.fromkeys(given):
        alike = set().union(*(holders.get(word, ()) for word in sentence))
        if len(sentence) > _ROUGE_STEPS and len(alike) < len(wanted):
            return 0.0  # where no word is common, the walk takes one step for every word of `sentence`
        for number in alike:
            words = _common_words(wanted[number], sentence)
            if words is None:
                return 0.0
            common |= words
    precision = len(common) / len(set().union(*given))
    recall = len(common) / len(holders)
    return 2.0 * (precision * recall / (precision + recall + 1e-8))


def _sentences(text: str) -> list[tuple[str, ...]]:
    return [tuple(" ".join(part.split()).split(" ")) for part in text.split(".") if part]


def _common_words(left: Sequence[str], right: Sequence[str]) -> set[str] | None:
    """Words of the longest common subsequence that `rouge` picks among equals; None where its recursion overflows."""
    if min(len(left), len(right)) > _ROUGE_STEPS:
        return None  # every step shortens each text by at most one word
    lengths = _lcs_lengths(left, right)
    words = set()
    i, j, steps = len(left), len(right), 0
    while i and j:
        steps += 1
        if left[i - 1] == right[j - 1]:
            words.add(left[i - 1])
            i, j = i - 1, j - 1
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return words if steps <= _ROUGE_STEPS else None


def _lcs_lengths(left: Sequence[str], right: Sequence[str]) -> list[array[int]]:
    """[len(left) + 1][len(right) + 1]: length of the longest common subsequence of every two prefixes."""
    table = [array("h", bytes(2 * len(right) + 2))]
    for word in left:
        row = array("h", [0])
        best = diagonal = 0
        for other, above in zip(right, islice(table[-1], 1, None), strict=True):
            if other == word:
                best = diagonal + 1
            elif above > best:
                best = above
            row.append(best)
            diagonal = above
        table.append(row)
    return table
