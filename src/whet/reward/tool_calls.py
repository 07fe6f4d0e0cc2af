"""The reward for calling the right tools with the right arguments."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from whet.data.tool_syntax import ToolCall, call_of, calls_in, flattened, named, parameters_of, parsed_calls
from whet.reward.answer import after_thinking
from whet.types import Prompt, WhetError

Credit = Literal["partial", "exact"]
Text = Literal["as_gold", "loose", "exact"]

MOST_ASSIGNED = 12  # calls that are matched in the best of all ways; more are matched greedily
MOST_CALLS = 100  # calls of a completion that are looked at
TOOL_COLUMNS = ("tools", "functions", "function")
SEPARATORS = re.compile(r"[ ,./\-_*^]")


def tool_calls(
    prompt: Prompt, completion: str, *, credit: Credit = "partial", ordered: bool = False, text: Text = "as_gold"
) -> float | None:
    """How well the completion's tool calls match the gold ones, 0 to 1; None where the gold ones cannot be read.

    The gold calls are the prompt's `answer`, or its column `ground_truth`: calls as text, a list of
    {"name": ..., "arguments": {...}}, or lists of allowed values, [{"name": {"argument": [value, ...]}}], where an
    allowed "" means that the argument may be left out. No calls (an empty list) asks for a completion without any.

    A call is worth 0.5 for its name and 0.5 times the share of right arguments, wrong extra ones counted; the
    completion is worth the mean over the gold calls, or over its own if it makes more. "exact" credit gives 1 or 0.
    `ordered` counts only calls that come in the order of the gold ones. `text` "loose" ignores case, spaces and
    separators in strings; "as_gold" does that only where the gold calls list allowed values. There, as in BFCL, 20.0
    is no 20 where the tool's schema asks for an integer.
    """
    gold = _gold(prompt)
    if gold is None:
        return None
    tools = next((prompt.meta[column] for column in TOOL_COLUMNS if column in prompt.meta), None)
    calls = [named(call, tools) for call in calls_in(after_thinking(completion))[:MOST_CALLS]]
    if not gold or not calls:
        return float(not gold and not calls)
    loose = text == "loose" or (text == "as_gold" and any(call.has_choices for call in gold))
    wanted = [
        replace(expected, call=named(expected.call, tools), schema=parameters_of(expected.call.name, tools))
        for expected in gold
    ]
    scores = [[_call_score(target, call, loose) for call in calls] for target in wanted]
    total = _in_order(scores) if ordered else _matched(scores)
    score = total / max(len(gold), len(calls))
    return float(score == 1.0) if credit == "exact" else score


@dataclass(frozen=True)
class _Wanted:
    """A call that is expected."""

    call: ToolCall
    has_choices: bool = False  # every argument is a list of allowed values
    schema: Mapping[str, Any] = field(default_factory=dict)  # of the parameters, {} where it is not known

    def allowed(self, argument: str) -> Sequence[Any] | None:
        if argument not in self.call.arguments:
            return None
        value = self.call.arguments[argument]
        return value if self.has_choices else [value]


def _gold(prompt: Prompt) -> list[_Wanted] | None:
    value = prompt.answer if prompt.answer is not None else prompt.meta.get("ground_truth")
    if value is None:
        raise WhetError(
            f"reward 'tool_calls' compares with gold calls, and prompt {prompt.id!r} has none; "
            "give the row an `answer` (or a column `ground_truth`), [] for a question that needs no call"
        )
    if isinstance(value, str):
        value = parsed_calls(value) or calls_in(value) or [value]
    members = flattened(value) if isinstance(value, list | tuple) else [value]
    calls = [_gold_call(member) for member in members]
    return None if None in calls else [call for call in calls if call is not None]


def _gold_call(value: Any) -> _Wanted | None:
    if isinstance(value, str):
        calls = parsed_calls(value)
        value = calls[0] if calls is not None and len(calls) == 1 else None
    call = value if isinstance(value, ToolCall) else call_of(value)
    if call is not None:
        return _Wanted(call) if call.name else None
    if isinstance(value, Mapping) and len(value) == 1:
        (name, arguments), *_ = value.items()
        if isinstance(arguments, Mapping) and all(isinstance(values, list | tuple) for values in arguments.values()):
            return _Wanted(ToolCall(str(name), dict(arguments)), has_choices=True)
    return None


def _call_score(wanted: _Wanted, call: ToolCall, loose: bool) -> float:
    if wanted.call.name != call.name:
        return 0.0
    names = dict.fromkeys([*wanted.call.arguments, *call.arguments])
    right = total = 0
    for name in names:
        allowed = wanted.allowed(name)
        if name not in call.arguments:
            # no allowed value at all: there is nothing to give
            total += not (wanted.has_choices and allowed is not None and ("" in allowed or not allowed))
            continue
        total += 1
        value = call.arguments[name]
        is_typed = not (wanted.has_choices and _is_float_for_int(wanted.schema.get(name), value))
        right += allowed is not None and is_typed and any(_equal(choice, value, loose) for choice in allowed)
    return 0.5 + 0.5 * (right / total if total else 1.0)


def _is_float_for_int(schema: Any, value: Any) -> bool:
    """True for 20.0 where the schema asks for an integer, or for a list of them: BFCL's checker takes it for wrong."""
    if not isinstance(schema, Mapping):
        return False
    if isinstance(value, list | tuple):
        return any(_is_float_for_int(schema.get("items"), member) for member in value)
    return isinstance(value, float) and schema.get("type") == "integer"


