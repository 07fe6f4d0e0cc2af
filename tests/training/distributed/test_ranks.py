"""How work is shared out, on one process and on several."""

from __future__ import annotations

import pytest

from whet.training.distributed.ranks import ALONE, Ranks


def test_alone_keeps_everything() -> None:
    assert ALONE.gather("a") == ["a"]
    assert ALONE.shares([3, 1, 2]) == [[0, 1, 2]]
    assert ALONE.spread([1, 1], lambda rows: [row * 10 for row in rows]) == [0, 10]
    assert ALONE.sum({"loss": 0.5}) == {"loss": 0.5}


@pytest.mark.parametrize("size", [2, 3, 7])
def test_every_row_goes_to_one_rank_and_costs_are_even(size: int) -> None:
    costs = [float(1 + (7 * row) % 11) for row in range(50)]
    shares = Ranks(0, size).shares(costs)
    assert sorted(row for share in shares for row in share) == list(range(50))
    loads = [sum(costs[row] for row in share) for share in shares]
    assert max(loads) - min(loads) <= max(costs)
    assert shares == Ranks(size - 1, size).shares(costs), "every rank must see the same shares"


def test_a_rank_may_have_nothing() -> None:
    assert Ranks(0, 3).shares([5.0, 1.0]) == [[0], [1], []]


def test_families_stay_together_unless_that_is_uneven() -> None:
    even = Ranks(0, 2).shares([1.0] * 8, families=[0, 0, 1, 1, 2, 2, 3, 3])
    assert even == [[0, 1, 4, 5], [2, 3, 6, 7]]
    one_family = Ranks(0, 2).shares([1.0] * 4, families=[0, 0, 0, 0])
    assert [len(share) for share in one_family] == [2, 2]
