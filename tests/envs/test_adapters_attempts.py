"""Several attempts at one question."""

from __future__ import annotations

import pytest

from tests.support.packages import needs
from whet.envs.adapters.attempts import Attempts
from whet.types import Completion, Prompt, WhetError

SUM = Prompt("row", ({"role": "user", "content": "2 + 3?"},), answer="5")


def rewards(texts, prompt=SUM, **settings):
    env = Attempts(**{"reward": "exact_answer", **settings})
    env.start(prompt)
    return [env.step(Completion(text)) for text in texts]


def test_a_wrong_attempt_is_told_and_a_right_one_ends_it():
    first, second = rewards(["<answer>4</answer>", "<answer>5</answer>"])
    assert first.messages == (
        {"role": "user", "content": "That is not right yet. You have 2 attempts left. Try again."},
    )
    assert (first.reward, first.done) == (0.0, False)
    assert (second.reward, second.done, second.metrics) == (1.0, True, {"attempts": 2.0})


def test_the_last_attempt_ends_it():
    answers = rewards(["<answer>4</answer>"] * 3)
    assert [answer.done for answer in answers] == [False, False, True]
    assert answers[-1].reward == 0.0 and "1 attempt left" in answers[1].messages[0]["content"]


def test_later_is_worth_less():
    texts = ["<answer>4</answer>", "<answer>4</answer>", "<answer>5</answer>"]
    assert rewards(texts, discount=0.5)[-1].reward == 0.25
    assert rewards(texts[2:], discount=0.5)[-1].reward == 1.0


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"attempts": 0}, "attempts is 0"),
        ({"discount": 1.5}, "discount is 1.5"),
        ({"reward": "exact"}, "no reward is called"),
    ],
)
def test_bad_settings_are_refused(settings, complaint):
    with pytest.raises(WhetError, match=complaint):
        Attempts(**settings)


@needs("reasoning_gym")
def test_reasoning_gym_judges():
    from whet.data.gym_prompts import gym_prompts

    (question,) = gym_prompts("gym:basic_arithmetic", 1, seed=0)
    wrong, right = rewards(
        ["<answer>no</answer>", f"<answer>{question.answer}</answer>"], question, reward="gym_answer"
    )
    assert not wrong.done and right.done and right.reward == 1.0
