"""What `--model` may be, and the one clear line for everything that it may not."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from byte_tokenizer import byte_tokenizer
from make_checkpoint import BASE, tensors_of, write
from safetensors.torch import save_file

import longeval
from longeval.errors import UserError
from longeval.models import check_model, find_model, load_model
from longeval.models.checkpoint import find_checkpoint
from longeval.models.torch_backend import pick_dtype

FOX = BASE | {"model_type": "forgetting_transformer", "eos_token_id": 7}


@pytest.fixture
def fox(tmp_path: Path) -> Path:
    return write(tmp_path / "fox", FOX, tensors_of(FOX))


def error(name: Path | str) -> str:
    with pytest.raises(UserError) as caught:
        load_model(str(name))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_no_such_model(tmp_path: Path) -> None:
    assert error("./nowhere").startswith("no such model: ./nowhere")
    assert error(tmp_path / "nowhere").startswith("no such model: ")
    assert "no folder or file here" in error("model.gguf")


def test_not_on_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert error("someone/something").startswith(
        "no such model: someone/something is no folder here and not on the hub"
    )


def test_hub_cache(fox: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A hub id whose snapshot is in the hub's cache works without a network."""
    from huggingface_hub import snapshot_download

    repo = tmp_path / "hub" / "models--someone--fox"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("0" * 40)
    shutil.copytree(fox, repo / "snapshots" / ("0" * 40))
    asked = []

    def cached(repo_id: str, **more: object) -> str:
        asked.append(more["allow_patterns"])
        return snapshot_download(repo_id, cache_dir=tmp_path / "hub", local_files_only=True, **more)

    monkeypatch.setattr("huggingface_hub.snapshot_download", cached)
    model = load_model("someone/fox")
    assert model.name == "someone/fox"
    assert model.provenance["checkpoint_hash"] == load_model(str(fox)).provenance["checkpoint_hash"]
    assert asked == [["*.json", "*.model", "*.txt", "*.jinja"], ["model*.safetensors"]]


def test_folder_without_config(tmp_path: Path) -> None:
    assert "has no config.json" in error(tmp_path)
    (tmp_path / "big.gguf").touch()
    assert "to run a GGUF file name it itself (big.gguf)" in error(tmp_path)


def test_a_file_that_is_no_model(fox: Path) -> None:
    assert "give the folder that holds config.json" in error(fox / "model.safetensors")


def test_broken_configs(fox: Path) -> None:
    (fox / "config.json").write_text("{")
    assert "config.json: not valid JSON" in error(fox)
    (fox / "config.json").write_text("[]")
    assert "has no model_type" in error(fox)
    (fox / "config.json").write_text(json.dumps({"hidden_size": 3}))
    assert "has no model_type" in error(fox)


def test_a_type_that_nobody_knows_goes_to_transformers(fox: Path) -> None:
    (fox / "config.json").write_text(json.dumps({"model_type": "no_such_architecture"}))
    message = error(fox)
    assert "transformers cannot" in message
    assert "no_such_architecture" in message


def test_no_weights(fox: Path) -> None:
    (fox / "model.safetensors").unlink()
    assert "holds no weights" in error(fox)


@pytest.mark.parametrize("cut", [0, 5, 400, -10])
def test_truncated_safetensors(fox: Path, cut: int) -> None:
    file = fox / "model.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    assert f"{file} is damaged or cut off" in error(fox)


def test_damaged_bin(fox: Path) -> None:
    (fox / "model.safetensors").unlink()
    for content in (b"not weights", b""):
        (fox / "pytorch_model.bin").write_bytes(content)
        assert "pytorch_model.bin is damaged or no PyTorch weights" in error(fox)


def test_missing_shard(fox: Path) -> None:
    (fox / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (fox / "model.safetensors.index.json").write_text(json.dumps(index))
    save_file({"a": torch.zeros(1)}, fox / "model-00001-of-00002.safetensors")
    assert "lacks model-00002-of-00002.safetensors" in error(fox)
    for index in ("{}", "[]", '{"weight_map": {"a": 1}}'):
        (fox / "model.safetensors.index.json").write_text(index)
        assert "is no index of weight files" in error(fox)
    (fox / "model.safetensors.index.json").write_text("{")
    assert "not valid JSON" in error(fox)


def test_quantised_weights(tmp_path: Path) -> None:
    tensors = tensors_of(FOX)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)
    assert "model.norm.weight is int8; quantised weights are not supported" in error(write(tmp_path, FOX, tensors))


def test_every_wrong_tensor_is_named(tmp_path: Path) -> None:
    """In the file's own words, also where the network calls a parameter otherwise."""
    config = BASE | {"model_type": "path_attn", "use_forget_gate": True}
    tensors = tensors_of(config)
    del tensors["model.layers.1.attn.g_proj.bias"], tensors["model.norm.weight"]
    tensors["model.layers.0.attn.k_proj.weight"] = torch.zeros(16, 32)
    tensors["model.layers.0.attn.rotary_cache"] = torch.zeros(3)
    tensors["model.layers.2.attn_norm.weight"] = torch.zeros(32)
    message = error(write(tmp_path, config, tensors))
    assert "missing: model.layers.1.attn.g_proj.bias, model.norm.weight;" in message
    assert "not used: model.layers.0.attn.rotary_cache, model.layers.2.attn_norm.weight;" in message
    assert "wrong shape: model.layers.0.attn.k_proj.weight is [16, 32], not [32, 32]" in message


