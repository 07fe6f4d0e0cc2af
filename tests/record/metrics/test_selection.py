"""Expected scores of choosing among n, against the mean over every subset, written out."""

import random
from itertools import combinations
from math import comb
from statistics import fmean

import pytest

from whet.record.metrics.selection import best_of, majority, sizes, vote_weights, weighted_vote


def best_by_hand(outcomes, scores, n):
    found = []
    for chosen in combinations(range(len(outcomes)), n):
        top = max(scores[row] for row in chosen)
        found.append(fmean(outcomes[row] for row in chosen if scores[row] == top))
    return fmean(found)


def vote_by_hand(outcomes, answers, weights, n):
    found = []
    for chosen in combinations(range(len(outcomes)), n):
        totals = {}
        for row in chosen:
            if answers[row] is not None:
                totals[answers[row]] = totals.get(answers[row], 0) + weights[row]
        leaders = [answer for answer in totals if abs(totals[answer] - max(totals.values())) < 1e-9]
        # the completion that stands for an answer is any of the pool that give it
        worth = [
            fmean(outcome for outcome, given in zip(outcomes, answers, strict=True) if given == answer)
            for answer in leaders
        ]
        found.append(fmean(worth) if worth else 0.0)
    return fmean(found)


@pytest.fixture(params=range(12))
def pool(request):
    stream = random.Random(request.param)
    size = stream.randint(2, 9)
    answers = [stream.choice(["3", "4", "5", None]) for _ in range(size)]
    outcomes = [float(answer == "4") for answer in answers]
    if request.param % 3 == 0:  # completions of one answer need not be worth the same, and rewards need not be 0 or 1
        outcomes = [stream.choice([0.0, 0.3, 1.0]) for _ in range(size)]
    scores = [stream.choice([0.1, 0.2, 0.3, 0.9]) for _ in range(size)]
    return outcomes, answers, scores


def test_best_of_is_the_mean_over_all_subsets(pool):
    outcomes, _, scores = pool
    for n in range(1, len(outcomes) + 1):
        assert best_of(outcomes, scores, n) == pytest.approx(best_by_hand(outcomes, scores, n), abs=1e-12)


def test_without_ties_the_weights_are_those_of_order_statistics():
    outcomes, scores = [0.2, 0.9, 0.4, 0.1, 0.7], [5.0, 1.0, 4.0, 2.0, 3.0]
    ranked = [outcome for _, outcome in sorted(zip(scores, outcomes, strict=True))]
    for n in range(1, 6):
        wanted = sum(comb(rank, n - 1) / comb(5, n) * outcome for rank, outcome in enumerate(ranked))
        assert best_of(outcomes, scores, n) == pytest.approx(wanted, abs=1e-12)


def test_with_the_truth_as_score_it_is_pass_at_k():
    outcomes = [1.0] * 3 + [0.0] * 8
    for k in range(1, 12):
        assert best_of(outcomes, outcomes, k) == pytest.approx(1 - comb(8, k) / comb(11, k), abs=1e-12)


def test_a_completion_without_score_is_chosen_only_among_its_like():
    assert best_of([1.0, 0.0, 0.0], [None, 0.5, -9.0], 3) == 0.0
    assert best_of([1.0, 0.0], [None, None], 2) == 0.5
    assert best_of([1.0, 0.0, 1.0], [None, 0.1, 0.7], 2) == pytest.approx(2 / 3)


def test_majority_is_the_mean_over_all_subsets(pool):
    outcomes, answers, _ = pool
    for n in range(1, len(outcomes) + 1):
        wanted = vote_by_hand(outcomes, answers, [1] * len(outcomes), n)
        assert majority(outcomes, answers, n) == pytest.approx(wanted, abs=1e-12)


def test_weighted_vote_is_the_mean_over_all_subsets(pool):
    outcomes, answers, scores = pool
    for n in range(1, len(outcomes) + 1):
        wanted = vote_by_hand(outcomes, answers, scores, n)
        assert weighted_vote(outcomes, answers, scores, n) == pytest.approx(wanted, abs=1e-12)
        even = weighted_vote(outcomes, answers, [0.7] * len(outcomes), n)
        assert even == pytest.approx(majority(outcomes, answers, n), abs=1e-12)


def test_weights_of_zero_and_none_leave_only_the_presence_of_an_answer():
    outcomes, answers = [1.0, 0.0, 0.0], ["4", "3", "3"]
    assert weighted_vote(outcomes, answers, [0.0, None, 0.0], 3) == 0.5
    assert weighted_vote(outcomes, answers, [0.9, 0.4, 0.4], 3) == 1.0
    assert weighted_vote(outcomes, [None] * 3, [1.0] * 3, 2) == 0.0


def test_large_pools_draw_subsets_and_stay_near_the_exact_value():
    stream = random.Random(3)
    answers = [stream.choice("3344445678") for _ in range(40)]
    outcomes = [float(answer == "4") for answer in answers]
    exact = majority(outcomes, answers, 10)
    drawn = weighted_vote(outcomes, answers, [1.0] * 40, 10, seed=1)
    assert 0.2 < exact < 0.999 and drawn == pytest.approx(exact, abs=0.03)
    assert drawn == weighted_vote(outcomes, answers, [1.0] * 40, 10, seed=1)


def test_sizes_are_powers_of_two_and_the_pool():
    assert sizes(16) == [1, 2, 4, 8, 16] and sizes(6) == [1, 2, 4, 6] and sizes(2) == [1, 2]


def test_more_than_the_pool_is_refused():
    with pytest.raises(ValueError, match="3 of 2"):
        best_of([1.0, 0.0], [0.1, 0.2], 3)


def test_shares_vote_as_they_are_and_other_scores_through_the_logistic_curve():
    assert vote_weights([0.2, None, 1.0, 0.0]) == [0.2, None, 1.0, 0.0]
    assert vote_weights([-1000.0, None, 0.0, 2.0]) == [pytest.approx(0.0), None, 0.5, pytest.approx(0.880797, abs=1e-6)]
