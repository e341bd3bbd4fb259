"""Runs any causal language model that transformers knows: folders, hub snapshots, GGUF files.

The model's own forward does everything, output head with its scaling or soft-capping included; RoPE scaling comes from
the config. Prompts of a batch are padded on the left and read in pieces, on top of transformers' own cache.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import DynamicLayer

from longeval.errors import UserError, one_line
from longeval.models.checkpoint import Checkpoint
from longeval.models.decoding import LOGIT_BUDGET, TOKENS_PER_CALL
from longeval.models.weights import refuse_misfits


def weight_bytes(checkpoint: Checkpoint, dtype: torch.dtype) -> int:
    """Of the model that the config describes, whatever the files hold; 0 for quantised ones, whose config hides it.

    A config that lacks fields describes its architecture's default model, which may be of many gigabytes.
    """
    config = checkpoint.transformers_config
    if getattr(config, "quantization_config", None):
        return 0
    auto: Any = AutoModelForCausalLM  # untyped
    try:
        with torch.device("meta"):
            model = auto.from_config(config, dtype=dtype)
    except Exception as error:  # as below
        raise UserError(f"{checkpoint.path}: transformers makes no model of its config ({one_line(error)})") from error
    return sum(int(parameter.nbytes) for parameter in model.parameters())


def load_transformers(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> Any:
    """The model of a checkpoint. UserError when transformers cannot load it whole."""
    try:
        with redirect_stderr(io.StringIO()):  # transformers' progress bars, which would tear the caller's
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                checkpoint.folder,
                gguf_file=checkpoint.gguf,
                dtype=dtype,
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are reported below, together with what else is wrong
            )
    except Exception as error:  # transformers raises many kinds; the user needs the same answer
        raise UserError(f"transformers cannot load {checkpoint.path} ({one_line(error)})") from error
    model, report = loaded
    found = {
        "missing": sorted(report["missing_keys"]),
        "not used": sorted(report["unexpected_keys"]),
        "wrong shape": sorted(str(name if isinstance(name, str) else name[0]) for name in report["mismatched_keys"]),
    }
    refuse_misfits(checkpoint.path, found)
    if getattr(model, "_is_stateful", False):
        raise UserError(f"{checkpoint.name}: recurrent layers ({model.config.model_type}) are not supported yet")
    return model.requires_grad_(False).eval().to(device)


class RoomyLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """A cache layer with room for a known number of tokens. transformers' own copies all keys and values per token."""

    def __init__(self, room: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.room = room

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.device = key_states.device
            self.buffers = [x.new_empty(*x.shape[:2], self.room, x.shape[3]) for x in (key_states, value_states)]
            self.keys, self.values = (buffer[:, :, :0] for buffer in self.buffers)
            self.is_initialized = True
        begin = self.get_seq_length()
        end = begin + key_states.shape[2]
        for buffer, states in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:, :, begin:end] = states
        self.keys, self.values = (buffer[:, :, :end] for buffer in self.buffers)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        end = self.get_seq_length()
        self.buffers = [buffer[indices] for buffer in self.buffers]
        self.keys, self.values = (buffer[:, :, :end] for buffer in self.buffers)


class TransformersBatch:
    """Sequences in the middle of being decoded. `mask` [B, tokens so far], 0 on padding."""

    def __init__(self, runner: TransformersRunner, cache: DynamicCache, mask: Tensor) -> None:
        self.runner = runner
        self.cache = cache
        self.mask = mask

    @torch.inference_mode()
    def step(self, tokens: Sequence[int]) -> Tensor:
        self.mask = torch.cat([self.mask, torch.ones_like(self.mask[:, :1])], dim=1)
        ids = torch.tensor(tokens, device=self.mask.device)[:, None]
        return self.runner.forward(ids, self.mask, self.cache, keep=1)[:, -1]

    @torch.inference_mode()
    def select(self, rows: Sequence[int]) -> TransformersBatch:
        kept = torch.tensor(rows, device=self.mask.device)
        self.cache.batch_select_indices(kept)
        return TransformersBatch(self.runner, self.cache, self.mask[kept])


class TransformersRunner:
    """Chunked prefill and scoring of a transformers model."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.device = model.device
        text_config = model.config.get_text_config()
        self.vocab_size = text_config.vocab_size
        self.bytes_per_token = _cache_bytes(text_config, model.dtype.itemsize)
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"  # renamed in transformers 5
        self._takes_positions = "position_ids" in parameters
        self._can_keep = "logits_to_keep" in parameters

    def forward(self, ids: Tensor, mask: Tensor, cache: DynamicCache, keep: int) -> Tensor:
        """Logits [B, T or keep, V], float32, of ids [B, T], the last T columns of `mask`; `keep` 0 keeps all."""
        extra: dict[str, Any] = {self._cache_name: cache}
        if self._takes_positions:
            extra["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        if self._can_keep:
            extra["logits_to_keep"] = keep
        full = bool(mask.all())  # without padding the model may use its causal kernels
        out = self.model(input_ids=ids, attention_mask=None if full else mask, use_cache=True, **extra)
        logits: Tensor = out.logits.float()
        return logits

    def _cache(self, room: int) -> DynamicCache:
        cache = DynamicCache(config=self.model.config)
        cache.layers = [RoomyLayer(room) if type(layer) is DynamicLayer else layer for layer in cache.layers]
        return cache

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[Sequence[int]], room: int) -> tuple[TransformersBatch, Tensor]:
        longest = max(map(len, prompts))
        ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        ids, mask = ids.to(self.device), mask.to(self.device)
        cache = self._cache(longest + room)
        piece = max(1, TOKENS_PER_CALL // len(prompts))
        for begin in range(0, longest, piece):
            end = min(begin + piece, longest)
            logits = self.forward(ids[:, begin:end], mask[:, :end], cache, keep=1)[:, -1]
        return TransformersBatch(self, cache, mask), logits

    def score(self, ids: Sequence[int]) -> Iterator[Tensor]:
        cache = self._cache(len(ids))
        piece = max(1, min(TOKENS_PER_CALL, LOGIT_BUDGET // self.vocab_size))
        for begin in range(0, len(ids), piece):
            with torch.inference_mode():
                part = torch.tensor(ids[begin : begin + piece], device=self.device)[None]
                mask = torch.ones(1, begin + part.shape[1], dtype=torch.int64, device=self.device)
                logits = self.forward(part, mask, cache, keep=0)[0]
            yield logits


def _cache_bytes(config: Any, itemsize: int) -> int:
    """Of one token's keys and values in all layers."""
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(2 * config.num_hidden_layers * kv_heads * head_dim * itemsize)
