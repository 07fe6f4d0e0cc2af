"""Votes among the completions to one prompt: who is paid, and what a vote is."""

from dataclasses import replace

import pytest

from whet.reward.combine import RewardPart
from whet.reward.find import find_reward
from whet.reward.majority import voted_answer, winner
from whet.reward.row_check import NO_COMPLETION, Unscorable, require_scorable
from whet.reward.score import score
from whet.types import Prompt


def scored(*groups, **settings):
    reward = find_reward("majority_answer", settings)
    prompts = [Prompt(str(at), (), "q") for at, group in enumerate(groups) for _ in group]
    samples = [replace(NO_COMPLETION, completion=text) for group in groups for text in group]
    return reward(prompts, samples)


def test_those_who_agree_with_most_of_their_own_group_are_paid():
    right = ["<answer>7</answer>", "the answer is 7.", "I get 7.0", "<answer>3</answer>"]
    assert scored(right, ["<answer>3</answer>", "nothing at all"]) == [1.0, 1.0, 1.0, 0.0, 1.0, 0.0]
    assert scored(["no", "answer"]) == [0.0, 0.0]


def test_a_tie_goes_to_the_first_and_a_weak_majority_pays_nobody():
    split = [f"<answer>{each}</answer>" for each in (1, 2, 2, 1)]
    assert scored(split) == [1.0, 0.0, 0.0, 1.0]
    assert scored(split, least_share=0.6) == [0.0] * 4
    assert winner(["b", None, "a", "b"]) == ("b", 2) and winner([None]) == (None, 0)


@pytest.mark.parametrize(
    ("text", "answer"),
    [("<think>3</think><answer>08</answer>", "8"), ("so 1,200 in all", "1200"), ("#### -4", "-4"), ("none", None)],
)
def test_a_vote_is_the_marked_answer_or_the_last_number(text, answer):
    assert voted_answer(text) == answer


def test_parts_score_the_rows_they_are_for_and_count_nothing_elsewhere():
    with_answer, without = Prompt("a", (), "q", answer="7"), Prompt("b", (), "q")
    sample = replace(NO_COMPLETION, completion="<answer>7</answer>")
    parts = [
        RewardPart(find_reward("exact_answer"), rows="with_answer"),
        RewardPart(find_reward("majority_answer"), weight=0.5, rows="without_answer"),
    ]
    one, two = score([with_answer, without], [sample, sample], parts, timeout=5)
    assert (dict(one.parts), one.reward) == ({"exact_answer": 1.0, "majority_answer": 0.0}, 1.0)
    assert (dict(two.parts), two.reward) == ({"exact_answer": 0.0, "majority_answer": 1.0}, 0.5)
    require_scorable(parts, without)
    with pytest.raises(Unscorable):
        require_scorable([RewardPart(find_reward("exact_answer"))], without)
