"""The three attention layers: projections in fla's names, heads split over tensor-parallel ranks.

fla: `fla/layers/path_attn.py`, `forgetting_attn.py`, `attn.py`. Each takes (positions, x [T, D]) and returns [T, D].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.model_loader.weight_utils import sharded_weight_loader
from vllm.model_executor.utils import set_weight_attrs

from longeval.kernels.pool import Shape
from longeval.kernels.reference import ScoreRule
from longeval.models.vllm.attention import PagedAttention

LOW_RANK = 32  # fla's constant
CONV_WIDTH = 3
QK_NORM_EPS = 1e-5


def sharded(*shape: int) -> nn.Parameter:
    """A parameter whose first dimension is split over ranks; `shape` is this rank's."""
    parameter = nn.Parameter(torch.empty(shape), requires_grad=False)
    set_weight_attrs(parameter, {"weight_loader": sharded_weight_loader(0)})
    return parameter


class Mixer(nn.Module):
    """q, k, v and output projections."""

    def __init__(self, vllm_config: VllmConfig, prefix: str, bias: bool) -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        ranks = get_tensor_model_parallel_world_size()
        self.hidden, self.total_heads, self.total_kv_heads = config.hidden_size, config.num_heads, config.num_kv_heads
        self.head_dim = config.head_dim
        self.heads, self.kv_heads = self.total_heads // ranks, max(1, self.total_kv_heads // ranks)
        self.qkv_proj = QKVParallelLinear(
            self.hidden,
            self.head_dim,
            self.total_heads,
            self.total_kv_heads,
            bias=bias,
            quant_config=vllm_config.quant_config,
            prefix=f"{prefix}.qkv_proj",
        )
        self.o_proj = RowParallelLinear(
            self.hidden, self.hidden, bias=False, quant_config=vllm_config.quant_config, prefix=f"{prefix}.o_proj"
        )

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q [T, HQ, d], k and v [T, H, d] of this rank's heads."""
        qkv, _ = self.qkv_proj(x)
        q, k, v = qkv.unflatten(-1, (-1, self.head_dim)).split([self.heads, self.kv_heads, self.kv_heads], dim=-2)
        return q, k, v

    def column(self, outputs: int, prefix: str, bias: bool, inputs: int | None = None) -> ColumnParallelLinear:
        return ColumnParallelLinear(inputs or self.hidden, outputs, bias=bias, quant_config=None, prefix=prefix)

    def shape(self, dtype: torch.dtype, path: bool, gate: bool) -> Shape:
        return Shape(self.heads, self.kv_heads, self.head_dim, dtype, path, gate)

    def output(self, o: Tensor) -> Tensor:
        return self.o_proj(o.flatten(1))[0]


