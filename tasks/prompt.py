"""From a sample's parts to the exact text and token ids that a model receives.

One rule for every benchmark: special tokens are never added by the tokenizer behind our back. Text is encoded
without them, and exactly one BOS stands in front when the tokenizer puts one there by default or the chat template
starts with it. Chat markup is the tokenizer's own template; the answer prefix follows the assistant header verbatim.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from longeval.errors import UserError
from longeval.tasks.base import Shot


class Prompter:
    """Renders and encodes prompts for one tokenizer; `chat` puts each prompt into a user turn."""

    def __init__(self, tokenizer: Any, chat: bool) -> None:
        if tokenizer is None:
            raise UserError("the checkpoint has no tokenizer: add tokenizer files to its folder")
        if chat and not getattr(tokenizer, "chat_template", None):
            raise UserError("--chat on needs a chat template, and this tokenizer has none; use --chat off")
        self.tokenizer = tokenizer
        self.chat = chat

    @cached_property
    def bos(self) -> int | None:
        """The id in front of every prompt: the tokenizer's default, or the one its chat template starts with."""
        bos = self.tokenizer.bos_token_id
        if bos is None:
            return None
        by_default = self.tokenizer("a")["input_ids"][:1] == [bos]
        return bos if by_default or (self.chat and self._turn("a")[1]) else None

    def _turn(self, prompt: str) -> tuple[str, bool]:
        """One user turn with the assistant header open, less a BOS written by the template (second item: had one)."""
        messages = [{"role": "user", "content": prompt}]
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        bos = self.tokenizer.bos_token
        # A template may open a turn with the same token (SmolLM2's <|im_start|>): then it is markup, not a BOS.
        if bos and text.startswith(bos) and text.count(bos) == 1:
            return text[len(bos) :], True
        return text, False

    def text(self, prompt: str, answer_prefix: str = "", shots: Sequence[Shot] = ()) -> str:
        """The whole prompt as text, without the BOS. Shots stand in front, each on a line of its own."""
        turn = (lambda p: self._turn(p)[0]) if self.chat else (lambda p: p)
        lines = [turn(shot.prompt) + shot.answer for shot in shots]
        return "\n".join([*lines, turn(prompt) + answer_prefix])

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, no special tokens added, in one batched call."""
        if not texts:
            return []
        ids: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False)[
            "input_ids"
        ]
        return ids

    def with_bos(self, ids: Sequence[int]) -> tuple[int, ...]:
        """`ids` behind the one BOS, where there is one."""
        return tuple(ids) if self.bos is None else (self.bos, *ids)
