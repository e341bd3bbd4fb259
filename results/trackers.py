"""Scores and artefacts of a run in Weights & Biases or MLflow; each is an extra, imported only when it is used.

Both get one value per task and average at every length, with the length as the step, so that their plots are curves
over length; the manifest's deciding keys as configuration; and the run folder's files. Project, experiment and server
come from the trackers' own environment variables (WANDB_PROJECT, MLFLOW_EXPERIMENT_NAME, MLFLOW_TRACKING_URI, ...).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from longeval.errors import UserError
from longeval.results.runs import Run
from longeval.results.store import flatten

_ARTEFACTS = ("manifest.json", "samples.jsonl", "scores.json")


def log_to_wandb(run: Run) -> str:
    """Logs a run to Weights & Biases; returns where."""
    with (
        _tracker("wandb") as wandb,
        wandb.init(name=run.label, job_type="longeval", config=run.folder.manifest["decides"]) as tracked,
    ):
        tracked.define_metric("length")
        tracked.define_metric("*", step_metric="length")
        for length, scores in scores_by_length(run).items():
            tracked.log({"length": length, **scores})
        artefact = wandb.Artifact(f"longeval-{tracked.id}", type="longeval-run")
        for name in _present(run):
            artefact.add_file(str(run.folder.path / name))
        tracked.log_artifact(artefact)
        return f"logged to {tracked.url or tracked.dir}"


def log_to_mlflow(run: Run) -> str:
    """Logs a run to MLflow; returns where."""
    with _tracker("mlflow") as mlflow, mlflow.start_run(run_name=run.label) as tracked:
        mlflow.log_params({key: str(value)[:500] for key, value in flatten(run.folder.manifest["decides"]).items()})
        for length, scores in scores_by_length(run).items():
            mlflow.log_metrics(scores, step=length)
        for name in _present(run):
            mlflow.log_artifact(str(run.folder.path / name))
        return f"logged to {mlflow.get_tracking_uri()}, run {tracked.info.run_id}"


def scores_by_length(run: Run) -> dict[int, dict[str, float]]:
    """Every score (`ruler/average`) and standard error (`standard_error/ruler/average`) by length, in its own scale."""
    named = [(f"{average.suite}/{average.name}", average.length, average.mean) for average in run.scores.averages]
    named += [(cell.task, cell.length, cell.mean) for cell in run.scores.cells]
    found: dict[int, dict[str, float]] = {}
    for name, length, mean in sorted(named, key=lambda item: item[1]):
        if mean.value is not None:
            found.setdefault(length, {})[name] = mean.value
        if mean.standard_error is not None:
            found[length][f"standard_error/{name}"] = mean.standard_error
    return found


def _present(run: Run) -> list[str]:
    return [name for name in _ARTEFACTS if (run.folder.path / name).is_file()]


@contextmanager
def _tracker(name: str) -> Iterator[Any]:
    """The tracker's module; what it raises becomes one line for the user."""
    try:
        module = import_module(name)
    except ImportError as error:
        raise UserError(f"{name} is not installed: pip install 'longeval-harness[{name}]'") from error
    try:
        yield module
    except Exception as error:  # a tracker can fail in any way, most of them outside this program
        lines = str(error).splitlines() or [""]
        raise UserError(f"{name} did not take the run ({type(error).__name__}: {lines[0]})") from error
