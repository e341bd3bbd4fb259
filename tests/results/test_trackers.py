"""Weights & Biases and MLflow, through modules that record what they are told."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from run_folders import build_run

from longeval.errors import UserError
from longeval.results.runs import load_runs
from longeval.results.trackers import log_to_mlflow, log_to_wandb


@pytest.fixture
def run(tmp_path):
    build_run(tmp_path / "run", tasks=("niah_single_1", "vt"), lengths=(2048, 4096), n=4)
    (run,) = load_runs([tmp_path / "run"])
    return run


def test_wandb(run, monkeypatch):
    said = []

    class Artifact:
        def __init__(self, name, type):
            self.name, self.type, self.files = name, type, []

        def add_file(self, path):
            self.files.append(path.rpartition("/")[2])

    class Tracked:
        id, url = "x1", "https://example.invalid/x1"
        log = log_artifact = staticmethod(said.append)

        def define_metric(self, *names, **more):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            said.append("finished")

    module = ModuleType("wandb")
    module.init = lambda **options: said.append(options) or Tracked()
    module.Artifact = Artifact
    monkeypatch.setitem(sys.modules, "wandb", module)
    assert log_to_wandb(run) == "logged to https://example.invalid/x1"
    options, short, long, artefact, end = said
    assert (options["name"], options["config"]["seed"]) == ("tiny", 0)
    assert (short["length"], long["length"], end) == (2048, 4096, "finished")
    assert short["ruler/average"] == run.scores.averages[0].mean.value
    assert short["standard_error/ruler/vt"] == run.scores.cell("ruler/vt", 2048).mean.standard_error
    assert artefact.files == ["manifest.json", "samples.jsonl", "scores.json"]


def test_mlflow(run, monkeypatch):
    metrics, files, parameters = {}, [], {}

    class Started:
        info = SimpleNamespace(run_id="r1")

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            files.append("ended")

    module = ModuleType("mlflow")
    module.start_run = lambda run_name: Started()
    module.log_params = parameters.update
    module.log_metrics = lambda values, step: metrics.update({(name, step): value for name, value in values.items()})
    module.log_artifact = lambda path: files.append(path.rpartition("/")[2])
    module.get_tracking_uri = lambda: "file:///x"
    monkeypatch.setitem(sys.modules, "mlflow", module)
    assert log_to_mlflow(run) == "logged to file:///x, run r1"
    assert metrics["ruler/niah_single_1", 4096] == run.scores.cell("ruler/niah_single_1", 4096).mean.value
    assert parameters["tasks.ruler/vt.version"].startswith("1")
    assert files == ["manifest.json", "samples.jsonl", "scores.json", "ended"]


@pytest.mark.parametrize(("log", "name"), [(log_to_wandb, "wandb"), (log_to_mlflow, "mlflow")])
def test_a_missing_tracker_is_named(run, monkeypatch, log, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=rf"{name} is not installed: pip install 'longeval-harness\[{name}\]'"):
        log(run)


def test_a_failing_tracker_is_one_line(run, monkeypatch):
    module = ModuleType("mlflow")

    def start_run(run_name):
        raise ConnectionError("no server at http://localhost:1\nmore")

    module.start_run = start_run
    monkeypatch.setitem(sys.modules, "mlflow", module)
    with pytest.raises(UserError) as error:
        log_to_mlflow(run)
    assert str(error.value) == "mlflow did not take the run (ConnectionError: no server at http://localhost:1)"
