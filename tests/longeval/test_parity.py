"""Comparison of backends, on models made by hand: the real ones meet in tests/models/test_vllm_engine.py."""

from __future__ import annotations

import json

import numpy as np
import pytest

from longeval import parity as module
from longeval.errors import UserError
from longeval.models.checkpoint import Checkpoint
from longeval.parity import Answers, Difference, Tolerance, parity
from longeval.types import Generation


class Model:
    """log p = -1 for every token but those of `odd`, which cost 1.5; continues with `new`."""

    def __init__(self, new, odd=(), noise=0.0):
        self.new, self.odd, self.noise = new, odd, noise
        self.provenance = {"dtype": "float32"}
        self.closed = False

    def logprobs(self, ids):
        return np.array([-1.5 if token in self.odd else -1.0 for token in ids[1:]], np.float32) + self.noise

    def generate(self, prompts, max_new_tokens):
        yield Generation(0, tuple(self.new), "", "length")

    def close(self):
        self.closed = True


@pytest.fixture
def compare(monkeypatch, tmp_path):
    """`compare(vllm=Model, torch=Model, ...)` through `parity`, without transformers."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "path_attn", "vocab_size": 50}))
    monkeypatch.setattr(module, "find_checkpoint", lambda name: Checkpoint(name, tmp_path))
    monkeypatch.setattr(module, "without_vllm", lambda checkpoint: None)

    def run(lengths=(40,), tolerance=None, **models):
        monkeypatch.setattr(module, "load_model", lambda name, backend, *rest: models[backend])
        return parity("some", lengths, tolerance=tolerance)

    return run


def test_equal_models_pass(compare):
    other = Model([1, 2, 3], noise=1e-5)
    result = compare(lengths=(40, 60), vllm=other, torch=Model([1, 2, 3]))
    assert result.passed
    assert [row.length for row in result.differences] == [40, 60]
    assert all(row.largest == pytest.approx(1e-5, rel=0.1) and row.parted is None for row in result.differences)
    assert list(result.left_out) == ["transformers"]  # it does not know this type
    assert other.closed


def test_a_token_beyond_rounding_fails(compare):
    result = compare(vllm=Model([1, 2, 3]), torch=Model([1, 7, 3], odd=(2,), noise=0.0))
    (row,) = result.differences
    assert (row.parted, row.tokens) == (1, (7, 2))
    assert row.gap == pytest.approx(0.5)
    assert not result.passed


def test_tolerance(compare):
    models = {"vllm": Model([1], noise=0.01), "torch": Model([1])}
    assert not compare(**models).passed
    assert compare(tolerance=0.02, **models).passed


def test_gap_within_rounding_passes():
    row = Difference("vllm", 9, largest=0.001, mean=0.0001, parted=3, tokens=(1, 2), gap=0.0019)
    assert row.within(Tolerance(0.001, 0.0001))
    assert not row.within(Tolerance(0.0009, 0.0001))
    assert not row.within(Tolerance(0.001, 0.00009))


def test_nothing_to_compare_with(compare, monkeypatch):
    monkeypatch.setattr(module, "without_vllm", lambda checkpoint: "not installed")
    with pytest.raises(UserError, match=r"nothing to compare with: vllm: not installed; transformers: "):
        compare(torch=Model([1]))


def test_text_is_the_same_every_time(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "path_attn", "vocab_size": 50}))
    checkpoint = Checkpoint("some", tmp_path)
    first = module.text(checkpoint, 300)
    assert first == module.text(checkpoint, 300)
    assert len(first) == 300
    assert set(first) <= set(range(50))


def test_answers_of_transformers_itself(tmp_path):
    """Its plain forward pass, on a small LLaMA, against its own logits."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=60, bos_token_id=1, eos_token_id=2, **sizes)).eval()
    model.save_pretrained(tmp_path)
    ids = list(range(3, 40))
    answers = module.PlainTransformers(Checkpoint("llama", tmp_path), "float32", "cpu").answer(ids)
    assert isinstance(answers, Answers)
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0]
    expected = logits[:-1].log_softmax(-1)[range(36), ids[1:]]
    np.testing.assert_allclose(answers.logprobs, expected.numpy(), atol=1e-5)
    assert answers.continuation[0] == int(logits[-1].argmax())