class PathMixer(Mixer):
    """PaTH, with a forget gate PaTH-FoX: k_j^T H_{j+1} ... H_i q_i plus the gates, all times d^-1/2."""

    def __init__(self, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__(vllm_config, prefix, bias=False)
        config = vllm_config.model_config.hf_config
        width = self.total_kv_heads * self.head_dim
        self.w_proj: nn.Module
        if config.use_low_rank_w:
            down = ReplicatedLinear(self.hidden, LOW_RANK, bias=False, quant_config=None, prefix=f"{prefix}.w_proj.0")
            self.w_proj = nn.ModuleList([down, self.column(width, f"{prefix}.w_proj.1", bias=False, inputs=LOW_RANK)])
        else:
            self.w_proj = self.column(width, f"{prefix}.w_proj", bias=False)
        self.w_conv1d = None
        if config.use_w_shortconv:
            self.w_conv1d = nn.Module()
            self.w_conv1d.weight = sharded(self.kv_heads * self.head_dim, 1, CONV_WIDTH)
        self.bt_proj = self.column(self.total_kv_heads, f"{prefix}.bt_proj", bias=True)
        self.g_proj = self.column(self.total_heads, f"{prefix}.g_proj", bias=True) if config.use_forget_gate else None
        scale = self.head_dim**-0.5
        self.attn = PagedAttention(
            self.shape(vllm_config.model_config.dtype, path=True, gate=config.use_forget_gate),
            ScoreRule(scale, gate_scale=scale),
            conv=config.use_w_shortconv,
            prefix=f"{prefix}.attn",
        )

    def forward(self, positions: Tensor, x: Tensor) -> Tensor:
        q, k, v = self.project(x)
        w = x
        for layer in self.w_proj if isinstance(self.w_proj, nn.ModuleList) else [self.w_proj]:
            w, _ = layer(w)
        beta = 2 * self.bt_proj(x)[0].float().sigmoid()
        log_f = None if self.g_proj is None else logsigmoid(self.g_proj(x)[0].float())
        conv = None if self.w_conv1d is None else self.w_conv1d.weight
        return self.output(self.attn(q, k, v, w.unflatten(-1, (-1, self.head_dim)), beta, log_f, conv))


class HeadNorm(nn.Module):
    """RMSNorm over the channels of each head, with a weight for every channel of every head (`shared`: of one head)."""

    def __init__(self, heads: int, head_dim: int, shared: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(head_dim), requires_grad=False) if shared else sharded(heads * head_dim)
        self.head_dim = head_dim

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + QK_NORM_EPS)
        return (y * self.weight.float().view(-1, self.head_dim)).to(x.dtype)


class ForgettingMixer(Mixer):
    """FoX: no positions, the gates added outside the scale."""

    def __init__(self, vllm_config: VllmConfig, prefix: str) -> None:
        config = vllm_config.model_config.hf_config
        super().__init__(vllm_config, prefix, bias=config.qkv_bias)
        self.f_proj = self.column(self.total_heads, f"{prefix}.f_proj", bias=True)
        self.g_proj = self.column(self.hidden, f"{prefix}.g_proj", bias=False) if config.use_output_gate else None
        self.q_norm = HeadNorm(self.heads, self.head_dim, shared=False) if config.qk_norm else None
        self.k_norm = HeadNorm(self.kv_heads, self.head_dim, shared=False) if config.qk_norm else None
        self.attn = PagedAttention(
            self.shape(vllm_config.model_config.dtype, path=False, gate=True),
            ScoreRule(self.head_dim**-0.5),
            conv=False,
            prefix=f"{prefix}.attn",
        )

    def forward(self, positions: Tensor, x: Tensor) -> Tensor:
        q, k, v = self.project(x)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        o = self.attn(q, k, v, log_f=logsigmoid(self.f_proj(x)[0].float()))
        if self.g_proj is not None:
            gate, _ = self.g_proj(x)
            o = (o * gate.float().sigmoid().view_as(o)).to(o.dtype)
        return self.output(o)


class RotaryMixer(Mixer):
    """LLaMA-like with RoPE, on vLLM's own attention backends."""

    def __init__(self, vllm_config: VllmConfig, prefix: str) -> None:
        config = vllm_config.model_config.hf_config
        super().__init__(vllm_config, prefix, bias=config.qkv_bias)
        self.q_norm = HeadNorm(self.heads, self.head_dim, shared=True) if config.qk_norm else None
        self.k_norm = HeadNorm(self.kv_heads, self.head_dim, shared=True) if config.qk_norm else None
        self.rotary = get_rope(
            self.head_dim,
            max_position=vllm_config.model_config.max_model_len,  # beyond the trained window too
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        )
        self.attn = Attention(
            self.heads,
            self.head_dim,
            self.head_dim**-0.5,
            num_kv_heads=self.kv_heads,
            cache_config=vllm_config.cache_config,
            quant_config=vllm_config.quant_config,
            per_layer_sliding_window=config.window_size,
            prefix=f"{prefix}.attn",
        )

    def forward(self, positions: Tensor, x: Tensor) -> Tensor:
        q, k, v = self.project(x)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = self.rotary(positions, q.flatten(1), k.flatten(1))
        return self.output(self.attn(q, k, v.flatten(1)).unflatten(-1, (-1, self.head_dim)))
