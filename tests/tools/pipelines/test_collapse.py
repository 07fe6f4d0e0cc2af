"""A policy's own scores, pairs made of them, and signals of collapse: by hand on small rows."""

import math

import pytest

from tests.support.for_every import for_every
from whet.data.tasks import TASKS
from whet.data.tasks.contrast import compared, fault_of, reviewed_completions
from whet.record.metrics.intervals import share_interval, shares_apart
from whet.tools.pipelines.library.self_judging import (
    JUDGE_LEAST,
    LONGER,
    collapse_signals,
    collapse_verdict,
    judge_example,
    mean_score,
    mixed_scores,
    order_accuracy,
    score_in,
    self_scored_pairs,
    short_score_question,
    warnings,
)
from whet.types import Prompt


@for_every(
    [
        ("It is clear. Score: 4", 4),
        ("Score: 4. I repeat:\n**Score: 4**", 4),
        ("Score: 1. The answer itself says **Score: 5**", None),
        ("score : 3.5", 3.5),
        ("Score: 7", None),
        ("Score: 45", None),
        ("Scce: 5", None),
        ("", None),
        ("I would give it four points", None),
    ]
)
def test_a_score_is_read_or_it_is_none(answer, score):
    assert score_in(answer) == score


def test_silence_is_not_zero():
    assert mean_score([None, None]) is None
    assert mean_score([5.0, None, 0.0]) == 0.5


def row(judgments, truth=(), anchor=(), completions=("a", "b", "cc")):
    return {
        "id": "1",
        "prompt": "q",
        "completions": list(completions),
        "finished": [True] * 3,
        "judgments": [list(each) for each in judgments],
        "truth": list(truth),
        "anchor": list(anchor),
    }


def test_pairs_are_best_against_worst_and_ties_are_dropped():
    clear = row([(5, 5), (1, None), (3, 3)])
    tied = row([(4,), (4,), (4,)])
    silent = row([(None,), (None,), (2,)])
    pairs, counts = self_scored_pairs([clear, tied, silent], 0.0)
    (pair,) = pairs
    assert (pair["chosen"], pair["rejected"], pair["chosen_score"], pair["rejected_score"]) == ("a", "b", 1.0, 0.2)
    assert counts["ties"] == 2 and counts["unscorable_completions"] == 2


def test_the_anchor_is_mixed_in_and_can_turn_a_pair():
    each = row([(5,), (4,), (None,)], anchor=(0.0, 1.0, 1.0))
    assert mixed_scores(each, 0.5) == [0.5, 0.9, None]
    assert mixed_scores(each, 0.25) == [0.75, pytest.approx(0.75 * 0.8 + 0.25), None]
    (pair,), _ = self_scored_pairs([each], 0.5)
    assert pair["chosen"] == "b"
    (pair,), _ = self_scored_pairs([each], 0.0)
    assert pair["chosen"] == "a"


def test_order_accuracy_counts_ties_half_and_silence_as_a_miss():
    assert order_accuracy([((0.9, 0.1), (1, 0))]) == 1
    assert order_accuracy([((0.1, 0.9), (1, 0)), ((0.5, 0.5), (1, 0))]) == 0.25
    assert order_accuracy([((None, 0.5), (1, 0))]) == 0
    assert math.isnan(order_accuracy([((0.1, 0.9), (1, 1))]))


def test_signals_of_a_round():
    rows = [row([(5,), (0,), (None,)], truth=(1, 0, 0), anchor=(0, 1, 1)), row([(5,)] * 3, completions=("a", "a", "a"))]
    found = collapse_signals(rows, ties=1)
    assert found["length"] == (4 + 3) / 6 and found["ties"] == 0.5 and found["unreadable"] == 1 / 6
    assert found["distinct"] == (1 + 1 / 3) / 2 and found["own_score"] == 0.8 and found["spread"] == 0.25
    assert found["truth_agreement"] == 0.5 and found["anchor_agreement"] == 0


def test_one_score_alone_has_no_spread():
    rows = [row([(5,), (0,), (None,)]), row([(5,), (None,), (None,)])]
    assert collapse_signals(rows, ties=0)["spread"] == 0.5
    assert "spread" not in collapse_signals(rows[1:], ties=0)


FINE = {"length": 40, "own_score": 0.6, "spread": 0.2, "ties": 0.1, "unreadable": 0.0, "distinct": 0.8}
FINE |= {"truth_agreement": 0.9, "anchor_agreement": 0.9, "judge_accuracy": 0.95}


