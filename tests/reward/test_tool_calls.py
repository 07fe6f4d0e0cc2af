"""Tool calls in every spelling against gold calls in every form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.for_every import for_every
from whet.data.tool_syntax import BROKEN, ToolCall, calls_in
from whet.reward.tool_calls import tool_calls
from whet.types import Prompt, WhetError

ARGUMENTS = {"city": "Paris", "days": 3}
WEATHER = [{"name": "weather", "arguments": ARGUMENTS}]
SCHEMA = [{"name": "weather", "parameters": {"type": "dict", "properties": {"city": {}, "days": {}}}}]
TWO = ["cd(folder='a')", "mv(source='x', destination='y')"]


def prompt(answer: Any = None, **meta: Any) -> Prompt:
    return Prompt("p", (), text="q", answer=answer, meta=meta)


@for_every(
    [
        '<tool_call>{"name": "weather", "arguments": {"days": 3, "city": "Paris"}}</tool_call>',
        '<tool_call>\n{"name": "weather", "parameters": {"days": 3.0, "city": "Paris"}}\n</tool_call>',
        f"<tool_call>{json.dumps({'function': {'name': 'weather', 'arguments': json.dumps(ARGUMENTS)}})}</tool_call>",
        "<tool_call>weather(city='Paris', days=3)</tool_call>",
        '<think>weather(city="Rome")</think> weather(days=3, city="Paris")',
        "[weather(city='Paris', days=3)]",
        "weather('Paris', 3)",
        "weather('Paris', days=3)",
        'I will look.\n```json\n{"name": "weather", "arguments": {"days": 3, "city": "Paris"}}\n```',
        '{"name": "weather", "arguments": {"days": 3, "city": "Paris"}}',
    ]
)
def test_one_call_in_every_spelling(completion: str) -> None:
    allowed = [{"weather": {"city": ["Paris", "paris, france"], "days": [3], "unit": ["C", ""]}}]
    for gold in (WEATHER, "weather(city='Paris', days=3)", allowed, ["weather(city='Paris', days=3)"]):
        assert tool_calls(prompt(gold, tools=SCHEMA), completion) == 1.0
    assert tool_calls(prompt(ground_truth=allowed, function=SCHEMA), completion) == 1.0
    assert tool_calls(prompt([]), completion) == 0.0
    assert tool_calls(prompt([{"name": "other", "arguments": {}}]), completion) == 0.0


@for_every(
    [
        ("weather(city='Paris', days=3)", 1.0),
        ("weather(city='Paris', days=4)", 0.75),
        ("weather(city='Paris')", 0.75),
        ("weather(city='Paris', days=3, unit='C')", 0.5 + 0.5 * 2 / 3),
        ("weather(city='paris', days=3)", 0.75),
        ("weather(city='Paris', days='3')", 0.75),
        ("weather(city='Paris', days=True)", 0.75),
        ("weather()", 0.5),
        ("wether(city='Paris', days=3)", 0.0),
        ("weather(city='Paris', days=3", 0.0),
        ("__import__('os').system('true')", 0.0),
        ("", 0.0),
    ]
)
def test_credit_by_name_and_argument(call: str, expected: float) -> None:
    completion = f"<tool_call>{call}</tool_call>"
    assert tool_calls(prompt(WEATHER), completion) == pytest.approx(expected)
    assert tool_calls(prompt(WEATHER), completion, credit="exact") == float(expected == 1.0)


def test_several_calls_in_any_order_or_in_this_one() -> None:
    straight = "".join(f"<tool_call>{call}</tool_call>" for call in TWO)
    turned = "".join(f"<tool_call>{call}</tool_call>" for call in TWO[::-1])
    assert tool_calls(prompt(TWO), straight) == tool_calls(prompt(TWO), turned) == 1.0
    assert tool_calls(prompt(TWO), straight, ordered=True) == 1.0
    assert tool_calls(prompt(TWO), turned, ordered=True) == 0.5
    assert tool_calls(prompt([TWO[:1], TWO[1:]]), straight) == 1.0
    assert tool_calls(prompt(TWO), f"<tool_call>{TWO[0]}</tool_call>") == 0.5
    assert tool_calls(prompt(TWO[:1]), straight) == 0.5
    assert tool_calls(prompt(TWO[:1]), straight + "<tool_call>hm</tool_call>") == pytest.approx(1 / 3)


def test_the_best_of_all_matchings() -> None:
    gold = [{"f": {"a": [1, 2]}}, {"f": {"a": [1]}}]
    completion = "<tool_call>f(a=1)</tool_call><tool_call>f(a=2)</tool_call>"
    assert tool_calls(prompt(gold), completion) == 1.0
    many = [f"f(a={number})" for number in range(20)]
    assert tool_calls(prompt(many), "".join(f"<tool_call>{call}</tool_call>" for call in many[::-1])) == 1.0


def test_allowed_values_are_read_loosely_and_may_be_nested() -> None:
    gold = [{"f": {"where": ["New York, NY"], "box": [{"size": [1, 2], "name": ["", "x"]}], "path": [["a", "b"]]}}]
    assert tool_calls(prompt(gold), "f(where='new york ny', box={'size': 2}, path=('a', 'b'))") == 1.0
    assert tool_calls(prompt(gold), "f(where='new york ny', box={'size': 3}, path=['a', 'b'])") < 1.0
    assert tool_calls(prompt(gold), "f(where='new york ny', box={'size': 2}, path=['b', 'a'])", text="exact") < 0.7
    assert tool_calls(prompt(WEATHER), "weather(city='PARIS', days=3)", text="loose") == 1.0


def test_no_call_asked_for_and_unreadable_gold() -> None:
    assert tool_calls(prompt([]), "I cannot do that with these tools.") == 1.0
    assert tool_calls(prompt("call the weather, please"), "weather()") is None
    assert tool_calls(prompt([{"f": "x", "g": "y"}]), "f()") is None
    with pytest.raises(WhetError, match="'tool_calls' compares with gold calls, and prompt 'p' has none"):
        tool_calls(prompt(), "f()")


def test_calls_in_a_text() -> None:
    assert calls_in("a.b(x=[1, {'k': true}], y=-2)") == [ToolCall("a.b", {"x": "[1, {'k': true}]", "y": -2})]
    assert calls_in("<tool_call>hm</tool_call><tool_call>") == [BROKEN, BROKEN]
    assert calls_in("f(x) = 3 and g(x)") == []
    assert calls_in("(" * 5000) == []
    assert calls_in("f(" * 400 + ")" * 400) == [] or len(calls_in("f(" * 400 + ")" * 400)) == 1


@for_every(
    [
        ("f(n=20.0)", 0.5),  # BFCL's checker: a float where the schema says integer
        ("f(n=20)", 1.0),
        ("f(n=20, x=3)", 1.0),  # an int may stand for a float
        ("f(n=20, x=3.0)", 1.0),
        ("f(n=20, many=[1, 2.0])", 0.75),
        ("f(n=20, many=[1, 2])", 1.0),
    ]
)
def test_a_float_is_no_integer_where_the_schema_says_so(completion: str, expected: float) -> None:
    kinds = {"n": {"type": "integer"}, "x": {"type": "float"}, "many": {"type": "array", "items": {"type": "integer"}}}
    schema = [{"name": "f", "parameters": {"type": "dict", "properties": kinds}}]
    allowed = [{"f": {"n": [20], "x": [3.0, ""], "many": [[1, 2], ""]}}]
    assert tool_calls(prompt(ground_truth=allowed, function=schema), completion) == expected
    without_schema = tool_calls(prompt(ground_truth=allowed), completion)
    assert without_schema == 1.0
