"""Tests, intervals and sample sizes against scipy and statsmodels, and the error of the first kind."""

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar as reference_mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import NormalIndPower

from longeval.results.significance import LEVEL, TwoRuns, difference, enough_draws, holm, mcnemar, samples_needed


def pair(first, second, paired=True, weight=1.0):
    return TwoRuns(np.array(first, dtype=float), np.array(second, dtype=float), paired, weight)


def binary(both, first, second, neither):
    """Paired 0/1 scores with these counts."""
    counts = [both, first, second, neither]
    return pair(np.repeat([1, 1, 0, 0], counts), np.repeat([1, 0, 1, 0], counts))


@pytest.mark.parametrize("counts", [(5, 3, 9, 3), (50, 0, 8, 2), (10, 4, 4, 1), (1, 0, 0, 1), (300, 30, 55, 15)])
def test_mcnemar(counts):
    cell = binary(*counts)
    both, first, second, neither = counts
    expected = reference_mcnemar([[both, first], [second, neither]], exact=True).pvalue
    assert mcnemar(cell.first, cell.second) == pytest.approx(expected)
    result = difference([cell])
    assert (result.test, result.p, result.pairs) == ("exact McNemar", mcnemar(cell.first, cell.second), sum(counts))


def test_paired_permutation():
    rng = np.random.default_rng(0)
    first = rng.integers(0, 5, 12) / 4
    second = np.clip(first + rng.integers(-1, 3, 12) / 4, 0, 1)
    expected = stats.permutation_test(
        (second, first), lambda a, b, axis: (a - b).mean(axis), permutation_type="samples", n_resamples=np.inf
    ).pvalue
    result = difference([pair(first, second)])
    assert result.test == "paired permutation"
    assert result.p == pytest.approx(expected, abs=0.015)


@pytest.mark.parametrize("paired", [True, False])
def test_fractions_without_a_common_step_are_permuted_exactly(paired):
    rng = np.random.default_rng(6)
    first, second = rng.random(7), rng.random(7) + 0.25
    expected = stats.permutation_test(
        (second, first),
        lambda a, b, axis: a.mean(axis) - b.mean(axis),
        permutation_type="samples" if paired else "independent",
        n_resamples=np.inf,
    ).pvalue
    assert difference([pair(first, second, paired)], draws=100_000).p == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize("tests", [1, 100, 1000])
@pytest.mark.parametrize("paired", [True, False])
def test_a_large_table_can_still_show_a_clear_difference(tests, paired):
    first, second = np.linspace(0, 0.4, 40), np.linspace(0.6, 1, 40)
    p = difference([pair(first, second, paired)], draws=enough_draws(tests)).p
    assert holm([p, *[1.0] * (tests - 1)])[0] < LEVEL / 10


def test_permutation_without_pairs():
    first, second = [0, 0, 0, 1, 0, 1, 0, 0], [1, 1, 0, 1, 1, 1, 1]
    result = difference([pair(first, second, paired=False)])
    expected = stats.fisher_exact([[2, 6], [6, 1]]).pvalue
    assert (result.test, result.pairs) == ("permutation", 0)
    assert result.p == pytest.approx(expected, abs=0.015)


def test_average_of_one_0_1_task_is_mcnemars_test():
    cell = binary(5, 3, 9, 3)
    twice = difference([cell, pair([1, 1], [1, 1])])
    assert twice.test == "paired permutation"
    assert twice.p == pytest.approx(mcnemar(cell.first, cell.second), abs=0.015)
    assert twice.value == pytest.approx(difference([cell]).value / 2)


def test_difference_interval_of_losses_is_students():
    first, second = [2.0, 2.5, 3.0, 2.2], [1.9, 2.6, 2.7, 2.1]
    result = difference([pair(first, second)], bounded=False)
    reference = stats.ttest_rel(second, first)
    interval = reference.confidence_interval()
    assert (result.low, result.high) == pytest.approx((interval.low, interval.high), abs=1e-6)
    assert result.effect == pytest.approx(reference.statistic / 2)  # d = t / √n


def test_difference_interval_of_fractions_is_students_unless_most_are_alike():
    first, second = np.array([0.31, 0.35, 0.28, 0.33]), np.array([0.62, 0.66, 0.57, 0.68])
    interval = stats.ttest_rel(second, first).confidence_interval()
    result = difference([pair(first, second)])
    assert (result.low, result.high) == pytest.approx((interval.low, interval.high), abs=1e-6)
    alike = difference([pair(first, first + np.array([0.5, 0.5, 0.5, 0.51]))])
    assert alike.high - alike.low > 0.5


