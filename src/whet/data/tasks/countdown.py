"""Reach a target from given numbers, each used once: a search task with many right answers."""

from __future__ import annotations

import random

from whet.data.tasks.item import Item, Task


def draw(stream: random.Random, difficulty: int) -> Item:
    """`difficulty + 1` numbers. The expression behind the target is built left to right with brackets."""
    numbers = [stream.randint(1, 9) for _ in range(difficulty + 1)]
    expression, total = str(numbers[0]), numbers[0]
    steps = []
    for number in numbers[1:]:
        operators = ["+"] + (["-"] if total > number else []) + (["*"] if total * number <= 99 else [])
        operator = stream.choice(operators)
        after = {"+": total + number, "-": total - number, "*": total * number}[operator]
        steps.append(f"{total}{operator}{number}={after}")
        needs_brackets = operator == "*" and not expression.isdigit()
        expression = f"({expression}){operator}{number}" if needs_brackets else f"{expression}{operator}{number}"
        total = after
    listed = sorted(numbers)
    question = f"Make {total} from {' '.join(map(str, listed))}"
    return Item(question, total, ";".join(steps), expression, {"numbers": listed})


countdown = Task("countdown", "an expression over the given numbers that hits a target", "countdown", range(1, 6), draw)
