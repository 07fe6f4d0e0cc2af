"""Correlation, distribution, calibration, ensembles, significance: by hand, and where they must be large."""

import math

import pytest

from whet.record.metrics.distribution import (
    correlations,
    distribution,
    flat_shares,
    histogram,
    is_flat,
    length_correlation,
    pearson,
    pearson_from_moments,
    quantile,
    ranks,
    reward_spread,
    spearman,
)
from whet.record.metrics.intervals import corrected, incomplete_beta, more_right_p, share_interval, two_sided_p, welch_p
from whet.record.metrics.reward_model import (
    area_under_curve,
    calibration,
    disagreement,
    ensemble_score,
    label_ensemble_metrics,
    member_scales,
    outcome_metrics,
    pair_ensemble_metrics,
    pair_metrics,
    standardized,
    step_metrics,
)


def test_pearson_by_hand_and_by_moments():
    x, y = [1.0, 2.0, 4.0, 7.0], [2.0, 1.0, 5.0, 6.0]
    mean_x, mean_y = 3.5, 3.5
    over = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    expected = over / math.sqrt(sum((a - mean_x) ** 2 for a in x) * sum((b - mean_y) ** 2 for b in y))
    assert pearson(x, y) == pytest.approx(expected) and 0.8 < expected < 0.95
    moments = [
        sum(values) / 4
        for values in (x, y, [a * a for a in x], [b * b for b in y], [a * b for a, b in zip(x, y, strict=True)])
    ]
    assert pearson_from_moments(*moments) == pytest.approx(expected)
    assert pearson_from_moments(2.0, 1.0, 4.0, 2.0, 2.0) is None, "x does not vary"
    assert pearson_from_moments(1.0, 2.0, 2.0, 4.0, 2.0) is None, "y does not vary"


def test_correlation_needs_three_pairs_and_two_spreads():
    assert pearson([1, 2], [1, 2]) is None and pearson([1, 1, 1], [1, 2, 3]) is None
    assert pearson([1, 2, 3], [5, 5, 5]) is None and pearson([1, 2, 3], [3, 2, 1]) == -1.0
    assert spearman([1, 10, 100], [1, 2, 3]) == pytest.approx(1.0) and pearson([1, 10, 100], [1, 2, 3]) < 0.95
    assert ranks([5.0, 1.0, 5.0, 9.0]) == [2.5, 1.0, 2.5, 4.0]
    ((one, two, linear, ranked),) = correlations({"a": [1, 2, None, 3], "b": [2, 4, 9, math.nan]})
    assert (one, two) == ("a", "b") and linear is None and ranked is None


def test_length_correlation_wants_all_moments():
    metrics = {"margin": 0.0, "longer": 0.0, "margin_square": 1.0, "longer_square": 4.0, "longer_margin": 1.0}
    assert length_correlation(metrics) == pytest.approx(0.5)
    assert length_correlation({**metrics, "longer_margin": -2.0}) == pytest.approx(-1.0)
    metrics.pop("longer_square")
    assert length_correlation(metrics) is None


def test_distribution_by_hand():
    spread = distribution([0.0, 0.0, 1.0, 3.0, math.inf])
    assert spread == {
        "min": 0.0, "q1": 0.0, "median": 0.5, "q3": 1.5, "max": 3.0, "mean": 1.0, "at_min": 0.5, "at_max": 0.25
    }  # fmt: skip
    assert distribution([]) == {} and quantile([1.0, 2.0], 1.0) == 2.0
    assert is_flat([1.0, 1.0 + 1e-9]) and not is_flat([0.0, 1e-3]) and is_flat([])
    assert flat_shares([]) == {} and reward_spread([]) == {"total": {}}


def test_histogram_bins_hold_every_value_once():
    values = [float(value) for value in range(24)]
    bins = histogram(values, 4)
    assert [count for *_, count in bins] == [6, 6, 6, 6] and bins[0][0] == 0.0 and bins[-1][1] == 23.0
    assert histogram([1.0, 0.0, 1.0]) == [(0.0, 0.0, 1), (1.0, 1.0, 2)]


def test_brier_is_the_squared_error():
    sure = 1 / (1 + math.exp(-3.0))
    metrics = pair_metrics([3.0, 0.0], [0.0, 3.0], [1, 1], [1, 1])
    assert metrics["brier"] == pytest.approx(((1 - sure) ** 2 + sure**2) / 2)
    assert metrics["brier"] != pytest.approx(((1 - sure) + sure) / 2), "that is the mean error without its square"
    graded = outcome_metrics([3.0, -3.0], [0.75, 0.0])
    assert graded["brier"] == pytest.approx(((sure - 0.75) ** 2 + (1 - sure) ** 2) / 2)