@pytest.mark.parametrize("n", [8, 20, 100])
@pytest.mark.parametrize("kind", ["quarters", "overlaps", "mostly right"])
def test_coverage_of_a_paired_difference_of_fractions(kind, n):
    rng = np.random.default_rng(7)

    def draw(p):
        if kind == "overlaps":
            return rng.beta(6 * p, 6 * (1 - p), n)
        return rng.binomial(4, p if kind == "quarters" else 0.9 + p / 10, n) / 4

    truth = 0.2 if kind != "mostly right" else 0.02
    results = [difference([pair(draw(0.4), draw(0.6))]) for _ in range(500)]
    assert np.mean([result.low <= truth <= result.high for result in results]) >= 0.925


def test_effect_without_pairs_is_cohens_d():
    rng = np.random.default_rng(1)
    first, second = rng.random(30), rng.random(30)
    pooled = np.sqrt((first.var(ddof=1) + second.var(ddof=1)) / 2)
    result = difference([pair(first, second, paired=False)])
    assert result.effect == pytest.approx((second.mean() - first.mean()) / pooled)


@pytest.mark.parametrize("discordant", [(0.02, 0.02), (0.1, 0.05), (0.3, 0.1), (0.0, 0.05)])
@pytest.mark.parametrize("n", [20, 100])
def test_coverage_of_a_paired_difference(discordant, n):
    rng = np.random.default_rng(2)
    truth = discordant[1] - discordant[0]
    covered = []
    for first, second, same in rng.multinomial(n, [*discordant, 1 - sum(discordant)], 600):
        result = difference([binary(same, first, second, 0)])
        covered.append(result.low <= truth <= result.high)
    assert np.mean(covered) >= 0.93


@pytest.mark.parametrize(("p", "q"), [(0.5, 0.5), (0.9, 0.7), (0.05, 0.3), (0.98, 0.98)])
@pytest.mark.parametrize(("n", "m"), [(20, 20), (100, 40)])
def test_coverage_of_a_difference_without_pairs(p, q, n, m):
    rng = np.random.default_rng(5)
    covered = []
    for _ in range(400):
        result = difference([pair(rng.random(n) < p, rng.random(m) < q, paired=False)])
        covered.append(result.low <= q - p <= result.high)
    assert np.mean(covered) >= 0.93


def test_difference_of_losses_without_pairs_is_welchs():
    first, second = [2.0, 2.5, 3.0, 2.2], [1.9, 2.6, 2.7]
    result = difference([pair(first, second, paired=False)], bounded=False)
    welch = stats.ttest_ind(second, first, equal_var=False).confidence_interval()
    assert (result.low, result.high) == pytest.approx((welch.low, welch.high), abs=1e-6)


@pytest.mark.parametrize("task", ["0/1", "quarters", "average", "unpaired"])
def test_error_of_the_first_kind(task):
    """Two models that are equally good: at most 5 % of the tests may call them different."""
    rng = np.random.default_rng(3)
    rejected = []
    for _ in range(300):
        ease = rng.random(40)
        if task == "0/1":
            cells = [pair(rng.random(40) < ease, rng.random(40) < ease)]
        elif task == "quarters":
            cells = [pair(rng.binomial(4, ease) / 4, rng.binomial(4, ease) / 4)]
        elif task == "average":
            cells = [pair(rng.random(20) < ease[:20], rng.random(20) < ease[:20], weight=w) for w in (1, 1, 2)]
        else:
            cells = [pair(rng.random(40) < 0.3, rng.random(25) < 0.3, paired=False)]
        rejected.append(difference(cells).p <= 0.05)
    assert np.mean(rejected) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 300)


def test_a_real_difference_is_found():
    rng = np.random.default_rng(4)
    first, second = rng.random(100) < 0.4, rng.random(100) < 0.8
    assert difference([pair(first, second)]).p < 0.001
    assert difference([pair(first, second, paired=False)]).p < 0.001


def test_identical_runs():
    result = difference([binary(60, 0, 0, 40)])
    assert (result.value, result.p, result.effect, result.standard_error) == (0.0, 1.0, None, 0.0)
    assert result.low == -result.high < 0


def test_one_sample():
    result = difference([pair([1], [0])])
    assert (result.value, result.standard_error, result.low, result.p) == (-1.0, None, None, 1.0)


def test_holm():
    p_values = [0.01, 0.04, 0.03, 0.005, 0.9, 0.04]
    assert holm(p_values) == pytest.approx(multipletests(p_values, method="holm")[1])
    assert holm([]) == []


@pytest.mark.parametrize(("smallest", "deviation"), [(0.05, 0.5), (0.02, 0.3), (0.1, 0.64)])
def test_samples_needed(smallest, deviation):
    expected = NormalIndPower().solve_power(smallest / deviation, power=0.8, alpha=0.05, ratio=0)
    assert samples_needed(smallest, deviation) == np.ceil(expected)
