"""What a checkpoint of a PaTH, FoX or plain RoPE model computes, read from its config and its tensors' shapes.

Two families of files describe such models: flash-linear-attention's (`path_attn`, `forgetting_transformer`,
`transformer`) and the FoX authors' own (`*-project_fox`). Both end up as one `Architecture`, which `network.py` builds,
plus the names that its parameters have in the file. Options that need something else are refused by name.

fla's types are tested against recorded outputs of fla itself; for the authors' format none were at hand, so that it is
tested against a second implementation of its published formulas only. Its tokenizer wrapper, which JSON-escapes text
first, is not reproduced.

Facts that a config leaves open or that changed between releases come from the shapes: rank of w's projection, width of
its convolution, the layout of q/k norm weights, fused MLPs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from longeval.errors import UserError

Shapes = Mapping[str, tuple[int, ...]]
FLA_TYPES = ("path_attn", "forgetting_transformer", "fox", "transformer")
AUTHORS_TYPES = ("forgetting_transformer-project_fox", "transformer-project_fox")
HEAD_NORM_EPS = 1e-5  # of q/k norms, whatever `norm_eps` says
_AUTHORS_GATES: dict[str, Literal["linear", "constant"] | None] = {
    "full": "linear",
    "bias_only": "constant",
    "fixed": "constant",
    "none": None,
}


@dataclass(frozen=True)
class PathOptions:
    """How PaTH's w comes about. `rank`: of its low-rank projection, None for a full one; `conv`: width of the short
    convolution (with SiLU) behind it, None for none."""

    rank: int | None
    conv: int | None


@dataclass(frozen=True)
class Architecture:
    """One decoder-only model. `heads` query heads share `kv_heads` key/value heads; head_dim = hidden_size / heads.

    `fused_residual`: the MLP's norm reads the residual sum before it is rounded. `gate`: forget gate, from the input or
    a constant per head. `gate_scaled`: the gate sum is multiplied by head_dim^-1/2 (PaTH-FoX) or not (FoX).
    `qk_norm`: RMSNorm over each head with one weight for all heads ("shared") or one per head ("per_head"), or over
    the full width ("full"). `output_norm`: RMSNorm per head on the attention output. `shift_k, shift_v`: data-dependent
    token shift. `window`: keys that a query sees, itself included.
    """

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    intermediate_size: int
    norm_eps: float
    tied: bool
    activation: str = "swish"
    fused_residual: bool = True
    path: PathOptions | None = None
    gate: Literal["linear", "constant"] | None = None
    gate_scaled: bool = False
    qkv_bias: bool = False
    qk_norm: Literal["shared", "per_head", "full"] | None = None
    rope_theta: float | None = None
    window: int | None = None
    output_gate: Literal["sigmoid", "silu"] | None = None
    output_norm: bool = False
    shift_k: bool = False
    shift_v: bool = False

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.heads


class Keys:
    """A config's values with their types checked; `where` names the file in messages."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config = config
        self.where = where

    def error(self, key: str, problem: str) -> UserError:
        return UserError(f"{self.where}: {key} {problem}")

    def _get(self, key: str, types: tuple[type, ...], what: str, default: Any) -> Any:
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise self.error(key, f"must be {what}, but is {value!r}")
        return value

    def size(self, key: str, default: int) -> int:
        value = int(self._get(key, (int,), "a positive integer", default))
        if value < 1:
            raise self.error(key, f"must be a positive integer, but is {value}")
        return value

    def optional_size(self, key: str) -> int | None:
        return None if self.config.get(key) is None else self.size(key, 1)

    def number(self, key: str, default: float) -> float:
        return float(self._get(key, (int, float), "a number", default))

    def flag(self, key: str, default: bool) -> bool:
        return bool(self._get(key, (bool,), "true or false", default))

    def choice(self, key: str, default: str, allowed: tuple[str, ...]) -> str:
        value = str(self._get(key, (str,), "a string", default))
        if value not in allowed:
            raise self.error(key, f"{value!r} is not supported (only {', '.join(map(repr, allowed))})")
        return value

    def absent(self, key: str, reason: str) -> None:
        """UserError when the key is set to anything."""
        if self.config.get(key) is not None:
            raise self.error(key, f"= {self.config[key]!r} is not supported: {reason}")


