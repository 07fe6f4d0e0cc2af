"""Right and wrong completions to the questions of a built-in task: pairs, rankings and labelled steps without any data.

A wrong completion is the right one with a digit changed in a step of its working and in its answer, so that it has the
same form and about the same length.

Completions of a built-in task with what there is to say about them: what a model learns judging and fixing from.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from whet.data.pairs import RankedCompletions
from whet.data.prompts import LabelledCompletion, PreferencePair
from whet.data.step_rows import LabelledSteps
from whet.data.tasks.item import STREAM_NAMES, Item, Task, as_prompt, distinct, gold_completion
from whet.types import Prompt

STEP = ";"  # between the steps of a working


@dataclass(frozen=True)
class ContrastedCompletions:
    """A question with its right completion and worse ones."""

    prompt: Prompt
    right: str
    careless: str  # the right answer after a wrong step
    wrong: str  # a wrong step and a wrong answer


def contrasts(task: Task, split: str, count: int, seed: int, difficulty: int) -> list[ContrastedCompletions]:
    """The first `count` different questions of the stream with completions, fewer where the task has no more."""
    stream = random.Random(f"{task.name}/contrast/{STREAM_NAMES[split]}/{seed}/{difficulty}")
    return [
        ContrastedCompletions(
            as_prompt(task, split, number, item),
            gold_completion(item),
            gold_completion(replace(item, working=_slipped(item.working, stream))),
            gold_completion(replace(item, working=_slipped(item.working, stream), final=_changed(item.final, stream))),
        )
        for number, item in enumerate(distinct(task, split, count, seed, difficulty))
    ]


def task_preferences(task: Task, split: str, count: int, seed: int, difficulty: int) -> list[PreferencePair]:
    """Pairs of a right and a wrong completion."""
    return [
        PreferencePair(contrast.prompt, contrast.right, contrast.wrong)
        for contrast in contrasts(task, split, count, seed, difficulty)
    ]


def task_rankings(task: Task, split: str, count: int, seed: int, difficulty: int) -> list[RankedCompletions]:
    """Rankings of a right, a careless and a wrong completion."""
    completions = contrasts(task, split, count, seed, difficulty)
    return [
        RankedCompletions(contrast.prompt, (contrast.right, contrast.careless, contrast.wrong), (0, 1, 2))
        for contrast in completions
    ]


def task_labelled(task: Task, split: str, count: int, seed: int, difficulty: int) -> list[LabelledCompletion]:
    """Completions judged by their answer, right and wrong ones in turn."""
    completions = contrasts(task, split, count, seed, difficulty)
    return [
        LabelledCompletion(contrast.prompt, contrast.right if number % 2 == 0 else contrast.wrong, number % 2 == 0)
        for number, contrast in enumerate(completions)
    ]


def task_stepped(task: Task, split: str, count: int, seed: int, difficulty: int) -> list[LabelledSteps]:
    """Completions cut at `STEP`, every second one with an error; what follows the error has no label.

    The steps together are a whole completion, tags included: a model that learns from them reads completions later.
    """
    stream = random.Random(f"{task.name}/steps/{STREAM_NAMES[split]}/{seed}/{difficulty}")
    completions = []
    for number, item in enumerate(distinct(task, split, count, seed, difficulty)):
        size = len(item.working.split(STEP))
        at = stream.randrange(size) if number % 2 else None
        labels: tuple[float | None, ...] = (1.0,) * size
        if at is not None:
            item = _with_error(item, at, stream)
            labels = (1.0,) * at + (0.0,) + (None,) * (size - at - 1)
        completions.append(
            LabelledSteps(as_prompt(task, split, number, item), tuple(gold_completion(item).split(STEP)), labels)
        )
    return completions


def _with_error(item: Item, at: int, stream: random.Random) -> Item:
    """The item with a wrong result in one step of its working; in the last step the answer is wrong, or both are."""
    steps = item.working.split(STEP)
    is_last = at == len(steps) - 1
    if not is_last or stream.random() < 0.5:
        # a nought too: a result that is never wrong would tell a right step by itself
        steps[at] = _changed(steps[at], stream, last=True, digits="0123456789")
    final = _changed(item.final, stream) if is_last else item.final
    return replace(item, working=STEP.join(steps), final=final)


def _slipped(working: str, stream: random.Random) -> str:
    """A working with a wrong result in one of its steps."""
    steps = working.split(STEP)
    at = stream.randrange(len(steps))
    steps[at] = _changed(steps[at], stream, last=True)
    return STEP.join(steps)


def _changed(text: str, stream: random.Random, last: bool = False, digits: str = "123456789") -> str:
    """The text with another digit in one place, or in its last one: never the text itself."""
    places = [at for at, letter in enumerate(text) if letter.isdigit()]
    at = places[-1] if last else stream.choice(places)
    digit = stream.choice([candidate for candidate in digits if candidate != text[at]])
    return text[:at] + digit + text[at + 1 :]


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
        """Whether the answer alone tells how good the completion is."""
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
    """The text inside the completion's thinking tags."""
    head, closed, _ = completion.partition(CLOSE)
    return head.removeprefix(OPEN) if closed and head.startswith(OPEN) else ""


def answer_of(completion: str) -> str:
    """The text inside the completion's answer tags."""
    return completion.partition("<answer>")[2].partition("</answer>")[0]


def compared(right: str, answer: str) -> str:
    """Both answers; for two digits also their difference, which a model computes more easily than it sees it."""
    if len(right) == len(answer) == 1 and right.isdigit() and answer.isdigit():
        return f"{right}-{answer}={(int(right) - int(answer)) % 10}"
    return f"{right} / {answer}"


def _bare(completion: str) -> str:
    return completion.rpartition(CLOSE)[2]
