"""The tokenizer whose token ids are the bytes of the text."""

from __future__ import annotations

from typing import Any


def byte_tokenizer() -> Any:
    """One token per UTF-8 byte, `<s>` (put in front) and `</s>`; a transformers tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    # GPT-2's printable stand-ins for the 256 bytes, in the order of the bytes they stand for.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_in = {byte: byte for byte in printable} | {byte: 256 + n for n, byte in enumerate(others)}
    vocab = {chr(stand_in[byte]): byte for byte in range(256)} | {"<s>": 256, "</s>": 257}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
