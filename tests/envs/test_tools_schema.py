"""Tools by their functions: schemas, one clear line where there is none, arguments checked before a call."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from datetime import date
from enum import IntEnum
from typing import Any, Literal, NamedTuple, NewType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.for_every import for_every
from whet.envs.tools.find import find_tools, tool_environment
from whet.envs.tools.schema import fitting, json_schema, mismatch
from whet.envs.tools.tool import Tool, as_tool
from whet.types import WhetError


def weather(city: str, days: int = 1, unit: Literal["C", "F"] = "C") -> Weather:
    """The weather of a city.

    Args:
        city: Name of the city.
        days: How many days ahead.
        unit: Of the temperature.
    """
    return Weather()


class Weather:
    """A result of its own type: the model needs no schema of it."""


class Shop:
    """State of one episode."""

    def __init__(self) -> None:
        self.bought: list[str] = []

    def buy(self, item: str) -> int:
        """Buy something.

        Args:
            item: What to buy.
        """
        self.bought.append(item)
        return len(self.bought)

    async def basket(self) -> list[str]:
        """What was bought so far."""
        return self.bought

    def _secret(self) -> None: ...

    def close(self) -> None: ...


def test_the_schema_is_that_of_the_chat_templates():
    tool = as_tool(weather)
    assert tool.name == "weather" and tool.call is weather
    assert tool.schema == {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Name of the city."},
                    "days": {"type": "integer", "description": "How many days ahead."},
                    "unit": {"type": "string", "enum": ["C", "F"], "description": "Of the temperature."},
                },
                "required": ["city"],
            },
        },
    }


def test_public_methods_of_a_class_are_tools():
    assert [schema["function"]["name"] for schema in find_tools(Shop).schemas] == ["buy", "basket"]


def no_hint(a) -> int:  # type: ignore[no-untyped-def]
    """Does.

    Args:
        a: it
    """


def no_docstring(a: int) -> int: ...


def no_description(a: int, b: int) -> int:
    """Does.

    Args:
        a: it
    """


def odd_hint(a: Weather) -> int:
    """Does.

    Args:
        a: it
    """


def unresolved(a: NoSuchType) -> int:  # type: ignore[name-defined]  # noqa: F821
    """Does.

    Args:
        a: it
    """


def star(*values: int) -> int:
    """Does.

    Args:
        values: them
    """


def positional(a: int, /) -> int:
    """Does.

    Args:
        a: it
    """


class NeedsArguments:
    def __init__(self, key: str) -> None: ...

    def go(self) -> str:
        """Go."""


class Nothing:
    pass


class UntypedMethod:
    def go(self, where) -> str:  # type: ignore[no-untyped-def]
        """Go.

        Args:
            where: it
        """


@for_every(
    [
        (no_hint, r"tool 'no_hint' \(.*test_tools_schema.py:\d+\): parameter 'a' has no type hint; write one"),
        (no_docstring, "tool 'no_docstring' .* has no docstring; say what it does"),
        (no_description, "does not describe the argument 'b'; add the line 'b: what it is' under Args:"),
        (odd_hint, "no JSON schema for its type hints"),
        (unresolved, "no JSON schema for its type hints .*NoSuchType"),
        (star, r"parameter '\*values' cannot be named"),
        (positional, "parameter 'a' cannot be named"),
        (lambda a: a, "is called '<lambda>'"),
        (functools.partial(weather, "Rome"), "cannot be a tool"),
        (42, "cannot be a tool"),
        (NeedsArguments, "NeedsArguments cannot be made for an episode: missing a required argument: 'key'"),
        (Nothing, "Nothing has no public method"),
        (UntypedMethod, "parameter 'where' has no type hint"),
        (max, "tool 'max'"),
    ]
)
def test_a_tool_that_is_none_gets_one_line(tool, line):
    with pytest.raises(WhetError, match=line) as met:
        tool_environment([tool])
    assert "\n" not in str(met.value)


@for_every(
    [
        ("calculater", r"no tool is called 'calculater' \(did you mean 'calculator'\?\); built in: calculator"),
        ("mine.py", "names a file but no function; add it"),
        ("no/such.py:f", "there is no tool file no/such.py"),
        ("no_such_module:f", "there is no module 'no_such_module'"),
        ("search", "needs a corpus; give env.tool_settings.search.corpus"),
        ("mcp:", "names no command"),
        ("os:sep", "is a text; give a function"),
    ]
)
def test_a_name_that_is_none_gets_one_line(spec, line):
    with pytest.raises(WhetError, match=line) as met:
        tool_environment([spec])
    assert "\n" not in str(met.value)


def test_names_settings_and_formats_are_checked():
    with pytest.raises(WhetError, match="no tools are given"):
        tool_environment([])
    with pytest.raises(WhetError, match="two tools are called 'weather'"):
        tool_environment([weather, weather])
    with pytest.raises(WhetError, match=r"env.sandboxed names 'wether' \(did you mean 'weather'\?\)"):
        tool_environment([weather], sandboxed=["wether"])
    with pytest.raises(WhetError, match=r"settings are given for the tool 'serch', and .*there are: weather"):
        tool_environment([weather], settings={"serch": {"k": 3}})
    with pytest.raises(WhetError, match="takes no settings"):
        tool_environment([weather], settings={"weather": {"k": 3}})
    with pytest.raises(WhetError, match=r"has no setting 'memory' \(did you mean 'memory_mb'\?\)"):
        tool_environment(["python"], settings={"python": {"memory": 3}})


BOX = """
class Box:
    def put(self, what: str) -> str:
        '''Put.

        Args:
            what: it
        '''
        return what
