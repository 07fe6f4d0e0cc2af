"""Episodes with tools: whatever a completion says and a tool does, the model gets an answer it can read."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import math
import queue
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.for_every import for_every
from whet.envs.tools.find import tool_environment
from whet.envs.tools.tool_environment import ToolEnvironment
from whet.protocols import Environment
from whet.rollout.call_pool import DrivenCall
from whet.types import Completion, InitialObservation, Prompt, StepResult, WhetError

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")
PROMPT = Prompt("p", ({"role": "user", "content": "What is 2 + 2?"},))


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def driven(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns that waits for calls only: no event loop."""
    ready: queue.SimpleQueue[None] = queue.SimpleQueue()
    call = DrivenCall(coroutine)
    call.begin(lambda: ready.put(None))
    while not call.done():
        with contextlib.suppress(queue.Empty):
            ready.get(timeout=min(max(0.0, call.until - time.monotonic()), 60.0))
        call.run_on()
    return call.result()


def played(environment: ToolEnvironment, *turns: str, way: Callable[[Any], Any] = driven) -> list[StepResult]:
    """The answers of an episode, closed at its end."""

    async def play() -> list[StepResult]:
        await environment.start(PROMPT)
        return [await environment.step(Completion(turn)) for turn in turns]

    try:
        return list(way(play()))
    finally:
        environment.close()


def texts(result: StepResult) -> list[str]:
    return [message["content"] for message in result.messages]


def answer(environment: ToolEnvironment, turn: str, way: Callable[[Any], Any] = driven) -> tuple[str, dict[str, int]]:
    (result,) = played(environment, turn, way=way)
    return "\n---\n".join(texts(result)), dict(result.counts)


class Basket:
    """Keeps what is put in."""

    closed: ClassVar[list[Basket]] = []

    def __init__(self) -> None:
        self.items: list[str] = []

    def put(self, item: str) -> list[str]:
        """Put something in.

        Args:
            item: What to put in.
        """
        self.items.append(item)
        return list(self.items)

    def count(self) -> int:
        """How many things are in."""
        return len(self.items)

    def close(self) -> None:
        Basket.closed.append(self)


def sleepy(seconds: float) -> str:
    """Sleep.

    Args:
        seconds: How long.
    """
    time.sleep(seconds)
    return "rested"


async def later(seconds: float) -> str:
    """Wait.

    Args:
        seconds: How long.
    """
    await asyncio.sleep(seconds)
    return "waited"


def test_a_call_is_answered_and_a_completion_without_one_ends():
    environment = tool_environment(["calculator"])()
    assert isinstance(environment, Environment)
    first, last = played(environment, f"Let me see. {call('calculator', expression='2 + 2')}", "It is 4.")
    assert first.messages == ({"role": "tool", "name": "calculator", "content": "4"},)
    assert not first.done and first.counts == {"tool_calls": 1} and first.reward is None
    assert last == StepResult(done=True)


def test_the_opening_has_the_tools():
    environment = tool_environment(["calculator", Basket])()
    opening = asyncio.run(environment.start(PROMPT))
    assert isinstance(opening, InitialObservation) and opening.messages == PROMPT.messages
    assert [tool["function"]["name"] for tool in opening.tools] == ["calculator", "put", "count"]
    assert asyncio.run(environment.start(Prompt("p", (), "plain text"))) is None


def test_results_are_in_the_order_of_the_calls_and_run_side_by_side():
    environment = tool_environment([sleepy, later, "calculator"])()
    turn = call("sleepy", seconds=0.8) + call("calculator", expression="1") + call("later", seconds=0.8)
    started = time.monotonic()
    (result,) = played(environment, turn + call("sleepy", seconds=0.8))
    assert texts(result) == ["rested", "1", "waited", "rested"]
    assert time.monotonic() - started < 2.3  # one after the other they would take 2.4


def test_state_belongs_to_one_episode_and_calls_of_one_object_keep_their_order():
    make = tool_environment([Basket])
    one, other = make(), make()
    Basket.closed = []
    turn = "".join(call("put", item=each) for each in "abcde")
    assert texts(played(one, turn + call("count"))[0])[-2:] == ['["a", "b", "c", "d", "e"]', "5"]
    assert texts(played(other, call("count"))[0]) == ["0"]
    assert [len(each.items) for each in Basket.closed] == [5, 0]


