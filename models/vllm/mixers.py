"""The three attention layers: projections in fla's names, heads split over tensor-parallel ranks.

fla: `fla/layers/path_attn.py`, `forgetting_attn.py`, `attn.py`. Each takes (positions, x [T, D]) and returns [T, D].
"""

from __future__ import annotations

from functools import lru_cache

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
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding
from vllm.model_executor.model_loader.weight_utils import sharded_weight_loader
from vllm.model_executor.utils import set_weight_attrs

from longeval.kernels.pool import Shape
from longeval.kernels.reference import ScoreRule
from longeval.models.architecture import HEAD_NORM_EPS, Architecture
from longeval.models.vllm.attention import PagedAttention
from longeval.models.vllm.pages import TAIL


def sharded(*shape: int) -> nn.Parameter:
    """A parameter whose first dimension is split over ranks; `shape` is this rank's."""
    parameter = nn.Parameter(torch.empty(shape), requires_grad=False)
    set_weight_attrs(parameter, {"weight_loader": sharded_weight_loader(0)})
    return parameter


class HeadNorm(nn.Module):
    """RMSNorm of x [T, heads, d] over groups of `width` channels; `weight` [n] is repeated over them.

    fla: per head with one weight for all heads or one for each; an old release over all heads' channels at once.
    """

    def __init__(self, weight: nn.Parameter, width: int) -> None:
        super().__init__()
        self.weight = weight
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        y = x.float().flatten(1).unflatten(-1, (-1, self.width))
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + HEAD_NORM_EPS)
        return (y * self.weight.float().view(-1, self.width)).view_as(x).to(x.dtype)


def head_norm(arch: Architecture, heads: int) -> HeadNorm | None:
    """The norm of q or k, `heads` on this rank."""
    if arch.qk_norm is None:
        return None
    if arch.qk_norm == "shared":
        return HeadNorm(nn.Parameter(torch.empty(arch.head_dim), requires_grad=False), arch.head_dim)
    if arch.qk_norm == "full" and get_tensor_model_parallel_world_size() > 1:
        raise ValueError("q/k norms over the full width do not go together with tensor parallelism")
    width = heads * arch.head_dim if arch.qk_norm == "full" else arch.head_dim
    return HeadNorm(sharded(heads * arch.head_dim), width)


