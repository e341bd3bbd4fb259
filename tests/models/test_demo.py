"""The model `demo`: made once, the same everywhere, and honest about what it knows."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from longeval.models import load_model, load_tokenizer
from longeval.models.demo import byte_tokenizer, demo_folder


def test_made_once_and_whole() -> None:
    """Many at a time: one folder, nothing unfinished left beside it."""
    byte_tokenizer()  # transformers' lazy imports are not safe in threads; processes are what really meets here
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: demo_folder(), range(4)))
    assert len(folders) == 1
    folder = folders.pop()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert demo_folder() == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_same_bytes_in_another_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = load_model("demo").provenance["checkpoint_hash"]
    monkeypatch.setenv("LONGEVAL_CACHE", str(tmp_path))
    assert load_model("demo").provenance["checkpoint_hash"] == first


def test_runs_and_knows_nothing() -> None:
    model = load_model("demo")
    assert "knows nothing" in json.loads((demo_folder() / "config.json").read_text())["longeval_note"]
    assert model.name == "demo (random weights, knows nothing)"
    assert model.provenance["model_type"] == "path_attn"
    assert (model.bos, model.trained_length) == (256, None)
    ids = model.tokenizer("The quick brown fox jumps over the lazy dog. " * 20)["input_ids"]
    logprobs = model.logprobs(ids)
    assert abs(logprobs.mean() + np.log(258)) < 1.5  # chance, roughly
    assert logprobs.std() > 0.1  # but no constant
    generations = list(model.generate([ids[:300], ids[:7]], 9))
    assert {g.index for g in generations} == {0, 1}


@pytest.mark.parametrize("text", ["plain", "  two  spaces\n\n\ttab", "naïve 中文 🙂", "\x00\x7f", "</s> is text too"])
def test_bytes_survive(text: str) -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text
    if "</s>" not in text:
        assert ids == list(text.encode())
        assert tokenizer(text)["input_ids"] == [256, *ids]


def test_tokenizer_comes_from_the_folder() -> None:
    tokenizer, trained_length = load_tokenizer("demo")
    assert trained_length is None
    assert tokenizer("ab")["input_ids"] == [256, 97, 98]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.chat_template) == (256, 257, None)
