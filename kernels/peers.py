"""What the benchmark measures beside these kernels: calls by name, None for what is not installed."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from longeval.kernels.attention import New
from longeval.kernels.reference import ScoreRule

Calls = dict[str, Callable[[], Any] | None]
VLLM_BLOCK = 16  # tokens per block of vLLM's cache, its default
TRITON_ATTN_SEGMENTS = 16  # what vLLM's backend of that name cuts long sequences into, in small batches


def causal_peers(new: New, batch: int, length: int) -> Calls:
    """Prefill of plain attention, [B, L, HQ, d]: PyTorch's SDPA, and FlashAttention 3 as vLLM ships it."""
    q, k, v = new.q, new.k, new.v
    qh, kh, vh = (x.view(batch, length, *x.shape[1:]).transpose(1, 2).contiguous() for x in (q, k, v))
    calls: Calls = {}
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):

        def sdpa(backend: SDPBackend = backend) -> Tensor:
            with sdpa_kernel(backend):
                gqa = q.shape[1] != k.shape[1]
                o = torch.nn.functional.scaled_dot_product_attention(qh, kh, vh, is_causal=True, enable_gqa=gqa)
                return o.transpose(1, 2)

        calls[f"SDPA {backend.name.split('_')[0].lower()}"] = sdpa
    flash = _flash_attention_3()
    if flash is None:
        return calls | {"FlashAttention 3": None}
    starts = torch.arange(0, batch * length + 1, length, device="cuda", dtype=torch.int32)

    def flash_3() -> Tensor:
        out: Tensor = flash(q, k, v, length, starts, length, starts, causal=True, fa_version=3)
        return out.view(batch, length, *out.shape[1:])

    return calls | {"FlashAttention 3": flash_3}


def _flash_attention_3() -> Callable[..., Any] | None:
    try:
        from vllm.vllm_flash_attn import flash_attn_varlen_func, is_fa_version_supported
    except ImportError:
        return None
    return flash_attn_varlen_func if is_fa_version_supported(3) else None


