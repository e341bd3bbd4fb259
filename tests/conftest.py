"""Shared fixtures: every test has its own cache, so none sees or leaves anything in the user's."""

import os
import sys
from pathlib import Path

import pytest

# Workers side by side have a core each; more threads would spin while they wait for it. Read when torch is imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Helper modules (builders.py, fakes.py) stand beside the tests that use them.
for folder in Path(__file__).parent.iterdir():
    if folder.is_dir():
        sys.path.append(str(folder))


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("LONGEVAL_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path_factory.mktemp("hub")))


@pytest.fixture
def longeval(capsys, monkeypatch, tmp_path):
    """Runs a command in this process, in an empty folder; gives its exit status, stdout and stderr."""
    from longeval.cli import main

    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return stopped.value.code, captured.out, captured.err

    return call
