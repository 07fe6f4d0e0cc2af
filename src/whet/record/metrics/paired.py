"""Whether two models differ on the same prompts. Pure.

Two intervals that overlap do not say that models are equal: most of both is the same prompts, hard for one as for the
other. The tests here look at the differences, prompt by prompt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from statistics import fmean, variance

from whet.record.metrics.significance import NORMAL, corrected, t_quantile, two_sided_p


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
