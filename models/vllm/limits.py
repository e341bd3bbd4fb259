"""What the paged layers cannot do, refused by name when the engine's configuration is settled; and their page size."""

from __future__ import annotations

from vllm.config import VllmConfig
from vllm.model_executor.models.config import VerifyAndUpdateConfig

from longeval.kernels.pages import CHUNK

PAGE_SIZE = 512  # tokens, unless --block-size says otherwise


class PagedLimits(VerifyAndUpdateConfig):
    """vLLM calls this for PaTH and FoX models before it settles compilation and memory."""

    @staticmethod
    def verify_and_update_config(vllm_config: VllmConfig) -> None:
        if refused := unsupported(vllm_config):
            raise ValueError(
                f"longeval's {vllm_config.model_config.architecture} does not work with {'; '.join(refused)}"
            )
        cache, model = vllm_config.cache_config, vllm_config.model_config
        if not cache.user_specified_block_size:
            cache.block_size, cache.user_specified_block_size = PAGE_SIZE, True
        if model.original_max_model_len is None:  # these models have no longest length: what memory holds
            model.original_max_model_len = -1


def unsupported(config: VllmConfig) -> list[str]:
    """Every requested feature that cannot work, by name."""
    parallel, cache, model = config.parallel_config, config.cache_config, config.model_config
    heads = model.hf_config.num_key_value_heads
    tensor_parallel = parallel.tensor_parallel_size
    cases = {
        "speculative decoding (pages cannot be rolled back)": config.speculative_config is not None,
        "a KV connector (pages are moved by nobody else)": config.kv_transfer_config is not None,
        f"a quantised KV cache (kv_cache_dtype {cache.cache_dtype})": cache.cache_dtype != "auto",
        "KV cache offloading": cache.kv_offloading_size is not None,
        "KV sharing for fast prefill": cache.kv_sharing_fast_prefill,
        "quantised weights": model.quantization is not None,
        "LoRA": config.lora_config is not None,
        "pipeline parallelism": parallel.pipeline_parallel_size > 1,
        "decode context parallelism": parallel.decode_context_parallel_size > 1,
        "prefill context parallelism": parallel.prefill_context_parallel_size > 1,
        "micro-batches (dual batch overlap)": parallel.use_ubatching,
        f"tensor parallel size {tensor_parallel} (kv heads: {heads})": heads % tensor_parallel != 0,
        f"--block-size {cache.block_size} (a page is a multiple of {CHUNK} tokens)": cache.user_specified_block_size
        and cache.block_size % CHUNK != 0,
    }
    return [name for name, requested in cases.items() if requested]
