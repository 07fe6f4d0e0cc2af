"""A judge asked in both orders: what it prefers, where it contradicts itself, and what is counted."""

import math

import pytest

from tests.support.for_every import for_every
from whet.tools.pipelines.library.judging import (
    CandidatePair,
    PairLabel,
    candidate_pairs,
    combine_orders,
    judge_examples,
    judge_metrics,
    judged_pairs,
    normalised,
    short_question,
)
from whet.types import Prompt

ROW = {"id": "q", "prompt": [{"role": "user", "content": "1+1"}]}


@for_every(
    [
        (1.0, 0.0, PairLabel(1.0)),
        (0.0, 1.0, PairLabel(0.0)),
        (1.0, 1.0, PairLabel(0.5, flipped=True)),
        (0.0, 0.0, PairLabel(0.5, flipped=True)),
        (0.5, 0.5, PairLabel(0.5)),
        (0.5, 0.0, PairLabel(0.75)),
        (None, 0.0, PairLabel(None)),
        (0.9, None, PairLabel(None)),
    ]
)
def test_both_orders_make_one_label(forth, back, label):
    assert combine_orders(forth, back) == label


def test_soft_verdicts_are_averaged_and_contradictions_tie():
    assert combine_orders(0.9, 0.3).preference == pytest.approx(0.8)
    assert combine_orders(0.6, 0.7) == PairLabel(0.5, flipped=True)


def test_log_probabilities_are_normalised_over_the_two_names():
    assert normalised(math.log(0.3), math.log(0.1)) == pytest.approx(0.75)
    assert normalised(-2000.0, 0.0) == 0.0 and normalised(0.0, -2000.0) == 1.0


def test_contests_are_of_different_completions_and_know_the_truth():
    rows = [
        {**ROW, "completions": ["a", "a", "b"], "scores": [0.0, 0.0, 1.0]},
        {**ROW, "id": "r", "completions": ["a", "a"], "scores": [1.0, 1.0]},
        {**ROW, "id": "s", "completions": ["a", "b"]},
        {**ROW, "id": "t", "completions": ["a", "b"], "scores": [None, 1.0]},
    ]
    found, counts = candidate_pairs(rows)
    assert [(each.one, each.other, each.truth) for each in found] == [
        ("a", "b", 0.0),
        ("a", "b", None),
        ("a", "b", None),
    ]
    assert counts == {"prompts": 4, "same_completions": 1}


def test_pairs_have_the_winner_first_and_everything_is_counted():
    candidates = [
        CandidatePair({**ROW, "id": str(number)}, "one", "other", truth)
        for number, truth in enumerate((1, 1, 0, 0.5, None, 1))
    ]
    labels = [PairLabel(0.9), PairLabel(0.2), PairLabel(0.5, True), PairLabel(0.5), PairLabel(None), PairLabel(0.55)]
    pairs, counts = judged_pairs(candidates, labels, least=0.1)
    assert [(pair["id"], pair["chosen"], pair["preference"]) for pair in pairs] == [
        ("0", "one", 0.9),
        ("1", "other", 0.8),
    ]
    assert counts == {
        "compared": 6,
        "pairs": 2,
        "unreadable": 1,
        "flips": 1,
        "ties": 1,
        "unsure": 1,
        "truth_known": 2,
        "truth_met": 1,
    }


def test_a_judge_is_marked_where_there_is_a_winner():
    candidates = [CandidatePair(ROW, "one", "other", truth) for truth in (1.0, 0.0, 1.0, 0.5)]
    marks = judge_metrics(candidates, [PairLabel(0.7), PairLabel(0.7), PairLabel(0.5, True), PairLabel(None)])
    assert marks == {
        "judge_accuracy": pytest.approx(1 / 3),
        "flip_rate": 0.25,
        "tie_rate": 0.0,
        "unreadable": 0.25,
    }


def test_examples_show_both_orders_with_the_right_letter():
    prompt = Prompt("q", ({"role": "user", "content": "1+1"},))
    rows = judge_examples(
        [CandidatePair(ROW, "two", "three", 1.0), CandidatePair(ROW, "four", "2", 0.0)], {"q": prompt}
    )
    assert [row["completion"] for row in rows] == ["A", "B", "B", "A"]
    asked = [row["prompt"][0]["content"] for row in rows]
    assert asked[0] == short_question(prompt, "two", "three")[0]["content"]
    assert asked[0].index("two") < asked[0].index("three") and asked[1].index("three") < asked[1].index("two")
    assert len({row["id"] for row in rows[:2]}) == 2
