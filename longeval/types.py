"""What passes between models and tasks, which do not know each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Generation:
    """One greedy continuation.

    `index`: position of its prompt in the request. `ids`: every new token, the end-of-sequence token
    included when it ended the text. `text`: the decoded text without special tokens, cut before a stop string;
    empty when the model has no tokenizer. `finish_reason`: "stop" (end of sequence or stop string) or "length".
    """

    index: int
    ids: tuple[int, ...]
    text: str
    finish_reason: Literal["stop", "length"]


@dataclass(frozen=True)
class TokenScores:
    """Teacher-forced scores of `n` tokens: both arrays have length n - 1 and entry t is about token t + 1.

    `logprobs`: float32, natural log p(ids[t+1] | ids[:t+1]). `greedy`: bool, whether ids[t+1] is the argmax there.
    """

    logprobs: npt.NDArray[np.float32]
    greedy: npt.NDArray[np.bool_]
