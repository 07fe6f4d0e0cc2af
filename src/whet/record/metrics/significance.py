"""Whether two means differ beyond noise: Welch's t-test, and its correction where there are several. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean, variance

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
    """The t below which Student's distribution has this share, above 1/2; by bisection on `two_sided_p`."""
    low, high = 0.0, 1.0
    while two_sided_p(high, freedom) > 2 * (1 - share):
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_p(middle, freedom) > 2 * (1 - share) else (low, middle)
    return (low + high) / 2


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
