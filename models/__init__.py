"""Model backends: they know no task. `load_model` picks one; nothing heavy is imported before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longeval.models.base import Model


def load_model(
    name: str,
    backend: str = "auto",
    dtype: str = "auto",
    device: str = "auto",
    max_length: int | None = None,
    vllm: Sequence[str] = (),
) -> Model:
    """Loads a model. `name`: "demo" or "demo:...", a folder with config.json, a .gguf file, or a hub id.

    `backend`: "torch", "vllm", or "auto" (vLLM on CUDA where it is installed, else torch; `provenance` says why).
    `dtype`: float32, bfloat16, float16, float64, or "auto" (float32 on a CPU, else as stored). `device`: cpu, cuda,
    cuda:N, or "auto". `max_length`: tokens of the longest sequence to come, continuation included; UserError before
    any work when its cache cannot fit into memory. `vllm`: engine arguments KEY=VALUE. UserError also for a model that
    is not there, broken or unsupported.
    """
    from longeval.models.checkpoint import find_checkpoint
    from longeval.models.choice import choose_backend

    checkpoint = find_checkpoint(name)
    chosen, why = choose_backend(backend, device, checkpoint, vllm)
    model: Model
    if chosen == "vllm":
        from longeval.models.vllm.backend import load_vllm

        model = load_vllm(checkpoint, dtype, device, max_length, vllm)
    else:
        from longeval.models.torch_backend import load_torch

        model = load_torch(checkpoint, dtype, device, max_length)
    model.provenance["backend_reason"] = why
    return model


def check_model(name: str, backend: str = "auto", device: str = "auto", vllm: Sequence[str] = ()) -> None:
    """Finds what is wrong with a model before any work: no such model, a backend that cannot run it, weights that are
    missing, damaged or not those of its config. Reads no values and downloads no weights. Errors as in `load_model`.
    """
    from longeval.models.checkpoint import find_checkpoint
    from longeval.models.choice import choose_backend

    checkpoint = find_checkpoint(name)
    choose_backend(backend, device, checkpoint, vllm)
    if checkpoint.hub is None and checkpoint.gguf is None:
        checkpoint.check_weights()


def load_tokenizer(name: str) -> tuple[Any, int | None]:
    """The tokenizer of a model (None for a folder without one) and its trained window (None when unknown).

    Loads no weights. Errors as in `load_model`.
    """
    from longeval.models.checkpoint import find_checkpoint

    checkpoint = find_checkpoint(name)
    return checkpoint.tokenizer, checkpoint.trained_length


def backend_problems() -> dict[str, str | None]:
    """Why each backend cannot run here, or None for those that can."""
    from longeval.models.choice import problems

    return problems()
