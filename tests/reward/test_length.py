"""Length, cost, efficiency and repetition against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tests.support.for_every import for_every
from whet.reward.efficiency import efficiency
from whet.reward.find import find_reward
from whet.reward.length import half_cosine, length_cost, soft_overlong
from whet.reward.repetition import repeated_share, repetition
from whet.types import Prompt, Sample, StopReason, Turn, WhetError


def sample(completion: str, num_tokens: int, stop: StopReason = StopReason.END) -> Sample:
    action = torch.arange(num_tokens + 1) > 0
    return Sample(torch.zeros(num_tokens + 1).long(), action, torch.zeros(num_tokens + 1), (0, 0), stop, completion)


@for_every([(0, 0.0), (16384, 0.0), (17408, -0.25), (18432, -0.5), (20480, -1.0), (30000, -1.0)])
def test_soft_overlong_with_the_numbers_of_the_paper(num_tokens: int, expected: float) -> None:
    assert soft_overlong(num_tokens, max_tokens=20480, tail=4096 / 20480) == pytest.approx(expected)


def test_length_cost() -> None:
    assert length_cost(0, max_tokens=100) == 0.0
    assert length_cost(50, max_tokens=100, cost=0.4) == pytest.approx(-0.2)


def test_cosine_length_with_the_numbers_of_the_paper() -> None:
    reward = find_reward("cosine_length", {"max_tokens": 100})
    rows = [Prompt("p", (), text="q", answer="7")] * 6 + [Prompt("p", (), text="q", answer="not maths")]
    samples = [sample("#### 7", 0), sample("#### 7", 50), sample("#### 7", 99), sample("#### 8", 50)]
    samples += [sample("#### 7", 100), sample("#### 7", 20, StopReason.LENGTH), sample("#### 7", 5)]
    scores = reward(rows, samples)
    assert scores[0] == pytest.approx(2.0) and scores[1] == pytest.approx(1.5) and scores[3] == pytest.approx(-5.0)
    assert scores[2] == pytest.approx(1.0, abs=0.001)
    assert scores[4:] == [-10.0, -10.0, None]
    other = find_reward(
        "cosine_length", {"max_tokens": 100, "accuracy": "exact_answer", "right": [1, 0.5], "wrong": [0, 0]}
    )
    assert other(rows[:1], [sample("<answer>7</answer>", 50)]) == [pytest.approx(0.75)]
    assert half_cosine(1 / 3, 1.0, 0.0) == pytest.approx((1 + math.cos(math.pi / 3)) / 2)


def test_efficiency_counts_steps_tokens_and_repetition() -> None:
    step = "<tool_call>f()</tool_call>"
    assert efficiency("short", 10) == 1.0
    assert efficiency(step * 3, 100) == 1.0
    assert efficiency(step * 5, 100) == pytest.approx(0.8)
    assert efficiency("x", 768) == pytest.approx(0.85)
    assert efficiency("x", 99999) == pytest.approx(0.7)
    assert efficiency("the same words again and again " * 40, 100) < 0.85
    assert efficiency(step * 50, 99999) == pytest.approx(0.2 - 0.2 * (repeated(step * 50) - 0.3) / 0.7)
    assert efficiency("- edit\n" * 2, 10, step="- edit", expected_steps=1) == pytest.approx(0.9)


def test_efficiency_of_an_episode_counts_all_turns_of_the_policy() -> None:
    """The completion is the last turn alone, which calls nothing."""
    call = Turn("assistant", "<tool_call>find(1)</tool_call>", 0, 1, counts={"tool_calls": 1})
    answer, last = Turn("tool", "<tool_call> <tool_call> <tool_call>", 1, 2), Turn("assistant", "done", 2, 3)
    assert efficiency("done", 10, (call, answer, last), expected_steps=1) == 1.0
    assert efficiency("done", 10, (call, answer) * 3 + (last,), expected_steps=1) == pytest.approx(0.8)
    # calls that a chat template writes in another way, and calls that the environment could not read
    other = replace(call, text="[find(1), find(2)]", counts={"tool_calls": 2})
    assert efficiency("done", 10, (other, answer, last), expected_steps=0) == pytest.approx(0.8)
    broken = replace(call, counts={"malformed_calls": 1})
    assert efficiency("done", 10, (broken, answer, last), expected_steps=0) == pytest.approx(0.9)
    said = tuple(Turn("assistant", "the same words again and again", at, at + 1) for at in range(40))
    assert efficiency("x", 100, said) == efficiency("the same words again and again " * 40, 100)


def test_efficiency_is_given_the_trajectory() -> None:
    turns = tuple(Turn("assistant", "<tool_call>f()</tool_call>", at, at + 1) for at in range(5))
    reward = find_reward("efficiency", {"expected_steps": 1})
    assert reward([Prompt("p", ())], [replace(sample("done", 5), turns=turns)]) == [pytest.approx(0.6)]


def repeated(text: str) -> float:
    from whet.reward.repetition import words_of

    return repeated_share(words_of(text), 4)


def test_repetition_by_hand() -> None:
    assert repeated_share(list("abcd" * 10), 4) == pytest.approx(1 - 4 / 37)
    assert repeated_share(list("abcd"), 4) == 0.0
    assert repetition(" ".join(f"word{number} is here" for number in range(40))) == 0.0
    loop = "wait, let me check that again. " * 30
    assert repetition(loop) < -0.9
    assert repetition(loop, penalty=0.5) == pytest.approx(repetition(loop) / 2)
    assert repetition("\u6211\u4eec\u518d\u60f3\u60f3" * 40) < -0.9
    assert repetition("") == 0.0


def test_settings_that_make_no_sense() -> None:
    for call in (
        lambda: soft_overlong(1, max_tokens=0),
        lambda: soft_overlong(1, max_tokens=10, tail=0),
        lambda: length_cost(1, max_tokens=10, cost=-1),
        lambda: efficiency("x", 1, max_tokens=0),
        lambda: repetition("x", allowed=1.0),
        lambda: find_reward("cosine_length", {"max_tokens": 0}),
    ):
        with pytest.raises(WhetError, match="give"):
            call()


def test_every_measure_of_repetition_by_hand() -> None:
    from whet.reward.repetition import echoed_share, looped_share, repeated_sentence_share

    told_four_times = [("one two three", 3)] * 4
    assert repeated_sentence_share([*told_four_times, ("four five", 2)], 20) == pytest.approx(9 / 20)
    assert repeated_sentence_share(told_four_times[:3], 9) == 0.0  # twice again is no pattern yet
    distinct = [str(number) for number in range(40)]
    assert echoed_share(distinct) == 0.0
    assert echoed_share([*distinct, *distinct[:10]]) == pytest.approx(3 / 50)
    assert looped_share(distinct[:30]) == 0.0
    assert looped_share([str(number % 8) for number in range(30)]) == 0.0  # eight different ones are enough
    assert looped_share([str(number % 7) for number in range(30)]) == 1.0
