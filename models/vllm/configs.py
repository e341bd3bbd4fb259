"""transformers config classes of fla's three model types, with the names that vLLM looks for.

What the keys mean is `models/architecture.py`'s business. fla's files name head counts otherwise than vLLM expects and,
for PaTH and FoX, no longest length: there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from huggingface_hub import snapshot_download
from transformers import PretrainedConfig

from longeval.models.architecture import Architecture, Shapes, read_architecture
from longeval.models.weights import WEIGHT_FILES, Weights, find_sources

Target = tuple[str, slice]  # a parameter, and the rows of the file's tensor that it takes
UNLIMITED = 131_072  # vLLM's window for models without a longest length, unless --max-model-len or memory says less


class FlaConfig(PretrainedConfig):
    """Keeps every key of the file as an attribute. `paged`: attention runs on this package's own pages.

    transformers makes every subclass a dataclass, which gets an `__init__` of its own unless it names one.
    """

    architecture: ClassVar[str] = ""
    paged: ClassVar[bool] = True

    def __init__(self, **keys: Any) -> None:
        arch, _ = read_architecture({**keys, "model_type": self.model_type}, implied_shapes(keys), "config.json")
        defaults = {"bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": arch.tied}
        super().__init__(**{**defaults, **keys})
        self.hidden_size = arch.hidden_size
        self.num_hidden_layers = arch.layers
        self.num_heads = self.num_attention_heads = arch.heads
        self.num_kv_heads = self.num_key_value_heads = arch.kv_heads
        self.head_dim = arch.head_dim
        self.vocab_size = arch.vocab_size
        trained = keys.get("max_position_embeddings") or 2048  # fla's default
        self.max_position_embeddings = UNLIMITED if arch.rope_theta is None else trained


class PathAttentionConfig(FlaConfig):
    """PaTH and PaTH-FoX."""

    model_type = "path_attn"
    architecture = "PaTHAttentionForCausalLM"
    __init__ = FlaConfig.__init__


class ForgettingTransformerConfig(FlaConfig):
    """FoX."""

    model_type = "forgetting_transformer"
    architecture = "ForgettingTransformerForCausalLM"
    __init__ = FlaConfig.__init__


class FlaTransformerConfig(FlaConfig):
    """LLaMA-like with RoPE."""

    model_type = "transformer"
    architecture = "TransformerForCausalLM"
    paged = False
    __init__ = FlaConfig.__init__


CONFIGS = (PathAttentionConfig, ForgettingTransformerConfig, FlaTransformerConfig)


def implied_shapes(keys: Mapping[str, Any]) -> Shapes:
    """The decisive tensors' shapes as the current fla release writes them for a config."""
    hidden, heads = keys.get("hidden_size") or 2048, keys.get("num_heads") or 32
    kv_width = hidden // heads * (keys.get("num_kv_heads") or heads)
    prefix = "model.layers.0.attn."
    shapes: dict[str, tuple[int, ...]] = {f"{prefix}f_proj.weight": (heads, hidden)}
    if keys.get("use_low_rank_w", True):
        shapes[f"{prefix}w_proj.0.weight"] = (32, hidden)
    if keys.get("use_w_shortconv", True):
        shapes[f"{prefix}w_conv1d.weight"] = (kv_width, 1, 3)
    return shapes


def read_checkpoint(
    config: FlaConfig, model: str, revision: str | None
) -> tuple[Architecture, dict[str, list[Target]]]:
    """The architecture with what only the weights tell, and where each of the file's tensors goes.

    `model`: folder or hub id. Without weight files (`--load-format dummy`) the config alone decides.
    """
    folder = Path(model)
    if not folder.is_dir():
        folder = Path(snapshot_download(model, revision=revision, allow_patterns=["*.safetensors*", "*.bin*"]))
    keys = config.to_dict()
    shapes = Weights(folder).shapes if any((folder / name).is_file() for name in WEIGHT_FILES) else implied_shapes(keys)
    arch, names = read_architecture(keys, shapes, f"{model}/config.json")
    targets: dict[str, list[Target]] = {}
    for parameter, source in find_sources(shapes, names, arch).items():
        targets.setdefault(source.name, []).append((parameter, slice(*source.rows) if source.rows else slice(None)))
    return arch, targets
