"""Tokenizers of every family that matters to character spans, made in memory."""

import pydoc
import textwrap
from functools import cache

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

_TRAINING = [textwrap.dedent(pydoc.getdoc(thing)) for thing in (str, dict, list, int, bytes, textwrap, pydoc)]


def _wrap(backend, bos):
    """`bos`: "added" in front of every text, "declared" only, or "none"."""
    if bos == "added":
        pair = ("<s>", backend.token_to_id("<s>"))
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[pair])
    tokens = {"eos_token": "</s>"} | ({} if bos == "none" else {"bos_token": "<s>"})
    return PreTrainedTokenizerFast(tokenizer_object=backend, **tokens)


@cache
def byte_level(bos="added"):
    """One token per byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    return _wrap(backend, bos)


@cache
def bpe(bos="added", digits=False):
    """Byte-level BPE as GPT-2's; `digits` splits them off, spaces included, as SmolLM2's does."""
    backend = Tokenizer(models.BPE())
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False)
    split = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_]) if digits else bytes_
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<s>", "</s>"], initial_alphabet=bytes_.alphabet(), show_progress=False
    )
    backend.train_from_iterator(_TRAINING, trainer)
    return _wrap(backend, bos)


@cache
def metaspace(bos="added"):
    """BPE over text whose spaces are ▁, one in front of the text, bytes for the unknown: as Llama's and Mistral's."""
    backend = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=special, show_progress=False)
    backend.train_from_iterator([text.replace(" ", "▁") for text in _TRAINING], trainer)
    backend.pre_tokenizer = None
    return _wrap(backend, bos)


@cache
def joining():
    """BPE that merges across spaces."""
    backend = Tokenizer(models.BPE())
    backend.decoder = decoders.Fuse()
    trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=["<s>", "</s>"], show_progress=False)
    backend.train_from_iterator(["w 1 i 0 r 1 w 0 i 1 r 0 " * 50], trainer)
    return _wrap(backend, "none")


FAMILIES = {
    "bytes": byte_level,
    "bpe": bpe,
    "bpe with digits": lambda bos="added": bpe(bos, digits=True),
    "metaspace": metaspace,
}
