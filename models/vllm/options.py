"""What the engine is started with: defaults for long contexts, and `--vllm KEY=VALUE` on top of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from longeval.errors import UserError, nearest

# Settled elsewhere: by the other options of a run, or by what the backend relies on.
OWN = ("model", "tokenizer", "skip_tokenizer_init", "dtype", "worker_extension_cls", "hf_overrides")
STEP = 8192  # tokens
MEMORY_PER_TOKEN = 2 << 20  # bytes of the GPU's memory per token of a longer step


def parse_options(pairs: Iterable[str]) -> dict[str, Any]:
    """`KEY=VALUE` as engine arguments; VALUE is JSON where it reads as JSON, else text. UserError when malformed."""
    from vllm.engine.arg_utils import EngineArgs

    known = [field.name for field in fields(EngineArgs) if field.name not in OWN]
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise UserError(f"--vllm {pair!r} must be KEY=VALUE, for example max_num_seqs=64")
        if key in OWN:
            raise UserError(f"--vllm {key}: the backend sets this itself")
        if key not in known:
            raise UserError(f"--vllm {key} is no engine argument of vLLM{nearest(key, known)}")
        try:
            options[key] = json.loads(text)
        except json.JSONDecodeError:
            options[key] = {"True": True, "False": False, "None": None}.get(text, text)
    return options


def default_options(max_length: int | None, gpu_memory: int | None, v2_runner: bool) -> dict[str, Any]:
    """Engine arguments for texts of up to `max_length` tokens, prompt and continuation together.

    gpu_memory: bytes of the GPU, None on a CPU.
    """
    options: dict[str, Any] = {
        # one more than any text: a scored text still generates a token
        "max_model_len": None if max_length is None else max_length + 1,
        "max_num_batched_tokens": _step_tokens(max_length, gpu_memory, v2_runner),
        "seed": 0,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }
    if gpu_memory is not None:
        return {**options, "max_num_seqs": 256, "gpu_memory_utilization": 0.9}
    # Compiling costs minutes, and by default the cache would be most of the machine's memory.
    memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return {**options, "max_num_seqs": 32, "enforce_eager": True, "kv_cache_memory_bytes": min(memory, 4 << 30)}


def _step_tokens(max_length: int | None, gpu_memory: int | None, v2_runner: bool) -> int:
    """The most that one step prefills: where memory allows, a power of two that takes in a whole text.

    A text in several steps reads the pages of its earlier ones again, slower than new tokens. Activations take some
    40 KiB per token of a step in a model of 760M parameters. The V1 runner makes the logits of a whole step's prompt
    at once, outside the memory that it profiles.
    """
    if not v2_runner:
        return 2048
    step = STEP
    while gpu_memory is not None and step < (max_length or 0) and 2 * step * MEMORY_PER_TOKEN <= gpu_memory:
        step *= 2
    return step


def window_overrides(config: Any, length: int | None) -> dict[str, Any]:
    """`hf_overrides` that let a model of transformers run `length` tokens, beyond its trained window if need be.

    Only where the trained window does nothing but size a table of rotary angles: otherwise more positions would change
    what the model computes, or read beyond a table. UserError then.
    """
    text = config.get_text_config()
    window = getattr(text, "max_position_embeddings", None)
    if length is None or window is None or length <= window or hasattr(config, "architecture"):
        return {}
    kinds = rope_kinds(text)
    if not kinds or not kinds <= {"default", "linear", "llama3"}:
        what = f"rotary scaling {', '.join(sorted(kinds))}" if kinds else "no rotary positions"
        raise UserError(
            f"vLLM cannot run {length:,} tokens of a {config.model_type} model with {what}, whose positions end at "
            f"{window:,}; use --backend torch"
        )
    override: dict[str, Any] = {"max_position_embeddings": length}
    return override if text is config else {"text_config": override}


def rope_kinds(config: Any) -> set[str]:
    """The kinds of rotary scaling that a model's layers use; empty for a model without rotary positions."""
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, Mapping) or not rope:
        return set()
    per_layer = [value for value in rope.values() if isinstance(value, Mapping)] or [rope]
    return {str(value.get("rope_type", "default")) for value in per_layer}
