"""What makes a comparison of runs unfair: manifest keys that differ where only the checkpoints should."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from longeval.results.runs import Run
from longeval.results.store import flatten

# What checkpoints may differ in, where they ran, folders (contents have hashes of their own), and how many samples.
_MAY_DIFFER = {"model.checkpoint_hash", "model.device", "options.data_dir", "options.corpus", "limit", "limit_tokens"}
_ABSENT = "absent"


def unfair_differences(runs: Sequence[Run]) -> list[str]:
    """One line for every key of `decides` that differs, with every run's value.

    A task's keys count between the runs that have the task; a key that differs alike for several tasks is one line.
    """
    decides = {run.label: run.folder.manifest["decides"] for run in runs}
    lines = differing_settings(
        {label: {k: v for k, v in keys.items() if k != "tasks"} for label, keys in decides.items()}
    )
    grouped: dict[tuple[str, str], list[str]] = {}
    for task in dict.fromkeys(task for keys in decides.values() for task in keys.get("tasks", {})):
        of_task = {
            label: flatten(keys["tasks"][task]) for label, keys in decides.items() if task in keys.get("tasks", {})
        }
        for key, shown in _differing(of_task).items():
            grouped.setdefault((key, shown), []).append(task)
    return lines + [f"{key} of {_some(tasks)} ({shown})" for (key, shown), tasks in grouped.items()]


def differing_settings(by_run: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One line for every setting that differs and should not, with every run's value."""
    differing = _differing({label: flatten(settings) for label, settings in by_run.items()})
    return [f"{key} ({shown})" for key, shown in differing.items() if key not in _MAY_DIFFER]


def _differing(by_run: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The keys that do not have the same value in every run, each with all its values."""
    found = {}
    for key in dict.fromkeys(key for values in by_run.values() for key in values):
        values = {label: keys.get(key, _ABSENT) for label, keys in by_run.items()}
        if any(value != next(iter(values.values())) for value in values.values()):
            found[key] = ", ".join(f"{label}: {value}" for label, value in values.items())
    return found


def _some(tasks: Sequence[str]) -> str:
    """Three names at most."""
    more = f" and {len(tasks) - 3} more" if len(tasks) > 3 else ""
    return ", ".join(tasks[:3]) + more
