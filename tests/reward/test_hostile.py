"""No completion can hang a rule reward: every one of them is quick on text made to be slow."""

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
from whet.reward.mathematics.set_answer import set_answer
from whet.reward.repetition import repetition
from whet.reward.safety import safety
from whet.reward.tool_calls import tool_calls
from whet.types import Prompt

ASKED = Prompt(
    "p", (), text="What is the sum of all of them?", answer="A", meta={"choices": ["x", "y"], "sources": ["one", "two"]}
)
CALLED = Prompt("p", (), text="q", answer="f(x=1)")
REWARDS: dict[str, Callable[[str], Any]] = {
    "agent_format": agent_format,
    "choice_answer": lambda completion: choice_answer(ASKED, completion),
    "citations": lambda completion: citations(ASKED, completion),
    "coherence": lambda completion: coherence(ASKED, completion),
    "efficiency": lambda completion: efficiency(completion, 10),
    "language": lambda completion: language(ASKED, completion),
    "repetition": repetition,
    "safety": lambda completion: safety(ASKED, completion),
    "set_answer": lambda completion: set_answer(ASKED, completion),
    "tool_calls": lambda completion: tool_calls(CALLED, completion),
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
        completion = piece * (20_000 // len(piece))
        started = time.process_time()
        score = REWARDS[name](completion)
        spent = time.process_time() - started
        assert score is None or -1 <= score <= 1
        if spent > 0.6:
            slow[piece] = spent
    assert not slow
