"""The PyTorch backend: a checkpoint, its network and the shared decode loop behind the `Model` protocol."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from longeval.errors import UserError, nearest
from longeval.models import attention
from longeval.models.checkpoint import Checkpoint
from longeval.models.decoding import Limits, Runner, generate, score_tokens
from longeval.models.fla import FlaRunner, load_network
from longeval.models.network import attention_shape
from longeval.types import Generation, TokenScores

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
CPU_BATCH_TOKENS = 32_768  # more does not make a CPU faster
CACHE_SHARE = 0.5  # of free memory that KV caches may take; the rest is for activations


class TorchModel:
    """See `Model` for attributes and methods."""

    def __init__(self, checkpoint: Checkpoint, runner: Runner, provenance: dict[str, Any]) -> None:
        self.name = checkpoint.name
        self.tokenizer = checkpoint.tokenizer
        self.trained_length = checkpoint.trained_length
        self.bos = default_bos(self.tokenizer)
        self.provenance = provenance
        self.runner = runner
        self._eos = checkpoint.eos_ids

    def logprobs(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        return self.token_scores(ids).logprobs

    def token_scores(self, ids: Sequence[int]) -> TokenScores:
        self._check_ids([ids])
        return score_tokens(self.runner, ids)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int = 32,
        min_new_tokens: int = 0,
        stop: Sequence[str] = (),
    ) -> Iterator[Generation]:
        limits = Limits.checked(self, max_new_tokens, min_new_tokens, self._eos, stop)
        self._check_ids(prompts)
        return generate(self.runner, self.tokenizer, prompts, limits, token_budget(self.runner))

    def _check_ids(self, sequences: Sequence[Sequence[int]]) -> None:
        for index, ids in enumerate(sequences):
            if not len(ids):
                raise UserError(f"prompt {index} has no tokens; a model needs at least one")
            if min(ids) < 0 or max(ids) >= self.runner.vocab_size:
                bad = next(i for i in ids if not 0 <= i < self.runner.vocab_size)
                raise UserError(f"token id {bad} is outside the model's vocabulary of {self.runner.vocab_size:,}")


def load_torch(checkpoint: Checkpoint, dtype: str, device: str, max_length: int | None) -> TorchModel:
    """Loads weights. UserError when they, or then one sequence of `max_length` tokens, do not fit into memory."""
    where = pick_device(device)
    checkpoint.fetch_weights()
    kind = pick_dtype(dtype, checkpoint.config, where)
    runner: Runner
    if checkpoint.is_fla:
        network = load_network(checkpoint.folder, checkpoint.config, kind, where)
        runner = FlaRunner(network)
        implementation = attention.implementation(attention_shape(network.arch, kind), network.arch.window, where)
    else:
        from longeval.models.transformers_lm import TransformersRunner, load_transformers, weight_bytes

        _check_room(weight_bytes(checkpoint, kind), where, "the model", "use a smaller --dtype or another --device")
        model = load_transformers(checkpoint, kind, where)
        runner = TransformersRunner(model)
        implementation = f"transformers {model.config._attn_implementation}"
    if max_length is not None:
        cache = f"the KV cache of a sequence of {max_length:,} tokens"
        _check_room(runner.bytes_per_token * max_length, where, cache, "choose shorter --lengths or a smaller --dtype")
    provenance = {
        "backend": "torch",
        "dtype": str(kind).removeprefix("torch."),
        "device": str(where),
        "model_type": checkpoint.config["model_type"],
        "attention": implementation,
        "checkpoint": str(checkpoint.path.resolve()),
        "checkpoint_hash": checkpoint.hash(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }
    return TorchModel(checkpoint, runner, provenance)


def pick_device(device: str) -> torch.device:
    """`auto` is the first CUDA device, or the CPU without one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        picked = torch.device(device)
    except RuntimeError as error:
        raise UserError(f"device {device!r} is not known; use auto, cpu, cuda or cuda:N") from error
    if picked.type not in ("cpu", "cuda", "mps", "xpu"):
        raise UserError(f"device {device!r} computes nothing here; use auto, cpu, cuda or cuda:N")
    if picked.type == "cuda" and (picked.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device {device!r} is not here: PyTorch sees {torch.cuda.device_count()} CUDA devices")
    return picked


def pick_dtype(dtype: str, config: dict[str, Any], device: torch.device) -> torch.dtype:
    """`auto` is float32 on a CPU and the checkpoint's own dtype elsewhere (bfloat16 when it states none)."""
    if dtype == "auto":
        if device.type == "cpu":
            return torch.float32
        stored = config.get("dtype") or config.get("torch_dtype")  # transformers renamed the key in 4.56
        return DTYPES.get(str(stored).removeprefix("torch."), torch.bfloat16)
    if dtype not in DTYPES:
        raise UserError(f"dtype {dtype!r} is not known{nearest(dtype, ['auto', *DTYPES])}")
    return DTYPES[dtype]


def default_bos(tokenizer: Any) -> int | None:
    """The BOS id where the tokenizer puts one in front by default, else None."""
    bos: int | None = getattr(tokenizer, "bos_token_id", None)
    return bos if bos is not None and tokenizer("a")["input_ids"][:1] == [bos] else None


def token_budget(runner: Runner) -> int:
    """How many tokens a batch may hold: what fits into memory, and on a CPU no more than helps."""
    fits = int(CACHE_SHARE * free_memory(runner.device) / max(1, runner.bytes_per_token))
    return min(fits, CPU_BATCH_TOKENS) if runner.device.type == "cpu" else fits


def free_memory(device: torch.device) -> int:
    """Bytes free on `device`."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    meminfo = Path("/proc/meminfo")
    for line in meminfo.read_text().splitlines() if meminfo.exists() else ():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2  # not Linux: half of what there is


def _check_room(needed: int, device: torch.device, what: str, remedy: str) -> None:
    """UserError when `what` takes more than the bytes that are free."""
    if needed > (free := free_memory(device)):
        gib = f"{needed / 2**30:.1f} GiB and {device} has {free / 2**30:.1f} GiB free"
        raise UserError(f"{what} needs {gib}; {remedy}")
