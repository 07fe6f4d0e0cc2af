"""Process rewards: the steps of a completion, their scores, and the tokens they are put on."""

import pytest
import torch

from tests.support.for_every import for_every
from whet.reward.answer import exact_answer
from whet.reward.call import as_reward
from whet.reward.combine import RewardPart
from whet.reward.steps import step_scorer, with_steps
from whet.reward.working_steps import step_scores, working_steps
from whet.types import Prompt, Sample, StopReason, WhetError

QUESTION = Prompt("arithmetic/1", ({"role": "user", "content": "Left to right mod 10: 4+1-6*3"},), answer="7")
RIGHT = "<think>4+1=5;5-6=9;9*3=7</think><answer>7</answer>"


def scored_texts(completion):
    """Each step's own text and score."""
    found, start = [], 0
    for end, score in step_scores(QUESTION, completion):
        found.append((completion[start:end], score))
        start = end
    return found


def test_every_step_of_right_working_is_right():
    texts, scores = zip(*scored_texts(RIGHT), strict=True)
    assert texts == ("<think>4+1=5;", "5-6=9;", "9*3=7", "</think><answer>7</answer>")
    assert scores == (1.0, 1.0, 1.0, 1.0)
    assert working_steps(QUESTION, RIGHT) == 1.0


@for_every(
    [
        ("<think>4+1=5;5-6=8;8*3=4</think><answer>4</answer>", [1, 0, 0, 0], 0.25),
        ("<think>4+1=5;5-6=9;9*3=7;7+0=7</think><answer>7</answer>", [1, 1, 1, 0, 1], 0.75),
        ("<answer>7</answer>", [1], 0.25),
        ("<answer>3</answer>", [0], 0.0),
        ("<think>4+1=5;", [1, 0], 0.25),
        ("<think></think>", [], 0.0),
        ("", [], 0.0),
    ]
)
def test_steps_are_judged_one_by_one(completion, scores, share):
    assert [score for _, score in step_scores(QUESTION, completion)] == scores
    assert working_steps(QUESTION, completion) == share


def test_another_question_is_a_mistake_with_its_fix():
    with pytest.raises(WhetError, match="knows only questions of task:arithmetic, not prompt x"):
        working_steps(Prompt("x", (), "How many?", answer="3"), "3")


def test_the_scorer_is_that_of_the_first_part_that_has_one():
    assert step_scorer([RewardPart(as_reward(exact_answer))]) is None
    assert step_scorer([RewardPart(as_reward(exact_answer)), RewardPart(as_reward(working_steps), 0.0)]) is step_scores


def letters(tokens):
    return "".join({0: "a", 1: "bc", 2: "def"}[token] for token in tokens)


def sample_of(completion_tokens, reward=1.0):
    tokens = torch.tensor([9, 9, *completion_tokens])
    action = torch.arange(len(tokens)) >= 2
    return Sample(
        tokens, action, torch.zeros(len(tokens)), (0, 0), StopReason.END, letters(completion_tokens), None, {}, reward
    )


def test_a_step_is_put_on_the_token_that_reaches_its_end():
    sample = sample_of([0, 1, 2, 0])  # a bc def a
    (found,) = with_steps(
        [QUESTION], [sample], lambda prompt, completion: [(1, 0.1), (2, 0.2), (5, 0.5), (7, 0.7)], letters
    )
    assert found.steps == ((2, 0.1), (3, 0.2), (4, 0.5), (5, 0.7))
    (found,) = with_steps([QUESTION], [sample], lambda prompt, completion: [(4, 0.4), (6, 0.6)], letters)
    assert found.steps == ((4, 0.6),)  # both end within `def`: the later one stays


def test_an_unscorable_sample_has_no_steps_and_a_step_must_end_inside_the_completion():
    assert with_steps([QUESTION], [sample_of([0], None)], lambda prompt, completion: [(1, 1.0)], letters)[0].steps == ()
    with pytest.raises(WhetError, match="a step ends at character 9 of a completion of 1"):
        with_steps([QUESTION], [sample_of([0])], lambda prompt, completion: [(9, 1.0)], letters)
