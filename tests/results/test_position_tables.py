"""Loss by position of several checkpoints: the numbers of their loss files, side by side."""

import csv
import io

import numpy as np
import pytest
from run_folders import build_run
from scipy import stats

from longeval.results import charts
from longeval.results.position_tables import position_grids, positions_by_place
from longeval.results.runs import load_runs
from longeval.results.text_files import as_csv


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, skill, n in (("worse", 0.2, 6), ("better", 0.9, 5)):
        build_run(folder / name, name, "perplexity", tasks=["stdlib"], lengths=(256,), n=n, skill=skill, trained=40)
    return load_runs([folder / "worse", folder / "better"])


def test_buckets_side_by_side(runs):
    buckets, cumulative = position_grids(runs)
    assert buckets.title == "perplexity/stdlib · 256 tokens · loss by position, per bucket"
    assert buckets.columns == ["worse", "better"]
    assert [line.labels[0] for line in buckets.lines][:4] == ["1–16", "17–32", "33–48*", "49–64*"]
    assert [line.labels[0] for line in cumulative.lines] == ["1–128*"]
    for line in buckets.lines:
        assert [entry.best for entry in line.entries] == [False, True]
    assert buckets.notes[0].startswith("worse: n = 6 documents, better: n = 5 documents · ")
    assert position_grids(runs[:1])[0].notes[0].startswith("n = 6 documents · ")
    assert buckets.notes[1:] == ["* beyond the trained window of 40 tokens"]


def test_every_trained_window_is_named_with_its_runs(runs, tmp_path):
    more = {"b": 40, "c": 80, "d": 4096}
    for name, trained in more.items():
        build_run(tmp_path / name, name, "perplexity", tasks=["stdlib"], lengths=(256,), n=5, trained=trained)
    compared = [runs[0], *load_runs([tmp_path / name for name in more])]
    assert position_grids(compared)[0].notes[1:] == [
        "* beyond the trained window of worse, b, 40 tokens",
        "* beyond the trained window of c, 80 tokens",
    ]
    ((_, losses_of),) = positions_by_place(compared).items()
    windows = {run.label: run.info["trained_length"] for run in compared}
    rule, text = charts.losses(losses_of, charts.run_colours(windows), windows)["layer"][-2:]
    assert (rule["mark"]["type"], text["mark"]["type"]) == ("rule", "text")
    assert rule["data"]["values"] == [
        {"position": 40, "about": "trained window 40 (worse, b)"},
        {"position": 80, "about": "trained window 80 (c)"},
    ]


def test_every_number_is_that_of_the_loss_files(runs):
    table = list(csv.DictReader(io.StringIO(as_csv(position_grids(runs)))))
    assert len(table) == 2 * 9
    for run in runs:
        losses = np.stack([run.folder.nll(row.id).astype(np.float64) for row in run.rows.values()])
        for row in (row for row in table if row["run"] == run.label):
            documents = losses[:, int(row["first"]) - 1 : int(row["last"])].mean(axis=1)
            interval = stats.t.interval(0.95, len(documents) - 1, documents.mean(), stats.sem(documents))
            assert float(row["score"]) == pytest.approx(documents.mean())
            assert (float(row["low"]), float(row["high"])) == pytest.approx(interval, abs=1e-6)
            assert float(row["perplexity"]) == pytest.approx(np.exp(documents.mean()))
            assert int(row["n"]) == len(documents)


def test_other_suites_have_none(tmp_path):
    build_run(tmp_path / "run", tasks=("vt",), n=2)
    assert position_grids(load_runs([tmp_path / "run"])) == []
