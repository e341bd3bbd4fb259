"""Cells and averages against hand-computed numbers."""

import math

import pytest
from builders import manifest, rows, task

from longeval.results.aggregate import aggregate
from longeval.results.statistics import Mean


def test_mean_and_standard_error_by_hand():
    mean = Mean.of([0.0, 1.0, 1.0, 1.0])
    assert mean.value == 0.75
    assert mean.standard_error == pytest.approx(math.sqrt(0.25 / 4))  # s² = (0.5625 + 3 · 0.0625) / 3 = 0.25


def test_failed_samples_stay_in_the_denominator():
    scores = aggregate(manifest([task("s/a")]), rows("s/a", [1.0, 1.0, None, None]))
    cell = scores.cell("s/a", 4096)
    assert (cell.n, cell.errors, cell.mean.value) == (4, 2, 0.5)
    assert cell.scores == {"recall": 0.5, "substring": 0.5}
    assert not scores.complete


def test_a_failed_document_has_no_loss():
    scores = aggregate(manifest([task("s/a", percent=False)], planned=3), rows("s/a", [2.0, 4.0, None]))
    cell = scores.cell("s/a", 4096)
    assert (cell.n, cell.errors, cell.mean.value, cell.scores["recall"]) == (3, 1, 3.0, 3.0)


def test_unfinished_run_is_incomplete():
    scores = aggregate(manifest([task("s/a")], planned=3), rows("s/a", [1.0]))
    assert scores.cell("s/a", 4096).n == 1
    assert not scores.complete


def test_a_cell_that_does_not_fit_does_not_make_a_run_incomplete():
    plan = manifest([task("s/a"), task("s/b")], planned=1, unfit={("s/b", 4096)})
    scores = aggregate(plan, rows("s/a", [1.0]))
    assert scores.complete
    assert scores.cell("s/b", 4096).smallest == 5000
    (average,) = scores.averages
    assert (average.mean.value, average.tasks, average.of, average.partial) == (1.0, 1, 2, True)


def test_suite_average_is_the_mean_of_tasks_not_of_samples():
    plan = manifest([task("s/a"), task("s/b")])
    (average,) = aggregate(plan, rows("s/a", [1.0, 0.0]) + rows("s/b", [1.0, 1.0, 1.0, 1.0])).averages
    assert average.mean.value == 0.75
    assert average.mean.standard_error == pytest.approx(0.5 / 2)  # se of a is sqrt(0.5 / 2) = 0.5, of b is 0


def test_macro_average_over_categories():
    tasks = [task("s/a", "x"), task("s/b", "x"), task("s/c", "y")]
    averages = [
        {"name": "macro", "over": "categories", "members": []},
        {"name": "two", "over": "tasks", "members": ["a", "c"]},
    ]
    scores = aggregate(manifest(tasks, averages=averages), rows("s/a", [1.0]) + rows("s/b", [0.0]) + rows("s/c", [1.0]))
    assert {a.name: a.mean.value for a in scores.averages} == {"macro": 0.75, "two": 1.0}
    assert {a.name: a.mean.value for a in scores.categories} == {"x": 0.5, "y": 1.0}


def test_partial_suite_counts_absent_tasks():
    scores = aggregate(manifest([task("s/a")], all_tasks=[task("s/a"), task("s/b")]), rows("s/a", [1.0]))
    assert [(a.tasks, a.of) for a in scores.averages] == [(1, 2)]


def test_effective_length_and_weighted_means():
    plan = manifest([task("s/a")], lengths=(4096, 8192, 16384), planned=1, threshold=0.856)
    data = rows("s/a", [1.0], 4096) + rows("s/a", [0.9], 8192) + rows("s/a", [0.5], 16384)
    summary = aggregate(plan, data).summaries["s"]
    assert summary["effective_length"] == 8192
    assert summary["mean_over_lengths"].value == pytest.approx(0.8)
    assert summary["weighted_increasing"] == pytest.approx((1.0 + 1.8 + 1.5) / 6)
    assert summary["weighted_decreasing"] == pytest.approx((3.0 + 1.8 + 0.5) / 6)


def test_effective_length_must_exceed_the_threshold():
    plan = manifest([task("s/a")], planned=1, threshold=0.856)
    assert aggregate(plan, rows("s/a", [0.856])).summaries["s"]["effective_length"] is None


def test_certain_length_needs_the_whole_interval():
    plan = manifest([task("s/a")], lengths=(4096, 8192), planned=200, threshold=0.856)
    data = rows("s/a", [1.0] * 200, 4096) + rows("s/a", [1.0] * 175 + [0.0] * 25, 8192)
    summary = aggregate(plan, data).summaries["s"]
    assert (summary["effective_length"], summary["certain_length"]) == (8192, 4096)


def test_mean_over_lengths_knows_that_questions_recur():
    """The same question at two lengths is one question: with equal answers two lengths say no more than one."""
    plan = manifest([task("s/a")], lengths=(4096, 8192), planned=8, threshold=0.856)
    scores = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0]
    same = aggregate(plan, rows("s/a", scores, 4096) + rows("s/a", scores, 8192))
    mean = same.summaries["s"]["mean_over_lengths"]
    assert mean.standard_error == pytest.approx(same.cell("s/a", 4096).mean.standard_error)
    reverse = [1.0 - score for score in scores]
    opposite = aggregate(plan, rows("s/a", scores, 4096) + rows("s/a", reverse, 8192))
    assert opposite.summaries["s"]["mean_over_lengths"].standard_error == pytest.approx(0.0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_score_that_is_no_number_counts_as_failed(value):
    cell = aggregate(manifest([task("s/a")]), rows("s/a", [1.0, 1.0, value, 0.0])).cell("s/a", 4096)
    assert (cell.n, cell.errors, cell.mean.value, cell.scores["recall"]) == (4, 1, 0.5, 0.5)
    cell = aggregate(manifest([task("s/a", percent=False)]), rows("s/a", [1.0, 3.0, value])).cell("s/a", 4096)
    assert (cell.n, cell.errors, cell.mean.value) == (3, 1, 2.0)
    assert math.isfinite(cell.mean.high)


def test_an_empty_cell_leaves_its_average_partial():
    scores = aggregate(manifest([task("s/a"), task("s/b")]), rows("s/a", [1.0, 0.0, 1.0, 1.0]))
    assert scores.cell("s/b", 4096).mean == Mean()
    (average,) = scores.averages
    assert (average.mean.value, average.tasks, average.of) == (0.75, 1, 2)