def test_many_wrong_tensors_stay_one_readable_line(tmp_path: Path) -> None:
    message = error(write(tmp_path, FOX | {"num_hidden_layers": 9}, tensors_of(FOX)))
    assert "missing: model.layers.2.attn_norm.weight, " in message
    assert message.count("model.layers.") == 8
    assert re.search(r" and \d\d more$", message)


def test_more_layers_than_tensors_are_not_built(tmp_path: Path) -> None:
    message = error(write(tmp_path, FOX | {"num_hidden_layers": 10**9}, tensors_of(FOX)))
    assert "describes 1,000,000,000 layers" in message


def test_half_an_mlp_is_no_fused_one(fox: Path) -> None:
    tensors = tensors_of(FOX)
    del tensors["model.layers.0.mlp.up_proj.weight"]
    assert error(write(fox, FOX, tensors)).endswith("missing: model.layers.0.mlp.up_proj.weight")


def test_settings_that_cannot_be(fox: Path) -> None:
    for settings, message in [
        ({"backend": "tensorflow"}, "backend 'tensorflow' is not known"),
        ({"dtype": "floot32"}, "dtype 'floot32' is not known; did you mean"),
        ({"device": "gpu"}, "device 'gpu' is not known"),
        ({"device": "cuda:77"}, "device 'cuda:77' is not here"),
        ({"max_length": 10**12}, r"the KV cache of .* GiB free"),
    ]:
        with pytest.raises(UserError, match=message):
            load_model(str(fox), **settings)  # type: ignore[arg-type]


def test_a_device_that_is_not_here_is_found_before_any_work(fox: Path) -> None:
    with pytest.raises(UserError, match="device 'cuda:77' is not here"):
        check_model(str(fox), device="cuda:77")
    assert check_model(str(fox)).name == str(fox)


@pytest.mark.parametrize("content", ["[]", '{"eos_token_id": {"a": 1}}', '{"eos_token_id": [1, "</s>"]}'])
def test_ends_of_text_that_are_no_token_ids(fox: Path, content: str) -> None:
    (fox / "generation_config.json").write_text(content)
    assert "mend" in error(fox)


def test_dtype_under_either_name() -> None:
    gpu = torch.device("cuda")
    assert pick_dtype("auto", {"dtype": "float16"}, gpu) == torch.float16
    assert pick_dtype("auto", {"torch_dtype": "bfloat16"}, gpu) == torch.bfloat16
    assert pick_dtype("auto", {"torch_dtype": "float32"}, gpu) == torch.float32
    assert pick_dtype("auto", {}, gpu) == torch.bfloat16
    assert pick_dtype("auto", {"dtype": "bfloat16"}, torch.device("cpu")) == torch.float32


def test_without_tokenizer(fox: Path) -> None:
    assert find_model(str(fox)).tokenizer is None
    model = load_model(str(fox))
    assert (model.tokenizer, model.bos) == (None, None)
    assert next(iter(model.generate([[1, 2]], 3))).text == ""
    with pytest.raises(UserError, match="has no tokenizer"):
        model.generate([[1, 2]], 3, stop=["x"])


def test_tokenizer_bos_and_ends(fox: Path) -> None:
    byte_tokenizer().save_pretrained(fox)
    (fox / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 9]}))
    checkpoint = find_checkpoint(str(fox))
    assert checkpoint.eos_ids == {3, 9, 257}
    model = load_model(str(fox))
    assert model.bos == 256
    (fox / "generation_config.json").unlink()
    assert find_checkpoint(str(fox)).eos_ids == {7, 257}
    (fox / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="cannot load the tokenizer"):
        _ = find_model(str(fox)).tokenizer


def test_trained_window_is_recorded_where_it_means_something(tmp_path: Path) -> None:
    for kind, expected in [("transformer", 50), ("path_attn", None), ("forgetting_transformer-project_fox", None)]:
        config = BASE | {"model_type": kind, "max_position_embeddings": 50}
        folder = write(tmp_path / kind, config, tensors_of(config))
        assert find_model(str(folder)).trained_length == expected
        assert load_model(str(folder)).trained_length == expected


def test_beyond_the_trained_window(tmp_path: Path) -> None:
    config = BASE | {"model_type": "transformer", "max_position_embeddings": 8}
    model = load_model(str(write(tmp_path, config, tensors_of(config))), max_length=200)
    assert model.logprobs([1] * 200).shape == (199,)


def test_hash_follows_content(fox: Path, tmp_path: Path) -> None:
    first = find_checkpoint(str(fox)).hash()
    copy = tmp_path / "copy"
    shutil.copytree(fox, copy)
    assert find_checkpoint(str(copy)).hash() == first
    tensors = tensors_of(FOX)
    tensors["model.norm.weight"][0] += 1e-3
    write(copy, FOX, tensors)
    assert find_checkpoint(str(copy)).hash() != first
    write(copy, FOX | {"norm_eps": 1e-5}, tensors_of(FOX))
    assert find_checkpoint(str(copy)).hash() != first


def test_provenance(fox: Path) -> None:
    model = longeval.load_model(str(fox), dtype="bfloat16")
    assert json.loads(json.dumps(model.provenance)) == model.provenance
    assert model.provenance["dtype"] == "bfloat16"
    assert model.provenance["device"] == "cpu"
    assert model.provenance["backend"] == "torch"
    assert model.provenance["attention"].startswith("reference")
    assert model.provenance["checkpoint_hash"] == find_checkpoint(str(fox)).hash()
