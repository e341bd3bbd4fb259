"""The network of PaTH, PaTH-FoX, FoX and RoPE checkpoints: embeddings, blocks of attention and MLP, output head.

Computes what flash-linear-attention and the FoX authors' code compute for the options of `Architecture`, with their
rounding: linear layers and the residual stream in the model's dtype; norms, activations, gates, beta, w's
normalisation, rotations and attention in float32 (float64 in a float64 model). Parameters are named as in
fla's files, with `f_proj` the forget gate and `g_proj` the output gate in every model.

One call takes the next T tokens of B sequences, on top of what their `LayerState`s hold: prefill in pieces of any size
and decoding are the same call. Padding stands on the right and touches nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longeval.kernels.pages import Householder, full_precision
from longeval.kernels.pool import Shape
from longeval.kernels.reference import ScoreRule
from longeval.models.architecture import HEAD_NORM_EPS, Architecture
from longeval.models.attention import Attention, start_attention

W_NORM_EPS = 1e-6  # under the root, added to the sum of w's squares


@dataclass
class LayerState:
    """What one layer remembers of B sequences: KV cache, and earlier inputs of its convolution and token shifts.

    conv [B, width - 1, H * d]: inputs of w's convolution. k_shift, v_shift [B, 1, H * d]: unshifted keys and values.
    """

    attention: Attention
    conv: Tensor | None = None
    k_shift: Tensor | None = None
    v_shift: Tensor | None = None

    def select(self, rows: Tensor) -> LayerState:
        def take(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[rows]

        return LayerState(self.attention.select(rows), take(self.conv), take(self.k_shift), take(self.v_shift))


def rms(x: Tensor, eps: float) -> Tensor:
    """x [..., n] over its root mean square, in full precision."""
    x = x.to(full_precision(x.dtype))
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


class RMSNorm(nn.Module):
    """weight * rms(x), rounded once, to the weight's dtype. `heads`: norm each of that many equal parts of x."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor, heads: int = 1) -> Tensor:
        split = x.view(*x.shape[:-1], heads, -1)
        weight = self.weight.view(-1, split.shape[-1])  # one row for all heads, or one row each
        return (rms(split, self.eps) * weight).to(self.weight.dtype).view(x.shape)


class ShortConv(nn.Module):
    """Depthwise causal convolution over time, then SiLU; float32 inside. weight [channels, 1, width], last is now."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        """x [B, width - 1 + T, channels], earlier inputs in front -> [B, T, channels]."""
        weight = self.weight.to(full_precision(x.dtype))
        width = weight.shape[2]
        T = x.shape[1] - width + 1
        out = x[:, :T] * weight[:, 0, 0]
        for i in range(1, width):  # not windows of x, whose gradient adds up in any order
            out = out + x[:, i : i + T] * weight[:, 0, i]
        return F.silu(out).to(x.dtype)


def after(x: Tensor, new: Tensor, keep: int) -> Tensor:
    """The last `keep` of each sequence's inputs, when x [B, keep + T, ...] brought `new` [B] of T behind `keep` old."""
    at = new[:, None] + torch.arange(keep, device=x.device)
    return x[torch.arange(len(x), device=x.device)[:, None], at]


def rotate(x: Tensor, position: Tensor, theta: float) -> Tensor:
    """RoPE with half-split pairs on x [B, T, heads, d] at `position` [B, T]; cos and sin rounded to x's dtype.

    Angles are float64: in float32 the fastest pair would be off by 1e-4 at position 2,500 and by 4e-3 at 64K.
    """
    half = x.shape[-1] // 2
    full = full_precision(x.dtype)
    frequency = theta ** -(torch.arange(half, device=x.device, dtype=torch.float64) / half)
    angle = position[..., None, None] * frequency
    cos, sin = (f(angle).to(x.dtype).to(full) for f in (torch.cos, torch.sin))
    a, b = x[..., :half].to(full), x[..., half:].to(full)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)


def attention_shape(arch: Architecture, dtype: torch.dtype) -> Shape:
    """What the kernels need to know of a layer."""
    return Shape(arch.heads, arch.kv_heads, arch.head_dim, dtype, path=arch.path is not None, gate=bool(arch.gate))


def score_rule(arch: Architecture) -> ScoreRule:
    """How a layer's raw scores and gates become logits."""
    scale = arch.head_dim**-0.5
    return ScoreRule(scale, scale if arch.gate_scaled else 1.0, arch.window)


