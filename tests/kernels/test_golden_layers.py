"""The golden checkpoints' first attention layer: kernels against the float64 intermediates stored with each model."""

import json
from pathlib import Path

import pytest
import torch
from cases import error
from safetensors.torch import load_file

from longeval.kernels.attention import New, prefill
from longeval.kernels.plan import Plan
from longeval.kernels.reference import ScoreRule

GOLDEN = Path(__file__).parent.parent / "golden"
FOLDERS = sorted(p.parent for p in GOLDEN.glob("*/golden.safetensors"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: p.name)
def test_first_layer(folder, device):
    golden = load_file(folder / "golden.safetensors")
    config = json.loads((folder / "config.json").read_text())

    def field(name):
        x = golden.get(f"ref.layer0.{name}")
        return None if x is None else x.to(device)

    q, expected = field("q"), field("attn")
    scale = q.shape[-1] ** -0.5
    path = config["model_type"] == "path_attn"
    new = New(q, field("k"), field("v"), field("w") if path else None, field("beta"), field("log_f"))
    rule = ScoreRule(scale, gate_scale=scale if path else 1.0)
    out = prefill(rule, new, Plan.of(torch.tensor([0, q.shape[0]], device=device), q.shape[0]))
    assert error(out, expected.double().cpu()) < 5e-6


def test_there_are_golden_layers():
    assert len(FOLDERS) >= 6
