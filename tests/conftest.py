"""Shared fixtures: every test has its own cache, so none sees or leaves anything in the user's."""

import sys
from pathlib import Path

import pytest

# Helper modules (builders.py, fakes.py) stand beside the tests that use them.
for folder in Path(__file__).parent.iterdir():
    if folder.is_dir():
        sys.path.append(str(folder))


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("LONGEVAL_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path_factory.mktemp("hub")))
