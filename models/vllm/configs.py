"""transformers config classes of fla's three model types, with the names that vLLM looks for.

Keys, defaults and what they mean: fla 0.6.0, `fla/models/*/configuration_*.py`. fla's files name neither head_dim nor,
for PaTH and FoX, a longest length: there is none.
"""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import PretrainedConfig

UNLIMITED = 131_072  # what vLLM is told when a checkpoint names no length; with no --max-model-len it fits memory below this


class FlaConfig(PretrainedConfig):
    """Keys that the three types share. `paged`: attention runs on this package's own pages."""

    model_type = ""
    architecture: ClassVar[str]
    paged: ClassVar[bool] = True
    attribute_map: ClassVar[dict[str, str]] = {"num_attention_heads": "num_heads", "num_key_value_heads": "num_kv_heads"}

    def __init__(
        self,
        hidden_size: int = 2048,
        num_hidden_layers: int = 24,
        num_heads: int = 32,
        num_kv_heads: int | None = None,
        hidden_ratio: float | None = 4,
        intermediate_size: int | None = None,
        hidden_act: str = "swish",
        norm_eps: float = 1e-6,
        vocab_size: int = 32000,
        max_position_embeddings: int = UNLIMITED,
        attnres_block_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_heads = num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.head_dim = hidden_size // num_heads
        if intermediate_size is None:
            intermediate_size = int(hidden_size * (hidden_ratio or 4) * 2 / 3)
            intermediate_size = -(-intermediate_size // 256) * 256
        self.intermediate_size = intermediate_size
        self.hidden_act = hidden_act
        self.norm_eps = norm_eps
        self.vocab_size = vocab_size
        self.max_position_embeddings = max_position_embeddings
        self.attnres_block_size = attnres_block_size
        defaults = {"bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}
        kwargs.pop("head_dim", None)  # fla ignores the key
        super().__init__(**{**defaults, **kwargs})


class PathAttentionConfig(FlaConfig):
    """`path_attn`: PaTH, and PaTH-FoX with `use_forget_gate`."""

    model_type = "path_attn"
    architecture = "PaTHAttentionForCausalLM"

    def __init__(
        self, use_forget_gate: bool = False, use_w_shortconv: bool = True, use_low_rank_w: bool = True, **kwargs: Any
    ) -> None:
        self.use_forget_gate = use_forget_gate
        self.use_w_shortconv = use_w_shortconv
        self.use_low_rank_w = use_low_rank_w
        kwargs["max_position_embeddings"] = UNLIMITED  # fla ignores the key
        super().__init__(**kwargs)


class ForgettingTransformerConfig(FlaConfig):
    """`forgetting_transformer`: FoX."""

    model_type = "forgetting_transformer"
    architecture = "ForgettingTransformerForCausalLM"

    def __init__(
        self,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        use_output_gate: bool = False,
        window_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.qkv_bias = qkv_bias
        self.qk_norm = qk_norm
        self.use_output_gate = use_output_gate
        self.window_size = window_size
        kwargs["max_position_embeddings"] = UNLIMITED
        super().__init__(**kwargs)


class FlaTransformerConfig(FlaConfig):
    """`transformer`: LLaMA-like with RoPE."""

    model_type = "transformer"
    architecture = "TransformerForCausalLM"
    paged = False

    def __init__(
        self,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        window_size: int | None = None,
        rope_theta: float = 10000.0,
        max_position_embeddings: int = 2048,
        **kwargs: Any,
    ) -> None:
        self.qkv_bias = qkv_bias
        self.qk_norm = qk_norm
        self.window_size = window_size
        self.rope_theta = rope_theta
        super().__init__(max_position_embeddings=max_position_embeddings, **kwargs)


CONFIGS = (PathAttentionConfig, ForgettingTransformerConfig, FlaTransformerConfig)
