"""Where there is no GPU the kernels run in Triton's interpreter: it has to be chosen when they are imported."""

import importlib

import pytest
import torch

with pytest.MonkeyPatch.context() as patch:
    if not torch.cuda.is_available():
        patch.setenv("TRITON_INTERPRET", "1")
        importlib.import_module("triton.experimental.gluon")  # the interpreter imports it late, and checks the setting
    importlib.import_module("longeval.kernels.attention")


@pytest.fixture(scope="session")
def device():
    return "cuda" if torch.cuda.is_available() else "cpu"