def test_calibration_counts_each_tenth():
    found = calibration([0.55, 0.58, 1.0], [1.0, 0.0, 1.0])
    assert found["calibration/5/rows"] == 2 and found["calibration/5/sure"] == pytest.approx(0.565)
    assert found["calibration/5/right"] == 0.5 and found["calibration/9/rows"] == 1
    assert found["calibration_error"] == pytest.approx(abs(1.13 - 1.0) / 3)


def test_a_calibrated_model_has_no_error_and_a_boaster_has():
    assert calibration([0.75] * 4, [1, 1, 1, 0])["calibration_error"] == pytest.approx(0.0)
    assert calibration([0.99] * 4, [0, 0, 0, 0])["calibration_error"] == pytest.approx(0.99)


def test_first_wrong_steps():
    found = step_metrics([[1, -1], [-1, 1], [1, 1]], [(1.0, 0.0), (1.0, 0.0), (1.0, 1.0)])
    assert found["errors_found"] == 0.5 and found["right_kept"] == 1.0 and found["f1"] == pytest.approx(2 / 3)
    assert area_under_curve([0.1, 0.4, 0.35, 0.8], [False, False, True, True]) == pytest.approx(0.75)


def test_ensemble_scores_are_combined_as_named():
    scores = [1.0, 2.0, 6.0]
    assert ensemble_score(scores, "mean") == 3.0 and ensemble_score(scores, "worst") == 1.0
    assert ensemble_score(scores, "mean_minus_variance", variance_weight=0.5) == pytest.approx(3 - 0.5 * 14 / 3)
    assert ensemble_score(scores, "mean_minus_std", deviations=2.0) == pytest.approx(3 - 2 * math.sqrt(14 / 2))
    assert ensemble_score([4.0], "mean_minus_std") == 4.0 and disagreement(scores) == pytest.approx(math.sqrt(14 / 3))
    assert standardized([3.0, 10.0], [(1.0, 2.0), (10.0, 5.0)]) == [1.0, 0.0] and standardized([3.0], None) == [3.0]
    assert member_scales([[0.0, 5.0], [2.0, 5.0]]) is None
    assert member_scales([[0.0, 1.0], [2.0, 5.0]]) == [(1.0, 1.0), (3.0, 2.0)]


def test_disagreement_is_large_where_members_err():
    better, worse = [[2.0, 2.2], [0.0, 3.0]], [[0.0, 0.0], [2.0, 2.0]]
    found = pair_ensemble_metrics(better, worse)
    assert found["member/1/accuracy"] == 0.5 and found["member/2/accuracy"] == 1.0
    assert found["accuracy_lowest_member"] == 0.5 and found["accuracy_highest_member"] == 1.0
    assert found["disagreement_right"] == pytest.approx(0.1) and found["disagreement_wrong"] == pytest.approx(1.5)
    assert found["disagreement_finds_errors"] == 1.0
    labelled = label_ensemble_metrics([[1.0, 1.0], [1.0, 3.0]], [1.0, 0.0])
    assert labelled["member/1/accuracy"] == 0.5 and labelled["disagreement_wrong"] == pytest.approx(1.0)


def test_welch_and_holm():
    assert two_sided_p(2.0, 10.0) == pytest.approx(0.07338803, abs=1e-7)
    assert incomplete_beta(0.3, 2.0, 3.0) == pytest.approx(0.3483)
    assert incomplete_beta(0.8, 2.0, 3.0) == pytest.approx(0.9728)
    assert welch_p([1.0, 2.0, 3.0], [2.0, 3.0, 4.0]) == pytest.approx(0.2878641, abs=1e-6)
    assert welch_p([1.0], [2.0, 3.0]) is None and welch_p([1.0, 1.0], [2.0, 2.0]) is None
    assert corrected([0.04, 0.01, 0.03], 3) == pytest.approx([0.06, 0.03, 0.06])
    assert corrected([0.5], 4) == [1.0]


def test_shares_that_differ_by_more_than_their_noise():
    assert more_right_p(50, 50, 100) > 0.5 > 0.25 > 1e-6 > more_right_p(90, 50, 100) and more_right_p(52, 50, 100) > 0.4
    low, high = share_interval(0.5, 100)
    assert (low, high) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert share_interval(0.0, 10)[0] == 0.0 and share_interval(0.0, 10)[1] == pytest.approx(0.2775, abs=1e-4)


def test_equal_scores_count_half_and_equal_lengths_on_neither_side():
    metrics = pair_metrics([1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [5, 3, 4], [4, 4, 4])
    assert metrics["accuracy"] == 0.5 and metrics["accuracy_when_longer"] == 0.5
    assert metrics["accuracy_when_shorter"] == 1.0


def test_an_observed_zero_is_not_certain():
    assert more_right_p(1, 0, 10) == pytest.approx(0.5)
