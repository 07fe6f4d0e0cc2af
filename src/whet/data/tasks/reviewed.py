"""Completions of a built-in task with what there is to say about them: what a model learns judging and fixing from."""

from __future__ import annotations

from dataclasses import dataclass

from whet.data.tasks.contrast import STEP, ContrastedCompletions, contrasts
from whet.data.tasks.item import Task
from whet.types import Prompt

OPEN, CLOSE = "<think>", "</think>"


@dataclass(frozen=True)
class ReviewedCompletion:
    """A completion, how good it is and what is wrong with it."""

    prompt: Prompt
    completion: str
    quality: float  # 1: right, 1/2: a wrong step and the right answer, 0: wrong
    fault: str  # the first fault in words; empty: none
    reason: str  # the right working, and how its answer compares with the one that was given
    right: str  # the completion that it should have been

    @property
    def is_plain(self) -> bool:
        """The answer alone tells how good it is."""
        return self.quality in (0.0, 1.0)


def reviewed_completions(task: Task, split: str, count: int, seed: int, difficulty: int) -> list[ReviewedCompletion]:
    """Five completions per question: right, careless and wrong with a working, right and wrong without one."""
    return [review for contrast in contrasts(task, split, count, seed, difficulty) for review in reviews(contrast)]


def reviews(contrast: ContrastedCompletions) -> list[ReviewedCompletion]:
    """Five completions with their reviews: right, careless and wrong, then right and wrong without their working."""
    completions = (
        (contrast.right, 1.0),
        (contrast.careless, 0.5),
        (contrast.wrong, 0.0),
        (_bare(contrast.right), 1.0),
        (_bare(contrast.wrong), 0.0),
    )
    working = working_of(contrast.right)
    return [
        ReviewedCompletion(
            contrast.prompt,
            completion,
            quality,
            fault_of(completion, working),
            f"{working} {compared(answer_of(contrast.right), answer_of(completion))}",
            contrast.right,
        )
        for completion, quality in completions
    ]


def fault_of(completion: str, working: str) -> str:
    """What a teacher who knows the right working would say first."""
    working_shown, meant = working_of(completion), working.split(STEP)
    if not working_shown:
        return "no steps"
    for own, right in zip(working_shown.split(STEP), meant, strict=False):
        if own != right:
            return f"{own} is wrong"
    return ""


def working_of(completion: str) -> str:
    """What stands in the completion's thinking."""
    head, closed, _ = completion.partition(CLOSE)
    return head.removeprefix(OPEN) if closed and head.startswith(OPEN) else ""


def answer_of(completion: str) -> str:
    """What stands in the completion's answer."""
    return completion.partition("<answer>")[2].partition("</answer>")[0]


def compared(right: str, given: str) -> str:
    """Both answers; of two digits the difference, since a model that reckons finds it easier than to see it."""
    if len(right) == len(given) == 1 and right.isdigit() and given.isdigit():
        return f"{right}-{given}={(int(right) - int(given)) % 10}"
    return f"{right} / {given}"


def _bare(completion: str) -> str:
    return completion.rpartition(CLOSE)[2]