def fla_peers(mode: str, new: New, batch: int, length: int) -> Calls:
    """fla's prefill of the same attention, [B, L, HQ, d]."""
    name = f"fla {mode}"
    try:
        from fla.ops.forgetting_attn import parallel_forgetting_attn
        from fla.ops.path_attn import parallel_path_attn
    except ImportError:
        return {name: None}

    def dense(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.view(batch, length, *x.shape[1:])

    q, k, v, w, beta, log_f = (dense(x) for x in (new.q, new.k, new.v, new.w, new.beta, new.log_f))
    if w is None:
        return {name: lambda: parallel_forgetting_attn(q, k, v, log_f)}
    wide = w.float()
    return {name: lambda: parallel_path_attn(q, k, v, wide, beta, log_f)[0]}


def paged_peers(q: Tensor, kv_heads: int, length: int) -> Calls:
    """Decode of plain attention, one token for each of q's N sequences, on vLLM's cache. q [N, HQ, d]."""
    N, HQ, d = q.shape
    blocks = N * length // VLLM_BLOCK
    k, v = (torch.randn(blocks, VLLM_BLOCK, kv_heads, d, device="cuda", dtype=q.dtype) for _ in range(2))
    table = torch.randperm(blocks, device="cuda").view(N, -1).int()
    starts = torch.arange(N + 1, device="cuda", dtype=torch.int32)
    held = torch.full((N,), length - 38, device="cuda", dtype=torch.int32)
    out = torch.empty_like(q)
    calls: Calls = {"decode FlashAttention 3": None, "decode TRITON_ATTN": None}
    flash = _flash_attention_3()
    if flash is not None:
        calls["decode FlashAttention 3"] = lambda: flash(
            q, k, v, 1, starts, length, seqused_k=held, block_table=table, causal=True, out=out, fa_version=3
        )
    try:
        from vllm.v1.attention.ops.triton_unified_attention import unified_attention
    except ImportError:
        return calls
    parts = torch.empty(N, HQ, TRITON_ATTN_SEGMENTS, triton.next_power_of_2(d), device="cuda")
    tops, sums = (torch.empty(N, HQ, TRITON_ATTN_SEGMENTS, device="cuda") for _ in range(2))
    calls["decode TRITON_ATTN"] = lambda: unified_attention(
        q, k, v, out, starts, 1, held, length, d**-0.5, True, (-1, -1), table, 0, None, None, None,
        seq_threshold_3D=128 // kv_heads, num_par_softmax_segments=TRITON_ATTN_SEGMENTS,
        softmax_segm_output=parts, softmax_segm_max=tops, softmax_segm_expsum=sums,
    )  # fmt: skip
    return calls


@triton.jit
def rewrite_keys(k, w, beta, H: tl.constexpr, D: tl.constexpr, R: tl.constexpr):
    """R keys of one sequence and head: k <- k - beta (k w) w. k [N, L, H, D], w [N, H, D], beta [N, H]."""
    seq = tl.program_id(1) // H
    head = tl.program_id(1) % H
    row = seq.to(tl.int64) * tl.num_programs(0) * R + tl.program_id(0) * R + tl.arange(0, R)
    c = tl.arange(0, D)
    k += (row * H + head)[:, None] * D + c[None, :]
    keys = tl.load(k).to(tl.float32)
    ww = tl.load(w + (seq * H + head) * D + c).to(tl.float32)[None, :]
    along = tl.load(beta + seq * H + head) * tl.sum(keys * ww, 1)
    tl.store(k, (keys - along[:, None] * ww).to(k.dtype.element_ty))


def rewriting_peers(rule: ScoreRule, new: New, batch: int, length: int, fla: bool) -> Calls:
    """Decode of one token with a cache of `length` keys that all stand at the newest token.

    The rewriting of these keys alone; behind it fla's decode kernel; and all that fla's layer does: it appends to its
    cache by copying it, copies it once more to leave out padding, which it asks the host about, and calls that kernel.
    All three with the rewriting above, one pass, in place of what fla leaves to torch.compile.
    """
    q, w, beta, log_f = new.q, new.w, new.beta, new.log_f
    assert w is not None
    assert beta is not None
    assert log_f is not None
    H, D = w.shape[1:]
    k = torch.randn(batch, length, H * D, device="cuda", dtype=q.dtype)

    def rewrite() -> None:
        rewrite_keys[(length // 64, batch * H)](k, w, beta, H=H, D=D, R=64)

    calls: Calls = {"rewriting of all keys": rewrite}
    if not fla:
        return calls
    kernel, step = "decode fla path-fox, kernel", "decode fla path-fox"
    try:
        from fla.layers.utils import unpad_input
        from fla.ops.attn.decoding import attn_decoding_one_step
    except ImportError:
        return calls | {kernel: None, step: None}
    v = torch.randn_like(k)
    gates = torch.full((batch, length, q.shape[1]), -0.02, device="cuda")
    mask = torch.ones(batch, length + 1, dtype=torch.int64, device="cuda")
    starts = torch.arange(0, batch * length + 1, length, device="cuda")
    token_q, token_k, token_v = (x.flatten(1).unsqueeze(1) for x in (q, new.k, new.v))

    def attend(k: Tensor, v: Tensor, gates: Tensor, starts: Tensor) -> None:
        k, v = (x.view(1, -1, H, D) for x in (k, v))
        gates = gates.view(1, -1, q.shape[1])
        attn_decoding_one_step(q.unsqueeze(0), k, v, gates, scale=rule.scale, cu_seqlens=starts, do_gate_scale=True)

    def kernel_alone() -> None:
        rewrite()
        attend(k, v, gates, starts)

    def layer() -> None:
        rewrite()
        longer = ((k, token_k), (v, token_v), (gates, log_f.unsqueeze(1)))
        states = tuple(torch.cat(parts, dim=1) for parts in longer)
        _, (keys, values, all_gates), _, (_, packed), _ = unpad_input(token_q, states, mask, 1, keepdim=True)
        attend(keys, values, all_gates, packed)

    return calls | {kernel: kernel_alone, step: layer}
