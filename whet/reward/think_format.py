"""The reward for keeping to the format: think first, then answer, and nothing else."""

from __future__ import annotations

import re

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
SHAPE = re.compile(r"\s*<think>(.*)</think>\s*<answer>(.*)</answer>\s*", re.DOTALL)


def think_format(reply: str) -> float:
    """1 for exactly <think>something</think><answer>something</answer>, white space aside, else 0."""
    # counting first leaves the pattern one way to match, so it is linear on any text
    if any(reply.count(tag) != 1 for tag in TAGS):
        return 0.0
    match = SHAPE.fullmatch(reply)
    return float(match is not None and all(_is_visible(content) for content in match.groups()))


def _is_visible(text: str) -> bool:
    """True when something would show on paper: zero-width characters are not a thought."""
    return any(character.isprintable() and not character.isspace() for character in text)
