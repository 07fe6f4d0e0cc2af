"""Built-in tasks: procedural, verifiable, with disjoint splits by construction.

A task writes items from a random stream. Which split an item belongs to is decided by a hash of its question, so
no question can ever be in both, whatever the seeds. Each item knows its gold answer, a completion that works the answer
out, and a completion that states it at once; the last two are what the built-in model was taught from.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from whet.data.tasks.item import Item, Task, demonstrations, gold_completion, items, prompts, solutions

# multipliers without a common factor with 10: any other would forget part of what was worked out before it
MULTIPLIERS = (3, 7, 9)


def draw_arithmetic(stream: random.Random, difficulty: int) -> Item:
    """`difficulty + 2` operations; the working keeps the last digit after each."""
    total = stream.randint(0, 9)
    written, steps = str(total), []
    for _ in range(difficulty + 2):
        operator = stream.choice("+-*")
        number = stream.choice(MULTIPLIERS) if operator == "*" else stream.randint(1, 9)
        after = {"+": total + number, "-": total - number, "*": total * number}[operator] % 10
        steps.append(f"{total}{operator}{number}={after}")
        written += f"{operator}{number}"
        total = after
    return Item(f"Left to right mod 10: {written}", str(total), ";".join(steps), str(total))


arithmetic = Task(
    "arithmetic", "sums and products modulo 10, left to right", "exact_answer", range(1, 9), draw_arithmetic
)


def draw_countdown(stream: random.Random, difficulty: int) -> Item:
    """`difficulty + 1` numbers. The expression that gives the target is built left to right with brackets."""
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


countdown = Task(
    "countdown", "an expression over the given numbers that hits a target", "countdown", range(1, 6), draw_countdown
)

OPERATIONS: dict[str, Callable[[list[int]], list[int]]] = {
    "sort": sorted,
    "reverse": lambda values: values[::-1],
    "rotate": lambda values: values[1:] + values[:1],
    "evens of": lambda values: [value for value in values if value % 2 == 0],
    "tail of": lambda values: values[1:],
}


def draw_lists(stream: random.Random, difficulty: int) -> Item:
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


lists = Task("lists", "sort, reverse, rotate or filter a short list", "exact_answer", range(1, 6), draw_lists)

TASKS: dict[str, Task] = {task.name: task for task in (arithmetic, countdown, lists)}

__all__ = ["TASKS", "Item", "Task", "demonstrations", "gold_completion", "items", "prompts", "solutions"]
