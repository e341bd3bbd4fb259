"""Every option and every old spelling of a checkpoint, against a second float64 forward pass (plain_forward.py)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import plain_forward
import pytest
import torch
from make_checkpoint import BASE, tensors_of, write
from safetensors.torch import save_file
from torch import Tensor

from longeval.errors import UserError
from longeval.models.architecture import read_architecture
from longeval.models.fla import FlaRunner, load_network

PRO = {
    "use_k_shift": True,
    "use_v_shift": True,
    "qk_norm": True,
    "qk_norm_share_param_across_head": True,
    "use_output_gate": True,
    "use_output_norm": True,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "path": {"model_type": "path_attn"},
    "path tied": {"model_type": "path_attn", "tie_word_embeddings": True},
    "path gqa": {"model_type": "path_attn", "num_kv_heads": 2},
    "path full w": {"model_type": "path_attn", "use_low_rank_w": False, "num_kv_heads": 1},
    "path no conv": {"model_type": "path_attn", "use_w_shortconv": False},
    "path full w no conv": {"model_type": "path_attn", "use_w_shortconv": False, "use_low_rank_w": False},
    "path fox": {"model_type": "path_attn", "use_forget_gate": True},
    "path fox gqa": {"model_type": "path_attn", "use_forget_gate": True, "num_kv_heads": 2},
    "path powlu": {"model_type": "path_attn", "hidden_act": "powlu"},
    "path unfused norm": {"model_type": "path_attn", "fuse_norm": False},
    "fox": {"model_type": "forgetting_transformer"},
    "fox gqa bias": {"model_type": "forgetting_transformer", "num_kv_heads": 2, "qkv_bias": True},
    "fox qk norm": {"model_type": "forgetting_transformer", "qk_norm": True, "num_kv_heads": 2},
    "fox output gate": {"model_type": "forgetting_transformer", "use_output_gate": True},
    "rope": {"model_type": "transformer"},
    "rope theta": {"model_type": "transformer", "rope_theta": 100.0, "num_kv_heads": 2},
    "rope qk norm bias": {"model_type": "transformer", "qk_norm": True, "qkv_bias": True},
    "rope window": {"model_type": "transformer", "window_size": 5},
    "rope window 1": {"model_type": "transformer", "window_size": 1},
    "authors fox": {"model_type": "forgetting_transformer-project_fox"},
    "authors pro": {"model_type": "forgetting_transformer-project_fox", **PRO},
    "authors pro rope": {
        "model_type": "forgetting_transformer-project_fox",
        **PRO,
        "fgate_type": "none",
        "use_rope": True,
    },
    "authors norms apart": {
        "model_type": "forgetting_transformer-project_fox",
        **PRO,
        "qk_norm_share_param_across_head": False,
    },
    "authors silu gate": {
        "model_type": "forgetting_transformer-project_fox",
        "use_output_gate": True,
        "ogate_act": "silu",
    },
    "authors norm alone": {"model_type": "forgetting_transformer-project_fox", "use_output_norm": True},
    "authors k shift": {"model_type": "forgetting_transformer-project_fox", "use_k_shift": True},
    "authors fixed gate": {"model_type": "forgetting_transformer-project_fox", "fgate_type": "fixed"},
    "authors bias gate": {"model_type": "forgetting_transformer-project_fox", "fgate_type": "bias_only"},
    "authors glu": {"model_type": "forgetting_transformer-project_fox", "hidden_act": "sigmoid"},
    "authors transformer": {"model_type": "transformer-project_fox", "rope_base": 1000.0},
}


def load(folder: Path, dtype: torch.dtype = torch.float64) -> FlaRunner:
    config = json.loads((folder / "config.json").read_text())
    return FlaRunner(load_network(folder, config, dtype, torch.device("cpu")))


def scores(folder: Path, ids: list[int]) -> np.ndarray:
    return torch.cat(list(load(folder).score(ids))).numpy()


def plain(config: dict[str, Any], tensors: dict[str, Tensor], ids: list[int]) -> np.ndarray:
    return plain_forward.logits(config, {name: value.double().numpy() for name, value in tensors.items()}, ids)


IDS = np.random.default_rng(0).integers(0, BASE["vocab_size"], 70).tolist()


@cache
def model_of(option: str) -> tuple[dict[str, Any], dict[str, Tensor], np.ndarray]:
    """Config, tensors and the second forward pass's logits."""
    config = BASE | OPTIONS[option]
    tensors = tensors_of(config)
    return config, tensors, plain(config, tensors, IDS)