def read_architecture(config: Mapping[str, Any], shapes: Shapes, where: str) -> tuple[Architecture, dict[str, str]]:
    """The architecture of a config whose model_type is in FLA_TYPES or AUTHORS_TYPES, and its renamed parameters.

    `shapes`: of the file's tensors. The second item maps parts of the file's names to parts of `network.py`'s. Raises
    UserError naming `where` and the key for what is malformed, contradictory or unsupported.
    """
    keys = Keys(config, where)
    kind = str(config["model_type"])
    if kind in AUTHORS_TYPES:
        return _authors(keys, kind)
    keys.absent("attnres_block_size", "attention residuals are not implemented")
    if kind == "path_attn":
        return _path_attn(keys, shapes)
    return _fox(keys, shapes) if kind in ("forgetting_transformer", "fox") else _rope(keys, shapes)


def _common(keys: Keys, activations: tuple[str, ...]) -> dict[str, Any]:
    """Fields that every type reads alike."""
    hidden, heads = keys.size("hidden_size", 2048), keys.size("num_heads", 32)
    kv_heads = keys.optional_size("num_kv_heads") or heads
    if hidden % heads:
        raise keys.error("hidden_size", f"= {hidden} is not a multiple of num_heads = {heads}")
    if heads % kv_heads:
        raise keys.error("num_heads", f"= {heads} is not a multiple of num_kv_heads = {kv_heads}")
    ratio = keys.number("hidden_ratio", 4)
    intermediate = keys.optional_size("intermediate_size") or 256 * -(-int(hidden * ratio * 2 / 3) // 256)
    return {
        "vocab_size": keys.size("vocab_size", 32000),
        "hidden_size": hidden,
        "layers": keys.size("num_hidden_layers", 24),
        "heads": heads,
        "kv_heads": kv_heads,
        "intermediate_size": intermediate,
        "norm_eps": keys.number("norm_eps", 1e-6),
        "tied": keys.flag("tie_word_embeddings", False),
        "activation": keys.choice("hidden_act", "swish", activations),
        "fused_residual": keys.flag("fuse_norm", True),
    }


def _path_attn(keys: Keys, shapes: Shapes) -> tuple[Architecture, dict[str, str]]:
    if any("attn.maybe_q_norm" in name or "attn.maybe_k_norm" in name for name in shapes):
        raise UserError(f"{keys.where}: q/k norms of path_attn (maybe_q_norm, maybe_k_norm) are not supported")
    rank = _first(shapes, ".attn.w_proj.0.weight")
    conv = _first(shapes, ".attn.w_conv1d.weight")
    # The releases before 0.3.1 have no use_low_rank_w and did not agree on its meaning: the tensors decide.
    for key, found in (("use_low_rank_w", rank), ("use_w_shortconv", conv)):
        if key in keys.config and keys.flag(key, True) != (found is not None):
            tensors = "have" if found else "lack"
            raise keys.error(key, f"= {keys.config[key]!r} contradicts the weights, which {tensors} its tensors")
    path = PathOptions(rank[0] if rank else None, conv[2] if conv and len(conv) == 3 else None)
    gate = keys.flag("use_forget_gate", False)
    arch = Architecture(
        **_common(keys, ("swish", "powlu")), path=path, gate="linear" if gate else None, gate_scaled=True
    )
    return arch, {".attn.g_proj.": ".attn.f_proj."}  # here g_proj is the forget gate


def _fox(keys: Keys, shapes: Shapes) -> tuple[Architecture, dict[str, str]]:
    keys.absent("window_size", "FoX windows act in cached decoding only, so that no result is well defined")
    common = _common(keys, ("swish", "powlu"))
    arch = Architecture(
        **common,
        gate="linear",
        qkv_bias=keys.flag("qkv_bias", False),
        qk_norm=_head_norm(keys.flag("qk_norm", False), shapes, common),
        output_gate="sigmoid" if keys.flag("use_output_gate", False) else None,
    )
    # In the first week of April 2025 the forget gate was called g_proj.
    legacy = _first(shapes, ".attn.f_proj.weight") is None and _first(shapes, ".attn.g_proj.bias") is not None
    return arch, {".attn.g_proj.": ".attn.f_proj."} if legacy else {}


def _rope(keys: Keys, shapes: Shapes) -> tuple[Architecture, dict[str, str]]:
    common = _common(keys, ("swish", "powlu"))
    qk_norm = _head_norm(keys.flag("qk_norm", False), shapes, common)
    arch = Architecture(
        **common,
        qkv_bias=keys.flag("qkv_bias", False),
        qk_norm="full" if qk_norm == "per_head" else qk_norm,  # this type normalised the whole width then
        rope_theta=keys.number("rope_theta", 10000.0),
        window=keys.optional_size("window_size"),
    )
    return arch, {}


def _authors(keys: Keys, kind: str) -> tuple[Architecture, dict[str, str]]:
    keys.absent("num_kv_heads", "this format has no grouped queries")
    plain = kind == "transformer-project_fox"
    gate_type = "none" if plain else keys.choice("fgate_type", "full", tuple(_AUTHORS_GATES))
    rope = keys.flag("use_rope", plain)
    norm = keys.flag("qk_norm", False)
    shared = keys.flag("qk_norm_share_param_across_head", False)
    gated, output_norm = keys.flag("use_output_gate", False), keys.flag("use_output_norm", False)
    gate_act: Literal["sigmoid", "silu"] = "sigmoid"
    if keys.choice("ogate_act", "sigmoid", ("sigmoid", "silu")) == "silu":
        gate_act = "silu"
    if gated and output_norm and gate_act == "silu":
        raise keys.error("ogate_act", "'silu' does not go together with use_output_norm")
    arch = Architecture(
        **_common(keys, ("swish", "sigmoid")),
        gate=_AUTHORS_GATES[gate_type],
        qk_norm=("shared" if shared else "per_head") if norm else None,
        rope_theta=keys.number("rope_base", 500000.0) if rope else None,
        output_gate=gate_act if gated else None,
        output_norm=output_norm,
        shift_k=keys.flag("use_k_shift", False),
        shift_v=keys.flag("use_v_shift", False),
    )
    names = {
        ".attn.fgate_proj.": ".attn.f_proj.",
        ".attn.fgate_bias": ".attn.f_bias",
        ".attn.ogate_proj.": ".attn.g_proj.",
        ".attn.output_norm.": ".attn.o_norm.",
        ".attn.k_proj.linear.": ".attn.k_proj.",
        ".attn.k_proj.shift_proj.": ".attn.k_shift.",
        ".attn.v_proj.linear.": ".attn.v_proj.",
        ".attn.v_proj.shift_proj.": ".attn.v_shift.",
    }
    return arch, names


def _head_norm(on: bool, shapes: Shapes, common: Mapping[str, Any]) -> Literal["shared", "per_head"] | None:
    """Whether q/k norm weights cover one head or all of them."""
    if not on:
        return None
    shape = _first(shapes, ".attn.q_norm.weight")
    wide = common["heads"] > 1 and shape == (common["hidden_size"],)
    return "per_head" if wide else "shared"


def _first(shapes: Shapes, suffix: str) -> tuple[int, ...] | None:
    """The shape of that tensor in the first layer that has it."""
    return next((shape for name, shape in shapes.items() if name.endswith(suffix)), None)
