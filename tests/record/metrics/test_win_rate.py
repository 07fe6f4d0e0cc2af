"""Win rates by scores: every completion against every other, ties half, intervals over prompts."""

import itertools
from statistics import fmean

import pytest

from whet.record.metrics.win_rate import (
    best_of_shares,
    change_with_interval,
    completion_wins,
    mean_with_interval,
    win_shares,
    win_shares_by_length,
)


def test_every_completion_meets_every_other_and_ties_count_half():
    assert win_shares([[1.0, 3.0]], [[2.0, 3.0]]) == [(0 + 0 + 1 + 0.5) / 4]
    assert completion_wins([1.0, 3.0], [2.0, 3.0]) == [0.0, 0.75]


def test_a_policy_against_itself_is_even_and_the_two_sides_add_up():
    ours, theirs = [[0.1, 0.5, 0.5], [2.0, -1.0, 0.0]], [[0.3, 0.5, 0.9], [1.0, 1.0, -3.0]]
    assert win_shares(ours, ours) == [0.5, 0.5]
    for one, two in zip(win_shares(ours, theirs), win_shares(theirs, ours), strict=True):
        assert one + two == pytest.approx(1)


def test_the_unscorable_is_left_out_and_a_prompt_without_scores_does_not_count():
    assert win_shares([[None, 2.0], [None]], [[1.0, None], [1.0]]) == [1.0, None]
    assert win_shares([[1.0]], [[None]]) == [None]
    rate = mean_with_interval([1.0, None, 0.0, 1.0])
    assert rate is not None and rate.value == pytest.approx(2 / 3) and rate.prompts == 3
    assert mean_with_interval([None]) is None


def test_the_interval_is_over_prompts_and_shrinks_with_them():
    few, many = (mean_with_interval([0.0, 1.0, 1.0] * count) for count in (4, 100))
    assert few.low < many.low < 2 / 3 < many.high < few.high
    assert many.differs and not mean_with_interval([0.0, 1.0] * 50).differs


def test_comparisons_apart_by_length():
    found = win_shares_by_length([[2.0, 0.0]], [[1.0, 1.0]], [[5, 9]], [[5, 7]])
    # 2 > 1 at equal length, 2 > 1 where it is shorter, 0 < 1 twice where it is longer
    assert found == {"shorter": [1.0], "same": [1.0], "longer": [0.0]}
    assert win_shares_by_length([[2.0]], [[1.0]], [[5]], [[5]])["longer"] == [None]


def test_best_of_n_is_the_mean_over_every_subset():
    wins, scores = [0.1, 0.9, 0.4, 0.6], [3.0, 1.0, 4.0, 2.0]
    for n in (1, 2, 3, 4):
        chosen = [max(some, key=lambda at: scores[at]) for some in itertools.combinations(range(4), n)]
        assert best_of_shares([wins], [scores], n)[0] == pytest.approx(fmean(wins[at] for at in chosen))
    assert best_of_shares([[0.5, None]], [[1.0, 2.0]], 2) == [None]


def test_a_change_is_paired():
    before, after = [0.2, 0.9, 0.5, None], [0.1, 0.8, 0.4, 1.0]
    change = change_with_interval(before, after)
    # the prompts differ widely and the change not at all: unpaired intervals would not see it
    assert change.value == pytest.approx(-0.1) and change.high < -0.09 and change.prompts == 3
