"""Tool calls as they are written: JSON or name(argument=value), in <tool_call> tags, fences or on their own.

Nothing is run: the Python form is read as a syntax tree and its arguments as literals.

Python's own parser, for texts of a model that are read in several threads.

The parser makes its trees with a counter that all threads share. Where garbage is collected meanwhile and another
thread comes to parse, it ends in a SystemError ("AST constructor recursion depth mismatch", seen with Python 3.11.7).
What the parser warns of is no business of the log.
"""

from __future__ import annotations

import ast
import json
import re
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ATTEMPTS = 5  # a tool of somebody else's may be parsing, too
_ONE_AT_A_TIME = threading.RLock()


def statements(text: str) -> list[ast.stmt]:
    """The statements of a program; raises what `ast.parse` does."""
    tree = _parsed(text, "exec")
    assert isinstance(tree, ast.Module)
    return tree.body


def expression(text: str) -> ast.expr:
    """The syntax tree of a text that is one expression; raises what `ast.parse` does."""
    tree = _parsed(text, "eval")
    assert isinstance(tree, ast.Expression)
    return tree.body


def _parsed(text: str, mode: str) -> ast.AST:
    with _ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for attempt in range(ATTEMPTS):
            try:
                return ast.parse(text, mode=mode)
            except SystemError:
                if attempt == ATTEMPTS - 1:
                    raise
    raise AssertionError


LONGEST = 20_000  # characters of one block worth reading
NAME_KEYS = ("name", "function_name", "tool", "tool_name")
ARGUMENT_KEYS = ("arguments", "parameters", "args", "kwargs", "input", "tool_input")
OTHER_TAGS = re.compile(r"<(/?)(?:tool_calls|function_call)>")
MOST_BLOCKS = 200  # announced calls that are read
FENCE = re.compile(r"```([\w-]*)[ \t]*\n(.*?)```", re.DOTALL)
NAME = re.compile(r"[A-Za-z_][\w.-]*")


@dataclass(frozen=True)
class ToolCall:
    """A call as the model wrote it, not checked against any tool. Two calls are equal whatever their ids."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    positional: tuple[Any, ...] = ()  # of the form name(1, 2), until the tool's signature names them
    id: str = field(default="", compare=False)  # where the model gives its calls one


BROKEN = ToolCall("")
"""What stands where a call was announced and cannot be read."""


def calls_in(text: str) -> list[ToolCall]:
    """Every call of a text, in order: those in tags, else those in fences, else the text itself if it is calls.

    A tagged block that cannot be read counts as one `BROKEN` call.
    """
    blocks = tagged_blocks(text)[1]
    if blocks:
        return [call for block, is_closed in blocks for call in (is_closed and parsed_calls(block)) or [BROKEN]]
    fenced = [call for _, block in FENCE.findall(text) for call in parsed_calls(block) or ()]
    return fenced or parsed_calls(text) or []


def argument_names(tools: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """The tools by name, with the names of their arguments."""
    names = [str(tool.get("function", tool).get("name")) for tool in tools]
    return {name: tuple(parameters_of(name, tools)) for name in names}


def untagged_calls(text: str, tools: Mapping[str, Sequence[str]]) -> list[ToolCall]:
    """The calls of a text without tags: JSON on its own or in fences, or fences labelled with a tool of one argument.

    `tools`: their `argument_names`.

    A whole text of JSON may call a tool that is not there, which it can be told; a fence inside a text calls only
    those that are: prose shows other JSON and other code.
    """
    alone = _from_json(_unfenced(text)) or []
    if alone and all(call.name in tools or call.arguments for call in alone):
        return alone
    calls: list[ToolCall] = []
    for label, block in FENCE.findall(text)[:MOST_BLOCKS]:
        read = _from_json(block.strip())
        if read and all(call.name in tools for call in read):
            calls += read
        elif len(tools.get(label, ())) == 1 and block.strip():
            calls.append(ToolCall(label, {tools[label][0]: block}))
    return calls


def tagged_blocks(text: str) -> tuple[str, list[tuple[str, bool]]]:
    """The text outside of <tool_call> tags, and each (block, whether its tag is closed) within."""
    before, *pieces = OTHER_TAGS.sub(r"<\1tool_call>", text).split("<tool_call>")
    blocks = [piece.partition("</tool_call>") for piece in pieces[:MOST_BLOCKS]]
    return before + "".join(rest for _, _, rest in blocks), [(block, bool(closed)) for block, closed, _ in blocks]


def parsed_calls(text: str) -> list[ToolCall] | None:
    """The calls that make up the whole text; None when it is anything else."""
    text = _unfenced(text)
    if not text or len(text) > LONGEST:
        return None
    if text[0] in "{[":
        calls = _from_json(text)
        if calls is not None:
            return calls
    return _from_python(text)


def _unfenced(text: str) -> str:
    """What a text holds that is one fence; else the text."""
    fence = FENCE.fullmatch(text.strip())
    return (fence[2] if fence else text).strip()


def call_of(value: Any) -> ToolCall | None:
    """The call a JSON object describes, in any of the common spellings."""
    if not isinstance(value, Mapping):
        return None
    if isinstance(value.get("function"), Mapping):
        return call_of(value["function"])
    name = next((value[key] for key in (*NAME_KEYS, "function") if isinstance(value.get(key), str)), None)
    if name is None:
        return None
    arguments: Any = next((value[key] for key in ARGUMENT_KEYS if key in value), {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            return None
    number = next((str(value[key]) for key in ("id", "call_id") if isinstance(value.get(key), str)), "")
    return ToolCall(name, dict(arguments), id=number) if isinstance(arguments, Mapping) else None


def named(call: ToolCall, tools: Any) -> ToolCall:
    """The call with its positional arguments named by the tool's schema, where there is one."""
    if not call.positional:
        return call
    names = [name for name in parameters_of(call.name, tools) if name not in call.arguments]
    unknown = [str(position) for position in range(len(names), len(call.positional))]
    pairs = zip([*names, *unknown], call.positional, strict=False)
    return ToolCall(call.name, {**dict(pairs), **call.arguments}, id=call.id)


