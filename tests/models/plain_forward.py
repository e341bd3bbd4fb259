"""A second forward pass of every checkpoint type, in NumPy and float64, from the formulas alone.

One token, one head, one score at a time; it reads a checkpoint's config and tensors under the file's own names and
shares no code with the package. Slow on purpose: what it computes can be checked by eye.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Tensors = dict[str, Array]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def powlu(x: Array) -> Array:
    return np.array([s * z ** (3 / (z**0.5 + 1)) if z > 0 else z * s for z, s in zip(x, sigmoid(x), strict=True)])


def norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt(np.mean(x * x) + eps) * weight


def rope(x: Array, position: int, theta: float) -> Array:
    half = len(x) // 2
    out = np.empty_like(x)
    for c in range(half):
        angle = position * theta ** (-2 * c / len(x))
        out[c] = x[c] * np.cos(angle) - x[c + half] * np.sin(angle)
        out[c + half] = x[c] * np.sin(angle) + x[c + half] * np.cos(angle)
    return out


def logits(config: dict[str, Any], tensors: Tensors, ids: list[int]) -> Array:
    """[L, V]"""
    eps = config.get("norm_eps", 1e-6)
    h = [tensors["model.embeddings.weight"][token] for token in ids]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        x = [norm(row, own["attn_norm.weight"], eps) for row in h]
        h = [row + a for row, a in zip(h, attention(config, own, x), strict=True)]
        h = [row + mlp(config, own, norm(row, own["mlp_norm.weight"], eps)) for row in h]
    head = tensors.get("lm_head.weight", tensors["model.embeddings.weight"])
    return np.array([head @ norm(row, tensors["model.norm.weight"], eps) for row in h])


def mlp(config: dict[str, Any], own: Tensors, x: Array) -> Array:
    gate, up = own["mlp.gate_proj.weight"], own.get("mlp.up_proj.weight")
    if up is None:
        gate, up = gate[: len(gate) // 2], gate[len(gate) // 2 :]
    act = {"swish": silu, "sigmoid": sigmoid, "powlu": powlu}[config.get("hidden_act", "swish")]
    return own["mlp.down_proj.weight"] @ (act(gate @ x) * (up @ x))


def linear(own: Tensors, name: str, x: Array) -> Array:
    return own[f"attn.{name}.weight"] @ x + own.get(f"attn.{name}.bias", 0)


def attention(config: dict[str, Any], own: Tensors, x: list[Array]) -> list[Array]:
    kind, HQ = config["model_type"], config["num_heads"]
    H, d = config.get("num_kv_heads") or HQ, config["hidden_size"] // HQ
    authors = kind.endswith("-project_fox")
    q = [linear(own, "q_proj", row) for row in x]
    k, v = (projected(own, name, x, d) for name in ("k_proj", "v_proj"))
    if config.get("qk_norm") and kind != "path_attn":
        full = kind == "transformer" and own["attn.q_norm.weight"].shape == (HQ * d,) and HQ > 1
        q = [head_norm(row, own["attn.q_norm.weight"], d, full) for row in q]
        k = [head_norm(row, own["attn.k_norm.weight"], d, full) for row in k]
    theta = {"transformer": config.get("rope_theta", 10000.0)}.get(kind)
    if authors and config.get("use_rope", kind.startswith("transformer")):
        theta = config.get("rope_base", 500000.0)
    if theta is not None:
        q = [np.concatenate([rope(head, t, theta) for head in row.reshape(-1, d)]) for t, row in enumerate(q)]
        k = [np.concatenate([rope(head, t, theta) for head in row.reshape(-1, d)]) for t, row in enumerate(k)]
    log_f = forget_gates(config, own, x)
    path = householders(own, x, d) if kind == "path_attn" else None
    gate_scale = d**-0.5 if kind == "path_attn" else 1.0
    out = []
    for i in range(len(x)):
        heads = []
        for head in range(HQ):
            group, part = head // (HQ // H), slice(head * d, (head + 1) * d)
            kv = slice(group * d, (group + 1) * d)
            scores = []
            moved = q[i][part].copy()  # H_{j+1} ... H_i q_i, for j from i down
            gates = 0.0
            for j in range(i, -1, -1):
                scores.append(d**-0.5 * (k[j][kv] @ moved) + gate_scale * gates)
                if path is not None:
                    w, beta = path[j][0][kv], path[j][1][group]
                    moved = moved - beta * w * (w @ moved)
                gates += log_f[j][head]
            if kind == "transformer" and config.get("window_size"):
                scores = scores[: config["window_size"]]
            weights = np.exp(np.array(scores) - max(scores))
            heads.append(sum(p * v[i - n][kv] for n, p in enumerate(weights / weights.sum())))
        o = np.concatenate(heads)
        if config.get("use_output_norm"):
            o = head_norm(o, own["attn.output_norm.weight"], d, False, config.get("norm_eps", 1e-6))
        if config.get("use_output_gate") and kind != "path_attn":
            gate = linear(own, "ogate_proj" if authors else "g_proj", x[i])
            o = o * (silu if config.get("ogate_act") == "silu" else sigmoid)(gate)
        out.append(linear(own, "o_proj", o))
    return out


def head_norm(x: Array, weight: Array, d: int, full: bool, eps: float = 1e-5) -> Array:
    if full:
        return norm(x, weight, eps)
    weights = np.resize(weight, x.shape)
    return np.concatenate([norm(x[c : c + d], weights[c : c + d], eps) for c in range(0, len(x), d)])


def projected(own: Tensors, name: str, x: list[Array], d: int) -> list[Array]:
    """Keys or values; in the FoX authors' format possibly mixed with the token before."""
    if f"attn.{name}.linear.weight" not in own:
        return [linear(own, name, row) for row in x]
    y = [linear(own, f"{name}.linear", row) for row in x]
    out = []
    for t, row in enumerate(x):
        alpha = np.repeat(sigmoid(linear(own, f"{name}.shift_proj", row)), d)
        before = y[t - 1] if t else np.zeros_like(y[0])
        out.append(alpha * before + (1 - alpha) * y[t])
    return out


