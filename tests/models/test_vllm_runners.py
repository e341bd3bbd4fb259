"""The engine tests under vLLM's V2 runner, in a process of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from vllm_engines import CUDA, GOLDEN, V2_ON_CPU, require_vllm, run_python

require_vllm()
if V2_ON_CPU:
    pytest.skip("this starts the process that has the V2 runner", allow_module_level=True)


@pytest.mark.skipif(CUDA, reason="the default there; VLLM_USE_V2_MODEL_RUNNER=0 chooses V1")
def test_v2_runner():
    """On a CPU only with its helper kernels interpreted."""
    tests = Path(__file__).with_name("test_vllm_engine.py")
    environment = {"VLLM_USE_V2_MODEL_RUNNER": "1", "TRITON_INTERPRET": "1", "LONGEVAL_GOLDEN": str(GOLDEN)}
    report = run_python(["-m", "pytest", "-q", "-p", "no:cacheprovider", tests], **environment)
    summary = re.search(r"(\d+) passed(?:, (\d+) skipped)?", report)
    assert summary is not None, report
    assert int(summary[1]) >= 25
    assert int(summary[2] or 0) == 1  # compilation
