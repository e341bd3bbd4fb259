"""Means and intervals against scipy and statsmodels, and their coverage: exact for 0/1 scores, simulated otherwise."""

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from longeval.results.statistics import (
    Mean,
    agresti_coull,
    bootstrap_interval,
    effective_interval,
    student_interval,
    student_quantile,
)


@pytest.mark.parametrize("freedom", [1, 1.5, 2, 3, 7.3, 30, 1000])
def test_student_quantile(freedom):
    assert student_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=1e-6)


@pytest.mark.parametrize(("right", "n"), [(0, 20), (1, 20), (7, 20), (20, 20), (250, 500), (499, 500), (1, 1)])
def test_agresti_coull(right, n):
    low, high = proportion_confint(right, n, method="agresti_coull")
    assert agresti_coull(right / n, n) == pytest.approx((max(0, low), min(1, high)), abs=1e-12)
    mean = Mean.of([1.0] * right + [0.0] * (n - right))
    assert (mean.low, mean.high) == agresti_coull(right / n, n)


def exact_coverage(n, proportions):
    """The probability, for every true proportion, that the interval of a cell of n 0/1 scores contains it."""
    right = np.arange(n + 1)
    means = [Mean.of([1.0] * k + [0.0] * (n - k)) for k in right] if n < 60 else [None] * (n + 1)
    bounds = [(m.low, m.high) if m else agresti_coull(k / n, n) for k, m in zip(right, means, strict=True)]
    low, high = np.array(bounds).T[:, :, None]
    covered = (low <= proportions) & (proportions <= high)
    return (stats.binom.pmf(right[:, None], n, proportions) * covered).sum(0)


def test_exact_coverage_of_0_1_scores():
    proportions = np.arange(20, 981, 2) / 1000
    sizes = [*range(20, 100), *range(100, 501, 8)]
    coverage = np.array([exact_coverage(n, proportions) for n in sizes])
    assert 0.94 <= coverage.mean() <= 0.97
    assert coverage.min() >= 0.915
    assert ((coverage.mean(axis=1) >= 0.94) & (coverage.mean(axis=1) <= 0.97)).all()


def quarters(rng, shape, p):
    """Scores of a task with four references."""
    return rng.binomial(4, p, shape) / 4


def overlaps(rng, shape, p):
    """Scores like ROUGE or an edit similarity."""
    return rng.beta(6 * p, 6 * (1 - p), shape)


@pytest.mark.parametrize("n", [50, 150])
@pytest.mark.parametrize("draw", [quarters, overlaps])
@pytest.mark.parametrize("p", [0.05, 0.3, 0.5, 0.9])
def test_coverage_of_fractions(n, draw, p):
    rng = np.random.default_rng(n)
    means = [Mean.of(sample.tolist()) for sample in draw(rng, (400, n), p)]
    assert np.mean([m.low <= p <= m.high for m in means]) >= 0.915


@pytest.mark.parametrize(("p", "share"), [(0.02, 1), (0.05, 0.5), (0.5, 1), (0.95, 0.7)])
def test_coverage_of_few_fractions(p, share):
    """20 values, most of them 0 or 1 among a few fractions: where the bootstrap covers as little as 60 %."""
    rng = np.random.default_rng(1)
    samples = (rng.random((2000, 20)) < p) * np.where(rng.random((2000, 20)) < share, 1.0, 0.5)
    truth = p * (share + (1 - share) / 2)
    means = [Mean.of(sample.tolist()) for sample in samples]
    assert np.mean([m.low <= truth <= m.high for m in means]) >= 0.915


@pytest.mark.parametrize(("n", "truth"), [(10, [0.98] * 13), (10, [0.5] * 5), (25, [0.02, 0.1, 0.5, 0.9, 0.98])])
def test_coverage_of_an_average_over_tasks(n, truth):
    rng = np.random.default_rng(2)
    covered = []
    for right in rng.binomial(n, truth, (1500, len(truth))):
        mean = Mean.over([Mean.of([1.0] * k + [0.0] * (n - k)) for k in right])
        covered.append(mean.low <= np.mean(truth) <= mean.high)
    assert 0.93 <= np.mean(covered) <= 0.985


