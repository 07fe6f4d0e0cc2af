"""Accuracies with their intervals, when a model is given several attempts at each prompt. Pure.

Two things are random: which prompts were asked, and which completions were drawn to them. Attempts at one prompt are
alike, so N attempts are worth fewer than N independent ones: every interval here takes a prompt as one observation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean, variance

from whet.record.metrics.selection import majority, sizes
from whet.record.metrics.significance import NORMAL, share_interval, t_quantile


@dataclass(frozen=True)
class IntervalEstimate:
    """A mean over prompts with its 95% interval."""

    value: float
    low: float
    high: float


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
        values = [pass_at_k(sum(each == 1.0 for each in row), len(row), k) for row in outcomes]
        points.append(_sized(values, attempts, k))
    return tuple(points)


def vote_curve(
    outcomes: Sequence[Sequence[float]], answers: Sequence[Sequence[str | None]], counts: Sequence[int] = ()
) -> tuple[SizedEstimate, ...]:
    """Accuracy of the most frequent answer among n, the mean over every choice of n; tied answers share the choice."""
    attempts = min(map(len, outcomes))
    points = []
    for n in counts or sizes(attempts):
        values = [majority(row, given, n) for row, given in zip(outcomes, answers, strict=True)]
        points.append(_sized(values, attempts, n))
    return tuple(points)


def _sized(values: Sequence[float], attempts: int, n: int) -> SizedEstimate:
    estimate = share_estimate(values, attempts)
    return SizedEstimate(estimate.value, estimate.low, estimate.high, n)
