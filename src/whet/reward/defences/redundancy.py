"""The same tool call made again, and more calls than a task needs."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from whet.reward.defences.reading import Kind, defence_score, word_set
from whet.types import Prompt

CALL = re.compile(
    r"<(tool_call|function_call|functioncall|tool|invoke)>(.*?)(?:</\1>|(?=<(?:tool_call|function_call|"
    r"functioncall|tool|invoke)>)|\Z)",
    re.DOTALL | re.IGNORECASE,
)
LONGEST_CALL = 4000  # characters; a longer one is compared by its text
NAME = re.compile(r"[A-Za-z_][\w.]*")
# after one of these the world is another: asking again is no repetition
CHANGING = word_set(
    "write create delete remove update set send post put add insert move rename book buy order cancel run execute edit "
    "save install start stop open close upload apply commit reset drop append mkdir touch rm mv cp echo cd patch "
    "replace submit pay transfer login logout turn lock unlock fill sort"
)
# these may be said twice in a row: turning a page, waiting for a job
STEPPING = word_set("click press scroll next step wait sleep poll tap swipe back forward roll draw tick advance")


def redundant_calls(
    prompt: Prompt, completion: str, *, kind: Kind = "penalty", most_calls: int = 8, each_extra: float = 0.05
) -> float:
    """A penalty: minus the share of calls that repeat an earlier one, `each_extra` for each call above `most_calls`
    added up to half, -1 at most (as a gate: 1 minus the same).

    Equal are calls with the same name and arguments, whatever their order, case and spacing. A call is no repetition
    after one that changes something (write, send, delete, ...), nor where repeating is its point (next, wait, ...).
    """
    calls = tool_calls_of(completion)
    if not calls:
        return defence_score(0.0, kind)
    extra = min(each_extra * max(len(calls) - most_calls, 0), 0.5)
    return defence_score(min(num_repeats(calls) / len(calls) + extra, 1.0), kind)


def num_repeats(calls: list[tuple[str, str]]) -> int:
    seen: set[tuple[str, str]] = set()
    repeats = 0
    for name, arguments in calls:
        spoken = set(re.split(r"[_.\W]+|(?<=[a-z])(?=[A-Z])", name))
        spoken = {word.lower() for word in spoken}
        if spoken & STEPPING:
            seen.clear()
            continue
        again = (name.casefold(), arguments) in seen
        repeats += again
        if spoken & CHANGING and not again:
            seen.clear()
        seen.add((name.casefold(), arguments))
    return repeats


def tool_calls_of(completion: str) -> list[tuple[str, str]]:
    """(name, arguments in a form equal for equal calls) of every call between call tags."""
    calls: list[tuple[str, str]] = []
    for match in CALL.finditer(completion):
        calls += _calls(match[2].strip())
    return calls


def _calls(body: str) -> list[tuple[str, str]]:
    if len(body) <= LONGEST_CALL:
        try:
            return _json_calls(json.loads(body))
        except (ValueError, RecursionError):
            pass
        try:
            return _written_calls(ast.parse(body, mode="exec"))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass
    name = NAME.match(body)
    return [(name[0] if name else "", _plain(body))] if body else []


def _json_calls(value: Any) -> list[tuple[str, str]]:
    values = value if isinstance(value, list) else [value]
    return [_json_call(each) for each in values if isinstance(each, dict)]


def _json_call(call: dict[str, Any]) -> tuple[str, str]:
    inner = call.get("function") if isinstance(call.get("function"), dict) else call
    assert isinstance(inner, dict)
    arguments: Any = next((inner[key] for key in ("arguments", "args", "parameters", "input") if key in inner), {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {"": arguments}
    return str(inner.get("name", inner.get("tool", ""))), _plain(json.dumps(arguments, sort_keys=True))


def _written_calls(tree: ast.Module) -> list[tuple[str, str]]:
    """`name(a, b=1)`, several of them in a list or on lines of their own."""
    values = [statement.value for statement in tree.body if isinstance(statement, ast.Expr)]
    flat = [each for value in values for each in (value.elts if isinstance(value, ast.List | ast.Tuple) else [value])]
    calls = []
    for node in flat:
        if isinstance(node, ast.Call):
            named = sorted(f"{keyword.arg}={ast.unparse(keyword.value)}" for keyword in node.keywords)
            calls.append((ast.unparse(node.func), _plain(", ".join([*map(ast.unparse, node.args), *named]))))
    return calls


def _plain(text: str) -> str:
    return re.sub(r"[\s\"'`]+", " ", text).strip(" .?!").casefold()
