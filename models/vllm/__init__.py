"""vLLM plugin: serves fla-format PaTH, PaTH-FoX, FoX and RoPE checkpoints. Works with plain `vllm serve CKPT`.

`register` is the entry point of the group `vllm.general_plugins`; vLLM calls it in every process before it reads a
model's config. The evaluation backend that drives the engine is `backend`.
"""

from __future__ import annotations

_MODULE = "longeval.models.vllm"


def register() -> None:
    """Makes vLLM know the three model types. Light and repeatable; never touches CUDA (vLLM may fork later)."""
    from transformers import AutoConfig
    from vllm import ModelRegistry
    from vllm.config import CompilationConfig
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    from longeval.models.vllm.configs import CONFIGS
    from longeval.models.vllm.limits import PagedLimits

    for config in CONFIGS:
        AutoConfig.register(config.model_type, config, exist_ok=True)
        architecture = config.architecture
        ModelRegistry.register_model(architecture, f"{_MODULE}.model:{architecture}")
        if config.paged:
            MODELS_CONFIG_MAP[architecture] = PagedLimits
    # Compiled pieces end at the op: it reads this step's metadata, which a captured piece would keep for ever.
    op = "vllm::longeval_paged_attention"
    if op not in CompilationConfig._attention_ops:
        CompilationConfig._attention_ops.append(op)
