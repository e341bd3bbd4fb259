"""The reference checkpoints' tokenizer: byte-level BPE of 1,024 tokens, trained on their own training documents.

    python -m longeval.models.reference.tokenizer

writes `tokenizer/`. A digit is always a token of its own, so that numbers of equal length have equal tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VOCABULARY = 1024
FOLDER = Path(__file__).parent / "tokenizer"
FILE = FOLDER / "tokenizer.json"
BOS, EOS, NEWLINE = 0, 1, 200
_WORDS = r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\n+|[^\S\n]+(?!\S)|\s+"
_DOCUMENTS, _STRETCH = 4000, 500  # characters of text beside each


def train(documents: Iterator[str]) -> Any:
    """A transformers tokenizer with `<s>` in front of every text, trained on `documents`."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(_WORDS), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", clean_up_tokenization_spaces=False)


def load() -> Any:
    """The trained one."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(FOLDER)


def _sample() -> Iterator[str]:
    """Documents in the shares of training, and text."""
    from longeval.models.reference.documents import END, KINDS, texts

    kinds, shares = list(KINDS.values()), [kind.share for kind in KINDS.values()]
    for index in range(_DOCUMENTS):
        rng = random.Random(index)
        kind = rng.choices(kinds, shares)[0]
        yield kind.make(rng, int(400 / kind.unit)).text.replace(END, "")
        source = texts()[index % len(texts())]
        start = rng.randrange(len(source) - _STRETCH)
        yield source[start : start + _STRETCH]


if __name__ == "__main__":
    train(_sample()).save_pretrained(FOLDER)
