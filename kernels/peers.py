"""What the benchmark measures beside these kernels: each peer is a name and a call, left out if not installed."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from longeval.kernels.attention import New
from longeval.kernels.reference import ScoreRule

Peers = Iterator[tuple[str, Callable[[], object]]]


def causal_peers(new: New, batch: int, length: int) -> Peers:
    q, k, v = new.q, new.k, new.v
    qh, kh, vh = (x.view(batch, length, *x.shape[1:]).transpose(1, 2).contiguous() for x in (q, k, v))
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):

        def sdpa(backend: SDPBackend = backend) -> Tensor:
            with sdpa_kernel(backend):
                gqa = q.shape[1] != k.shape[1]
                return torch.nn.functional.scaled_dot_product_attention(qh, kh, vh, is_causal=True, enable_gqa=gqa)

        yield f"SDPA {backend.name.split('_')[0].lower()}", sdpa
    try:
        from vllm.vllm_flash_attn import flash_attn_varlen_func
    except ImportError:
        return
    starts = torch.arange(0, batch * length + 1, length, device="cuda", dtype=torch.int32)
    yield (
        "FlashAttention 3",
        lambda: flash_attn_varlen_func(q, k, v, length, starts, length, starts, causal=True, fa_version=3),
    )


def fla_peers(mode: str, new: New, batch: int, length: int) -> Peers:
    try:
        from fla.ops.forgetting_attn import parallel_forgetting_attn
        from fla.ops.path_attn import parallel_path_attn
    except ImportError:
        return

    def dense(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.view(batch, length, *x.shape[1:])

    q, k, v, w, beta, log_f = (dense(x) for x in (new.q, new.k, new.v, new.w, new.beta, new.log_f))
    if w is None:
        yield "fla fox", lambda: parallel_forgetting_attn(q, k, v, log_f)
    else:
        wide = w.float()
        yield f"fla {mode}", lambda: parallel_path_attn(q, k, v, wide, beta, log_f)


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


def rewriting_peers(rule: ScoreRule, new: New, batch: int, length: int, fla: bool) -> Peers:
    """Decode of one token with a cache of keys that all stand at the newest token: the rewriting alone, and fla's step.

    fla's step is its decode kernel after this rewriting, which is faster than the one that it leaves to torch.compile.
    """
    q, w, beta = new.q, new.w, new.beta
    assert w is not None
    assert beta is not None
    H, D = w.shape[1:]
    k = torch.randn(1, batch * length, H, D, device="cuda", dtype=q.dtype)

    def rewrite() -> None:
        rewrite_keys[(length // 64, batch * H)](k, w, beta, H=H, D=D, R=64)

    yield "rewriting of all keys", rewrite
    try:
        from fla.ops.attn.decoding import attn_decoding_one_step
    except ImportError:
        return
    if not fla:
        return
    v = torch.randn_like(k)
    gates = torch.full((1, batch * length, q.shape[1]), -0.02, device="cuda")
    starts = torch.arange(0, batch * length + 1, length, device="cuda")

    def step() -> None:
        rewrite()
        attn_decoding_one_step(q.unsqueeze(0), k, v, gates, scale=rule.scale, cu_seqlens=starts, do_gate_scale=True)

    yield "fla decode path-fox", step
