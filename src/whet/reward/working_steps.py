"""The reward for right working: each step of a completion to the built-in arithmetic task, judged on its own.

A process reward is a reward function with an attribute `steps`: a function of (prompt, completion) that gives the place
where each step ends, in characters of the completion, and the step's score.
"""

from __future__ import annotations

import re

from whet.types import Prompt, WhetError

QUESTION = re.compile(r"mod 10: (\d(?:[+\-*]\d)+)$")
THOUGHT = re.compile(r"<think>(.*?)(?:</think>|$)", re.DOTALL)
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def working_steps(prompt: Prompt, completion: str) -> float:
    """The share of right steps among those the question asks for; the answer counts as one."""
    expected = len(_expected(prompt)) + 1
    return sum(score for _, score in step_scores(prompt, completion)[:expected]) / expected


def step_scores(prompt: Prompt, completion: str) -> list[tuple[int, float]]:
    """(end of the step in characters, 1 or 0) for each step of the working, and for the answer."""
    expected = _expected(prompt)
    scores: list[tuple[int, float]] = []
    thought = THOUGHT.search(completion)
    if thought is not None and thought[1]:
        end = thought.start(1)
        for number, step in enumerate(thought[1].split(";")):
            end += len(step)
            is_right = number < len(expected) and step == expected[number]
            scores.append((min(end + 1, thought.end(1)), float(is_right)))
            end += 1
    answer = ANSWER.search(completion)
    if answer is not None:
        scores.append((answer.end(), float(answer[1].strip() == str(prompt.answer))))
    return scores


def _expected(prompt: Prompt) -> list[str]:
    """`4+1=5`, `5-6=9`, ... of the question."""
    question = QUESTION.search(prompt.question())
    if question is None:
        raise WhetError(
            f"reward 'working_steps' knows only questions of task:arithmetic, not prompt {prompt.id}; "
            "give a process reward of your own: a function with an attribute `steps`"
        )
    total, steps = int(question[1][0]), []
    for operator, digit in zip(question[1][1::2], question[1][2::2], strict=True):
        number = int(digit)
        after = {"+": total + number, "-": total - number, "*": total * number}[operator] % 10
        steps.append(f"{total}{operator}{number}={after}")
        total = after
    return steps


working_steps.steps = step_scores  # type: ignore[attr-defined]
