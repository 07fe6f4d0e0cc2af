"""Tests that are but calls with an expected result, judged in the trainer: half the processes, and none with tests.

The code under test gets the arguments of all calls and writes down what they return; the expected values never leave
the trainer. What the code wrote may be anything: it is read as plain values of a bounded size and depth, no object of
the code comes to life here, and whatever is malformed equals nothing.
"""

from __future__ import annotations

import builtins
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from whet.reward.sandbox import literal, remote, suite
from whet.reward.sandbox.wire import LARGEST_PLAIN, messages

LONGEST_TESTS = 4096  # characters: whatever equals the expected values is far smaller than LARGEST_PLAIN
MOST_CALLS = 15  # whose largest answers fit into the pipe together
DEEPEST = 100  # levels of an answer: hashing nests as deep as the value
MOST_ITEMS = 20_000  # of an answer, parts that are shared counted as often as they appear


@dataclass(frozen=True)
class PlainCalls:
    """The tests of a prompt as calls."""

    messages: list[dict[str, Any]]  # as the process of the code takes them, without a word of what is expected
    expected: list[Any]


@dataclass(frozen=True)
class CallVerdict:
    """Which calls returned what was expected, as far as there are answers, and why there are no more."""

    passed: tuple[bool, ...]
    notes: tuple[str, ...]  # what each failed call met
    ended: str
    note: str = ""  # what the code met that did not load


@functools.lru_cache(maxsize=4096)
def calls_of(tests: tuple[str, ...], entry_point: str) -> PlainCalls | None:
    """The calls that the tests are; None for tests that are more than that, or too large to be read here."""
    text = "\n".join(tests)
    if len(tests) > MOST_CALLS or len(text) > LONGEST_TESTS:
        return None
    try:
        names = suite.read_suite(text).expected_names() | ({entry_point} if entry_point else set())
        calls = suite.plain_calls(tests, names - {"candidate"})
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not calls:
        return None
    messages = [
        {
            **{"do": "value", "target": name},
            "arguments": [literal.nodes_of(argument) for argument in arguments],
            "named": {key: literal.nodes_of(value) for key, value in named.items()},
        }
        for name, arguments, named, _ in calls
    ]
    return PlainCalls(messages, [expected for *_, expected in calls])


def judged(calls: PlainCalls, data: bytes) -> CallVerdict:
    """The verdict on what the code wrote."""
    expected = calls.expected
    answers = list(itertools.islice(messages(data, LARGEST_PLAIN), 1 + len(expected)))
    if not answers or "loaded" not in answers[0]:
        text = str(answers[0].get("text", "")) if answers else "the code ended while it was loaded"
        return CallVerdict((), (), "the code does not load", text[:200])
    notes = tuple(_failure(answer, value) for answer, value in zip(answers[1:], expected, strict=False))
    ended = "" if len(notes) == len(expected) else "the code ended before its tests"
    return CallVerdict(tuple(not note for note in notes), notes, ended)


def _failure(answer: dict[str, Any], expected: Any) -> str:
    """What a call met instead of the expected value, by the name of an exception; "" where it met that value."""
    try:
        if "error" in answer:
            return _builtin_name(answer["error"])
        nodes = answer["value"]
        _check_size(nodes)
        return "" if literal.value_of(nodes, _handle) == expected else "AssertionError"
    except Exception as error:
        return type(error).__name__


def _builtin_name(kinds: Sequence[Any]) -> str:
    """The nearest built-in exception to the one that the code met, whose bases are given."""
    known = [getattr(builtins, str(name), None) for name in kinds]
    errors = [kind for kind in known if isinstance(kind, type) and issubclass(kind, Exception | SystemExit)]
    return errors[0].__name__ if errors else "Exception"


def _handle(tag: str, parts: list[Any]) -> object:
    """An object of the code: by the plain value that its class is derived from, an array by its lists; any other equals
    nothing."""
    if tag == "h" and type(parts[2]) in (*remote.VALUES, *remote.COLLECTIONS):
        return parts[2]
    return literal.of_library(tag, parts) if tag == "v" else parts[2] if tag == "n" else object()


def _check_size(nodes: Sequence[Any]) -> None:
    """Refuse values that would take long to compare or to hash, or that nest deeper than a stack is high."""
    sizes: list[tuple[int, int]] = []  # (items, levels) of each node
    for node in nodes:
        is_reference = isinstance(node, list) and len(node) == 1
        has_parts = isinstance(node, list) and len(node) == 2 and isinstance(node[1], list)
        parts = [node] if is_reference else node[1] if has_parts else []
        inner = [sizes[part[0]] for part in parts if isinstance(part, list)]
        items, levels = len(parts) + sum(size for size, _ in inner), 1 + max((deep for _, deep in inner), default=0)
        if items > MOST_ITEMS or levels > DEEPEST:
            raise literal.NotPlain("the value is too large")
        sizes.append((items, levels))
