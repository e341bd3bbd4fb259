"""Model backends: they know no task. `load_model` picks one; nothing heavy is imported before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from longeval.models.base import Model
    from longeval.models.checkpoint import Checkpoint


def load_model(
    model: str | Checkpoint,
    backend: str = "auto",
    dtype: str = "auto",
    device: str = "auto",
    max_length: int | None = None,
    vllm: Sequence[str] = (),
) -> Model:
    """Loads "demo" or "demo:...", a folder with config.json, a .gguf file, a hub id, or what `find_model` gave.

    `backend`: "torch", "vllm", or "auto" (vLLM on CUDA where it is installed, else torch; `provenance` says why).
    `dtype`: float32, bfloat16, float16, float64, or "auto" (float32 on a CPU, else as stored). `device`: cpu, cuda,
    cuda:N, or "auto". `max_length`: tokens of the longest sequence to come, continuation included; UserError before
    any work when its cache cannot fit into memory. `vllm`: engine arguments KEY=VALUE. UserError also for a model that
    is not there, broken or unsupported.
    """
    from longeval.models.choice import choose_backend

    checkpoint = find_model(model) if isinstance(model, str) else model
    chosen, why = choose_backend(backend, device, checkpoint, vllm)
    loaded: Model
    if chosen == "vllm":
        from longeval.models.vllm.backend import load_vllm

        loaded = load_vllm(checkpoint, dtype, device, max_length, vllm)
    else:
        from longeval.models.torch_backend import load_torch

        loaded = load_torch(checkpoint, dtype, device, max_length)
    loaded.provenance["backend_reason"] = why
    return loaded


def find_model(name: str) -> Checkpoint:
    """What `name` means, with its config, tokenizer and trained window; loads no weights. Errors as in `load_model`."""
    from longeval.models.checkpoint import find_checkpoint

    return find_checkpoint(name)


def check_model(name: str, backend: str = "auto", device: str = "auto", vllm: Sequence[str] = ()) -> Checkpoint:
    """`find_model`, and finds what is wrong before any work: a backend that cannot run the model, a device that is not
    here, weights that are missing, damaged or not those of its config. Reads no values and downloads no weights.
    """
    from longeval.models.choice import choose_backend
    from longeval.models.torch_backend import pick_device

    checkpoint = find_model(name)
    chosen, _ = choose_backend(backend, device, checkpoint, vllm)
    if chosen == "torch":
        pick_device(device)
    if checkpoint.hub is None and checkpoint.gguf is None:
        checkpoint.check_weights()
    return checkpoint


def backend_problems() -> dict[str, str | None]:
    """Why each backend cannot run here, or None for those that can."""
    from longeval.models.choice import problems

    return problems()