class SelfAttention(nn.Module):
    """Projections, w, gates and norms around one layer's attention."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.arch = arch
        D, d, kv = arch.hidden_size, arch.head_dim, arch.kv_heads * arch.head_dim
        self.q_proj = nn.Linear(D, D, bias=arch.qkv_bias)
        self.k_proj = nn.Linear(D, kv, bias=arch.qkv_bias)
        self.v_proj = nn.Linear(D, kv, bias=arch.qkv_bias)
        self.o_proj = nn.Linear(D, D, bias=False)
        if arch.path:
            rank, width = arch.path.rank, arch.path.conv
            low = nn.Sequential(nn.Linear(D, rank, bias=False), nn.Linear(rank, kv, bias=False)) if rank else None
            self.w_proj = low or nn.Linear(D, kv, bias=False)
            self.w_conv1d = ShortConv(kv, width) if width else None
            self.bt_proj = nn.Linear(D, arch.kv_heads)
        if arch.gate == "linear":
            self.f_proj = nn.Linear(D, arch.heads)
        elif arch.gate == "constant":
            self.f_bias = nn.Parameter(torch.empty(arch.heads))
        if arch.qk_norm:
            shared = arch.qk_norm == "shared"
            self.q_norm = RMSNorm(d if shared else D, HEAD_NORM_EPS)
            self.k_norm = RMSNorm(d if shared else kv, HEAD_NORM_EPS)
        if arch.shift_k:
            self.k_shift = nn.Linear(D, arch.kv_heads, bias=False)
        if arch.shift_v:
            self.v_shift = nn.Linear(D, arch.kv_heads, bias=False)
        if arch.output_gate:
            self.g_proj = nn.Linear(D, D, bias=False)
        if arch.output_norm:
            self.o_norm = RMSNorm(D, arch.norm_eps)

    def start(self, batch: int, capacity: int) -> LayerState:
        """Empty state for `batch` sequences of up to `capacity` tokens."""
        like = self.o_proj.weight
        shape = attention_shape(self.arch, like.dtype)
        return self.state(start_attention(score_rule(self.arch), shape, batch, capacity, like.device), batch)

    def state(self, attention: Attention, batch: int) -> LayerState:
        """The state before the first token, around an empty `attention`."""
        arch, like = self.arch, self.o_proj.weight
        state, kv = LayerState(attention), arch.kv_heads * arch.head_dim
        if arch.path and arch.path.conv:
            state.conv = like.new_zeros(batch, arch.path.conv - 1, kv)
        if arch.shift_k:
            state.k_shift = like.new_zeros(batch, 1, kv)
        if arch.shift_v:
            state.v_shift = like.new_zeros(batch, 1, kv)
        return state

    def forward(self, x: Tensor, state: LayerState, new: Tensor) -> Tensor:
        """x [B, T, D], normed block input -> [B, T, D]; `state` moves on by `new` [B] tokens."""
        arch = self.arch
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if state.k_shift is not None:
            k, state.k_shift = self._shift(k, self.k_shift(x), state.k_shift, new)
        if state.v_shift is not None:
            v, state.v_shift = self._shift(v, self.v_shift(x), state.v_shift, new)
        if arch.qk_norm:
            full_width = arch.qk_norm == "full"
            q = self.q_norm(q, 1 if full_width else arch.heads)
            k = self.k_norm(k, 1 if full_width else arch.kv_heads)
        q, k, v = (t.view(*t.shape[:2], -1, arch.head_dim) for t in (q, k, v))
        if arch.rope_theta is not None:
            position = state.attention.length[:, None] + torch.arange(x.shape[1], device=x.device)
            q, k = rotate(q, position, arch.rope_theta), rotate(k, position, arch.rope_theta)
        path = self._householder(x, state, new) if arch.path else None
        o = state.attention.attend(q, k, v, path, self._log_f(x), new).flatten(2)
        if arch.output_norm:
            o = self.o_norm(o, arch.heads)
        if arch.output_gate:
            act = F.silu if arch.output_gate == "silu" else torch.sigmoid
            o = (act(self.g_proj(x).to(full_precision(x.dtype))) * o).to(x.dtype)
        return self.o_proj(o)  # type: ignore[no-any-return]

    def _householder(self, x: Tensor, state: LayerState, new: Tensor) -> Householder:
        """w: projection, convolution, then unit length per head; beta in (0, 2). Both in full precision."""
        w = self.w_proj(x)
        if self.w_conv1d is not None and state.conv is not None:
            inputs = torch.cat([state.conv, w], dim=1)
            state.conv = after(inputs, new, state.conv.shape[1])
            w = self.w_conv1d(inputs)
        w = w.view(*w.shape[:2], -1, self.arch.head_dim).to(full_precision(x.dtype))
        w = w * torch.rsqrt(w.square().sum(-1, keepdim=True) + W_NORM_EPS)
        return Householder(w, 2 * torch.sigmoid(self.bt_proj(x).to(w.dtype)))

    def _log_f(self, x: Tensor) -> Tensor | None:
        """[B, T, HQ]"""
        if self.arch.gate is None:
            return None
        full = full_precision(x.dtype)
        if self.arch.gate == "constant":
            return F.logsigmoid(self.f_bias.to(full)).expand(*x.shape[:2], -1)
        return F.logsigmoid(self.f_proj(x).to(full))

    def _shift(self, y: Tensor, mix: Tensor, before: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        """Per head y_t <- a_t y_{t-1} + (1 - a_t) y_t, a = sigmoid(mix [B, T, H]); and the next call's `before`."""
        inputs = torch.cat([before, y], dim=1)
        full = full_precision(y.dtype)
        a = torch.sigmoid(mix.to(full)).repeat_interleave(self.arch.head_dim, dim=-1)
        return (a * inputs[:, :-1] + (1 - a) * y).to(y.dtype), after(inputs, new, 1)


