"""Accuracy with intervals, pass@k, votes, paired tests, calibration: by hand, and by simulation."""

import math
import random
from itertools import combinations, product
from statistics import fmean

import numpy as np
import pytest

from whet.record.metrics.intervals import (
    changed_interval,
    estimate,
    mcnemar_p,
    mean_estimate,
    paired_t,
    paired_test,
    paired_tests,
    share_estimate,
    share_interval,
    t_quantile,
    two_sided_p,
)
from whet.record.metrics.pass_at_k import accuracy_estimate, pass_at_k, pass_curve, vote_curve
from whet.record.metrics.reward_model import calibration_of, token_confidence, vote_confidence


def drawn(seed, prompts, samples, alpha, beta):
    """Prompts of different difficulty, and attempts at them."""
    stream = np.random.default_rng(seed)
    chances = stream.beta(alpha, beta, prompts)
    return (stream.random((prompts, samples)) < chances[:, None]).astype(float).tolist()


def test_one_greedy_sample_per_prompt_is_wilsons_interval():
    found = accuracy_estimate([[1.0]] * 30 + [[0.0]] * 70)
    assert (found.low, found.high) == pytest.approx(share_interval(0.3, 100), abs=1e-5)
    assert found.value == pytest.approx(0.3) and found.error == pytest.approx(math.sqrt(0.21 / 99))
    assert found.sample_error is None and found.prompt_error is None


@pytest.mark.parametrize(("prompts", "samples", "alpha", "beta"), [(10, 16, 0.5, 0.5), (40, 8, 0.3, 2.0)])
def test_the_interval_covers_the_truth_where_counting_every_sample_as_a_prompt_does_not(prompts, samples, alpha, beta):
    truth, trials = alpha / (alpha + beta), 400
    covered = naive = 0
    for seed in range(trials):
        outcomes = drawn(seed, prompts, samples, alpha, beta)
        found = accuracy_estimate(outcomes)
        covered += found.low <= truth <= found.high
        low, high = share_interval(found.value, prompts * samples)
        naive += low <= truth <= high
    assert 0.92 <= covered / trials <= 0.99
    assert naive / trials < 0.8  # the trap


def test_the_error_is_split_into_samples_and_prompts():
    outcomes = drawn(1, 400, 4, 2.0, 2.0)
    found = accuracy_estimate(outcomes)
    assert found.error**2 == pytest.approx(found.sample_error**2 + found.prompt_error**2)
    # Beta(2, 2): Var(p) = 1/20, E[p (1 - p)] = 1/5
    assert found.prompt_error == pytest.approx(math.sqrt(0.05 / 400), rel=0.15)
    assert found.sample_error == pytest.approx(math.sqrt(0.2 / 4 / 400), rel=0.15)
    certain = accuracy_estimate([[1.0, 1.0]] * 5 + [[0.0, 0.0]] * 5)
    assert certain.sample_error == 0 and certain.prompt_error == certain.error > 0.1


def test_an_interval_is_never_empty_and_never_outside():
    for outcomes in ([[0.0] * 16] * 20, [[1.0] * 16] * 20):
        found = accuracy_estimate(outcomes)
        assert found.high - found.low == pytest.approx(1 - 20 / (20 + 1.96**2), abs=1e-3)  # of 20 prompts, not of 320
        assert found.low >= 0 and found.high <= 1
    same = accuracy_estimate([[1.0, 0.0]] * 20)  # no spread between prompts: 40 coins, not infinitely many
    assert same.low < 0.4 < 0.6 < same.high
    assert share_estimate([0.5]).high < 1
    with pytest.raises(ValueError, match="mean_estimate"):
        share_estimate([2.0])


def test_other_values_have_students_interval():
    found = mean_estimate([1.0, 2.0, 4.0])
    # t(0.975, 2) = 4.302653, s = 1.527525
    assert (found.low, found.high) == pytest.approx((7 / 3 - 3.794584, 7 / 3 + 3.794584), abs=1e-5)
    assert mean_estimate([3.0]).high == math.inf