@for_every(
    [
        (
            call("calculater", expression="1"),
            "error: there is no tool 'calculater' (did you mean 'calculator'?)",
            "unknown_tools",
        ),
        (call("calculator"), "error: calculator: missing argument expression", "malformed_calls"),
        (
            call("calculator", expression=3),
            "error: calculator: argument expression: expected string",
            "malformed_calls",
        ),
        (call("calculator", expression="1/0"), "error: calculator: division by zero", "tool_errors"),
        ("<tool_call>{no json</tool_call>", "error: the call cannot be read; expected", "malformed_calls"),
        ("<tool_call>calculator(expression='1')", "error: the call cannot be read; expected", "malformed_calls"),
    ]
)
def test_what_is_wrong_with_a_call_is_an_answer(turn, text, counts):
    (result,) = played(tool_environment(["calculator"])(), turn)
    assert texts(result)[0].startswith(text) and not result.done
    assert result.counts[counts] == 1
    assert result.errors == (texts(result)[0].removeprefix("error: "),)


class Rude:
    """Tools that behave badly."""

    def raises(self, kind: str) -> str:
        """Raise.

        Args:
            kind: What.
        """
        raise getattr(__import__("builtins"), kind)("first line\nsecond /opt/somewhere/secret/file.txt line")

    async def raises_later(self, kind: str) -> str:
        """Raise.

        Args:
            kind: What.
        """
        self.raises(kind)
        return ""

    def odd(self, which: str) -> Any:
        """Return something odd.

        Args:
            which: What.
        """
        return {
            "none": None,
            "bytes": b"abc",
            "bad_bytes": b"\xff\xfe",
            "huge": 10**5000,
            "nan": math.nan,
            "infinite": [math.inf],
            "surrogate": "a\ud800b",
            "object": object,
            "no_text": NoText(),
            "lies": Lies(),
            "endless": ENDLESS,
            "generator": (each for each in [1]),
            "keys": {(1, 2): 3},
            "plain": Plain(),
            "row": Row("a", 2),
            "nested": Priced(Row("a", 2), Decimal("1.50"), date(2026, 1, 2), Unit.POUND),
            "inside": [{"b", "a", "c"}, Plain(), np.arange(2), np.float64(0.5)],
            "set": {3, 1, 2},
            "decimal": Decimal("1.50"),
        }[which]


class Plain:
    def __init__(self) -> None:
        self.name, self._secret = "x", 1


@dataclass
class Row:
    name: str
    count: int


class Unit(enum.Enum):
    POUND = "lb"


@dataclass
class Priced:
    row: Row
    price: Decimal
    day: date
    unit: Unit


class NoText:
    def __str__(self) -> str:
        raise SystemExit("no")

    __repr__ = __str__


class Lies:
    def __str__(self) -> Any:  # type: ignore[override]
        return 42

    __repr__ = __str__


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@for_every(
    ["raises", "raises_later"], ["ValueError", "SystemExit", "KeyboardInterrupt", "StopIteration", "GeneratorExit"]
)
def test_whatever_is_raised_is_one_line_without_paths(tool, kind):
    environment = tool_environment([Rude, "calculator"])()
    first, second = played(environment, call(tool, kind=kind), call("calculator", expression="1 + 1"))
    met = f"{kind}: first line second file.txt line"
    if (tool, kind) == ("raises_later", "StopIteration"):
        met = "RuntimeError: coroutine raised StopIteration"  # Python's own doing
    assert texts(first) == [f"error: {tool}: {met}"]
    assert first.counts == {"tool_calls": 1, "tool_errors": 1}
    assert texts(second) == ["2"]


@for_every(
    [
        ("none", "(no result)"),
        ("bytes", "abc"),
        ("bad_bytes", "(2 bytes that are no text)"),
        ("huge", "(a int that has no text)"),
        ("nan", "NaN"),
        ("infinite", "[Infinity]"),
        ("surrogate", "a?b"),
        ("object", "<class 'object'>"),
        ("no_text", "error: odd: SystemExit: no"),
        ("lies", "(a Lies that has no text)"),
        ("endless", "[[...]]"),
        ("keys", "{(1, 2): 3}"),
        ("generator", "[1]"),
        ("plain", '{"name": "x"}'),
        ("row", '{"name": "a", "count": 2}'),
        ("nested", '{"row": {"name": "a", "count": 2}, "price": "1.50", "day": "2026-01-02", "unit": "lb"}'),
        ("inside", '[["a", "b", "c"], {"name": "x"}, [0, 1], 0.5]'),
        ("set", "[1, 2, 3]"),
        ("decimal", "1.50"),
    ]
)
def test_odd_results_have_a_text(which, text):
    found, _ = answer(tool_environment([Rude])(), call("odd", which=which))
    assert found == text


