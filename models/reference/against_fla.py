"""Do flash-linear-attention and longeval give the same log-probabilities for the reference checkpoints?

    python -m longeval.models.reference.against_fla

loads every checkpoint with fla (0.6.0 has to be installed) and compares held-out rows with longeval's float32
definition on the CPU: on CUDA in bfloat16, where longeval's own bfloat16 stands beside it as what rounding alone does,
else in float32 (for Triton's interpreter). fla's RoPE attention calls flash-attn; where that is not installed,
PyTorch's attention takes its place, and the rest is fla's.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from longeval.models import load_model
from longeval.models.reference import ALL_CHECKPOINTS, DEMO, TRAINED_LENGTH, find_reference
from longeval.models.reference.data import make_rows

Losses = npt.NDArray[np.float32]


def plain_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool, window_size: tuple[int, int]) -> Tensor:
    """flash-attn's function by PyTorch's: q, k, v [B, L, H, d] -> o [B, L, H, d]."""
    if window_size != (-1, -1):
        raise NotImplementedError("a window needs flash-attn")
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)


def fla_logprobs(model: Any, ids: list[int]) -> Losses:
    """Natural log-probabilities of ids[1:], float32 [len(ids) - 1]."""
    tokens = torch.tensor([ids], device=model.device)
    with torch.no_grad():
        logits = model(tokens, use_cache=False).logits[0, :-1].float()
    chosen = torch.log_softmax(logits, -1).gather(1, tokens[0, 1:, None])[:, 0]
    found: Losses = chosen.cpu().numpy()
    return found


def difference(one: list[Losses], other: list[Losses]) -> str:
    apart = np.abs(np.concatenate(one) - np.concatenate(other))
    return f"mean {apart.mean():.1e}, largest {apart.max():.1e}"


def compare(name: str, rows: list[list[int]], device: str, dtype: str) -> str:
    """One line about one checkpoint."""
    from transformers import AutoModelForCausalLM

    theirs: Any = AutoModelForCausalLM.from_pretrained(find_reference(name)[1], dtype=getattr(torch, dtype))
    found = [fla_logprobs(theirs.to(device).eval(), ids) for ids in rows]
    exact, ours = (
        [model.logprobs(ids) for ids in rows]
        for model in (load_model(name, "torch", "float32", "cpu"), load_model(name, "torch", dtype, device))
    )
    return f"{name}: fla {dtype} {difference(found, exact)}; longeval {dtype} {difference(ours, exact)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", nargs="*", default=[f"{DEMO}:{name}" for name in ALL_CHECKPOINTS])
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=TRAINED_LENGTH, help="of each row")
    arguments = parser.parse_args()
    try:
        import fla.models  # registers its model types
    except ImportError as error:
        parser.error(f"{error}: pip install flash-linear-attention==0.6.0")
    if fla.layers.attn.flash_attn_func is None:
        print("without flash-attn: fla's RoPE with PyTorch's attention")
        fla.layers.attn.flash_attn_func = plain_attention
    device, dtype = ("cuda", "bfloat16") if torch.cuda.is_available() else ("cpu", "float32")
    rows = make_rows(TRAINED_LENGTH, 0, arguments.rows)[0][:, : arguments.tokens].astype(int).tolist()
    for name in arguments.models:
        print(compare(name, rows, device, dtype), flush=True)


if __name__ == "__main__":
    main()
