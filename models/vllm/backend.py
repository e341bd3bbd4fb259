"""The `vllm` backend: evaluates with vLLM's engine any model that vLLM knows, this package's own included.

Requests stream: a window of them is in the engine, each result is handed out when its request finishes. Token ids go
in; the text of a continuation is decoded here as in the torch backend, so that both mean the same by it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from longeval.errors import UserError
from longeval.models.checkpoint import Checkpoint
from longeval.models.decoding import Ending, Limits
from longeval.models.torch_backend import default_bos, pick_dtype
from longeval.models.vllm import engine as engines
from longeval.models.vllm.options import default_options, parse_options, window_overrides
from longeval.types import Generation, TokenScores


class VllmModel:
    """A checkpoint in a vLLM engine; see `Model` for attributes and methods."""

    def __init__(self, checkpoint: Checkpoint, engine: Any, provenance: dict[str, Any]) -> None:
        self.name = checkpoint.name
        self.tokenizer = checkpoint.tokenizer
        self.trained_length = checkpoint.trained_length
        self.bos = default_bos(self.tokenizer)
        self.provenance = provenance
        self.engine = engine
        self._eos = checkpoint.eos_ids
        self._ids = count()
        self._window = 2 * engine.vllm_config.scheduler_config.max_num_seqs
        self._longest = engine.model_config.max_model_len

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int = 32,
        min_new_tokens: int = 0,
        stop: Sequence[str] = (),
    ) -> Iterator[Generation]:
        return self._generate(prompts, Limits.checked(self, max_new_tokens, min_new_tokens, self._eos, stop))

    def _generate(self, prompts: Sequence[Sequence[int]], limits: Limits) -> Iterator[Generation]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        ending = Ending(self.tokenizer, limits)
        params = SamplingParams(
            temperature=0,
            max_tokens=limits.max_new_tokens,
            min_tokens=limits.min_new_tokens,
            ignore_eos=True,  # what ends a text is named here, the same in every backend
            stop_token_ids=ending.forbidden_early,
            stop=list(limits.stop),
            detokenize=bool(limits.stop),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        # By name: in Python 3.12 what a closed generator was reading from may stay open (gh-118272).
        with closing(self._stream([(prompt, params) for prompt in prompts])) as stream:
            for index, output in stream:
                yield _generation(index, output.outputs[0], ending)

    def logprobs(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        from vllm import SamplingParams

        if len(ids) < 2:
            return np.empty(0, np.float32)
        if not self.engine.vllm_config.use_v2_model_runner:
            return self.token_scores(ids).logprobs
        targets = np.asarray(ids[1:])[:, None]
        params = SamplingParams(temperature=0, max_tokens=1, detokenize=False, prompt_logprob_token_ids=targets)
        ((_, output),) = self._stream([(ids, params)])
        return np.asarray(output.prompt_token_id_logprobs, np.float32)[:, 0]

    def token_scores(self, ids: Sequence[int]) -> TokenScores:
        from vllm import SamplingParams

        if len(ids) < 2:
            return TokenScores(np.empty(0, np.float32), np.empty(0, np.bool_))
        # vLLM's rank of a token counts equal logits before it, so that a tie (common in bfloat16) hides the argmax:
        # the best token itself is asked for.
        params = SamplingParams(temperature=0, max_tokens=1, detokenize=False, prompt_logprobs=1, flat_logprobs=True)
        ((_, output),) = self._stream([(ids, params)])
        flat = output.prompt_logprobs
        values, tokens = np.asarray(flat.logprobs, np.float32), np.asarray(flat.token_ids)
        return TokenScores(values[0::2], tokens[1::2] == tokens[0::2])

    def close(self) -> None:
        """Gives the engine's memory and processes back; the model is of no use afterwards."""
        self.engine.engine_core.shutdown()

    def _stream(self, requests: Sequence[tuple[Sequence[int], Any]]) -> Generator[tuple[int, Any], None, None]:
        """(index, output) of each request as it finishes. A consumer that stops early takes the rest out."""
        for ids, params in requests:
            if not len(ids):
                raise UserError("a prompt has no tokens; a model needs at least one")
            if len(ids) + params.max_tokens > self._longest:
                raise UserError(
                    f"{len(ids):,} tokens and {params.max_tokens:,} new ones are more than the {self._longest:,} that "
                    f"{self.name} was loaded for; load it with a larger max_length"
                )
        waiting = iter(enumerate(requests))
        running: dict[str, int] = {}
        try:
            while True:
                while len(running) < self._window and (request := next(waiting, None)):
                    index, (ids, params) = request
                    name = str(next(self._ids))
                    self.engine.add_request(name, {"prompt_token_ids": list(ids)}, params)
                    running[name] = index
                if not running:
                    return
                for output in self.engine.step():
                    if output.finished:
                        yield running.pop(output.request_id), output
        finally:
            if running:
                self.engine.abort_request(list(running))


