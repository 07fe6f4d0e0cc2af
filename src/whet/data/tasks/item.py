"""Items, splits and difficulty: what all built-in tasks share."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from whet.types import Demonstration, Prompt, WhetError

EVAL_SHARE = 10  # one question in ten is kept for evaluation
SPLITS = ("train", "eval")
# of the random streams: the eval questions stay those that every published number was measured on
STREAM_NAMES = {"train": "train", "eval": "held_out"}


@dataclass(frozen=True)
class Item:
    """One question with its gold answer and the working that leads to it."""

    question: str
    answer: str | int  # what the reward compares with
    working: str
    final: str  # what the gold completion gives as its answer
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """A generator of items: `draw(stream, difficulty)` writes one, the built-in reward named `reward` judges it."""

    name: str
    summary: str
    reward: str
    difficulties: range
    draw: Callable[[random.Random, int], Item]


def split_of(question: str) -> str:
    """The split a question belongs to: decided by the question alone."""
    digest = hashlib.sha256(question.encode()).digest()
    return "eval" if digest[0] * 256 + digest[1] < 65536 // EVAL_SHARE else "train"


def items(task: Task, split: str, seed: int, difficulty: int) -> Iterator[Item]:
    """An endless stream of distinct-by-split items; the same arguments give the same stream."""
    if split not in SPLITS:
        raise WhetError(f"split is {split!r}; give one of {', '.join(SPLITS)}")
    if difficulty not in task.difficulties:
        low, high = task.difficulties[0], task.difficulties[-1]
        raise WhetError(f"difficulty of {task.name} is {difficulty}; give {low} to {high}")
    stream = random.Random(f"{task.name}/{STREAM_NAMES[split]}/{seed}/{difficulty}")
    while True:
        item = task.draw(stream, difficulty)
        if split_of(item.question) == split:
            yield item


def prompts(task: Task, split: str, count: int, seed: int, difficulty: int) -> list[Prompt]:
    """The first `count` different questions of the stream, fewer where the task has no more."""
    return [
        as_prompt(task, split, number, item)
        for number, item in enumerate(distinct(task, split, count, seed, difficulty))
    ]


def solutions(task: Task, split: str, count: int, seed: int, difficulty: int) -> list[Demonstration]:
    """The questions of `prompts` with the completions that deserve full marks."""
    return [
        Demonstration(as_prompt(task, split, number, item), gold_completion(item))
        for number, item in enumerate(distinct(task, split, count, seed, difficulty))
    ]


def demonstrations(
    task: Task, count: int, seed: int, difficulty: int, share_worked: float = 1.0
) -> list[Demonstration]:
    """Training questions with a completion to imitate: `share_worked` of them with the working, the others without."""
    stream = random.Random(f"{task.name}/completions/{seed}/{difficulty}")
    source = items(task, "train", seed, difficulty)
    rows = []
    for number in range(count):
        item = next(source)
        completion = gold_completion(item, worked=stream.random() < share_worked)
        rows.append(Demonstration(as_prompt(task, "train", number, item), completion))
    return rows


def gold_completion(item: Item, worked: bool = True) -> str:
    """The completion that deserves full marks."""
    thought = f"<think>{item.working}</think>" if worked else ""
    return f"{thought}<answer>{item.final}</answer>"


def as_prompt(task: Task, split: str, number: int, item: Item) -> Prompt:
    """The item as a chat prompt with one user message; `number` makes its id unique within the split."""
    message = {"role": "user", "content": item.question}
    return Prompt(f"{task.name}/{split}/{number}", (message,), answer=item.answer, meta=item.meta)


def distinct(task: Task, split: str, count: int, seed: int, difficulty: int) -> Iterator[Item]:
    """The first `count` different questions of the stream, fewer where the task has no more."""
    seen: set[str] = set()
    repeats = 0
    for item in items(task, split, seed, difficulty):
        if len(seen) == count or repeats > 50 * (len(seen) + 20):
            return
        if item.question in seen:
            repeats += 1
            continue
        seen.add(item.question)
        yield item