def test_bootstrap_agrees_with_scipy():
    values = np.random.default_rng(3).beta(0.8, 3.0, 120)
    reference = stats.bootstrap((values,), np.mean, n_resamples=20_000, random_state=0).confidence_interval
    assert bootstrap_interval(values) == pytest.approx(tuple(reference), abs=4e-3)


def test_intervals_do_not_depend_on_order_or_call():
    values = np.random.default_rng(4).random(80).tolist()
    assert Mean.of(values) == Mean.of(sorted(values)) == Mean.of(values)


def test_losses_have_students_interval():
    losses = [2.1, 2.5, 2.2, 3.0]
    mean = Mean.of(losses, bounded=False)
    expected = stats.t.interval(0.95, 3, loc=np.mean(losses), scale=stats.sem(losses))
    assert (mean.low, mean.high) == pytest.approx(expected, abs=1e-6)
    assert mean.standard_error == pytest.approx(stats.sem(losses))


def test_losses_are_not_negative():
    assert Mean.of([1.5, 2.4], bounded=False).low == 0.0


def test_standard_error_of_strata():
    tasks = [[1.0, 0.0, 1.0], [0.25, 0.5], [0.0, 0.0, 1.0, 1.0]]
    mean = Mean.over([Mean.of(values) for values in tasks])
    assert mean.value == pytest.approx(np.mean([np.mean(values) for values in tasks]))
    assert mean.standard_error == pytest.approx(math.sqrt(sum(stats.sem(values) ** 2 for values in tasks)) / 3)


def test_two_strata_have_welchs_degrees_of_freedom():
    first, second = [1.0, 2.0, 4.0, 4.5], [0.5, 3.0, 2.5]
    sums = Mean.over([Mean.of(first, bounded=False), Mean.of(second, bounded=False)], bounded=False)
    welch = stats.ttest_ind(first, [-value for value in second], equal_var=False).confidence_interval()
    assert (sums.low, sums.high) == pytest.approx((welch.low / 2, welch.high / 2), abs=1e-6)


def test_weights():
    means = [Mean.of([1.0, 0.0]), Mean.of([0.25, 0.75])]
    mean = Mean.over(means, [3.0, 1.0])
    assert mean.value == 0.5
    assert mean.standard_error == pytest.approx(math.hypot(0.75 * 0.5, 0.25 * 0.25))
    assert Mean.over(means, [1.0, 1.0]) == Mean.over(means)


def test_one_task_is_its_own_average():
    mean = Mean.of([1.0, 1.0, 0.0])
    assert Mean.over([mean]) == mean


def test_what_cannot_be_computed():
    assert Mean.of([]) == Mean()
    assert Mean.over([]) == Mean()
    assert Mean.over([Mean.of([1.0]), Mean()]) == Mean()
    assert Mean.of([2.0], bounded=False) == Mean(2.0, size=1.0)
    one = Mean.of([1.0])
    assert (one.value, one.standard_error) == (1.0, None)
    assert one.low < 0.5
    assert one.high == 1.0
    average = Mean.over([one, one])
    assert (average.standard_error, average.size) == (None, 2.0)
    assert average.low == agresti_coull(1.0, 2)[0]
    assert Mean.over([Mean.of([2.0], bounded=False)] * 2, bounded=False).low is None
    assert student_interval(1.0, None, None) == (None, None)


def test_equal_fractions_do_not_pretend_to_certainty():
    mean = Mean.of([0.5] * 10)
    assert mean.standard_error == 0.0
    assert (mean.low, mean.high) == agresti_coull(0.5, 10) == effective_interval(0.5, 0.0, 10, 9)