def test_quantiles_of_student():
    for freedom, wanted in ((1, 12.706205), (2, 4.302653), (10, 2.228139), (1000, 1.962339)):
        assert t_quantile(0.975, freedom) == pytest.approx(wanted, abs=1e-5)
    assert t_quantile(0.95, 5) == pytest.approx(2.015048, abs=1e-5)
    for beyond, freedom in product((0.4, 0.01, 1e-6, 1e-8), (0.5, 1, 3, 38, 100_000)):
        assert two_sided_p(t_quantile(1 - beyond, freedom), freedom) / 2 == pytest.approx(beyond, rel=1e-8)


def test_pass_at_k_is_the_mean_over_all_choices_and_the_plug_in_is_too_low():
    outcomes = [1.0, 0.0, 0.0, 1.0, 0.0]
    for k in range(1, 6):
        wanted = fmean(float(any(chosen)) for chosen in combinations(outcomes, k))
        assert pass_at_k(2, 5, k) == pytest.approx(wanted)
        if k > 1:
            assert 1 - (1 - 2 / 5) ** k < wanted
    for right, attempts, k in ((1, 4, 5), (5, 4, 1), (0, 4, 0)):
        with pytest.raises(ValueError, match="attempts"):
            pass_at_k(right, attempts, k)


def test_curves_over_k_and_n():
    outcomes = [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 1.0], [0.0] * 4]
    curve = pass_curve(outcomes)
    assert [point.n for point in curve] == [1, 2, 4]
    assert [point.value for point in curve] == pytest.approx([4 / 12, (0.5 + 1) / 3, 2 / 3])
    assert all(point.low < point.value < point.high for point in curve)
    answers = [["7", "8", "8", None], ["3", "3", "4", "3"], ["1", "1", "2", None]]
    votes = vote_curve(outcomes, answers)
    assert votes[0].value == pytest.approx(curve[0].value)  # one vote is one sample
    assert votes[-1].value == pytest.approx(1 / 3)  # only the second prompt's majority is right
    assert pass_curve(outcomes, [3])[0].n == 3
    with pytest.raises(ValueError, match="pass@5 of 4"):
        pass_curve(outcomes, [5])


def test_ties_are_shared_and_do_not_depend_on_the_order():
    for order in ([0, 1], [1, 0]):
        outcomes, answers = [[1.0, 0.0][place] for place in order], [["a", "b"][place] for place in order]
        assert vote_curve([outcomes], [answers], [2])[0].value == pytest.approx(0.5)


def test_mcnemar_against_every_coin_sequence():
    for gained, lost in ((0, 0), (1, 0), (3, 1), (5, 5), (9, 2)):
        total = gained + lost
        extreme = sum(abs(2 * sum(coins) - total) >= abs(gained - lost) for coins in product((0, 1), repeat=total))
        assert mcnemar_p(gained, lost) == pytest.approx(min(1.0, extreme / 2**total))
        assert mcnemar_p(lost, gained) == mcnemar_p(gained, lost)
    assert mcnemar_p(9, 2) == pytest.approx(0.0654296875)


def test_the_interval_of_a_paired_difference_is_open_without_a_change():
    low, high = changed_interval(0, 0, 50)
    assert low == pytest.approx(-high) and 0.02 < high < 0.08
    low, high = changed_interval(20, 5, 100)
    assert low == pytest.approx(15 / 102 - 1.959964 * math.sqrt(26 - 225 / 102) / 102) and low > 0 and high < 0.26


def test_pairing_sees_what_two_overlapping_intervals_hide():
    stream = random.Random(0)
    before = [[float(stream.random() < 0.5)] for _ in range(200)]
    after = [[1.0] if place < 14 and row == [0.0] else row for place, row in enumerate(before)]
    one, two = accuracy_estimate(before), accuracy_estimate(after)
    assert one.high > two.low  # the intervals overlap
    found = paired_test(("before", before), ("after", after))
    assert found.test == "McNemar" and found.gained == 8 and found.lost == 0 and found.p == pytest.approx(2 / 2**8)
    assert found.low > 0 and found.difference == pytest.approx(8 / 200)