@pytest.mark.parametrize("option", OPTIONS)
def test_forward(option: str, tmp_path: Path) -> None:
    """70 tokens cross a chunk; 1 and 2 are shorter than the convolution."""
    config, tensors, expected = model_of(option)
    folder = write(tmp_path, config, tensors)
    for length in (1, 2, 70):
        np.testing.assert_allclose(scores(folder, IDS[:length]), expected[:length], rtol=0, atol=1e-9)


@pytest.mark.parametrize("option", OPTIONS)
def test_decode(option: str, tmp_path: Path) -> None:
    """Unequal prompts in one batch, then token by token: what the layers carry along, shifts and windows included."""
    config, tensors, logits_of_text = model_of(option)
    expected = torch.from_numpy(logits_of_text)
    runner = load(write(tmp_path, config, tensors))
    lengths = [1, 3, 60]
    batch, logits = runner.prefill([IDS[:length] for length in lengths], room=10)
    for step in range(10):
        rows = expected[[length + step - 1 for length in lengths]]
        torch.testing.assert_close(logits, rows, rtol=0, atol=1e-9)
        logits = batch.step([IDS[length + step] for length in lengths])


# ---- traps: what reads alike in two formats, and what changed between releases


def test_path_fox_scales_the_gate_and_fox_does_not(tmp_path: Path) -> None:
    shapes = {".attn.w_proj.0.weight": (5, 32)}
    path_fox, _ = read_architecture(BASE | {"model_type": "path_attn", "use_forget_gate": True}, shapes, "config")
    fox, _ = read_architecture(BASE | {"model_type": "forgetting_transformer"}, {}, "config")
    assert (path_fox.gate_scaled, fox.gate_scaled) == (True, False)


def test_epsilons_are_where_they_belong(tmp_path: Path) -> None:
    """norm_eps 1e-3 (BASE) must not reach the q/k norms (1e-5): a tiny q shows it."""
    config = BASE | {"model_type": "transformer", "qk_norm": True}
    tensors = tensors_of(config)
    for name in tensors:
        if "q_proj" in name or "k_proj" in name:
            tensors[name] *= 1e-3
    expected = plain(config, tensors, IDS)
    np.testing.assert_allclose(scores(write(tmp_path, config, tensors), IDS), expected, rtol=0, atol=1e-9)


def test_w_of_zero_is_no_transition(tmp_path: Path) -> None:
    """The epsilon of w's length is under the root: w = 0 gives H = I, not NaN."""
    config = BASE | {"model_type": "path_attn"}
    tensors = tensors_of(config)
    for name in tensors:
        if "w_proj.1" in name:
            tensors[name].zero_()
    expected = plain(config, tensors, IDS)
    np.testing.assert_allclose(scores(write(tmp_path, config, tensors), IDS), expected, rtol=0, atol=1e-9)


def test_fused_gate_and_up_projection(tmp_path: Path) -> None:
    config = BASE | {"model_type": "forgetting_transformer"}
    tensors = tensors_of(config)
    expected = plain(config, tensors, IDS)
    for name in [name for name in tensors if name.endswith("up_proj.weight")]:
        gate = name.replace("up_proj", "gate_proj")
        tensors[gate] = torch.cat([tensors[gate], tensors.pop(name)])
    np.testing.assert_allclose(scores(write(tmp_path, config, tensors), IDS), expected, rtol=0, atol=1e-9)


