"""How far two judges of the same things agree."""

from __future__ import annotations

import math
from collections.abc import Sequence


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
