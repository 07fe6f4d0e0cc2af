"""Sums and products modulo 10, left to right: easy step by step, hard at one glance."""

from __future__ import annotations

import random

from whet.data.tasks.item import Item, Task

# multipliers without a common factor with 10: any other would forget part of what was worked out before it
MULTIPLIERS = (3, 7, 9)


def draw(stream: random.Random, difficulty: int) -> Item:
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


arithmetic = Task("arithmetic", "sums and products modulo 10, left to right", "exact_answer", range(1, 9), draw)
