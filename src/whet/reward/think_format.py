"""The reward for keeping to the format: think first, then answer, and nothing else."""

from __future__ import annotations

import functools
import re


def think_format(completion: str, *, think_tag: str = "think", answer_tag: str = "answer") -> float:
    """1 for exactly <think>something</think><answer>something</answer>, white space aside, else 0."""
    tags, shape = _shape(think_tag, answer_tag)
    # counting first leaves the pattern one way to match, so it is linear on any text
    if any(completion.count(tag) != 1 for tag in tags):
        return 0.0
    match = shape.fullmatch(completion)
    return float(match is not None and all(is_visible(content) for content in match.groups()))


def is_visible(text: str) -> bool:
    """True when something would show on paper: zero-width characters are not a thought."""
    return any(character.isprintable() and not character.isspace() for character in text)


@functools.cache
def _shape(think: str, answer: str) -> tuple[tuple[str, ...], re.Pattern[str]]:
    tags = (f"<{think}>", f"</{think}>", f"<{answer}>", f"</{answer}>")
    opening, closing, answer_opening, answer_closing = map(re.escape, tags)
    pattern = rf"\s*{opening}(.*){closing}\s*{answer_opening}(.*){answer_closing}\s*"
    return tags, re.compile(pattern, re.DOTALL)