"""


def test_a_file_and_its_class(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(BOX)
    assert find_tools(f"{file}:Box").schemas[0]["function"]["name"] == "put"
    with pytest.raises(WhetError, match=r"has no 'Bux' \(did you mean 'Box'\?\)"):
        find_tools(f"{file}:Bux")


@for_every(
    [
        ({"city": "Rome"}, ""),
        ({"city": "Rome", "days": 2.0}, ""),
        ({}, "missing argument city"),
        ({"town": "Rome"}, "unknown argument 'town'; it has: city, days, unit"),
        ({"city": "Rome", "day": 2}, "unknown argument 'day' (did you mean 'days'?); it has: city, days, unit"),
        ({"city": 3}, "argument city: expected string, got 3"),
        ({"city": "Rome", "days": "2"}, "argument days: expected integer, got '2'"),
        ({"city": "Rome", "days": 2.5}, "argument days: expected integer, got 2.5"),
        ({"city": "Rome", "days": True}, "argument days: expected integer, got True"),
        ({"city": "Rome", "unit": "K"}, "argument unit: expected one of C, F, got 'K'"),
        ({"city": None}, "argument city: expected string, got None"),
    ]
)
def test_arguments_are_checked_against_the_schema(arguments, complaint):
    taken, found = fitting(as_tool(weather).schema, arguments)
    assert found == complaint
    assert taken == (arguments if not complaint else {})
    assert all(type(value) is not float for value in taken.values())


def test_nested_types_are_checked():
    def plan(route: list[dict[str, int]], note: str | None = None, when: int | list[int] = 0) -> None:
        """Plan.

        Args:
            route: Where to go.
            note: What to say.
            when: Hours.
        """

    schema = as_tool(plan).schema
    assert fitting(schema, {"route": [{"a": 1}], "note": None, "when": [1]})[1] == ""
    assert (
        fitting(schema, {"route": [{"a": 1}, {"b": "x"}]})[1] == "argument route: item 1: b: expected integer, got 'x'"
    )
    assert "expected array" in fitting(schema, {"route": "x"})[1]
    assert "argument when" in fitting(schema, {"route": [], "when": "x"})[1]
    assert fitting(schema, {"route": [], "note": 5})[1] == "argument note: expected string, got 5"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(VALUES, VALUES, st.dictionaries(st.text(max_size=6) | st.just("city"), VALUES, max_size=4))
def test_no_value_and_no_schema_raises(value: Any, schema: Any, arguments: dict[str, Any]):
    odd = {"type": schema, "enum": schema, "items": schema, "properties": schema, "anyOf": [schema]}
    assert isinstance(mismatch(value, schema), str) and isinstance(mismatch(value, odd), str)
    assert isinstance(fitting(as_tool(weather).schema, arguments)[1], str)


def test_a_number_without_text_is_a_complaint():
    assert (
        fitting(as_tool(weather).schema, {"city": 10**5000})[1]
        == "argument city: expected string, got a int too long to show"
    )


def test_what_a_user_registers_by_hand_is_a_tool_too():
    made: Callable[..., Any] = os.getcwd
    tool = Tool("where", {"type": "function", "function": {"name": "where", "description": "Where."}}, made)
    assert find_tools(tool).name == "where"  # type: ignore[arg-type]


class Level(IntEnum):
    LOW = 1
    HIGH = 2


def test_an_enumeration_is_refused_with_what_to_write_instead() -> None:
    def set_level(level: Level) -> str:
        """Set it.

        Args:
            level: how much.
        """
        return str(level)

    with pytest.raises(WhetError, match=r"a call cannot hold a Level; write Literal\[1, 2\]"):
        json_schema(set_level)


class Pair(NamedTuple):
    first: int
    second: int


Number = NewType("Number", int)


@for_every(
    [
        (Level | None, r"a call cannot hold a Level; write Literal\[1, 2\]"),
        (list[Level], "a call cannot hold a Level"),
        (dict[str, list[date]], "a call cannot hold a date"),
        (Pair, "a call cannot hold a Pair"),
        (Number | None, "a call cannot hold a Number"),
    ]
)
def test_a_type_that_json_cannot_hold_is_refused_at_any_depth(hint, line):
    """The schema would say object, and every call would be an error or bring a dict."""

    def put(what: str) -> str:
        """Put it.

        Args:
            what: it.
        """
        return str(what)

    put.__annotations__["what"] = hint
    with pytest.raises(WhetError, match=line):
        json_schema(put)


def test_anything_may_stand_where_the_hint_says_so() -> None:
    def put(value: Any, more: dict[str, Any]) -> str:
        """Put it.

        Args:
            value: it.
            more: by name.
        """
        return str(value)

    schema = json_schema(put)
    for value in (1, "x", None, [None, {"a": 1}]):
        assert fitting(schema, {"value": value, "more": {"a": value}})[1] == ""


def test_a_tuple_is_checked_item_by_item() -> None:
    def put(pair: tuple[int, str]) -> str:
        """Put it.

        Args:
            pair: number and name.
        """
        return str(pair)

    schema = json_schema(put)
    assert fitting(schema, {"pair": [1, "x"]}) == ({"pair": [1, "x"]}, "")
    for pair, says in ((["x", 1], "item 0: expected integer"), ([1], "expected 2 items, got 1")):
        assert says in fitting(schema, {"pair": pair})[1]