def test_several_samples_are_tested_by_prompt():
    # t = 0.05 / (0.1 / 2), df 3: p = 0.391002
    before = [[0.0, 1.0]] * 4
    after = [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [1.0, 1.0]]
    found = paired_test(("a", before), ("b", after))
    assert found.test == "paired t" and found.p == pytest.approx(0.391002, abs=1e-6)
    half = 3.182446 * 0.125  # t at 97.5% with df 3, times the standard error
    assert (found.low, found.high) == pytest.approx((0.125 - half, 0.125 + half), abs=1e-6)
    assert (
        paired_t([0.5, 0.5]) == (None, 0.5, 0.5)
        and paired_t([0.0, 0.0]) == (None, 0.0, 0.0)
        and paired_t([0.5])[0] is None
    )
    with pytest.raises(ValueError, match="cannot be paired"):
        paired_test(("a", before), ("b", after[:3]))


def test_false_alarms_are_as_rare_as_promised():
    alarms = several = 0
    for seed in range(300):
        stream = np.random.default_rng(seed)
        chances = stream.beta(1.0, 1.0, 60)
        outcomes = {
            name: (stream.random((60, 4)) < chances[:, None]).astype(float).tolist() for name in ("a", "b", "c")
        }
        tests = paired_tests(outcomes)
        alarms += any(each.p is not None and each.p < 0.05 for each in tests)
        several += any(each.corrected_p is not None and each.corrected_p < 0.05 for each in tests)
    assert several / 300 < 0.08 < alarms / 300 < 0.2  # uncorrected, one of three tests is wrong too often


def test_every_pair_is_compared_once_with_holms_correction():
    base = [[0.0]] * 20
    tests = paired_tests({"a": base, "b": [[1.0]] * 8 + base[8:], "c": [[1.0]] * 9 + base[9:]})
    assert [(each.first, each.second) for each in tests] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [each.p for each in tests] == pytest.approx([2 / 2**8, 2 / 2**9, 1.0])
    assert [each.corrected_p for each in tests] == pytest.approx([2 * 2 / 2**8, 3 * 2 / 2**9, 1.0])


def test_calibration_by_hand():
    found = calibration_of([0.95, 0.92, 0.15, 1.0], [1.0, 0.0, 0.0, 1.0])
    assert found.error == pytest.approx((0.15 + abs(2.87 - 2)) / 4)
    assert found.brier == pytest.approx((0.05**2 + 0.92**2 + 0.15**2) / 4)
    assert [(each.tenth, each.rows) for each in found.bins] == [(1, 1), (9, 3)]
    assert calibration_of([1.0] * 4, [1.0] * 4).error == 0 and calibration_of([1.0] * 4, [0.0] * 4).error == 1
    with pytest.raises(ValueError, match="no share"):
        calibration_of([1.5], [1.0])


def test_votes_and_tokens_as_confidence():
    assert vote_confidence([1.0, 1.0, 0.0, 0.0], ["7", "7", "8", None]) == (0.5, 1.0)
    assert vote_confidence([1.0, 0.0], ["7", "8"]) == (0.5, 0.5)
    assert vote_confidence([0.0, 0.0], [None, None]) == (0.0, 0.0)
    assert token_confidence([math.log(0.5), math.log(0.125)]) == pytest.approx(0.25)
    assert token_confidence([0.0, math.nan]) is None and token_confidence([]) is None


def test_values_that_are_no_shares_get_students_interval():
    shares, others = [0.0, 1.0, 1.0, 0.0], [0.0, 3.0, 1.0, 0.0]
    assert estimate(shares) == share_estimate(shares) and estimate(shares, 4) == share_estimate(shares, 4)
    assert estimate(others) == mean_estimate(others) and estimate([-0.1, 0.2]) == mean_estimate([-0.1, 0.2])
