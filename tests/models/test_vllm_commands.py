"""Commands on a real engine: `run` killed and resumed, `parity` between backends, what is refused before any work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from vllm_engines import V2_ON_CPU, case_with, require_vllm

require_vllm()
if V2_ON_CPU:
    pytest.skip("the commands are the same in both runners", allow_module_level=True)

SUITES = ["--suite", "perplexity,phonebook,ruler", "--tasks", "stdlib,lookup,fwe"]
RUN = ["run", "--model", "demo", "--backend", "vllm", *SUITES, "--lengths", "1k", "--limit", "3"]
MEMORY = ("--vllm", "kv_cache_memory_bytes=134217728", "--vllm", "gpu_memory_utilization=0.1")
COMPARED = ("id", "prediction", "score", "prompt_tokens", "new_tokens", "finish_reason", "error")


def rows(folder):
    file = folder / "samples.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.is_file() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def test_a_killed_run_resumes(longeval, tmp_path):
    """kill -9 after the first rows, the same command again: every sample once, as in an undisturbed run."""
    command = [*RUN, *MEMORY, "--out"]
    killed = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, "-m", "longeval", *command, killed], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300  # on a GPU, kernels compile first
    while not rows(killed):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = {row["id"] for row in rows(killed)}
    assert 0 < len(before) < 9
    assert longeval(*command, killed)[0] == 0
    assert longeval(*command, tmp_path / "undisturbed")[0] == 0
    found, expected = rows(killed), rows(tmp_path / "undisturbed")
    assert before == {row["id"] for row in found[: len(before)]}
    assert len(found) == len(expected) == 9
    by_id = {row["id"]: row for row in found}
    assert [{key: by_id[row["id"]][key] for key in COMPARED} for row in expected] == [
        {key: row[key] for key in COMPARED} for row in expected
    ]
    provenance = json.loads((killed / "manifest.json").read_text())["info"]["provenance"]
    assert provenance["backend"] == "vllm"
    assert provenance["attention"] == ["LONGEVAL_PAGES"]
    assert provenance["engine"]["kv_cache_memory_bytes"] == 134217728


def test_what_the_cache_cannot_hold_is_refused_before_any_work(longeval, tmp_path):
    tasks = ["--suite", "ruler", "--tasks", "niah_single_1", "--lengths", "8k", "--limit", "1"]
    command = ["run", "--model", "demo", "--backend", "vllm", *tasks, "--haystack", "stdlib", "--out", tmp_path / "out"]
    status, _, errors = longeval(*command, *MEMORY, "--vllm", "kv_cache_memory_bytes=8388608")
    assert status == 2
    for words in ("GiB KV cache is needed", "available KV cache memory (0.01 GiB)", "--lengths"):
        assert words in " ".join(errors.split())
    assert not any((tmp_path / "out").iterdir())


def test_auto_says_what_runs_and_why(longeval, tmp_path):
    tasks = ["--suite", "ruler", "--tasks", "niah_single_1", "--lengths", "1k", "--limit", "1"]
    _, text, errors = longeval("run", "--model", "demo", *tasks, "--haystack", "stdlib", "--device", "cpu")
    assert "torch (on the CPU)" in text + errors


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A small LLaMA with a window of 256 tokens, which every backend can run."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=200, max_position_embeddings=256, initializer_range=0.2, **sizes)
    folder = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_parity_of_all_backends_beyond_the_trained_window(longeval, llama):
    status, text, _ = longeval("parity", "--model", llama, "--lengths", "100,600", *MEMORY)
    assert status == 0
    cells = [line.replace("│", " ").split() for line in text.splitlines() if line.startswith("│")]
    assert [(cell[0], cell[1], cell[-1]) for cell in cells] == [
        ("vllm", "100", "ok"),
        ("transformers", "100", "ok"),
        ("vllm", "600", "ok"),
        ("transformers", "600", "ok"),
    ]


def test_parity_beyond_the_tolerance_is_exit_status_1(longeval):
    folder = case_with("path_attn", use_forget_gate=True)
    parity = ("parity", "--model", folder, "--lengths", "300", *MEMORY)
    status, text, errors = longeval(*parity)
    assert status == 0
    assert "left out: transformers" in errors
    status, text, _ = longeval(*parity, "--tolerance", "1e-9")
    assert status == 1
    assert "beyond" in text


def test_benchmark(capsys, monkeypatch):
    """Its measurements and table, on models of a few thousand parameters, two engines at once."""
    from rich.console import Console

    from longeval.models.vllm import bench

    size = {"num_hidden_layers": 2, "hidden_size": 64, "num_heads": 2, "intermediate_size": 64, "vocab_size": 100}
    monkeypatch.setattr(bench, "SIZE", size)
    monkeypatch.setattr(bench, "BATCHES", (bench.Batch(3, 70, 4), bench.Batch(1, 200, 2)))
    monkeypatch.setattr(bench, "DOCUMENT", 300)
    options = [*MEMORY[1::2], "enforce_eager=true", "block_size=512"]
    rows = list(bench.measure_all(["rope", "path-fox"], 1, 2, options))
    assert [row.memory.relative for row in rows] == [1, pytest.approx(1.13, abs=0.01)]  # transitions and gates
    assert all(seconds > 0 for row in rows for seconds in (*row.seconds.values(), *row.prefill.values()))
    assert [row.memory.cache for row in rows] == pytest.approx([1 / 8] * 2, rel=0.01)
    assert rows[1].memory.concurrent == pytest.approx(2**27 / rows[1].memory.bytes_per_token / 512, rel=0.01)
    Console(width=110).print(bench.table(rows))
    assert "3 × 70 + 4" in capsys.readouterr().out
