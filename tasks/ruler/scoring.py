"""RULER's scores of one prediction (NVIDIA/RULER scripts/eval/evaluate.py and scripts/eval/synthetic/constants.py).

The prediction is stripped, its control characters become newlines, and it is stripped again. A reference is found when
it is a substring, case ignored; punctuation and word boundaries count for nothing ("ad" is found in "read").
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from longeval.errors import UserError

_CONTROL = re.compile(r"[\x00-\x1f]")


def clean(prediction: str) -> str:
    """What is compared: stripped, U+0000 to U+001F as newlines, stripped again."""
    return _CONTROL.sub("\n", prediction.strip()).strip()


def string_match_all(prediction: str, references: Sequence[str]) -> float:
    """Fraction of the references that occur in the prediction."""
    return sum(_found(prediction, references)) / len(references)


def string_match_part(prediction: str, references: Sequence[str]) -> float:
    """1 when any reference occurs in the prediction, else 0."""
    return float(any(_found(prediction, references)))


def _found(prediction: str, references: Sequence[str]) -> list[bool]:
    # A bare string is a sequence of letters, nearly all of which occur in any text.
    if isinstance(references, str) or not references:
        raise UserError(f'references must be a non-empty list of strings, not {references!r}: write ["1234567"]')
    text = clean(prediction).lower()
    return [reference.lower() in text for reference in references]
