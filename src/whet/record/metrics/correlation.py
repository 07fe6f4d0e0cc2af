"""How two columns of numbers go together: Pearson, Spearman and ranks, from values or from moments;
and how far two judges of the same things agree. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from whet.record.metrics.distribution import is_flat

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
