"""How scores are spread: what a step of a run records of its rewards, and what a dry run shows. Pure.

How two columns of numbers go together: Pearson, Spearman and ranks, from values or from moments;
and how far two judges of the same things agree. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from whet.types import Group, Sample

FEWEST_PAIRS = 3  # any two pairs lie on a line
NO_SPREAD = 1e-6  # of the mean square: what remains of two large squares is noise below it


def pearson(first: Sequence[float], second: Sequence[float]) -> float | None:
    """The linear correlation; None where one side does not vary or there are fewer than three pairs."""
    if len(first) < FEWEST_PAIRS or is_flat(first) or is_flat(second):
        return None
    mean_first, mean_second = fmean(first), fmean(second)
    over = math.fsum((a - mean_first) * (b - mean_second) for a, b in zip(first, second, strict=True))
    under = math.fsum((a - mean_first) ** 2 for a in first) * math.fsum((b - mean_second) ** 2 for b in second)
    return _bounded(over / math.sqrt(under)) if under > 0 else None


def pearson_from_moments(x: float, y: float, xx: float, yy: float, xy: float) -> float | None:
    """The same from the means of x, y, x^2, y^2 and x y, which can be added up batch by batch."""
    spread_x, spread_y = xx - x * x, yy - y * y
    if spread_x <= NO_SPREAD * xx or spread_y <= NO_SPREAD * yy:
        return None
    return _bounded((xy - x * y) / math.sqrt(spread_x * spread_y))


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """The correlation of the ranks, equal values sharing their mean rank."""
    return pearson(ranks(first), ranks(second))


def ranks(values: Sequence[float]) -> list[float]:
    """1 for the lowest; equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=values.__getitem__)
    shared = [0.0] * len(values)
    start = 0
    while start < len(order):
        stop = start
        while stop + 1 < len(order) and values[order[stop + 1]] == values[order[start]]:
            stop += 1
        for index in order[start : stop + 1]:
            shared[index] = (start + stop) / 2 + 1
        start = stop + 1
    return shared


def correlations(columns: Mapping[str, Sequence[float | None]]) -> list[tuple[str, str, float | None, float | None]]:
    """(first, second, Pearson, Spearman) of every two columns, over the rows where both are known."""
    names = list(columns)
    table = []
    for index, first in enumerate(names):
        for second in names[index + 1 :]:
            pairs = [
                (a, b)
                for a, b in zip(columns[first], columns[second], strict=True)
                if a is not None and b is not None and math.isfinite(a) and math.isfinite(b)
            ]
            one, other = [a for a, _ in pairs], [b for _, b in pairs]
            table.append((first, second, pearson(one, other), spearman(one, other)))
    return table


def _bounded(value: float) -> float:
    return max(-1.0, min(1.0, value))


def kappa(table: Sequence[Sequence[int]]) -> float:
    """Cohen's kappa (1960) of a square table of counts, one judge's verdicts by the other's.

        (p_o - p_e) / (1 - p_e)

    p_o is the share on the diagonal, p_e what it would be by chance with the same margins. 1: they always agree, 0: as
    by chance. NaN where chance alone agrees always: both judges said one thing only.
    """
    total = sum(sum(row) for row in table)
    rows = [sum(row) for row in table]
    columns = [sum(row[column] for row in table) for column in range(len(table))]
    by_chance = sum(row * column for row, column in zip(rows, columns, strict=True))
    if total == 0 or by_chance == total * total:
        return math.nan
    observed = sum(row[index] for index, row in enumerate(table)) / total
    expected = by_chance / (total * total)
    return (observed - expected) / (1 - expected)


MOMENTS = ("margin", "longer", "margin_square", "longer_square", "longer_margin")


def length_correlation(metrics: Mapping[str, float]) -> float | None:
    """The correlation of (n_w - n_l) with the margin over the pairs of a step; None without a spread."""
    if any(name not in metrics for name in MOMENTS):
        return None
    return pearson_from_moments(*(metrics[name] for name in MOMENTS))


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
