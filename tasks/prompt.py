"""From a sample's parts to the exact text and token ids that a model receives.

One rule for every benchmark: special tokens are never added by the tokenizer behind our back. Text is encoded
without them, and exactly one BOS stands in front when the tokenizer puts one there by default or the chat template
starts with it. Chat markup is the tokenizer's own template; the answer prefix follows the assistant header verbatim.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

from longeval.errors import UserError
from longeval.tasks.base import Shot

# Templates that print today's date would make another prompt every day; this is the date Llama's own template falls
# back on, and templates that know no date ignore it.
_DATE = "26 Jul 2024"
# Characters per tokenizer call: a tokenizer's working memory is some hundred bytes per token.
_BATCH_CHARACTERS = 8_000_000


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
        bos: int | None = self.tokenizer.bos_token_id
        if bos is None:
            return None
        by_default = self.tokenizer("a")["input_ids"][:1] == [bos]
        return bos if by_default or (self.chat and self._turn("a")[1]) else None

    def _turn(self, prompt: str) -> tuple[str, bool]:
        """One user turn with the assistant header open, less a BOS written by the template (second item: had one)."""
        messages = [{"role": "user", "content": prompt}]
        text: str = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, date_string=_DATE
        )
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
        """Token ids of each text, no special tokens added."""
        encoded = self._encoded(texts)
        return list(encoded) if self._backend is None else [encoding.ids for encoding in encoded]

    def count(self, texts: Sequence[str]) -> list[int]:
        """Number of tokens of each text, no special tokens added."""
        return [len(encoding) for encoding in self._encoded(texts)]

    def _encoded(self, texts: Sequence[str]) -> Iterator[Any]:
        """One encoding per text, made in batches that use every core and bounded memory."""
        for batch in _batches(texts):
            if self._backend is None:
                yield from self.tokenizer(batch, add_special_tokens=False, return_attention_mask=False)["input_ids"]
            else:
                self._backend.no_truncation()  # whoever used the tokenizer before may have left them on
                self._backend.no_padding()
                yield from self._backend.encode_batch_fast(batch, add_special_tokens=False)

    @cached_property
    def _backend(self) -> Any:
        """The Rust tokenizer inside a fast one, which skips the offsets and dictionaries that nobody reads here."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            return None
        probe = " One\n\ntwo  33 <s> – Ünï."
        same = backend.encode(probe, add_special_tokens=False).ids == self._slow_ids(probe)
        return backend if same else None

    def _slow_ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def with_bos(self, ids: Iterable[int]) -> tuple[int, ...]:
        """`ids` behind the one BOS, where there is one."""
        return shared_ids(ids if self.bos is None else (self.bos, *ids))

    def identity(self) -> dict[str, Any]:
        """What decides a prompt beside the tokenizer: the mode, and the markup as the template renders it."""
        return {"chat": self.chat, "bos": self.bos, "markup": self.text("{prompt}")}


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and size + len(text) > _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch


class _Same(dict[int, int]):
    def __missing__(self, key: int) -> int:
        self[key] = key
        return key


_SAME = _Same()


def shared_ids(ids: Iterable[int]) -> tuple[int, ...]:
    """`ids` as a tuple that shares one int object per token id: 8 bytes a token instead of 36."""
    return tuple(map(_SAME.__getitem__, ids))
