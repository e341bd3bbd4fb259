"""Run folders as they are read for comparison and export: manifest, rows, scores, and a short label for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from longeval.errors import UserError
from longeval.results.aggregate import Scores, aggregate, rows_by_cell
from longeval.results.store import Row, RunFolder


@dataclass(frozen=True)
class Run:
    """A run folder in memory. `label`: how tables call it."""

    label: str
    folder: RunFolder
    rows: dict[str, Row]
    scores: Scores

    @property
    def info(self) -> Mapping[str, Any]:
        info: dict[str, Any] = self.folder.manifest["info"]
        return info

    @property
    def suites(self) -> dict[str, Mapping[str, Any]]:
        """The manifest's suites by name."""
        return {suite["name"]: suite for suite in self.info["suites"]}

    @cached_property
    def by_cell(self) -> dict[tuple[str, int], list[Row]]:
        """The rows of every task and length."""
        return rows_by_cell(self.rows.values())


def load_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs in `paths`, labelled by model, or by folder where models are called alike.

    UserError when one is given twice.
    """
    twice = {path for path in paths if [other.resolve() for other in paths].count(path.resolve()) > 1}
    if twice:
        raise UserError(f"{sorted(twice)[0]} is given twice; name every run once")
    folders = [RunFolder(path) for path in paths]
    return [
        Run(label, folder, rows := folder.rows(), aggregate(folder.manifest, rows.values()))
        for label, folder in zip(_labels(folders), folders, strict=True)
    ]


def _labels(folders: Sequence[RunFolder]) -> list[str]:
    models = [Path(folder.manifest["info"]["model"]).name for folder in folders]
    names = [folder.path.resolve().name for folder in folders]
    for labels in (models, names):
        if len(set(labels)) == len(labels):
            return labels
    return [str(folder.path) for folder in folders]


def merged_suites(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Every suite that some run has, with the tasks of all of them, as the first run that has it defines it."""
    merged: dict[str, dict[str, Any]] = {}
    for run in runs:
        for name, suite in run.suites.items():
            if name not in merged:
                merged[name] = {**suite, "tasks": list(suite["tasks"])}
            known = {task["name"] for task in merged[name]["tasks"]}
            merged[name]["tasks"] += [task for task in suite["tasks"] if task["name"] not in known]
    for suite in merged.values():
        order = [task["name"] for task in suite["all_tasks"]]
        suite["tasks"].sort(key=lambda task: order.index(task["name"]) if task["name"] in order else len(order))
    return list(merged.values())