def forget_gates(config: dict[str, Any], own: Tensors, x: list[Array]) -> list[Array]:
    """log f per query head; zero without a gate."""
    kind = config["model_type"]
    if kind == "path_attn":
        name = "g_proj" if config.get("use_forget_gate") else None
    elif kind == "forgetting_transformer":
        name = "f_proj" if "attn.f_proj.weight" in own else "g_proj"
    else:
        name = "fgate_proj" if "attn.fgate_proj.weight" in own else None
    if "attn.fgate_bias" in own:
        return [np.log(sigmoid(own["attn.fgate_bias"])) for _ in x]
    if name is None:
        return [np.zeros(config["num_heads"]) for _ in x]
    return [np.log(sigmoid(linear(own, name, row))) for row in x]


def householders(own: Tensors, x: list[Array], d: int) -> list[tuple[Array, Array]]:
    """(w, beta) per token."""
    if "attn.w_proj.0.weight" in own:
        raw = [own["attn.w_proj.1.weight"] @ (own["attn.w_proj.0.weight"] @ row) for row in x]
    else:
        raw = [linear(own, "w_proj", row) for row in x]
    out = []
    for t, row in enumerate(x):
        w = raw[t]
        if "attn.w_conv1d.weight" in own:
            kernel = own["attn.w_conv1d.weight"][:, 0]
            past = [raw[t - 2 + m] if t - 2 + m >= 0 else np.zeros_like(w) for m in range(3)]
            w = silu(sum(kernel[:, m] * past[m] for m in range(3)))
        w = np.concatenate([part / np.sqrt(part @ part + 1e-6) for part in w.reshape(-1, d)])
        out.append((w, 2 * sigmoid(linear(own, "bt_proj", row))))
    return out
