"""Means with their 95% intervals: the one place that computes an interval. Pure.

Two things are random: which prompts were asked, and which completions were drawn to them. Attempts at one prompt are
alike, so N attempts are worth fewer than N independent ones: every interval here takes a prompt as one observation.

Whether two means differ beyond noise: Welch's t-test, and its correction where there are several. Pure.

Whether two models differ on the same prompts. Pure.

Two intervals that overlap do not say that models are equal: most of both is the same prompts, hard for one as for the
other. The tests here look at the differences, prompt by prompt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb
from statistics import NormalDist, fmean, variance

NORMAL = 1.959963984540054  # of a 95% interval


def incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b), the regularised incomplete beta function, by its continued fraction. DLMF 8.17.22."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast only below this point
        return 1 - incomplete_beta(1 - x, b, a)
    scale = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    # 1 + d1 / (1 + d2 / ...) from the front, by ratios of neighbouring convergents: modified Lentz
    ahead, behind, value = 1.0, 0.0, 1.0
    for term_number in range(1, 10_000):
        half = term_number // 2
        if term_number % 2:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            term = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        ahead, behind = _off_zero(1 + term / ahead), 1 / _off_zero(1 + term * behind)
        value *= ahead * behind
        if abs(ahead * behind - 1) < 1e-15:
            break
    return scale / (a * value)


def _off_zero(value: float) -> float:
    return value if abs(value) > 1e-300 else 1e-300


def two_sided_p(t: float, freedom: float) -> float:
    """P(|T| >= |t|) of Student's t = I_{f / (f + t^2)}(f / 2, 1 / 2)."""
    return incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


@lru_cache(maxsize=256)
def t_quantile(share: float, freedom: float) -> float:
    """The t below which Student's distribution has this share, above 1/2; by Newton's method on `two_sided_p`.

    From the normal quantile up: in the tail the density falls, so no step goes too far. P' = -2 density,
    density(t) = G((f + 1) / 2) / (G(f / 2) sqrt(f pi)) (1 + t^2 / f)^(-(f + 1) / 2)
    """
    t = NormalDist().inv_cdf(share)
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    for _ in range(100):
        density = scale * (1 + t * t / freedom) ** (-(freedom + 1) / 2)
        step = (two_sided_p(t, freedom) / 2 - (1 - share)) / density
        t += step
        if step <= 1e-14 * t:
            break
    return t


def welch_p(first: Sequence[float], second: Sequence[float]) -> float | None:
    """p of Welch's test that two means differ, the variances being unlike; None where there is no spread to judge by.

    t = (m1 - m2) / sqrt(v1 / n1 + v2 / n2);  f = (v1 / n1 + v2 / n2)^2 / SUM (v / n)^2 / (n - 1)
    """
    if len(first) < 2 or len(second) < 2:
        return None
    errors = [variance(values) / len(values) for values in (first, second)]
    total = sum(errors)
    # accuracies that agree to the last answer differ by float noise at most
    if math.sqrt(total) <= 1e-12 * max(1e-300, *map(abs, first), *map(abs, second)):
        return None
    shares = [error / total for error in errors]
    freedom = 1 / sum(share**2 / (len(values) - 1) for share, values in zip(shares, (first, second), strict=True))
    return two_sided_p((fmean(first) - fmean(second)) / math.sqrt(total), freedom)


def corrected(ps: Sequence[float], num_tests: int) -> list[float]:
    """Holm's correction for m tests: the smallest p times m, the next times m - 1, ..., never falling.

    In the order given. m may be larger than the number of ps: tests that were meant and could not be made count.
    """
    order = sorted(range(len(ps)), key=lambda index: ps[index])
    adjusted, floor = [0.0] * len(ps), 0.0
    for rank, index in enumerate(order):
        floor = max(floor, min(1.0, (num_tests - rank) * ps[index]))
        adjusted[index] = floor
    return adjusted


def shares_apart(first: float, second: float, count: int) -> float:
    """first - second in standard errors, both being shares of `count` trials.

    Each variance is taken at Laplace's estimate (k + 1) / (n + 2): an observed 0 or 1 is not certain.
    """
    smoothed = [(share * count + 1) / (count + 2) for share in (first, second)]
    return (first - second) / math.sqrt(sum(share * (1 - share) / count for share in smoothed))


@lru_cache(maxsize=4096)  # the health rules ask for the same evaluations after every step
def more_right_p(first: int, second: int, count: int) -> float:
    """Fisher's exact one-sided p that `first` of `count` is a larger share than `second` of `count`.

    P(X >= first) of the hypergeometric X: how many of the right ones fall on the first side.
    """
    right = first + second
    total = _log_choose(2 * count, right)
    tail = (
        math.exp(_log_choose(count, number) + _log_choose(count, right - number) - total)
        for number in range(max(first, right - count), min(count, right) + 1)
    )
    return min(1.0, math.fsum(tail))


def _log_choose(count: int, chosen: int) -> float:
    return math.lgamma(count + 1) - math.lgamma(chosen + 1) - math.lgamma(count - chosen + 1)


@dataclass(frozen=True)
class PairedTest:
    """One model against another, over the prompts that both answered."""

    first: str
    second: str
    difference: float  # second - first
    low: float  # of its 95% interval
    high: float
    p: float | None  # two-sided; None where there is no spread to judge by
    corrected_p: float | None  # by Holm, over all pairs that were compared
    test: str  # "McNemar" or "paired t"
    gained: int  # prompts that the second does better on
    lost: int


def mcnemar_p(gained: int, lost: int) -> float:
    """Exact two-sided p of McNemar: under the null each prompt that changed is a fair coin. 1 where none changed."""
    changed = gained + lost
    if not changed:
        return 1.0
    tail = sum(comb(changed, heads) for heads in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**changed)