def test_what_an_async_generator_yields_is_its_result():
    async def stream(count: int) -> AsyncIterator[str]:
        """Tell a few lines.

        Args:
            count: How many.
        """
        for number in range(count):
            yield f"line {number}"
        if count == 3:
            raise LookupError("no more")

    make = tool_environment([stream])
    assert answer(make(), call("stream", count=2)) == ('["line 0", "line 1"]', {"tool_calls": 1})
    assert answer(make(), call("stream", count=3)) == (
        "error: stream: LookupError: no more",
        {"tool_calls": 1, "tool_errors": 1},
    )


def test_a_result_that_floods_is_cut_and_says_how_much_is_missing():
    def flood(n: int) -> str:
        """Write.

        Args:
            n: How much.
        """
        return "x" * n

    make = tool_environment([flood], characters=100)
    assert answer(make(), call("flood", n=100)) == ("x" * 100, {"tool_calls": 1})
    text, counts = answer(make(), call("flood", n=1_000_000))
    assert text == "x" * 100 + "\n... (999900 more characters were left out)"
    assert counts == {"tool_calls": 1, "truncated_results": 1}


@pytest.mark.parametrize("way", [driven, asyncio.run])
def test_a_tool_that_hangs_is_given_up_and_the_others_go_on(way: Callable[[Any], Any]) -> None:
    make = tool_environment([sleepy, later, "calculator"], tool_seconds=0.3)
    started = time.monotonic()
    turn = call("sleepy", seconds=2.0) + call("later", seconds=60) + call("calculator", expression="3")
    text, counts = answer(make(), turn, way)
    assert time.monotonic() - started < 1.9
    assert text.split("\n---\n") == [
        "error: sleepy: took longer than 0.3 s and was given up",
        "error: later: took longer than 0.3 s and was given up",
        "3",
    ]
    assert counts == {"tool_calls": 3, "tool_timeouts": 2}


def test_too_many_tools_that_hang_end_the_run_with_one_line(monkeypatch):
    monkeypatch.setattr("whet.rollout.call_pool.MOST_LOST", 2)
    release = threading.Event()

    def hang() -> str:
        """Hang."""
        release.wait(30)
        return ""

    make = tool_environment([hang], tool_seconds=0.1)
    with pytest.raises(WhetError, match="calls of the tool hang were given up and never came back"):
        for _ in range(4):
            answer(make(), call("hang"))
    release.set()


def test_a_turn_has_a_most_of_calls():
    make = tool_environment(["calculator"], most_calls=2)
    text, counts = answer(make(), call("calculator", expression="1") * 4)
    assert text.split("\n---\n")[1:] == ["1", *["error: not run: a turn may have 2 calls"] * 2]
    assert counts == {"tool_calls": 4, "tool_errors": 2}


def test_a_class_that_cannot_be_made_fails_the_episode_in_one_line():
    class Broken:
        def __init__(self) -> None:
            raise ValueError("no database")

        def go(self) -> str:
            """Go."""
            return ""

    environment = tool_environment([Broken])()
    with pytest.raises(RuntimeError, match="the tool class Broken cannot be made: ValueError: no database"):
        asyncio.run(environment.start(PROMPT))


NAMES = st.sampled_from(["calculator", "put", "raises", "odd", "nothing", ""]) | st.text(max_size=5)
KINDS = ["ValueError", "SystemExit", "none", "object", "endless", "1/0", "2+2"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(KINDS) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["expression", "item", "kind", "which"]) | st.text(max_size=4), JSON)
CALLS = st.tuples(NAMES, ARGUMENTS | JSON).map(
    lambda pair: f"<tool_call>{json.dumps({'name': pair[0], 'arguments': pair[1]})}</tool_call>"
)
PIECES = (
    CALLS | st.text(max_size=20) | st.sampled_from(["<tool_call>", "</tool_call>", "```\nput(1)\n```", "[put(", "{"])
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(PIECES, max_size=6))
def test_no_completion_raises(pieces: Sequence[str]):
    (result,) = played(EVERY(), "".join(pieces))
    assert result.done == (not result.messages)
    for message in result.messages:
        assert message["role"] == "tool" and message["content"].encode()
        assert "Traceback" not in message["content"]
    errors = [text for text in texts(result) if text.startswith("error: ")]
    wrong = sum(result.counts.get(name, 0) for name in ("malformed_calls", "unknown_tools", "tool_errors"))
    assert len(errors) == len(result.errors) == wrong
    assert all("\n" not in line and len(line) <= 310 for line in errors)


