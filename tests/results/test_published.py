"""The PaTH paper's rows are the ones on record, and have names and lengths that our tables have."""

import json
from pathlib import Path

import pytest

from longeval.results.published import load_published
from longeval.tasks import TaskOptions, get_suite

ANCHORS = json.loads((Path(__file__).parent.parent / "tasks" / "protocol_strings.json").read_text())["anchors"]
SUITES = {"ruler": "RULER", "babilong": "BABILONG", "phonebook": "PhoneBook", "longbench_e": "LongBench-E"}


@pytest.fixture(scope="module")
def table():
    return load_published("path-paper")


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("model", ["RoPE", "FoX", "PaTH", "PaTH-FoX"])
def test_table_3(table, suite, model):
    columns = ANCHORS["path_table3"]["columns"]
    before = sum(len(columns[name]) for name in list(columns)[: list(columns).index(SUITES[suite])])
    expected = ANCHORS["path_table3"][model][before : before + len(columns[SUITES[suite]])]
    row = {"longbench_e": "path", "phonebook": "lookup"}.get(suite, "average")
    scores = [s for s in table.scores if (s.model, s.suite, s.row) == (model, suite, row)]
    assert [100 * score.score for score in scores] == pytest.approx(expected)


def test_table_7(table):
    anchors = ANCHORS["path_table7"]
    for dataset in get_suite("longbench_e").averages[2].members:
        for place, model in enumerate(anchors["order"]):
            scores = [s for s in table.scores if (s.model, s.row) == (model, dataset)]
            assert [100 * s.score for s in scores] == pytest.approx([cells[place] for cells in anchors[dataset]])


def test_rows_and_labels_are_ours(table):
    for suite in SUITES:
        definition = get_suite(suite)
        rows = {score.row for score in table.scores if score.suite == suite}
        assert rows <= {average.name for average in definition.averages} | set(definition.tasks)
        short = next(iter(definition.tasks))
        task = definition.tasks[short](short, TaskOptions())
        for length, label in table.labels(suite).items():
            assert task.length_label(length) == label
