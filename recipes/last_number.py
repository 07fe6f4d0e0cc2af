"""The rewards of recipes/word_problems.py and agents_smollm2.py: the last number is the answer, or it is not."""

from __future__ import annotations

import re

# a minus behind a number subtracts: "9-3" ends in 3
NUMBER = re.compile(r"(?<![\d.,])(?<!\d\s)(-?)\$?(\d[\d,]*(?:\.\d+)?|\.\d+)|(\d[\d,]*(?:\.\d+)?)")
ANSWER_LINE = re.compile(r"(?:^|\n)#### -?\$?[\d,.]+\s*$")
TOLERANCE = 0.005  # the data rounds amounts of money and thirds


def last_number(completion: str, answer: str) -> float:
    """1 where the last number of the completion is the gold answer, else 0."""
    found = read_last_number(completion)
    return float(found is not None and abs(found - float(answer)) < TOLERANCE)


def answer_line(completion: str, answer: str) -> float:
    """1 where the completion ends in a line of its own for the answer, as GSM8K's solutions do, else 0."""
    return float(ANSWER_LINE.search(completion) is not None)


def stated_number(completion: str, answer: str) -> float:
    """The same for the last turn of an episode with tools: a call asks, and states nothing."""
    return 0.0 if "<tool_call>" in completion else last_number(completion, answer)


def read_last_number(text: str) -> float | None:
    """The last number in a text; thousands separators and a dollar sign are read over."""
    last = None
    for last in NUMBER.finditer(text):  # noqa: B007
        pass
    if last is None:
        return None
    return float(f"{last[1] or ''}{(last[2] or last[3]).replace(',', '')}")
