"""Small random checkpoints on disk, under the tensor names that each format uses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

BASE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_heads": 4,
    "intermediate_size": 24,
    "vocab_size": 61,
    "norm_eps": 1e-3,
}


def tensors_of(config: dict[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """float32 tensors of a model, named as in a current file of its type."""
    D, HQ, V = config["hidden_size"], config["num_heads"], config["vocab_size"]
    kv, H = D // HQ * (config.get("num_kv_heads") or HQ), config.get("num_kv_heads") or HQ
    intermediate, kind = config["intermediate_size"], config["model_type"]
    authors = kind.endswith("-project_fox")
    shapes: dict[str, tuple[int, ...]] = {"model.embeddings.weight": (V, D), "model.norm.weight": (D,)}
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (V, D)
    for layer in range(config["num_hidden_layers"]):
        attn: dict[str, tuple[int, ...]] = {"q_proj.weight": (D, D), "o_proj.weight": (D, D)}
        for name in ("k_proj", "v_proj"):
            if config.get(f"use_{name[0]}_shift"):
                attn |= {f"{name}.linear.weight": (kv, D), f"{name}.shift_proj.weight": (HQ, D)}
            else:
                attn[f"{name}.weight"] = (kv, D)
        if config.get("qkv_bias"):
            attn |= {"q_proj.bias": (D,), "k_proj.bias": (kv,), "v_proj.bias": (kv,)}
        if config.get("qk_norm"):
            one = kind == "transformer" or (authors and config.get("qk_norm_share_param_across_head"))
            attn |= {"q_norm.weight": (D // HQ if one else D,), "k_norm.weight": (D // HQ if one else kv,)}
        if kind == "path_attn":
            attn |= {"bt_proj.weight": (H, D), "bt_proj.bias": (H,)}
            low = config.get("use_low_rank_w", True)
            attn |= {"w_proj.0.weight": (5, D), "w_proj.1.weight": (kv, 5)} if low else {"w_proj.weight": (kv, D)}
            if config.get("use_w_shortconv", True):
                attn["w_conv1d.weight"] = (kv, 1, 3)
            if config.get("use_forget_gate"):
                attn |= {"g_proj.weight": (HQ, D), "g_proj.bias": (HQ,)}
        elif kind == "forgetting_transformer":
            attn |= {"f_proj.weight": (HQ, D), "f_proj.bias": (HQ,)}
            if config.get("use_output_gate"):
                attn["g_proj.weight"] = (D, D)
        elif authors:
            gate = config.get("fgate_type", "full" if kind.startswith("forgetting") else "none")
            if gate == "full":
                attn |= {"fgate_proj.weight": (HQ, D), "fgate_proj.bias": (HQ,)}
            elif gate != "none":
                attn["fgate_bias"] = (HQ,)
            if config.get("use_output_gate"):
                attn["ogate_proj.weight"] = (D, D)
            if config.get("use_output_norm"):
                attn["output_norm.weight"] = (D,)
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}attn.{name}": shape for name, shape in attn.items()}
        shapes |= {f"{prefix}attn_norm.weight": (D,), f"{prefix}mlp_norm.weight": (D,)}
        if authors:
            shapes[f"{prefix}mlp.gate_proj.weight"] = (2 * intermediate, D)
        else:
            shapes |= {
                f"{prefix}mlp.gate_proj.weight": (intermediate, D),
                f"{prefix}mlp.up_proj.weight": (intermediate, D),
            }
        shapes[f"{prefix}mlp.down_proj.weight"] = (D, intermediate)
    rng = torch.Generator().manual_seed(seed)
    # Large weights: every option then moves the logits by far more than any tolerance.
    return {name: torch.randn(shape, generator=rng) * (1 if len(shape) == 1 else 0.4) for name, shape in shapes.items()}


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """A folder with config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors")
    return folder
