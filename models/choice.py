"""Which backend runs a model, and why."""

from __future__ import annotations

from collections.abc import Sequence

from longeval.errors import UserError, nearest
from longeval.models.checkpoint import Checkpoint
from longeval.models.vllm import engine

BACKENDS = ("torch", "vllm")


def problems() -> dict[str, str | None]:
    """Why each backend cannot run here, or None for those that can."""
    return {"torch": None, "vllm": engine.problem()}


def broken() -> dict[str, str]:
    """Backends that are installed and cannot run, with the reason: an error wherever they could have been chosen."""
    present = {"torch"} | ({"vllm"} if engine.installed_version() else set())
    return {name: problem for name, problem in problems().items() if problem and name in present}


def without_vllm(checkpoint: Checkpoint) -> str | None:
    """Why vLLM has no part in running this checkpoint, or None. UserError when it is installed and broken."""
    if engine.installed_version() is None:
        return "vllm is not installed"
    if reason := engine.unsupported(checkpoint):
        return reason
    _demand_vllm()
    return None


def _demand_vllm() -> None:
    if problem := engine.problem():
        raise UserError(f"backend vllm cannot run: {problem}; or use --backend torch")


def choose_backend(wanted: str, device: str, checkpoint: Checkpoint, vllm: Sequence[str] = ()) -> tuple[str, str]:
    """The backend for `wanted` (a backend or "auto") and the reason, for people.

    `auto` is vLLM on CUDA where it is installed and runs this kind of checkpoint. An installed vLLM that does not work
    is an error even then, never a silent change of backend. `vllm`: engine arguments, which only vLLM takes.
    """
    if wanted not in ("auto", *BACKENDS):
        raise UserError(f"backend {wanted!r} is not known{nearest(wanted, ['auto', *BACKENDS])}")
    chosen, why = (wanted, "asked for") if wanted != "auto" else _automatic(device, checkpoint)
    if chosen == "vllm":
        _demand_vllm()
    if chosen == "torch" and vllm:
        raise UserError(f"--vllm {vllm[0]} needs the vllm backend, but torch runs ({why}); add --backend vllm")
    return chosen, why


def _automatic(device: str, checkpoint: Checkpoint) -> tuple[str, str]:
    import torch

    if device == "cpu" or not torch.cuda.is_available():
        return "torch", "on the CPU"
    if device not in ("auto", "cuda"):
        return "torch", f"vllm takes no device {device}"
    if reason := without_vllm(checkpoint):
        return "torch", reason
    return "vllm", "CUDA, and vllm is installed"
