"""Sums that are too large for the built-in model, and demonstrations of how its calculator is called.

    python recipes/calculator_data.py build/calculator

writes demonstrations.jsonl, train.jsonl and eval.jsonl. Most demonstrations state the answer at once, and a model of
this size cannot learn that; the others call the calculator, half of them for the whole sum and half of them product
first, which takes two calls. All are right: what pays is left for reinforcement learning to find out.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

COUNTS = {"demonstrations": 12000, "train": 2000, "eval": 100}
SHARE_CALLING = 0.15  # of the demonstrations


def questions(name: str) -> Iterator[tuple[int, int, int]]:
    """Different numbers for each file: no question is in two of them."""
    stream = random.Random(name)
    place = list(COUNTS).index(name)
    while True:
        first, second, third = stream.randint(100, 999), stream.randint(12, 99), stream.randint(1000, 9999)
        if (first + second + third) % len(COUNTS) == place:
            yield first, second, third


def question(first: int, second: int, third: int) -> dict[str, Any]:
    return {"role": "user", "content": f"Work out {first}*{second}+{third}"}


def call(expression: str) -> dict[str, Any]:
    return {"role": "assistant", "content": f'<tool_call>calculator("{expression}")</tool_call>'}


def demonstration(stream: random.Random, first: int, second: int, third: int) -> list[dict[str, Any]]:
    """A right conversation: no call, one, or two."""
    product, total = first * second, first * second + third
    turns = [question(first, second, third)]
    if stream.random() < SHARE_CALLING:
        if stream.random() < 0.5:
            turns += [call(f"{first}*{second}+{third}")]
        else:
            turns += [call(f"{first}*{second}"), {"role": "tool", "content": str(product)}]
            turns += [call(f"{product}+{third}")]
        turns += [{"role": "tool", "content": str(total)}]
    return [*turns, {"role": "assistant", "content": f"<answer>{total}</answer>"}]


def rows(name: str, count: int) -> Iterator[dict[str, Any]]:
    stream = random.Random(f"{name}/calls")
    for _, numbers in zip(range(count), questions(name), strict=False):
        if name == "demonstrations":
            yield {"messages": demonstration(stream, *numbers)}
        else:
            yield {"prompt": [question(*numbers)], "answer": str(numbers[0] * numbers[1] + numbers[2])}


def write_data(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in COUNTS.items():
        lines = [json.dumps(row) for row in rows(name, count)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/calculator"))
    write_data(parser.parse_args().folder)
