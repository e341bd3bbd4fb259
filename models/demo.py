"""The model `demo`: random PaTH-FoX weights with a byte tokenizer. It runs everywhere and knows nothing.

Made once, into the cache: the same bytes on every machine with the same versions of torch and numpy's random streams.
Its scores mean that the pipeline works, and what chance is.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from longeval.errors import UserError
from longeval.paths import cache_dir

DEMO = "demo"
TITLE = "demo (random weights, knows nothing)"  # as runs and tables call it
_VERSION = 1  # of everything below; a new one makes a new folder
_CONFIG: dict[str, Any] = {
    "model_type": "path_attn",
    "architectures": ["PaTHAttentionForCausalLM"],
    "longeval_note": "random weights: this model knows nothing",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "intermediate_size": 128,
    "hidden_act": "swish",
    "norm_eps": 1e-6,
    "vocab_size": 258,
    "tie_word_embeddings": True,
    "use_forget_gate": True,
    "use_w_shortconv": True,
    "use_low_rank_w": True,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "dtype": "float32",
}
_RANK, _WIDTH = 32, 3  # of w's projection and its convolution, as in every released model


def demo_folder() -> Path:
    """The demo checkpoint's folder, made if it is not there yet."""
    folder = cache_dir() / "models" / f"demo-{_VERSION}"
    try:
        if not folder.is_dir():
            _make(folder)
    except OSError as error:
        if not folder.is_dir():  # another process may have been faster
            raise UserError(
                f"cannot write the demo model to {folder} ({error.strerror}); set LONGEVAL_CACHE"
            ) from error
    return folder


def _make(folder: Path) -> None:
    """Writes the checkpoint beside `folder` and moves it there whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".demo-", dir=folder.parent))
    try:
        _write(unfinished)
        os.replace(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _write(folder: Path) -> None:
    from safetensors.torch import save_file

    (folder / "config.json").write_text(json.dumps(_CONFIG, indent=2) + "\n", encoding="utf-8")
    save_file(_weights(), folder / "model.safetensors", metadata={"format": "pt"})
    byte_tokenizer().save_pretrained(folder)


def _weights() -> dict[str, Any]:
    """Normal weights of standard deviation 0.1 (0.02 would make every prediction the same), norms of one, and forget
    gates that start nearly open."""
    import torch

    from longeval.models.architecture import read_architecture
    from longeval.models.network import Network

    shapes = {".attn.w_proj.0.weight": (_RANK, _CONFIG["hidden_size"]), ".attn.w_conv1d.weight": (64, 1, _WIDTH)}
    arch, names = read_architecture(_CONFIG, shapes, DEMO)
    rng = torch.Generator().manual_seed(0)
    weights = {}
    for name, parameter in Network(arch).named_parameters():
        for theirs, ours in names.items():
            name = name.replace(ours, theirs)
        values = torch.randn(parameter.shape, generator=rng) * 0.1
        if "norm" in name:
            values = torch.ones(parameter.shape)
        elif name.endswith("g_proj.bias"):
            values = torch.full(parameter.shape, 6.0)
        weights[name] = values
    return weights


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