def powlu(x: Tensor) -> Tensor:
    """x * sigmoid(x) below zero; above, sigmoid(x) * x^(3 / (sqrt(x) + 1))."""
    positive = x.clamp(min=0)
    return torch.sigmoid(x) * torch.where(x > 0, positive ** (3 / (positive.sqrt() + 1)), x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"swish": F.silu, "sigmoid": torch.sigmoid, "powlu": powlu}


class MLP(nn.Module):
    """down(act(gate(x)) * up(x)); the activation and the product in full precision."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(arch.hidden_size, arch.intermediate_size, bias=False)
        self.up_proj = nn.Linear(arch.hidden_size, arch.intermediate_size, bias=False)
        self.down_proj = nn.Linear(arch.intermediate_size, arch.hidden_size, bias=False)
        self.activation = ACTIVATIONS[arch.activation]

    def forward(self, x: Tensor) -> Tensor:
        full = full_precision(x.dtype)
        hidden = self.activation(self.gate_proj(x).to(full)) * self.up_proj(x)
        return self.down_proj(hidden.to(x.dtype))  # type: ignore[no-any-return]


class Block(nn.Module):
    """h + attention(norm(h)), then + mlp(norm(.))."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.fused_residual = arch.fused_residual
        self.attn_norm = RMSNorm(arch.hidden_size, arch.norm_eps)
        self.attn = SelfAttention(arch)
        self.mlp_norm = RMSNorm(arch.hidden_size, arch.norm_eps)
        self.mlp = MLP(arch)

    def forward(self, h: Tensor, state: LayerState, new: Tensor) -> Tensor:
        total = h.to(full_precision(h.dtype)) + self.attn(self.attn_norm(h), state, new)
        h = total.to(h.dtype)
        h = h + self.mlp(self.mlp_norm(total if self.fused_residual else h))
        return h


class Decoder(nn.Module):
    """Embeddings, blocks and the final norm."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(arch.vocab_size, arch.hidden_size)
        self.layers = nn.ModuleList(Block(arch) for _ in range(arch.layers))
        self.norm = RMSNorm(arch.hidden_size, arch.norm_eps)

    @property
    def blocks(self) -> list[Block]:
        return cast(list[Block], list(self.layers))


class Network(nn.Module):
    """A causal language model."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.arch = arch
        self.model = Decoder(arch)
        self.lm_head = None if arch.tied else nn.Linear(arch.hidden_size, arch.vocab_size, bias=False)

    def start(self, batch: int, capacity: int) -> list[LayerState]:
        """Empty states for `batch` sequences of up to `capacity` tokens."""
        return [block.attn.start(batch, capacity) for block in self.model.blocks]

    def forward(self, ids: Tensor, states: list[LayerState], new: Tensor) -> Tensor:
        """ids [B, T], of which each sequence has `new` [B] -> hidden states [B, T, D] before the final norm."""
        h: Tensor = self.model.embeddings(ids)
        for block, state in zip(self.model.blocks, states, strict=True):
            h = block(h, state, new)
        return h

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., D] -> logits [..., V] in float32."""
        weight = self.model.embeddings.weight if self.lm_head is None else self.lm_head.weight
        return F.linear(self.model.norm(hidden), weight).to(full_precision(hidden.dtype))
