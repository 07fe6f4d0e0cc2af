"""Means with their 95% intervals: the one place that computes an interval. Pure.

Two things are random: which prompts were asked, and which completions were drawn to them. Attempts at one prompt are
alike, so N attempts are worth fewer than N independent ones: every interval here takes a prompt as one observation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from whet.record.metrics.significance import NORMAL, t_quantile


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
