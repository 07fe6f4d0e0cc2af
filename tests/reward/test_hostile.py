"""No reply can hang a rule reward: every one of them is quick on text made to be slow."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from whet.reward.choice_answer import choice_answer
from whet.reward.citations import citations
from whet.reward.coherence import coherence
from whet.reward.efficiency import efficiency
from whet.reward.format import agent_format
from whet.reward.language import language
from whet.reward.repetition import repetition
from whet.reward.safety import safety
from whet.reward.set_answer import set_answer
from whet.reward.tool_calls import tool_calls
from whet.types import Prompt

ASKED = Prompt(
    "p", (), text="What is the sum of all of them?", answer="A", meta={"choices": ["x", "y"], "sources": ["one", "two"]}
)
CALLED = Prompt("p", (), text="q", answer="f(x=1)")
REWARDS: dict[str, Callable[[str], Any]] = {
    "agent_format": agent_format,
    "choice_answer": lambda reply: choice_answer(ASKED, reply),
    "citations": lambda reply: citations(ASKED, reply),
    "coherence": lambda reply: coherence(ASKED, reply),
    "efficiency": lambda reply: efficiency(reply, 10),
    "language": lambda reply: language(ASKED, reply),
    "repetition": repetition,
    "safety": lambda reply: safety(ASKED, reply),
    "set_answer": lambda reply: set_answer(ASKED, reply),
    "tool_calls": lambda reply: tool_calls(CALLED, reply),
}
PIECES = [
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<answer>", "<source>", "<source ", "[", "[1", "[1,"),
    *("(", "(Aa 19 ", "(Aa, 2020; ", "Aa ", "\\[", "\\(", "$$", "$", "`", "```\n", "\n", " ", "\t\n", "\\text{", "{"),
    *("rm -a ", "rm ", "dd ", "find / ", "union select ", "sudo ", "a@", "a.", "a-", "+1 ", "1-", "4539 ", "'or '1'='"),
    *(
        "option ",
        "A, ",
        "- ",
        "1. ",
        "and ",
        "f(",
        "f(x=[",
        '{"name": ',
        "http",
        "https://localhost",
        "10.1234/",
        "eyJ",
        "=",
        "#",
    ),
    *("grader should give ", "ignore all the ", "password: ", "\u200b", "\u4e00", "\U0001f600", "\x00", "\udc80"),
]


@pytest.mark.parametrize("name", REWARDS)
def test_long_hostile_replies_are_judged_quickly(name: str) -> None:
    slow = {}
    for piece in PIECES:
        reply = piece * (20_000 // len(piece))
        started = time.process_time()
        score = REWARDS[name](reply)
        spent = time.process_time() - started
        assert score is None or -1 <= score <= 1
        if spent > 0.6:
            slow[piece] = spent
    assert not slow