class Mixer(nn.Module):
    """q, k, v and output projections; q/k norms where the model has them."""

    def __init__(self, arch: Architecture, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        ranks = get_tensor_model_parallel_world_size()
        self.hidden, self.head_dim = arch.hidden_size, arch.head_dim
        self.heads, self.kv_heads = arch.heads // ranks, max(1, arch.kv_heads // ranks)
        self.qkv_proj = QKVParallelLinear(
            arch.hidden_size,
            arch.head_dim,
            arch.heads,
            arch.kv_heads,
            bias=arch.qkv_bias,
            quant_config=vllm_config.quant_config,
            prefix=f"{prefix}.qkv_proj",
        )
        self.o_proj = RowParallelLinear(
            self.hidden, self.hidden, bias=False, quant_config=vllm_config.quant_config, prefix=f"{prefix}.o_proj"
        )
        self.q_norm = head_norm(arch, self.heads)
        self.k_norm = head_norm(arch, self.kv_heads)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q [T, HQ, d], k and v [T, H, d] of this rank's heads."""
        qkv, _ = self.qkv_proj(x)
        q, k, v = qkv.unflatten(-1, (-1, self.head_dim)).split([self.heads, self.kv_heads, self.kv_heads], dim=-2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return q, k, v

    def column(self, outputs: int, prefix: str, bias: bool, inputs: int | None = None) -> ColumnParallelLinear:
        return ColumnParallelLinear(inputs or self.hidden, outputs, bias=bias, quant_config=None, prefix=prefix)

    def output(self, o: Tensor) -> Tensor:
        return self.o_proj(o.flatten(1))[0]


class PathMixer(Mixer):
    """PaTH, with a forget gate PaTH-FoX: k_j^T H_{j+1} ... H_i q_i plus the gates, all times d^-1/2."""

    def __init__(self, arch: Architecture, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__(arch, vllm_config, prefix)
        assert arch.path is not None
        rank, conv, width = arch.path.rank, arch.path.conv, arch.kv_heads * arch.head_dim
        if conv not in (None, TAIL + 1):
            raise ValueError(f"w_conv1d is {conv} tokens wide; the pages keep what {TAIL + 1} need")
        self.w_proj: nn.Module
        if rank is not None:
            down = ReplicatedLinear(self.hidden, rank, bias=False, quant_config=None, prefix=f"{prefix}.w_proj.0")
            self.w_proj = nn.ModuleList([down, self.column(width, f"{prefix}.w_proj.1", bias=False, inputs=rank)])
        else:
            self.w_proj = self.column(width, f"{prefix}.w_proj", bias=False)
        self.w_conv1d = None
        if conv is not None:
            self.w_conv1d = nn.Module()
            self.w_conv1d.weight = sharded(self.kv_heads * self.head_dim, 1, conv)
        self.bt_proj = self.column(arch.kv_heads, f"{prefix}.bt_proj", bias=True)
        self.f_proj = None if arch.gate is None else self.column(arch.heads, f"{prefix}.f_proj", bias=True)
        scale = self.head_dim**-0.5
        self.attn = PagedAttention(
            Shape(
                self.heads,
                self.kv_heads,
                self.head_dim,
                vllm_config.model_config.dtype,
                path=True,
                gate=arch.gate is not None,
            ),
            ScoreRule(scale, gate_scale=scale),
            conv=conv is not None,
            prefix=f"{prefix}.attn",
        )

    def forward(self, positions: Tensor, x: Tensor) -> Tensor:
        q, k, v = self.project(x)
        w = x
        for layer in self.w_proj if isinstance(self.w_proj, nn.ModuleList) else [self.w_proj]:
            w, _ = layer(w)
        beta = 2 * self.bt_proj(x)[0].float().sigmoid()
        log_f = None if self.f_proj is None else logsigmoid(self.f_proj(x)[0].float())
        conv = None if self.w_conv1d is None else self.w_conv1d.weight
        return self.output(self.attn(q, k, v, w.unflatten(-1, (-1, self.head_dim)), beta, log_f, conv))


class ForgettingMixer(Mixer):
    """FoX: no positions, the gates added outside the scale."""

    def __init__(self, arch: Architecture, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__(arch, vllm_config, prefix)
        self.f_proj = self.column(arch.heads, f"{prefix}.f_proj", bias=True)
        self.g_proj = None if arch.output_gate is None else self.column(self.hidden, f"{prefix}.g_proj", bias=False)
        self.attn = PagedAttention(
            Shape(self.heads, self.kv_heads, self.head_dim, vllm_config.model_config.dtype, gate=True),
            ScoreRule(self.head_dim**-0.5),
            conv=False,
            prefix=f"{prefix}.attn",
        )

    def forward(self, positions: Tensor, x: Tensor) -> Tensor:
        q, k, v = self.project(x)
        o = self.attn(q, k, v, log_f=logsigmoid(self.f_proj(x)[0].float()))
        if self.g_proj is not None:
            gate, _ = self.g_proj(x)
            o = (o * gate.float().sigmoid().view_as(o)).to(o.dtype)
        return self.output(o)


class Rotary(RotaryEmbedding):
    """vLLM's, with float64 angles: float32 ones are off by 1e-4 at position 2,500 and by 4e-3 at 64K."""

    def _compute_cos_sin_cache(self) -> Tensor:
        half = self.rotary_dim // 2
        frequency = self.base ** -(torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(self.max_position_embeddings, dtype=torch.float64)[:, None] * frequency
        return torch.cat([angle.cos(), angle.sin()], dim=-1).float()


@lru_cache(maxsize=1)
def rotary(head_dim: int, length: int, theta: float, dtype: torch.dtype) -> Rotary:
    """One table for all layers, as long as the engine's window: the trained one is no limit."""
    return Rotary(head_dim, head_dim, length, theta, is_neox_style=True, dtype=dtype)


class RotaryMixer(Mixer):
    """LLaMA-like with RoPE, on vLLM's own attention backends."""

    def __init__(self, arch: Architecture, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__(arch, vllm_config, prefix)
        assert arch.rope_theta is not None
        model = vllm_config.model_config
        self.rotary = rotary(self.head_dim, model.max_model_len, arch.rope_theta, model.dtype)
        self.attn = Attention(
            self.heads,
            self.head_dim,
            self.head_dim**-0.5,
            num_kv_heads=self.kv_heads,
            cache_config=vllm_config.cache_config,
            quant_config=vllm_config.quant_config,
            per_layer_sliding_window=arch.window,
            prefix=f"{prefix}.attn",
        )

    def forward(self, positions: Tensor, x: Tensor) -> Tensor:
        q, k, v = self.project(x)
        q, k = self.rotary(positions, q.flatten(1), k.flatten(1))
        return self.output(self.attn(q, k, v.flatten(1)).unflatten(-1, (-1, self.head_dim)))
