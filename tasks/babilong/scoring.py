"""BABILONG's two scores in use: its own label rule, and the plain substring match of lm-evaluation-harness."""

from __future__ import annotations

from collections.abc import Sequence

from longeval.tasks.babilong.protocol import OUTPUT_CUTS


def label_match(prediction: str, target: str, question: str, labels: Sequence[str]) -> bool:
    """Whether the answer names the target and no other label, those of the question aside (babilong/metrics.py).

    Only the text before the first full stop counts, in lower case, and labels are found as substrings: a second place
    makes a right answer wrong, a newline does not end it, one that begins with a full stop is empty, and "officer"
    names the office.
    """
    answer = prediction.lower()
    for cut in OUTPUT_CUTS:
        answer = answer.split(cut)[0]
    known = {label.lower() for label in labels}
    asked = {label for label in known if label in question.lower()}
    given = {label for label in known if label in answer}
    return given - asked == {target.lower()}


def substring_match(prediction: str, target: str) -> bool:
    """Whether the target occurs anywhere in any case, so naming everything is right (lm_eval, common_utils.py)."""
    return target.strip().lower() in prediction.lower()