def _equal(gold: Any, answer: Any, loose: bool) -> bool:
    """Whether a value is the gold one: an int may stand for a float, a tuple for a list, never 1 for True."""
    if isinstance(gold, bool) or isinstance(answer, bool):
        return gold is answer
    if isinstance(gold, int | float) and isinstance(answer, int | float):
        return gold == answer
    if isinstance(gold, str) and isinstance(answer, str):
        return _loose(gold) == _loose(answer) if loose else gold == answer
    if isinstance(gold, list | tuple) and isinstance(answer, list | tuple):
        return len(gold) == len(answer) and all(map(functools.partial(_equal, loose=loose), gold, answer))
    if isinstance(gold, Mapping) and isinstance(answer, Mapping):
        return _equal_mapping(gold, answer, loose)
    return gold is None and answer is None


def _equal_mapping(gold: Mapping[Any, Any], answer: Mapping[Any, Any], loose: bool) -> bool:
    """Key by key; where all gold values are lists, each may also be a list of allowed ones."""
    has_choices = bool(gold) and all(isinstance(value, list | tuple) for value in gold.values())
    if not set(answer) <= set(gold):
        return False
    for key, value in gold.items():
        if key not in answer:
            if not (has_choices and "" in value):
                return False
        elif not (
            _equal(value, answer[key], loose)
            or (has_choices and any(_equal(choice, answer[key], loose) for choice in value))
        ):
            return False
    return True


def _loose(text: str) -> str:
    return SEPARATORS.sub("", text).replace("'", '"').casefold()


def _matched(scores: Sequence[Sequence[float]]) -> float:
    """The best total over all ways to give each gold call (row) at most one call of the completion (column)."""
    rows, columns = len(scores), len(scores[0])
    if rows > columns:
        return _matched([list(column) for column in zip(*scores, strict=True)])
    if rows > MOST_ASSIGNED or columns > MOST_ASSIGNED:
        return _greedy(scores)

    @functools.cache
    def best(row: int, used: int) -> float:
        if row == rows:
            return 0.0
        choices = [best(row + 1, used)]
        for column in range(columns):
            if not used >> column & 1 and scores[row][column] > 0:
                choices.append(scores[row][column] + best(row + 1, used | 1 << column))
        return max(choices)

    return best(0, 0)


def _greedy(scores: Sequence[Sequence[float]]) -> float:
    places = [(-score, row, column) for row, line in enumerate(scores) for column, score in enumerate(line) if score]
    rows: set[int] = set()
    columns: set[int] = set()
    total = 0.0
    for score, row, column in sorted(places):
        if row not in rows and column not in columns:
            rows.add(row)
            columns.add(column)
            total -= score
    return total


def _in_order(scores: Sequence[Sequence[float]]) -> float:
    """The best total over the ways to match that never cross."""
    best = [0.0] * (len(scores[0]) + 1)
    for line in scores:
        before = best
        best = [0.0]
        for column, score in enumerate(line):
            best.append(max(best[-1], before[column + 1], before[column] + score))
    return best[-1]
