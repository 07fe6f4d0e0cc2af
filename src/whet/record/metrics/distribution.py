"""How scores are spread: what a step of a run records of its rewards, and what a dry run shows. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean

from whet.types import Group, Sample

TOTAL = "total"
SPREAD_FLOOR = 1e-6  # of the values' size, at least 1: smaller differences are float noise
MOST_BINS = 12
MOST_VALUES = 8  # a part with no more different scores than this is shown score by score


def distribution(values: Iterable[float]) -> dict[str, float]:
    """min, quartiles, max and mean, and the shares of values at the lowest and at the highest; {} of nothing."""
    ascending = sorted(value for value in values if math.isfinite(value))
    if not ascending:
        return {}
    low, high = ascending[0], ascending[-1]
    return {
        "min": low,
        "q1": quantile(ascending, 0.25),
        "median": quantile(ascending, 0.5),
        "q3": quantile(ascending, 0.75),
        "max": high,
        "mean": fmean(ascending),
        "at_min": sum(_same(value, low) for value in ascending) / len(ascending),
        "at_max": sum(_same(value, high) for value in ascending) / len(ascending),
    }


def reward_spread(groups: Sequence[Group]) -> dict[str, dict[str, float]]:
    """The distribution of the total and of each part over a step's scored samples; `flat` is the share of groups
    whose samples all score the same, which teach nothing about that part. Groups with one scored sample are not
    counted there."""
    samples = [sample for group in groups for sample in group.samples]
    flat = flat_shares([group.samples for group in groups])
    spread = {}
    for name in part_names(samples):
        values = [value for sample in samples if (value := score_in(sample, name)) is not None]
        spread[name] = distribution(values) | ({"flat": flat[name]} if name in flat else {})
    return spread


def flat_shares(groups: Iterable[Sequence[Sample]]) -> dict[str, float]:
    """For the total and each part, the share of groups without any spread; {} where no group has two scores."""
    listed = [list(group) for group in groups]
    shares = {}
    for name in part_names([sample for group in listed for sample in group]):
        scores = [[value for sample in group if (value := score_in(sample, name)) is not None] for group in listed]
        compared = [float(is_flat(group)) for group in scores if len(group) > 1]
        if compared:
            shares[name] = fmean(compared)
    return shares


def part_names(samples: Iterable[Sample]) -> list[str]:
    """`total`, then the parts in the order of the reward."""
    return [TOTAL, *dict.fromkeys(name for sample in samples for name in sample.parts if name != TOTAL)]


def score_in(sample: Sample, name: str) -> float | None:
    """The total or a part of a scored sample."""
    value = sample.reward if name == TOTAL else sample.parts.get(name)
    return value if value is not None and math.isfinite(value) else None


def is_flat(values: Sequence[float]) -> bool:
    """True when the values differ by float noise at most."""
    return not values or _same(min(values), max(values))


def _same(one: float, other: float) -> bool:
    return abs(one - other) <= SPREAD_FLOOR * max(abs(one), abs(other), 1.0)


def quantile(ascending: Sequence[float], share: float) -> float:
    """The value below which this share lies, straight between neighbours."""
    position = share * (len(ascending) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (position - low) * (ascending[high] - ascending[low])


def histogram(values: Sequence[float], most_bins: int = MOST_BINS) -> list[tuple[float, float, int]]:
    """(from, to, count) of each bin, ascending. A few different scores have a bin each, with from = to."""
    ascending = sorted(value for value in values if math.isfinite(value))
    if not ascending:
        return []
    different = sorted(set(ascending))
    if len(different) <= MOST_VALUES:
        return [(value, value, ascending.count(value)) for value in different]
    low, high = ascending[0], ascending[-1]
    edges = [low + (high - low) * edge / most_bins for edge in range(most_bins + 1)]
    counts = [0] * most_bins
    for value in ascending:
        counts[min(int((value - low) / (high - low) * most_bins), most_bins - 1)] += 1
    return [(start, stop, count) for (start, stop), count in zip(pairwise(edges), counts, strict=True)]
