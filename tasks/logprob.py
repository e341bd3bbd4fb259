"""What the teacher-forced suites (perplexity, state tracking) share: text to tokens with character spans, and back.

Text is data here: a document that happens to contain `</s>` must not end the sequence, so markup of special tokens is
encoded as ordinary characters, and no special token is added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from longeval.errors import UserError
from longeval.tasks.base import Sample
from longeval.types import TokenScores


@dataclass(frozen=True)
class Tokens:
    """`ids` and, for each of them, the half-open range of characters that it stands for.

    Tokens that are parts of one character (byte-level tokenizers) all have that character's range.
    """

    ids: list[int]
    spans: list[tuple[int, int]]

    def first(self, count: int) -> Tokens:
        """The first `count` of them."""
        return Tokens(self.ids[:count], self.spans[:count])


def encode(tokenizer: Any, text: str) -> Tokens:
    """`text` as tokens with their character spans. UserError when the tokenizer cannot tell the spans."""
    if tokenizer is None:
        raise UserError("the checkpoint has no tokenizer: add tokenizer files to its folder")
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(
            f"{type(tokenizer).__name__} does not say which characters a token stands for; "
            "add a tokenizer.json (fast tokenizer) to the checkpoint"
        )
    backend = tokenizer.backend_tokenizer
    split_before = backend.encode_special_tokens
    try:
        encoding = tokenizer(
            text,
            add_special_tokens=False,
            split_special_tokens=True,
            return_attention_mask=False,
            return_offsets_mapping=True,
            verbose=False,  # no warning about the trained length: going beyond it is what is measured
        )
    finally:
        backend.encode_special_tokens = split_before  # the call leaves it on, for chat markup encoded later too
    return Tokens(encoding["input_ids"], encoding["offset_mapping"])


def checked_scores(prediction: str | TokenScores, sample: Sample) -> TokenScores:
    """`prediction` as the token scores of `sample.ids`; anything else is an error of the caller, not of a model."""
    if isinstance(prediction, str):
        raise UserError(f"{sample.task} is scored from token log-probabilities, not from text: use `longeval run`")
    if len(prediction.logprobs) != len(sample.ids) - 1:
        raise ValueError(f"{sample.id}: {len(prediction.logprobs)} scores for {len(sample.ids)} tokens")
    return prediction