def test_norms_inside_their_sublayers(tmp_path: Path) -> None:
    config = BASE | {"model_type": "transformer", "norm_first": True}
    tensors = tensors_of(config)
    expected = plain(config, tensors, IDS)
    renamed = {
        name.replace("attn_norm", "attn.norm").replace("mlp_norm", "mlp.norm"): value for name, value in tensors.items()
    }
    np.testing.assert_allclose(scores(write(tmp_path, config, renamed), IDS), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", ["forgetting_transformer", "fox"])
def test_forget_gate_called_g_proj(kind: str, tmp_path: Path) -> None:
    config = BASE | {"model_type": "forgetting_transformer"}
    tensors = tensors_of(config)
    expected = plain(config, tensors, IDS)
    renamed = {name.replace("f_proj", "g_proj"): value for name, value in tensors.items()}
    folder = write(tmp_path, config | {"model_type": kind}, renamed)
    np.testing.assert_allclose(scores(folder, IDS), expected, rtol=0, atol=1e-9)


def test_fox_norm_weights_shared_by_heads(tmp_path: Path) -> None:
    config = BASE | {"model_type": "forgetting_transformer", "qk_norm": True, "num_kv_heads": 2}
    tensors = {
        name: value[:8] if "q_norm" in name or "k_norm" in name else value for name, value in tensors_of(config).items()
    }
    expected = plain(config, tensors, IDS)
    np.testing.assert_allclose(scores(write(tmp_path, config, tensors), IDS), expected, rtol=0, atol=1e-9)


def test_rope_norm_over_the_full_width(tmp_path: Path) -> None:
    config = BASE | {"model_type": "transformer", "qk_norm": True, "num_kv_heads": 2}
    tensors = tensors_of(config)
    for name in tensors:
        if "q_norm" in name or "k_norm" in name:
            tensors[name] = torch.linspace(-1, 1, 32 if "q_norm" in name else 16)
    expected = plain(config, tensors, IDS)
    np.testing.assert_allclose(scores(write(tmp_path, config, tensors), IDS), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("low_rank", [True, False])
def test_w_without_a_key_follows_the_tensors(low_rank: bool, tmp_path: Path) -> None:
    """Releases before 0.3.1 had no use_low_rank_w."""
    config = BASE | {"model_type": "path_attn"}
    tensors = tensors_of(config | {"use_low_rank_w": low_rank})
    expected = plain(config, tensors, IDS)
    np.testing.assert_allclose(scores(write(tmp_path, config, tensors), IDS), expected, rtol=0, atol=1e-9)


def test_buffers_and_tied_heads_in_the_file_are_no_parameters(tmp_path: Path) -> None:
    config = BASE | {"model_type": "transformer", "tie_word_embeddings": True}
    tensors = tensors_of(config)
    expected = plain(config, tensors, IDS)
    extra = {"lm_head.weight": torch.zeros(61, 32), "model.layers.0.attn.rotary.inv_freq": torch.zeros(4)}
    np.testing.assert_allclose(scores(write(tmp_path, config, tensors | extra), IDS), expected, rtol=0, atol=1e-9)


def test_sizes_that_follow_from_others() -> None:
    arch, _ = read_architecture({"model_type": "transformer", "hidden_size": 2048, "num_heads": 32}, {}, "config")
    assert arch.intermediate_size == 5632
    assert (arch.kv_heads, arch.head_dim, arch.layers, arch.vocab_size) == (32, 64, 24, 32000)
    wide, _ = read_architecture({"model_type": "transformer", "hidden_ratio": None, "head_dim": 7}, {}, "config")
    assert (wide.intermediate_size, wide.head_dim) == (5632, 64)
    pro, _ = read_architecture(
        {"model_type": "transformer-project_fox", "hidden_size": 1024, "num_heads": 16, "hidden_ratio": 3.5},
        {},
        "config",
    )
    assert pro.intermediate_size == 256 * -(-int(1024 * 3.5 * 2 / 3) // 256)


def test_keys_without_effect_on_path_attn(tmp_path: Path) -> None:
    config = BASE | {"model_type": "path_attn"}
    tensors = tensors_of(config)
    ignored = {
        "qk_norm": True,
        "qkv_bias": True,
        "window_size": 3,
        "rope_theta": 5.0,
        "use_output_gate": True,
        "conv_size": 4,
    }
    expected = plain(config, tensors, IDS)
    folder = write(tmp_path, config | ignored, tensors)
    np.testing.assert_allclose(scores(folder, IDS), expected, rtol=0, atol=1e-9)


# ---- files


def split(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    names = sorted(tensors)
    return {name: tensors[name] for name in names[::2]}, {name: tensors[name] for name in names[1::2]}


@pytest.mark.parametrize("layout", ["shards", "bin", "bin shards"])
def test_other_files_same_model(layout: str, tmp_path: Path) -> None:
    config = BASE | {"model_type": "path_attn"}
    tensors = tensors_of(config)
    expected = scores(write(tmp_path / "one", config, tensors), IDS)
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if layout == "bin":
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        stem, suffix = ("model", "safetensors") if layout == "shards" else ("pytorch_model", "bin")
        weight_map = {}
        for number, part in enumerate(split(tensors), start=1):
            file = f"{stem}-{number:05d}-of-00002.{suffix}"
            save_file(part, folder / file) if layout == "shards" else torch.save(part, folder / file)
            weight_map |= dict.fromkeys(part, file)
        (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps({"weight_map": weight_map}))
    np.testing.assert_array_equal(scores(folder, IDS), expected)


# ---- refusals


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "path_attn", "attnres_block_size": 2}, "attnres_block_size = 2"),
        ({"model_type": "forgetting_transformer", "attnres_block_size": 1}, "attention residuals"),
        ({"model_type": "forgetting_transformer", "window_size": 512}, "window_size = 512"),
        ({"model_type": "transformer", "hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"model_type": "transformer", "num_heads": 5}, "hidden_size = 32 is not a multiple of num_heads = 5"),
        ({"model_type": "transformer", "num_kv_heads": 3}, "num_heads = 4 is not a multiple of num_kv_heads = 3"),
        ({"model_type": "transformer", "num_heads": "4"}, "num_heads must be a positive integer, but is '4'"),
        ({"model_type": "transformer", "vocab_size": 0}, "vocab_size must be a positive integer, but is 0"),
        ({"model_type": "transformer", "qk_norm": "yes"}, "qk_norm must be true or false"),
        ({"model_type": "path_attn", "use_low_rank_w": False}, "use_low_rank_w = False contradicts the weights"),
        ({"model_type": "path_attn", "use_w_shortconv": False}, "use_w_shortconv = False contradicts the weights"),
        ({"model_type": "transformer-project_fox", "num_kv_heads": 4}, "num_kv_heads = 4"),
        ({"model_type": "forgetting_transformer-project_fox", "fgate_type": "odd"}, "fgate_type 'odd'"),
        (
            {"model_type": "forgetting_transformer-project_fox", **PRO, "ogate_act": "silu"},
            "ogate_act 'silu' does not go together with use_output_norm",
        ),
    ],
)
def test_refused_by_name(config: dict[str, Any], message: str) -> None:
    shapes = {"model.layers.0.attn.w_proj.0.weight": (5, 32), "model.layers.0.attn.w_conv1d.weight": (32, 1, 3)}
    with pytest.raises(UserError) as refusal:
        read_architecture(BASE | config, shapes, "ckpt/config.json")
    assert str(refusal.value).startswith("ckpt/config.json: ")
    assert message in str(refusal.value)


def test_path_attn_with_qk_norms_is_refused() -> None:
    shapes = {"model.layers.0.attn.maybe_q_norm.weight": (8,)}
    with pytest.raises(UserError, match="maybe_q_norm"):
        read_architecture(BASE | {"model_type": "path_attn"}, shapes, "config")
