"""Cohen's kappa on tables whose value is known."""

import math

import pytest

from tests.support.for_every import for_every
from whet.record.metrics.distribution import kappa


@for_every(
    [
        ([[20, 5], [10, 15]], 0.4),
        ([[5, 0], [0, 5]], 1.0),
        ([[0, 5], [5, 0]], -1.0),
        ([[4, 4], [4, 4]], 0.0),
        ([[2, 1, 0], [0, 3, 1], [1, 0, 2]], (0.7 - 0.34) / (1 - 0.34)),
    ]
)
def test_kappa(table, value):
    assert kappa(table) == pytest.approx(value)


@pytest.mark.parametrize("table", [[[0, 0], [0, 0]], [[7, 0], [0, 0]]])
def test_one_verdict_alone_says_nothing(table):
    assert math.isnan(kappa(table))