def parameters_of(name: str, tools: Any) -> Mapping[str, Any]:
    """The parameters of a tool by name, as its JSON schema describes them; {} where the schema is not there."""
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except (ValueError, RecursionError):
            return {}
    for tool in tools if isinstance(tools, list | tuple) else [tools]:
        if not isinstance(tool, Mapping):
            continue
        described = tool.get("function", tool)
        if isinstance(described, Mapping) and described.get("name") == name:
            schema = described.get("parameters") or {}
            properties = schema.get("properties", schema) if isinstance(schema, Mapping) else {}
            return properties if isinstance(properties, Mapping) else {}
    return {}


def _from_json(text: str) -> list[ToolCall] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        # several objects, one per line
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2:
            return None
        try:
            value = [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            return None
    calls = [call_of(call) for call in (value if isinstance(value, list) else [value])]
    return [call for call in calls if call is not None] if calls and None not in calls else None


def _from_python(text: str) -> list[ToolCall] | None:
    try:
        body = statements(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    nodes: list[ast.expr] = []
    for statement in body:
        if not isinstance(statement, ast.Expr | ast.Assign):
            return None
        value = statement.value
        nodes += value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
    calls = [_python_call(node) for node in nodes]
    return [call for call in calls if call is not None] if calls and None not in calls else None


def _python_call(node: ast.expr) -> ToolCall | None:
    if not isinstance(node, ast.Call):
        return None
    name = ast.unparse(node.func)
    if NAME.fullmatch(name) is None or any(keyword.arg is None for keyword in node.keywords):
        return None
    positional = tuple(_literal(argument) for argument in node.args)
    return ToolCall(name, {str(keyword.arg): _literal(keyword.value) for keyword in node.keywords}, positional)


def _literal(node: ast.expr) -> Any:
    """A literal's value; of anything else (2 * 3, true, f(x)) the value JSON gives it, or its text."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        text = ast.unparse(node)
        return {"true": True, "false": False, "null": None}.get(text, text)


def flattened(value: Sequence[Any]) -> list[Any]:
    """The members of lists within lists."""
    return [leaf for member in value for leaf in (flattened(member) if isinstance(member, list | tuple) else [member])]
