"""PaTH, PaTH-FoX and FoX attention in vLLM: layer, cache spec, backend, metadata and custom op.

The layer keeps all that a token leaves behind in its page (`pages.py`): one cache group, no state per request, finished
pages immutable. So continuous batches, chunked prefill, preemption by recompute and prefix caching are vLLM's own. On
CUDA the op calls the Triton kernels and the layer refuses to exist without them; on CPU it runs the definition.
"""

# No `from __future__ import annotations` here: the op's schema is read from its annotations.

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.utils.torch_utils import (
    LayerNameType,
    _encode_layer_name,
    _resolve_layer_name,
    direct_register_custom_op,
)
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.kv_cache_interface import KVCacheSpec
from vllm.v1.kv_cache_layout import KVCacheLayout

from longeval.kernels.pages import CHUNK
from longeval.kernels.pool import DTYPES, PageLayout, Shape, supports
from longeval.kernels.reference import ScoreRule
from longeval.models.vllm.manager import PageSpec
from longeval.models.vllm.pages import Block
from longeval.models.vllm.step import CpuStep, CudaStep, Fixed, Packed, Step

BACKEND = "LONGEVAL_PAGES"


class PageBackend(AttentionBackend):
    """What vLLM asks about a page of ours."""

    supported_dtypes: ClassVar[list[torch.dtype]] = list(DTYPES)

    @staticmethod
    def get_name() -> str:
        return BACKEND

    @staticmethod
    def get_impl_cls() -> Any:
        raise NotImplementedError("the layer is its own implementation")

    @staticmethod
    def get_builder_cls() -> "type[StepBuilder]":
        return StepBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: KVCacheSpec | None = None) -> list[int | MultipleOf]:
        return [MultipleOf(CHUNK)]

    @staticmethod
    def supported_kv_cache_layouts() -> tuple[KVCacheLayout, ...]:
        """The bytes of one block and head lie together, so that a page can be carved out of them."""
        return (KVCacheLayout.LBHNC,)

    @classmethod
    def supports_kv_connector(cls) -> bool:
        return False


class StepBuilder(AttentionMetadataBuilder[Step]):
    """Once per step and cache group: where each request's tokens and pages lie."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    reorder_batch_threshold: int | None = 1  # decodes first

    def __init__(
        self, kv_cache_spec: KVCacheSpec, layer_names: list[str], vllm_config: VllmConfig, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        if device.type == "cuda":
            self._fixed = Fixed(vllm_config.scheduler_config.max_num_batched_tokens + 1)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> Step:
        if self.device.type == "cuda":
            return CudaStep.of(common_attn_metadata, self.kv_cache_spec.block_size, self._fixed)
        return CpuStep.of(common_attn_metadata, self.kv_cache_spec.block_size)


class PagedAttention(nn.Module, AttentionLayerBase):
    """Attention of one layer over its pages. `conv`: whether w comes with its short convolution still to do."""

    supports_dcp = False

    def __init__(self, shape: Shape, rule: ScoreRule, conv: bool, prefix: str) -> None:
        super().__init__()
        config = get_current_vllm_config()
        page = PageLayout(shape, config.cache_config.block_size)
        if config.device_config.device_type != "cpu":
            _require_kernels(shape, page.size)
        self.num_heads = shape.heads
        self.block = Block(page, conv)
        self.rule = rule
        self.prefix = prefix
        self.kv_cache = torch.empty(0)
        layers = config.compilation_config.static_forward_context
        if prefix in layers:
            raise ValueError(f"two layers are named {prefix}")
        layers[prefix] = self

    def get_attn_backend(self) -> type[AttentionBackend]:
        return PageBackend

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec:
        shape = self.block.page.shape
        return PageSpec(
            block_size=self.block.page.size,
            num_kv_heads=shape.kv_heads,
            head_size=shape.head_dim,
            dtype=torch.uint8,
            state_content_bytes=self.block.bytes_per_token,
            dcp_sharded=False,
        )

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        w: Tensor | None = None,
        beta: Tensor | None = None,
        log_f: Tensor | None = None,
        conv: Tensor | None = None,
    ) -> Tensor:
        """q [T, HQ, d]; k, v, w [T, H, d]; beta [T, H] and log_f [T, HQ] in float32 -> [T, HQ, d].

        w before the convolution with `conv` [H * d, 1, 3] (None: there is none) and before its normalisation.
        """
        out = torch.empty_like(q)
        torch.ops.vllm.longeval_paged_attention(q, k, v, w, beta, log_f, conv, out, _encode_layer_name(self.prefix))
        return out

    def attend(
        self,
        step: Step,
        new: Packed,
        conv: Tensor | None,
        out: Tensor,
    ) -> None:
        """The op's body, outside of any graph but a decode's: everything here touches the cache."""
        pool, tail = self.block.views(self.kv_cache)
        if new.w is not None:
            new = replace(new, w=step.unit_w(new.w, conv, tail))
        step.attend(pool, self.rule, new, out)


def _require_kernels(shape: Shape, page_size: int) -> None:
    if reasons := supports(shape, page_size):
        raise ValueError(f"the attention kernels do not support {'; '.join(reasons)}")
    try:
        import longeval.kernels.attention  # noqa: F401
    except ImportError as error:
        raise RuntimeError(f"the attention kernels cannot be loaded ({error}); CUDA needs a working triton") from error


def paged_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor | None,
    beta: Tensor | None,
    log_f: Tensor | None,
    conv: Tensor | None,
    out: Tensor,
    layer_name: LayerNameType,
) -> None:
    context = get_forward_context()
    name = _resolve_layer_name(layer_name)
    if context.attn_metadata is None:  # profiling: there is no cache yet
        out.zero_()
        return
    assert isinstance(context.attn_metadata, dict), "micro-batches are refused at start"
    step = context.attn_metadata[name]
    new = Packed(q, k, v, w, beta, log_f).first(step.count)
    context.no_compile_layers[name].attend(step, new, conv, out[: step.count])


def _paged_attention_shapes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor | None,
    beta: Tensor | None,
    log_f: Tensor | None,
    conv: Tensor | None,
    out: Tensor,
    layer_name: LayerNameType,
) -> None:
    return


direct_register_custom_op(
    op_name="longeval_paged_attention",
    op_func=paged_attention,
    mutates_args=["out"],
    fake_impl=_paged_attention_shapes,
)
