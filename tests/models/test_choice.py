"""Which backend `auto` means, and that a broken vLLM is said, not stepped around."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from longeval.errors import UserError
from longeval.models import choice
from longeval.models.checkpoint import Checkpoint


@pytest.fixture
def checkpoint(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "path_attn"}))
    return Checkpoint("some", tmp_path)


@pytest.fixture
def installation(monkeypatch):
    """A CUDA device and a working vLLM, for tests to take away from."""
    state = SimpleNamespace(cuda=True, version="0.32.0", problem=None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: state.cuda)
    monkeypatch.setattr(choice.engine, "installed_version", lambda: state.version)
    monkeypatch.setattr(choice.engine, "problem", lambda: state.problem)
    return state


def test_auto_takes_vllm_on_cuda(installation, checkpoint):
    assert choice.choose_backend("auto", "auto", checkpoint) == ("vllm", "CUDA, and vllm is installed")
    assert choice.choose_backend("auto", "cpu", checkpoint) == ("torch", "on the CPU")
    assert choice.choose_backend("torch", "auto", checkpoint) == ("torch", "asked for")
    installation.version = None
    assert choice.choose_backend("auto", "auto", checkpoint) == ("torch", "vllm is not installed")
    installation.cuda = False
    assert choice.choose_backend("auto", "auto", checkpoint) == ("torch", "on the CPU")


def test_auto_knows_what_vllm_cannot_run(installation, tmp_path):
    gguf = Checkpoint("some.gguf", tmp_path, gguf="some.gguf")
    assert choice.choose_backend("auto", "auto", gguf) == ("torch", "the vllm backend does not run GGUF files")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "transformer-project_fox"}))
    backend, why = choice.choose_backend("auto", "auto", Checkpoint("some", tmp_path))
    assert backend == "torch"
    assert "transformer-project_fox" in why


@pytest.mark.parametrize("wanted", ["auto", "vllm"])
def test_broken_vllm_is_an_error(installation, checkpoint, wanted):
    installation.problem = "longeval's vLLM plugin does not load: ImportError: no"
    with pytest.raises(UserError, match=r"plugin does not load.*--backend torch"):
        choice.choose_backend(wanted, "auto", checkpoint)
    assert choice.choose_backend("torch", "auto", checkpoint)[0] == "torch"


def test_broken_is_not_the_same_as_not_installed(installation, checkpoint):
    assert choice.broken() == {}
    installation.problem = "no plugin"
    assert choice.broken() == {"vllm": "no plugin"}
    installation.version = None
    assert choice.broken() == {}
    assert choice.without_vllm(checkpoint) == "vllm is not installed"


def test_unknown_backend_and_idle_engine_arguments(installation, checkpoint):
    with pytest.raises(UserError, match="did you mean vllm"):
        choice.choose_backend("vlm", "auto", checkpoint)
    with pytest.raises(UserError, match=r"--vllm max_num_seqs=4 needs the vllm backend.*on the CPU"):
        choice.choose_backend("auto", "cpu", checkpoint, ["max_num_seqs=4"])
