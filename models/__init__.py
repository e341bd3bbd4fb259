"""Model backends: they know no task. `load_model` picks one; nothing heavy is imported before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from longeval.errors import UserError, nearest

if TYPE_CHECKING:
    from longeval.models.base import Model

BACKENDS = ("torch", "vllm")


def load_model(
    name: str, backend: str = "auto", dtype: str = "auto", device: str = "auto", max_length: int | None = None
) -> Model:
    """Loads a model. `name`: "demo", a folder with config.json, a .gguf file, or a hub id.

    `backend`: "torch" or "auto" (the same now). `dtype`: float32, bfloat16, float16, float64, or "auto" (float32 on a
    CPU, else as stored). `device`: cpu, cuda, cuda:N, or "auto". `max_length`: tokens of the longest sequence to come;
    UserError before any work when its cache cannot fit into memory. UserError also for a model that is not there,
    broken or unsupported.
    """
    if backend not in ("auto", *BACKENDS):
        raise UserError(f"backend {backend!r} is not known{nearest(backend, ['auto', *BACKENDS])}")
    if problem := backend_problems()["torch" if backend == "auto" else backend]:
        raise UserError(f"backend {backend} cannot run: {problem}; use --backend torch")
    from longeval.models.checkpoint import find_checkpoint
    from longeval.models.torch_backend import load_torch

    return load_torch(find_checkpoint(name), dtype, device, max_length)


def load_tokenizer(name: str) -> tuple[Any, int | None]:
    """The tokenizer of a model (None for a folder without one) and its trained window (None when unknown).

    Loads no weights. Errors as in `load_model`.
    """
    from longeval.models.checkpoint import find_checkpoint

    checkpoint = find_checkpoint(name)
    return checkpoint.tokenizer, checkpoint.trained_length


def backend_problems() -> dict[str, str | None]:
    """Why each backend cannot run here, or None for those that can."""
    return {"torch": None, "vllm": "this version of longeval does not have it"}