def _generation(index: int, continuation: Any, ending: Ending) -> Generation:
    """Ended where `ending` ends it: vLLM itself looks for stop strings only in what follows min_tokens."""
    said = continuation.finish_reason
    if said not in ("stop", "length"):
        raise RuntimeError(f"vLLM ended a request with {said!r}")
    ids, text = list(continuation.token_ids), ""
    for end in range(1, len(ids) + 1):
        reason, text = ending.check(ids[:end])
        if reason is not None:
            return Generation(index, tuple(ids[:end]), text, reason)
    return Generation(index, tuple(ids), text, said)


def load_vllm(
    checkpoint: Checkpoint, dtype: str, device: str, max_length: int | None, options: Sequence[str] = ()
) -> VllmModel:
    """Starts an engine for texts of up to `max_length` tokens, continuations included (None: as vLLM chooses).

    `options`: `KEY=VALUE` engine arguments that override the backend's. UserError for what vLLM refuses, memory for one
    text of that length included.
    """
    if problem := engines.problem():
        raise UserError(problem)
    if reason := engines.unsupported(checkpoint):
        raise UserError(f"{reason}; use --backend torch")
    engines.prepare_environment()
    from transformers import AutoConfig
    from vllm import envs
    from vllm.platforms import current_platform

    platform = current_platform.device_type
    if device not in ("auto", platform):
        raise UserError(f"this vLLM runs on {platform}, not on {device}; choose a GPU with CUDA_VISIBLE_DEVICES")
    checkpoint.fetch_weights()
    v2_runner = platform == "cuda" if envs.VLLM_USE_V2_MODEL_RUNNER is None else envs.VLLM_USE_V2_MODEL_RUNNER
    gpu_memory = current_platform.get_device_total_memory() if platform == "cuda" else None
    arguments = default_options(max_length, gpu_memory, v2_runner) | parse_options(options)
    config = AutoConfig.from_pretrained(checkpoint.folder, local_files_only=True)
    chosen = pick_dtype(dtype, checkpoint.config, torch.device(platform))
    if chosen == torch.float32:
        engines.keep_float32()
    engine = engines.start(
        {
            **arguments,
            "model": str(checkpoint.folder),
            "dtype": str(chosen).removeprefix("torch."),
            "skip_tokenizer_init": checkpoint.tokenizer is None,
            "hf_overrides": window_overrides(config, arguments["max_model_len"]),
        }
    )
    provenance = {
        **_facts(engine, arguments, platform),
        "model_type": checkpoint.config["model_type"],
        "checkpoint": str(checkpoint.path.resolve()),
        "checkpoint_hash": checkpoint.hash(),
    }
    return VllmModel(checkpoint, engine, provenance)


def _facts(engine: Any, arguments: dict[str, Any], platform: str) -> dict[str, Any]:
    """What runs, as JSON; RuntimeError when an attention backend was asked for and another is in force."""
    config = engine.vllm_config
    attention = sorted({name for worker in engine.collective_rpc("longeval_attention") for name in worker})
    asked = config.attention_config.backend
    if asked is not None and attention != [asked.name]:
        raise RuntimeError(f"attention backend {asked.name} was asked for, but {', '.join(attention)} is in force")
    return {
        "backend": "vllm",
        "vllm": engines.installed_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "runner": "V2" if config.use_v2_model_runner else "V1",
        "attention": attention,
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "device": torch.cuda.get_device_name() if platform == "cuda" else platform,
        "tensor_parallel": config.parallel_config.tensor_parallel_size,
        "engine": arguments | {"max_model_len": engine.model_config.max_model_len},
        "cache_tokens": config.cache_config.kv_cache_size_tokens,
        "page_size": config.cache_config.block_size,
    }
