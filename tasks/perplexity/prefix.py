"""The first tokens of a document, exactly, without tokenising the rest of it.

Tokenising a cut text gives other tokens than tokenising the whole only near the cut. So the cut is made in front of a
single space between two words, where no pre-tokenizer joins the two sides, and the tokens that are used end
well before it. A 64K prefix of a 5 MB book then costs a few hundred kilobytes of tokenising.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from longeval.errors import UserError
from longeval.tasks.logprob import Tokens, encode
from longeval.tasks.perplexity.documents import Document

_BOUNDARY = re.compile(r"(?<=\S) (?=\S)")
_MARGIN = 1024  # characters between the last token used and the cut
_FIRST = 8192  # characters tokenised to learn how many a token has


@dataclass(frozen=True)
class Prefix:
    """The first `len(ids)` tokens of a document. `text`: what they stand for, separators as their text.

    `bytes`: UTF-8 bytes of that text without the separators, which are no part of the files; `first_bytes`: those of
    the first token alone. A character that is cut in two counts whole, and to the second of two tokens.
    """

    ids: list[int]
    text: str
    bytes: int
    first_bytes: int


def first_tokens(tokenizer: Any, text: str, count: int) -> Tokens:
    """The first `count` tokens of `text` (all when it has fewer): `encode(tokenizer, text).first(count)`, cheaper."""
    size = _FIRST
    while True:
        cut = _cut(text, size)
        tokens = encode(tokenizer, text[:cut])
        if cut == len(text) or (len(tokens.ids) >= count and tokens.spans[count - 1][1] <= cut - _MARGIN):
            return tokens.first(count)
        size = cut + _MARGIN + max(0, count - len(tokens.ids)) * cut // max(1, len(tokens.ids))


def _cut(text: str, size: int) -> int:
    """The first boundary at `size` or later; `size` itself in text that has none for a while; or the end of `text`."""
    if size >= len(text):
        return len(text)
    match = _BOUNDARY.search(text, size, size + 10_000)
    return match.start() if match else size


def document_prefix(tokenizer: Any, document: Document, length: int) -> Prefix | None:
    """The first `length` tokens of `document`, an end-of-sequence token between its parts; None when it has fewer."""
    if document.most_tokens is not None and document.most_tokens < length:
        return None
    ids: list[int] = []
    texts: list[str] = []
    size = first_size = 0
    for part in document.parts:
        if ids:
            ids.append(_separator(tokenizer, document))
            texts.append(tokenizer.eos_token)
        tokens = first_tokens(tokenizer, part, length - len(ids))
        if tokens.ids:
            if not ids:
                first_size = len(part[: _first_end(tokens)].encode())
            ids += tokens.ids
            texts.append(part[: tokens.spans[-1][1]])
            size += len(texts[-1].encode())
        if len(ids) == length:
            return Prefix(ids, "".join(texts), size, first_size)
    return None


def _first_end(tokens: Tokens) -> int:
    """Where the text of the first token ends, less a character that it shares with the second."""
    ends = [tokens.spans[0][1], *(start for start, _ in tokens.spans[1:2])]
    return min(ends)


def _separator(tokenizer: Any, document: Document) -> int:
    if tokenizer.eos_token_id is None:
        raise UserError(f"{document.name}: files are joined by the end-of-sequence token, and this tokenizer has none")
    separator: int = tokenizer.eos_token_id
    return separator
