"""Rewards for the shape of a completion: think first, then answer, and nothing else; an agent may call a tool."""

from __future__ import annotations

import functools
import re

from whet.data.tool_syntax import parsed_calls
from whet.types import WhetError


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


PAIRED = 0.2
SUBSTANTIAL = 0.2
CLEAN = 0.2
UNPAIRED = 0.2


def agent_format(
    completion: str,
    *,
    think_tag: str = "think",
    call_tag: str = "tool_call",
    answer_tag: str = "",
    shortest_thought: int = 20,
    max_calls: int = 1,
) -> float:
    """0 to 1; both <think>...</think><tool_call>...</tool_call> and <think>...</think> answer can reach 1.

    The thought is worth 0.4: half for its pair of tags, half for at least `shortest_thought` visible characters.
    What follows is worth 0.4: calls, half for their pairs of tags and half for the syntax of every one, or a direct
    answer, which stands in `answer_tag` if one is named. A last 0.2 goes to a completion with these in order, without
    duplicated or nested tags, more than `max_calls` calls or text before the thought. A tag without its partner
    costs 0.2.
    """
    if not think_tag or not call_tag or max_calls < 1 or shortest_thought < 1:
        raise WhetError(
            f"reward 'agent_format' has think_tag {think_tag!r}, call_tag {call_tag!r}, max_calls {max_calls}, "
            f"shortest_thought {shortest_thought}; name both tags, and give counts from 1"
        )
    names = (think_tag, call_tag, *([answer_tag] if answer_tag else []))
    unpaired = [name for name in names if completion.count(f"<{name}>") != completion.count(f"</{name}>")]
    score = -UNPAIRED * len(unpaired)
    before, thought, after = _parts(completion, think_tag)
    if completion.count(f"<{think_tag}>") == 1 and think_tag not in unpaired and thought is not None:
        score += PAIRED + SUBSTANTIAL * (_num_visible(thought) >= shortest_thought)
    rest = after if thought is not None else completion
    if f"<{call_tag}>" in rest:
        score += _call_score(rest, call_tag, unpaired)
    else:
        score += _answer_score(rest, answer_tag, thought)
    is_clean = (
        thought is not None
        and not unpaired
        and not is_visible(before)
        and completion.count(f"<{think_tag}>") == 1
        and completion.count(f"<{call_tag}>") <= max_calls
        and (not answer_tag or completion.count(f"<{answer_tag}>") <= 1)
        and not _is_nested(completion, names)
    )
    return min(max(score + CLEAN * is_clean, 0.0), 1.0)


def _parts(completion: str, think: str) -> tuple[str, str | None, str]:
    """(before, thought, after) of the first complete thought; the thought is None where there is none."""
    before, opened, rest = completion.partition(f"<{think}>")
    thought, closed, after = rest.partition(f"</{think}>")
    return (before, thought, after) if opened and closed else (completion, None, "")


def _num_visible(text: str) -> int:
    return sum(character.isprintable() and not character.isspace() for character in text)


def _call_score(rest: str, call: str, unpaired: list[str]) -> float:
    if call in unpaired:
        return 0.0
    blocks = [piece.partition(f"</{call}>")[0] for piece in rest.split(f"<{call}>")[1:]]
    return PAIRED + SUBSTANTIAL * all(parsed_calls(block) is not None for block in blocks)


def _answer_score(rest: str, answer: str, thought: str | None) -> float:
    """A direct answer counts only after a thought: any text at all would be one otherwise."""
    if thought is None:
        return 0.0
    if answer:
        _, content, _ = _parts(rest, answer)
        return (PAIRED + SUBSTANTIAL) * (content is not None and is_visible(content))
    return (PAIRED + SUBSTANTIAL) * is_visible(rest)


def _is_nested(completion: str, names: tuple[str, ...]) -> bool:
    """True when one of the tags opens inside another one."""
    for name in names:
        for piece in completion.split(f"<{name}>")[1:]:
            inside = piece.partition(f"</{name}>")[0]
            if any(f"<{other}>" in inside or f"</{other}>" in inside for other in names):
                return True
    return False
