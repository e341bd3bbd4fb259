"""Is checkpoint B really better than A? Differences with intervals, tests, effect sizes, and the samples they need.

On the samples that both answered, pairs are compared: exact McNemar for 0/1 scores (the binomial test on the samples
where exactly one is right), else the permutation test that swaps the two scores of a pair (flips the signs of their
differences). Where two runs share no sample of a cell (other seeds), scores are shuffled between the runs within it.
An average over cells is the weighted sum of their differences, permuted within cells. Permutation tests draw with a
fixed seed and count the data itself (Phipson and Smyth 2010), so that the error of the first kind keeps its level; no
p-value is below 1 / draws, and a table of many tests needs many draws (`enough_draws`). All tests are two-sided; `holm`
corrects the p-values of one table.

The 95 % interval of a difference is Student's. Where scores in [0, 1] are 0/1, or most differences alike, a pair in
favour of each side is added to its variance (Bonett and Price 2012; without pairs Agresti and Caffo 2000), so that two
models that never differed do not get an interval of width 0. The effect size is Cohen's d: the difference over the
standard deviation of the paired differences (of the scores themselves where nothing is paired).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from longeval.results.statistics import SEED, Array, student_quantile

LEVEL = 0.05
POWER = 0.8
_DRAWS = 10_000


@dataclass(frozen=True)
class TwoRuns:
    """One cell's scores of two runs, float64 [first's samples] and [second's]. `paired`: entry i of both is one sample.

    `weight`: of the cell in its average.
    """

    first: Array
    second: Array
    paired: bool
    weight: float = 1.0

    @property
    def value(self) -> float:
        """Second minus first."""
        return math.fsum(self.second) / len(self.second) - math.fsum(self.first) / len(self.first)

    @property
    def size(self) -> float:
        """Pairs; or the number of them that would be as precise."""
        return float(len(self.first)) if self.paired else 1 / (1 / len(self.first) + 1 / len(self.second))

    @property
    def variances(self) -> list[tuple[float, int]]:
        """Independent parts of the squared standard error, each with its degrees of freedom; none with one value."""
        if min(map(len, self._samples)) < 2:
            return []
        return [(float(sample.var(ddof=1)) / len(sample), len(sample) - 1) for sample in self._samples]

    @property
    def coarse(self) -> bool:
        """Whether the scores are 0/1, or most alike: their variance need not show what further samples would."""
        commonest = (np.unique(sample.round(12), return_counts=True)[1].max() / len(sample) for sample in self._samples)
        return self.binary or any(share > 0.5 for share in commonest)

    @property
    def _samples(self) -> list[Array]:
        """What is independent: the differences of the pairs, or the scores of each run."""
        return [self.second - self.first] if self.paired else [self.first, self.second]

    @property
    def binary(self) -> bool:
        return set(np.unique(np.concatenate([self.first, self.second]))) <= {0.0, 1.0}


@dataclass(frozen=True)
class Difference:
    """Second run minus first, in the scores' own scale, with its 95 % interval and its two-sided p-value.

    `effect`: Cohen's d. `pairs`: samples that both answered, 0 when the runs share none. `test`: how `p` was found.
    """

    value: float
    standard_error: float | None
    low: float | None
    high: float | None
    effect: float | None
    p: float
    pairs: int
    test: str


def enough_draws(tests: int) -> int:
    """Draws that let Holm's correction over so many tests go down to a twentieth of its level."""
    return max(_DRAWS, math.ceil(20 * tests / LEVEL))


def difference(cells: Sequence[TwoRuns], bounded: bool = True, draws: int = _DRAWS) -> Difference:
    """The difference of one cell, or of the weighted average over several; `bounded`: scores lie in [0, 1].

    `draws`: of a permutation test.
    """
    total = math.fsum(cell.weight for cell in cells)
    shares = [cell.weight / total for cell in cells]
    value = math.fsum(share * cell.value for share, cell in zip(shares, cells, strict=True))
    size = 1 / math.fsum(share**2 / cell.size for share, cell in zip(shares, cells, strict=True))
    parts = [(share**2 * v, n) for share, cell in zip(shares, cells, strict=True) for v, n in cell.variances]
    error = low = high = effect = None
    if all(cell.variances for cell in cells):
        error = math.sqrt(math.fsum(variance for variance, _ in parts))
        effect = value / (error * math.sqrt(size)) if error else None
        added = _added_variance(cells, shares) if bounded and any(cell.coarse for cell in cells) else 0.0
        half = student_quantile(_freedom(parts)) * math.sqrt(error**2 + added)
        low, high = value - half, value + half
        if bounded:
            low, high = max(-1.0, low), min(1.0, high)
    paired = all(cell.paired for cell in cells)
    if len(cells) == 1 and paired and cells[0].binary:
        test, p = "exact McNemar", mcnemar(cells[0].first, cells[0].second)
    else:
        test = "paired permutation" if paired else "permutation"
        p = permutation_test(cells, shares, value, draws)
    pairs = sum(len(cell.first) for cell in cells if cell.paired)
    return Difference(value, error, low, high, effect, p, pairs, test)


def _added_variance(cells: Sequence[TwoRuns], shares: Sequence[float]) -> float:
    """What a pair in favour of each side adds; without pairs, a 0 and a 1 on each side."""

    def size(counts: Iterable[int]) -> float:
        return 1 / math.fsum(share**2 / count for share, count in zip(shares, counts, strict=True))

    first, second = size(len(cell.first) for cell in cells), size(len(cell.second) for cell in cells)
    if all(cell.paired for cell in cells):
        return 2 / (first + 2) ** 2
    return 0.5 / (first + 2) ** 2 + 0.5 / (second + 2) ** 2


def _freedom(parts: Sequence[tuple[float, int]]) -> float:
    """Satterthwaite's degrees of freedom."""
    squares = math.fsum(variance**2 / freedom for variance, freedom in parts)
    return math.fsum(v for v, _ in parts) ** 2 / squares if squares else float(sum(n for _, n in parts))


def mcnemar(first: Array, second: Array) -> float:
    """Exact two-sided p-value of McNemar's test on paired 0/1 scores."""
    only_first = int(np.count_nonzero(first > second))
    only_second = int(np.count_nonzero(second > first))
    n = only_first + only_second
    tail = sum(math.comb(n, k) for k in range(min(only_first, only_second) + 1))
    return min(1.0, float(2 * tail / 2**n))


def permutation_test(cells: Sequence[TwoRuns], shares: Sequence[float], observed: float, draws: int) -> float:
    """Two-sided p-value of Σ share · difference, by swapping within pairs, or shuffling within cells without pairs."""
    generator = np.random.default_rng(SEED)
    drawn = np.zeros(draws)
    for cell, share in zip(cells, shares, strict=True):
        drawn += share * (_swapped if cell.paired else _shuffled)(cell, generator, draws)
    extreme = np.count_nonzero(np.abs(drawn) >= abs(observed) - 1e-12)
    return float(1 + extreme) / (draws + 1)


def _swapped(cell: TwoRuns, generator: np.random.Generator, draws: int) -> Array:
    """float64 [draws]: means of the paired differences with random signs."""
    sizes, counts = np.unique(np.abs(cell.second - cell.first), return_counts=True)
    total = np.zeros(draws)
    for size, count in zip(sizes[sizes > 0], counts[sizes > 0], strict=True):
        total += size * (2 * generator.binomial(count, 0.5, draws) - count)
    return total / len(cell.first)


def _shuffled(cell: TwoRuns, generator: np.random.Generator, draws: int) -> Array:
    """float64 [draws]: differences of the means when all scores of the cell are dealt to the two runs anew."""
    values, counts = np.unique(np.concatenate([cell.first, cell.second]), return_counts=True)
    first, missing, left = np.zeros(draws), np.full(draws, len(cell.first)), int(counts.sum())
    for value, count in zip(values, counts, strict=True):
        left -= int(count)
        dealt = generator.hypergeometric(count, left, missing)
        first += value * dealt
        missing -= dealt
    return (float(counts @ values) - first) / len(cell.second) - first / len(cell.first)


def holm(p_values: Iterable[float]) -> list[float]:
    """Holm's adjusted p-values, in the given order: below α where the family-wise error rate α allows to reject."""
    values = list(p_values)
    adjusted = [0.0] * len(values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        highest = max(highest, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = highest
    return adjusted


def smallest_visible(deviation: float, samples: float, power: float = POWER, level: float = LEVEL) -> float:
    """The difference that `samples` show with probability `power`; see `samples_needed`."""
    return _quantiles(power, level) * deviation / math.sqrt(samples)


def samples_needed(smallest: float, deviation: float, power: float = POWER, level: float = LEVEL) -> int:
    """Samples (pairs) to see a difference of `smallest` with probability `power` in a two-sided test at `level`.

    `deviation`: standard deviation of the paired differences. By the normal approximation, ((z₁ + z₂) · deviation /
    smallest)².
    """
    return max(2, math.ceil((_quantiles(power, level) * deviation / smallest) ** 2))


def _quantiles(power: float, level: float) -> float:
    normal = statistics.NormalDist()
    return normal.inv_cdf(1 - level / 2) + normal.inv_cdf(power)