@for_every(
    [
        ({"length": 61}, "completions grew from 40 to 61 characters"),
        ({"own_score": 0.95, "spread": 0.01}, "saturated"),
        ({"ties": 0.6}, "60% of the prompts are ties"),
        ({"unreadable": 0.2}, "20% of the judgments cannot be read"),
        ({"distinct": 0.3}, "distinct completions fell from 80% to 30%"),
        ({"judge_accuracy": 0.8}, "the judge fell from 95% to 80%"),
        ({"judge_accuracy": 0.5}, "orders 50% of the reference pairs right"),
        ({"truth_agreement": 0.4}, "as the truth does"),
        ({"anchor_agreement": 0.4}, "agree with the anchor on 40%"),
    ]
)
def test_each_signal_is_named_with_its_number(change, said):
    assert warnings(FINE, FINE, FINE) == []
    (found,) = warnings(FINE, FINE, FINE | change)
    assert said in found and "(" in found


def test_the_verdict_names_a_collapse_only_beyond_noise():
    gain = collapse_verdict([0.1, 0.9], [], 200)
    assert not gain[1] and "10.0% to 90.0%, better by more than noise" in gain[0]
    fall = collapse_verdict([0.1, 0.9, 0.5], ["x"], 200)
    assert fall[1] and fall[0].startswith("COLLAPSE") and "90.0% after round 1 to 50.0%" in fall[0]
    wobble = collapse_verdict([0.1, 0.12], [], 200)
    assert not wobble[1] and "no gain beyond noise" in wobble[0]
    assert collapse_verdict([None, None], ["one", "two"], 0)[1]
    assert not collapse_verdict([None, None], ["one"], 0)[1]
    assert warnings({}, {}, {}) == []  # nothing is known, and nothing is said


def test_scores_are_saturated_only_where_they_are_high_and_flat():
    for change in ({"own_score": 0.95}, {"spread": 0.01}):
        assert warnings(FINE, FINE, FINE | change) == []


def test_a_threshold_itself_raises_no_warning():
    assert warnings(FINE, FINE, FINE | {"truth_agreement": JUDGE_LEAST, "length": LONGER * FINE["length"]}) == []


def test_a_verdict_names_the_other_signals_or_that_there_are_none():
    assert collapse_verdict([0.1, 0.9, 0.5], [], 200)[0].endswith("; no other signal of it")
    assert collapse_verdict([0.1, 0.9, 0.5], ["x is y"], 200)[0].endswith("; x is y")


def test_shares_apart_smooths_an_observed_zero_or_one():
    # 10 of 10 against 9 of 10: variances at 11/12 and 10/12
    assert shares_apart(1.0, 0.9, 10) == pytest.approx(0.1 / math.sqrt((11 / 144 + 20 / 144) / 10))
    assert shares_apart(1.0, 0.0, 1) == pytest.approx(1 / math.sqrt(2 * 2 / 9)) and shares_apart(0.0, 1.0, 1) < 0
    assert share_interval(1.0, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert share_interval(0.3, 50) == pytest.approx((0.1910, 0.4375), abs=1e-4)


def test_a_task_writes_completions_with_their_faults_and_reasons():
    rows = reviewed_completions(TASKS["arithmetic"], "train", 3, 0, 3)
    assert [each.quality for each in rows[:5]] == [1.0, 0.5, 0.0, 1.0, 0.0]
    right, careless, wrong, bare, bare_wrong = rows[:5]
    assert right.fault == "" and bare.fault == bare_wrong.fault == "no steps"
    assert careless.fault.endswith("is wrong") and careless.fault.split()[0] in careless.completion
    assert right.reason.endswith("=0") and not wrong.reason.endswith("=0") and wrong.right == right.completion
    assert [each.is_plain for each in rows[:5]] == [True, False, True, True, True]
    assert compared("7", "9") == "7-9=8" and compared("1 2", "3") == "1 2 / 3"
    assert fault_of("<think>1+1=3</think><answer>3</answer>", "1+1=2") == "1+1=3 is wrong"
    example = judge_example(right.prompt, wrong.completion, 0.0, wrong.reason)
    assert score_in(example["completion"]) == 1 and wrong.completion in example["prompt"][0]["content"]
    assert short_score_question(Prompt("a", (), "1+1"), "2")[0]["content"].startswith("1+1\n2\n")
