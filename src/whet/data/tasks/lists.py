"""Manipulate a short list of numbers: sort, reverse, drop, repeat."""

from __future__ import annotations

import random
from collections.abc import Callable

from whet.data.tasks.item import Item, Task

OPERATIONS: dict[str, Callable[[list[int]], list[int]]] = {
    "sort": sorted,
    "reverse": lambda values: values[::-1],
    "rotate": lambda values: values[1:] + values[:1],
    "evens of": lambda values: [value for value in values if value % 2 == 0],
    "tail of": lambda values: values[1:],
}


def draw(stream: random.Random, difficulty: int) -> Item:
    """`difficulty + 2` digits, and one operation, two from difficulty 3 on; the working shows the list after each."""
    values = [stream.randint(0, 9) for _ in range(difficulty + 2)]
    names = stream.sample(list(OPERATIONS), 2 if difficulty >= 3 else 1)
    if "evens of" in names and not any(value % 2 == 0 for value in values):
        values[0] = 2 * stream.randint(0, 4)
    states = [values]
    for name in names:
        following = OPERATIONS[name](states[-1])
        states.append(following if following else states[-1])
    question = f"{' then '.join(names)} {' '.join(map(str, values))}"
    working = ";".join(f"{name} {' '.join(map(str, state))}" for name, state in zip(names, states[1:], strict=True))
    final = " ".join(map(str, states[-1]))
    return Item(question[0].upper() + question[1:], final, working, final)


lists = Task("lists", "sort, reverse, rotate or filter a short list", "exact_answer", range(1, 6), draw)
