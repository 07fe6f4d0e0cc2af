from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.data.cursor import Cursor
from whet.types import WhetError

SIZES = st.integers(1, 60)
SEEDS = st.integers(0, 2**64 - 1)


@given(SIZES, SEEDS, st.integers(0, 4))
def test_an_epoch_holds_every_row_once(num_rows: int, seed: int, epoch: int) -> None:
    cursor = Cursor(num_rows, seed, epoch * num_rows)
    assert cursor.epoch == epoch
    indices, after = cursor.take(num_rows)
    assert sorted(indices) == list(range(num_rows))
    assert after == Cursor(num_rows, seed, (epoch + 1) * num_rows)
    assert after.epoch == epoch + 1


@given(SIZES, SEEDS, st.lists(st.integers(0, 70), min_size=1, max_size=5))
def test_any_split_gives_the_same_rows(num_rows: int, seed: int, counts: list[int]) -> None:
    cursor, pieces = Cursor(num_rows, seed), []
    for count in counts:
        indices, cursor = cursor.take(count)
        assert len(indices) == count
        pieces += indices
    whole, after = Cursor(num_rows, seed).take(sum(counts))
    assert pieces == whole
    assert cursor == after


@given(SIZES, SEEDS, st.integers(0, 200), st.integers(0, 70))
def test_resumes_from_the_position_alone(num_rows: int, seed: int, skipped: int, count: int) -> None:
    _, there = Cursor(num_rows, seed).take(skipped)
    assert there.position == skipped
    assert Cursor(num_rows, seed, skipped).take(count) == there.take(count)


def test_epochs_and_seeds_differ() -> None:
    first, after = Cursor(100, 0).take(100)
    second, _ = after.take(100)
    other, _ = Cursor(100, 1).take(100)
    assert first != second != other != first
    assert first != list(range(100))


def test_the_order_never_changes() -> None:
    assert Cursor(8, 7).take(16)[0] == [4, 1, 6, 3, 2, 7, 5, 0, 3, 1, 6, 2, 5, 4, 0, 7]


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Cursor(0, 0), "num_rows is 0; give at least one row"),
        (lambda: Cursor(1, -1), "seed is -1; give a whole number"),
        (lambda: Cursor(1, 0, -2), "position is -2; give 0"),
        (lambda: Cursor(1, 0).take(-1), "count is -1; give 0 or more"),
    ],
)
def test_mistakes(make, complaint: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(WhetError, match=complaint):
        make()
