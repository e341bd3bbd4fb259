"""The protocol that every backend implements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from longeval.types import Generation, TokenScores


class Model(Protocol):
    """A loaded checkpoint. Attributes:

    `name`: what the user asked for, as runs and tables show it.
    `tokenizer`: a transformers tokenizer, or None for a folder without one.
    `trained_length`: trained window in tokens, or None when the checkpoint does not say; recorded, never a limit.
    `bos`: the id that stands once in front of every input, or None.
    `provenance`: JSON-able facts that decide the numbers (backend, dtype, device, checkpoint hash, kernels, versions).
    """

    name: str
    tokenizer: Any
    trained_length: int | None
    bos: int | None
    provenance: dict[str, Any]

    def logprobs(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """float32 [len(ids) - 1]: natural log p(ids[t+1] | ids[:t+1]); no token is added or dropped."""
        ...

    def token_scores(self, ids: Sequence[int]) -> TokenScores:
        """`logprobs` together with whether each token was the greedy choice."""
        ...

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int = 32,
        min_new_tokens: int = 0,
        stop: Sequence[str] = (),
    ) -> Iterator[Generation]:
        """Greedy continuations of token-id prompts, yielded as they finish (any order; see `Generation.index`)."""
        ...
