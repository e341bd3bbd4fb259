"""Plain vLLM with nothing of longeval's backend: default start with processes of its own, tensor parallel."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from vllm_engines import CUDA, V2_ON_CPU, Oracle, case_with, golden, require_vllm, run_python

require_vllm()
if V2_ON_CPU:
    pytest.skip("these start processes of their own", allow_module_level=True)

EXACT = {"TRITON_F32_DEFAULT": "tf32x3"}  # of float32 in vLLM's own attention on a GPU


PLAIN = """
import json, sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    folder, options, prompts = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    memory = {"kv_cache_memory_bytes": 1 << 29, "gpu_memory_utilization": 0.05}
    options.update(skip_tokenizer_init=True, dtype="float32", **memory)
    llm = LLM(folder, **options)
    wanted = {"max_tokens": 10, "detokenize": False, "ignore_eos": True, "logprobs": 1, "flat_logprobs": True}
    params = SamplingParams(temperature=0, **wanted)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
    rows = [{"ids": list(o.outputs[0].token_ids), "values": o.outputs[0].logprobs.logprobs,
             "starts": o.outputs[0].logprobs.start_indices} for o in outputs]
    length = llm.llm_engine.model_config.max_model_len
    print("RESULT" + json.dumps([rows, length]))
"""


@pytest.mark.parametrize(
    ("model_type", "options"),
    [
        ("path_attn", {}),
        ("path_attn", {"tensor_parallel_size": 2, "block_size": 64}),
        ("transformer", {"tensor_parallel_size": 2}),
    ],
    ids=["default start", "path on two ranks", "rope on two ranks"],
)
def test_plain_vllm(tmp_path, model_type, options):
    """`vllm.LLM(CKPT)` with nothing set for this package: config, spec and plugin survive spawned processes."""
    keys = {"use_low_rank_w": True, "use_w_shortconv": True} if model_type == "path_attn" else {}
    folder = case_with(model_type, **keys)
    text = golden(folder)["ids.2500"].tolist()
    prompts = [text[:3], text[10:140], text[20:220]]
    script = tmp_path / "plain.py"
    script.write_text(PLAIN)
    ranks = options.get("tensor_parallel_size", 1)
    if CUDA and torch.cuda.device_count() < ranks:
        pytest.skip(f"needs {ranks} GPUs")
    options = options | {"enforce_eager": not CUDA}
    environment = {"VLLM_CPU_OMP_THREADS_BIND": "0|0"} if ranks > 1 else {}
    report = run_python([script, folder, json.dumps(options), json.dumps(prompts)], **EXACT, **environment)
    rows, length = json.loads(report.partition("RESULT")[2])
    config = json.loads((folder / "config.json").read_text())
    assert length == (config["max_position_embeddings"] if model_type == "transformer" else 131_072)
    oracle = Oracle(folder)
    for prompt, row in zip(prompts, rows, strict=True):
        logprobs = SimpleNamespace(logprobs=row["values"], start_indices=row["starts"])
        continuation = SimpleNamespace(token_ids=row["ids"], logprobs=logprobs)
        oracle.check(prompt, SimpleNamespace(prompt_logprobs=None, outputs=[continuation]))
