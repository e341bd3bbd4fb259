"""The manifest: everything that decides a run's numbers, and what else a reader of the numbers wants to know."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import sys
from dataclasses import fields
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import longeval
from longeval.models.base import Model
from longeval.plan import Plan, suite_info, suite_notes
from longeval.tasks.cache import tokenizer_hash

_PACKAGES = ("torch", "triton", "transformers", "tokenizers", "datasets", "numpy", "vllm")


def package_versions() -> dict[str, str]:
    """Installed versions of what takes part in a run."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def decides(plan: Plan, model: Model) -> dict[str, Any]:
    """What must agree for two sets of samples to belong to one run."""
    config = plan.config
    options = {f.name: getattr(plan.options, f.name) for f in fields(plan.options)}
    return {
        "longeval": longeval.__version__,
        "model": {key: model.provenance[key] for key in ("checkpoint_hash", "backend", "dtype", "device")},
        "tokenizer_hash": tokenizer_hash(plan.tokenizer),
        "chat": plan.chat,
        "seed": config.seed,
        "limit": config.limit,
        "limit_tokens": config.limit_tokens,
        "overflow": config.overflow,
        "options": {name: str(value) if isinstance(value, Path) else value for name, value in options.items()},
        "tasks": {
            task.name: {
                "version": task.version,
                "lengths": [cell.length for cell in plan.cells if cell.task.name == task.name],
                **task.fingerprint(),
            }
            for task in plan.tasks
        },
    }


def info(plan: Plan, model: Model) -> dict[str, Any]:
    """Provenance and what tables need; none of it changes a number."""
    suites = dict.fromkeys(task.suite for task in plan.tasks)
    return {
        "model": display_name(model.name),
        "trained_length": plan.config.trained_length or model.trained_length,
        "provenance": model.provenance,
        "suites": [suite_info(name, plan.tasks, suite_notes(name, plan.cells)) for name in suites],
        "cells": [
            {
                "task": cell.task.name,
                "length": cell.length,
                "label": cell.task.length_label(cell.length),
                "planned": cell.planned,
                "prompt_tokens": cell.tokens,
                "fits": cell.fits,
                "smallest": cell.smallest,
            }
            for cell in plan.cells
        ],
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "git": _git_revision(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": package_versions(),
    }


def display_name(model: str) -> str:
    """What tables call a model: the last part of a path, a hub id as it is."""
    return Path(model).name if Path(model).exists() else model


def _git_revision() -> str | None:
    """The commit of the checkout that longeval runs from, or None for an installed wheel."""
    folder = Path(longeval.__file__).resolve().parent.parent
    if not (folder / ".git").exists():
        return None
    answer = subprocess.run(
        ["git", "-C", str(folder), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return answer.stdout.strip() or None


def default_out(deciding: dict[str, Any], plan: Plan) -> Path:
    """`runs/<model>-<suites>-<date>-<digest>`; the digest finds an earlier run of the same configuration again."""
    digest = hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:8]
    model = Path(plan.config.model).name.replace(":", "-") or "model"
    suites = "+".join(plan.config.suites)
    earlier = sorted(Path("runs").glob(f"{model}-{suites}-*-{digest}"))
    return earlier[-1] if earlier else Path("runs") / f"{model}-{suites}-{datetime.now(UTC):%Y-%m-%d}-{digest}"