def changed_interval(gained: int, lost: int, prompts: int) -> tuple[float, float]:
    """95% of the difference of two shares of the same prompts, half a prompt added to each cell.

    Agresti and Min 2005: (c - b) / N +- z sqrt((b + c) - (c - b)^2 / N) / N, never empty where no prompt changed.
    """
    b, c, total = lost + 0.5, gained + 0.5, prompts + 2.0
    middle, half = (c - b) / total, NORMAL * math.sqrt((b + c) - (c - b) ** 2 / total) / total
    return max(-1.0, middle - half), min(1.0, middle + half)


def paired_t(differences: Sequence[float]) -> tuple[float | None, float, float]:
    """p and 95% interval of a mean difference; p is None where the differences have no spread."""
    mean, count = fmean(differences), len(differences)
    if count < 2:
        return None, -math.inf, math.inf
    error = math.sqrt(variance(differences) / count)
    if error <= 1e-12 * max(map(abs, differences)):
        return None, mean, mean
    half = t_quantile(0.975, count - 1) * error
    return two_sided_p(mean / error, count - 1), mean - half, mean + half


def paired_test(
    first: tuple[str, Sequence[Sequence[float]]], second: tuple[str, Sequence[Sequence[float]]]
) -> PairedTest:
    """(name, [prompts][samples] of outcomes) of two models, the prompts in the same order.

    One sample of 0 or 1 per prompt: McNemar's exact test. Else Student's test on the differences of the prompts' means,
    so that many samples of few prompts do not count as many prompts.
    """
    (name, outcomes), (other, against) = first, second
    if len(outcomes) != len(against):
        raise ValueError(f"{name} has {len(outcomes)} prompts and {other} {len(against)}: they cannot be paired")
    differences = [fmean(after) - fmean(before) for before, after in zip(outcomes, against, strict=True)]
    gained, lost = (
        sum(difference > 1e-12 for difference in differences),
        sum(difference < -1e-12 for difference in differences),
    )
    single = all(len(row) == 1 and row[0] in (0.0, 1.0) for row in (*outcomes, *against))
    if single:
        low, high = changed_interval(gained, lost, len(differences))
        p: float | None = mcnemar_p(gained, lost)
    else:
        p, low, high = paired_t(differences)
    test = "McNemar" if single else "paired t"
    return PairedTest(
        first=name,
        second=other,
        difference=fmean(differences),
        low=low,
        high=high,
        p=p,
        corrected_p=p,
        test=test,
        gained=gained,
        lost=lost,
    )


def paired_tests(outcomes: Mapping[str, Sequence[Sequence[float]]]) -> tuple[PairedTest, ...]:
    """Every pair of models, p corrected for their number by Holm."""
    tests = [paired_test((one, outcomes[one]), (two, outcomes[two])) for one, two in combinations(outcomes, 2)]
    known = [test for test in tests if test.p is not None]
    adjusted = iter(corrected([test.p for test in known if test.p is not None], len(tests)))
    return tuple(
        PairedTest(**{**test.__dict__, "corrected_p": None if test.p is None else next(adjusted)}) for test in tests
    )


@dataclass(frozen=True)
class IntervalEstimate:
    """A mean over prompts with its 95% interval."""

    value: float
    low: float
    high: float


def share_interval(share: float, count: float, z: float = NORMAL) -> tuple[float, float]:
    """Wilson's 95% interval of a share of `count` trials: never outside [0, 1], and never empty at 0 or 1."""
    scale = 1 + z * z / count
    middle = (share + z * z / (2 * count)) / scale
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / scale
    return max(0.0, middle - half), min(1.0, middle + half)


def share_estimate(values: Sequence[float], attempts: int = 1) -> IntervalEstimate:
    """The mean of one value in [0, 1] per prompt, each from `attempts` completions.

    Wilson's interval of as many independent trials as have the same standard error,
        n = 1 + m (1 - m) / (s^2 / P),  at most P * attempts;
    one greedy completion per prompt gives n = P: Wilson's interval itself. Where every value is 0 or every value is 1,
    n = P: attempts at a prompt that always fails say nothing about other prompts. With several attempts the variance is
    itself an estimate from P values, so Student's quantile takes the place of the normal one.
    """
    if not values:
        raise ValueError("no values to estimate from")
    if any(not -1e-9 <= value <= 1 + 1e-9 for value in values):
        raise ValueError("share_estimate is for values in [0, 1]; mean_estimate is for others")
    mean = min(1.0, max(0.0, fmean(values)))
    trials, z = float(len(values)), NORMAL
    if attempts > 1 and len(values) > 1 and 0 < mean < 1:
        error = variance(values) / len(values)
        room = mean * (1 - mean)
        trials = min(1 + room / error if error > 0 else math.inf, float(len(values) * attempts))
        z = t_quantile(0.975, len(values) - 1)
    return IntervalEstimate(mean, *share_interval(mean, trials, z))


def mean_estimate(values: Sequence[float]) -> IntervalEstimate:
    """The mean of any values, one per prompt: m +- t s / sqrt(P); of a single prompt there is no interval."""
    mean = fmean(values)
    if len(values) < 2:
        return IntervalEstimate(mean, -math.inf, math.inf)
    half = t_quantile(0.975, len(values) - 1) * math.sqrt(variance(values) / len(values))
    return IntervalEstimate(mean, mean - half, mean + half)


def estimate(values: Sequence[float], attempts: int = 1) -> IntervalEstimate:
    """`share_estimate` of values that are all shares, `mean_estimate` of others."""
    is_share = all(0 <= value <= 1 for value in values)
    return share_estimate(values, attempts) if is_share else mean_estimate(values)
