"""How often a model is right when it is given several attempts at each prompt: accuracy, pass@k and votes. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean, variance

from whet.record.metrics.intervals import IntervalEstimate, share_estimate
from whet.record.metrics.selection import majority, sizes


@dataclass(frozen=True)
class AccuracyEstimate(IntervalEstimate):
    """pass@1, and how much of its uncertainty more samples or more prompts would take away."""

    error: float  # standard error, over prompts and samples
    sample_error: float | None  # the part that more samples of the same prompts would take away; None of one sample
    prompt_error: float | None  # the part that only more prompts would


@dataclass(frozen=True)
class SizedEstimate(IntervalEstimate):
    """An estimate for k attempts or n votes."""

    n: int


def accuracy_estimate(outcomes: Sequence[Sequence[float]]) -> AccuracyEstimate:
    """pass@1 of [prompts][samples] outcomes of 0 or 1; every prompt counts the same.

    SE^2 = s^2(prompt means) / P holds both sources. The samples' part is the mean over prompts of
    s_i^2 / n_i, over P: what the error would be if the same prompts were asked again.
    """
    means = [fmean(row) for row in outcomes]
    count = len(means)
    estimate = share_estimate(means, min(map(len, outcomes)))
    total = variance(means) / count if count > 1 else 0.0
    within = None
    if all(len(row) > 1 for row in outcomes):
        within = fmean([variance(row) / len(row) for row in outcomes]) / count
    return AccuracyEstimate(
        estimate.value,
        estimate.low,
        estimate.high,
        math.sqrt(total),
        None if within is None else math.sqrt(within),
        None if within is None else math.sqrt(max(0.0, total - within)),
    )


def pass_at_k(right: int, attempts: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k): unbiased for one prompt with c right of n. Chen 2021 (2107.03374), eq. 1.

    1 - (1 - c / n)^k, which looks the same, is too low: k draws with replacement repeat themselves.
    """
    if not 1 <= k <= attempts or not 0 <= right <= attempts:
        raise ValueError(f"pass@{k} of {attempts} attempts with {right} right")
    return 1.0 - comb(attempts - right, k) / comb(attempts, k)


def pass_curve(outcomes: Sequence[Sequence[float]], counts: Sequence[int] = ()) -> tuple[SizedEstimate, ...]:
    """pass@k with intervals over the prompts; k of `counts`, or 1, 2, 4, ... and all attempts."""
    attempts = min(map(len, outcomes))
    points = []
    for k in counts or sizes(attempts):
        values = [pass_at_k(sum(outcome == 1.0 for outcome in row), len(row), k) for row in outcomes]
        points.append(_sized(values, attempts, k))
    return tuple(points)


def vote_curve(
    outcomes: Sequence[Sequence[float]], answers: Sequence[Sequence[str | None]], counts: Sequence[int] = ()
) -> tuple[SizedEstimate, ...]:
    """Accuracy of the most frequent answer among n, the mean over every choice of n; tied answers share the choice."""
    attempts = min(map(len, outcomes))
    points = []
    for n in counts or sizes(attempts):
        values = [majority(row, answers_of_prompt, n) for row, answers_of_prompt in zip(outcomes, answers, strict=True)]
        points.append(_sized(values, attempts, n))
    return tuple(points)


def _sized(values: Sequence[float], attempts: int, n: int) -> SizedEstimate:
    estimate = share_estimate(values, attempts)
    return SizedEstimate(estimate.value, estimate.low, estimate.high, n)