EVERY = tool_environment(["calculator", Basket, Rude], most_calls=4)


@linux_only
def test_python_keeps_its_variables_and_no_other_episode_sees_them():
    make = tool_environment(["python"], tool_seconds=2, characters=200)
    environment = make()
    turns = [
        call("python", code="x = 20\nprint('hello')"),
        call("python", code="x += 1") + call("python", code="x * 2"),
        call("python", code="y = x\n1 / 0"),
        call("python", code="print('a' * 1000)"),
        call("python", code="y"),
    ]
    results = played(environment, *turns)
    assert [texts(result) for result in results[:3]] == [
        ["hello\n"],
        ["", "42"],
        ["error: python: ZeroDivisionError: division by zero (line 2)"],
    ]
    assert texts(results[3]) == ["a" * 200 + "\n... (801 more characters were left out)"]
    assert results[3].counts == {"tool_calls": 1, "truncated_results": 1}
    assert texts(results[4]) == ["21"]
    assert "NameError" in answer(make(), call("python", code="x"))[0]


@linux_only
def test_python_that_hangs_is_killed_and_the_model_is_told_what_is_lost():
    environment = tool_environment(["python"], tool_seconds=0.5)()
    turns = [call("python", code=code) for code in ("x = 1", "import time; time.sleep(60)", "x", "1 + 1")]
    results = played(environment, *turns)
    assert texts(results[1]) == [
        "error: python: more than 0.5 s: out of time; the process was ended, and its variables are gone"
    ]
    assert results[1].counts == {"tool_calls": 1, "tool_timeouts": 1}
    assert "NameError" in texts(results[2])[0] and texts(results[3]) == ["2"]


TOOL_FILE = """
import os

class Notes:
    def __init__(self):
        self.lines = []

    def write(self, line: str) -> int:
        '''Write a line.

        Args:
            line: The line.
        '''
        self.lines.append(line)
        return len(self.lines)

    def look(self, path: str) -> str:
        '''Read a file.

        Args:
            path: The file.
        '''
        return open(path).read()

def twice(word: str) -> dict:
    '''Say it twice.

    Args:
        word: The word.
    '''
    return {"said": word + word, "process": os.getpid()}
"""


@linux_only
def test_untrusted_tools_run_in_the_sandbox_with_a_state_per_episode(tmp_path):
    file, secret = tmp_path / "own.py", tmp_path / "secret"
    file.write_text(TOOL_FILE)
    secret.write_text("secret")
    make = tool_environment([f"{file}:Notes", f"{file}:twice"], sandboxed=["Notes", "twice"], tool_seconds=2)
    first, second, third = played(
        make(),
        call("write", line="a") + call("write", line="b"),
        call("look", path=str(secret)),
        call("twice", word="x"),
    )
    assert texts(first) == ["1", "2"]
    assert texts(second)[0].startswith("error: look: ") and "secret'" in texts(second)[0]
    assert str(tmp_path) not in texts(second)[0]
    assert json.loads(texts(third)[0])["said"] == "xx"
    assert json.loads(texts(third)[0])["process"] < 100  # in a process namespace of its own
    assert answer(make(), call("write", line="c"))[0] == "1"


@linux_only
def test_a_tool_that_does_not_load_in_the_sandbox_is_told_before_the_run(tmp_path):
    (tmp_path / "neighbour.py").write_text("value = 1\n")
    file = tmp_path / "own.py"
    file.write_text("import neighbour\n" + TOOL_FILE)
    with pytest.raises(WhetError, match="tool 'twice' does not load in the sandbox: ModuleNotFoundError") as met:
        tool_environment([f"{file}:twice"], sandboxed=["twice"])
    assert "\n" not in str(met.value)
    with pytest.raises(WhetError, match="'calculator' cannot run in the sandbox"):
        tool_environment(["calculator"], sandboxed=["calculator"])
