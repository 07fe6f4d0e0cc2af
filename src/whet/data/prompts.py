"""Rows become prompts, demonstrations, preference pairs and labelled completions.

The columns are those of TRL's dataset formats: `prompt` (text, or a list of {role, content}), `messages`,
`completion`, `chosen`, `rejected`, `label`; `answer` and `id` are ours. `renamed` gives the user's columns these
names, `as_chat` sends a text prompt as a user message, and every column that is not used travels in `Prompt.meta`.
A null counts as an absent value. The first bad row is an error, and then nothing is returned.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from whet.data.foreign_rows import demonstration_rows, prompt_row
from whet.data.rows import BadRow, Row, column_notes, mistake, value_text
from whet.data.usable import Usable
from whet.types import Demonstration, Message, Prompt, WhetError, nearest

ROLES = ("system", "developer", "user", "assistant", "tool")

PromptContent = str | tuple[Message, ...]  # a plain text, or the conversation before the completion


@dataclass(frozen=True)
class PreferencePair:
    """Two completions to one prompt, the first preferred."""

    prompt: Prompt
    chosen: str
    rejected: str
    margin: float = 0.0  # by how much, where the data says so
    preference: float = 1.0  # the probability that the first is the better one


@dataclass(frozen=True)
class LabelledCompletion:
    """A completion that was judged on its own."""

    prompt: Prompt
    completion: str
    label: bool  # True: a good completion


def prompts_from(rows: Sequence[Row], *, as_chat: bool = False) -> list[Prompt]:
    """From `prompt`, or else `messages` without its closing assistant turn; other formats are known too.

    A gold answer that its authors marked in a solution is cut out of it. `notes` of what is returned says what was
    found under which name.
    """
    rows = [prompt_row(row) for row in rows]
    prompts = []
    for row in rows:
        if _has(row, "prompt"):
            prompts.append(_prompt(row, _opening(row, as_chat), "prompt"))
        elif _has(row, "messages"):
            turns = _conversation(row, "messages", row.values["messages"])
            prompts.append(_prompt(row, turns[:-1] if turns[-1]["role"] == "assistant" else turns, "messages"))
        else:
            raise _missing(row, "prompt", "messages")
    _require_unique_ids(rows, prompts)
    return Usable(prompts, notes=column_notes(rows))


def demonstrations_from(rows: Sequence[Row], *, as_chat: bool = False) -> list[Demonstration]:
    """From `prompt` and `completion`, from `messages` that end in an assistant turn, or from `text` alone.

    Alpaca's and ShareGPT's columns are known too. Tools come from the column `tools`, calls from `tool_calls`.
    """
    rows = [demonstration for row in rows for demonstration in demonstration_rows(row)]
    demonstrations = [_text_row(row) if _is_text(row) else _demonstration(row, as_chat) for row in rows]
    _require_unique_ids(rows, [demonstration.prompt for demonstration in demonstrations])
    return Usable(demonstrations, notes=column_notes(rows))


def _is_text(row: Row) -> bool:
    return _has(row, "text") and not any(_has(row, name) for name in ("prompt", "messages", "completion"))


def _text_row(row: Row) -> Demonstration:
    """Plain text of a language model: there is no prompt, so every token carries loss."""
    text = row.values["text"]
    _require_text(row, "text", text)
    meta = {name: value for name, value in row.values.items() if name not in ("text", "id")}
    return Demonstration(Prompt(_id(row), (), "", None, meta), text)


def pairs_from(rows: Sequence[Row], *, as_chat: bool = False) -> list[PreferencePair]:
    """From `prompt`, `chosen` and `rejected`; or from two conversations that differ in their last turn only.

    A text `prompt` beside two such conversations repeats what they hold, and goes to `Prompt.meta`.
    """
    pairs = [_pair(row, as_chat) for row in rows]
    _require_unique_ids(rows, [pair.prompt for pair in pairs])
    return Usable(pairs, notes=column_notes(rows))


def labelled_from(rows: Sequence[Row], *, as_chat: bool = False) -> list[LabelledCompletion]:
    """From the columns of a demonstration and `label`: true or false, also as text since CSV knows nothing else."""
    labelled = []
    for row in rows:
        shown = _demonstration(row, as_chat, "label")
        labelled.append(LabelledCompletion(shown.prompt, shown.completion, _label(row)))
    _require_unique_ids(rows, [completion.prompt for completion in labelled])
    return labelled


def with_system_prompt(values: Sequence[Any], text: str) -> list[Any]:
    """Prompts, or what holds one in `prompt`, with a system message in front of conversations that have none."""
    if values and all(getattr(value, "prompt", value).text is not None for value in values):
        raise WhetError("data.system_prompt has no effect: the prompts are plain text; drop it, or give conversations")

    def opened(prompt: Prompt) -> Prompt:
        if prompt.text is not None or prompt.messages[0]["role"] in ("system", "developer"):
            return prompt
        return replace(prompt, messages=({"role": "system", "content": text}, *prompt.messages))

    return [
        opened(value) if isinstance(value, Prompt) else replace(value, prompt=opened(value.prompt)) for value in values
    ]


def _demonstration(row: Row, as_chat: bool, *also_used: str) -> Demonstration:
    if _has(row, "completion"):
        _require(row, "prompt")
        opening, completion = _completed(row, _opening(row, as_chat), "completion")
        return Demonstration(_prompt(row, opening, "prompt", "completion", *also_used), completion)
    if not _has(row, "messages"):
        raise _missing(row, "completion") if _has(row, "prompt") else _missing(row, "prompt", "messages")
    *before, last = _conversation(row, "messages", row.values["messages"])
    _require_completion(row, "messages", last)
    prompt = _prompt(row, tuple(before), "messages", "tools", *also_used)
    return Demonstration(prompt, last["content"], tuple(last.get("tool_calls", ())))


def _tools(row: Row) -> tuple[Mapping[str, Any], ...]:
    """The schemas of the column `tools`: a list, or the same as JSON text."""
    value = row.values.get("tools")
    if isinstance(value, str) and value.strip():
        with contextlib.suppress(ValueError):  # then it is refused below, as it stands
            value = json.loads(value)
    if value is None or value in ("", [], ()):
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(tool, Mapping) for tool in value):
        raise mistake(
            row, "tools", f"is {value_text(value)}", "a list of JSON schemas of functions", "correct or drop it"
        )
    return tuple(dict(tool) for tool in value)


def _pair(row: Row, as_chat: bool) -> PreferencePair:
    _require(row, "chosen")
    _require(row, "rejected")
    sides = row.values["chosen"], row.values["rejected"]
    whole = all(isinstance(side, list | tuple) and not _is_completion(side) for side in sides)
    if whole and not isinstance(row.values.get("prompt"), list | tuple):
        shared, chosen, rejected = _common_opening(row)
        prompt = _prompt(row, shared, "chosen", "rejected", field="chosen")
    else:
        _require(row, "prompt")
        stated = _opening(row, as_chat)
        opening, chosen = _completed(row, stated, "chosen")
        other, rejected = _completed(row, stated, "rejected")
        if opening != other:
            raise _apart(row)
        prompt = _prompt(row, opening, "prompt", "chosen", "rejected")
    if chosen == rejected:
        raise mistake(
            row, "rejected", "is the same text as 'chosen'", "two different completions", "drop the row or correct it"
        )
    return PreferencePair(prompt, chosen, rejected)


def _is_completion(turns: Sequence[Any]) -> bool:
    """True for turns that answer a prompt held elsewhere, False for a conversation from its start."""
    return bool(turns) and isinstance(turns[0], Mapping) and turns[0].get("role") == "assistant"


def _common_opening(row: Row) -> tuple[tuple[Message, ...], str, str]:
    *before, chosen = _conversation(row, "chosen", row.values["chosen"])
    *other, rejected = _conversation(row, "rejected", row.values["rejected"])
    _require_completion(row, "chosen", chosen)
    _require_completion(row, "rejected", rejected)
    if before != other:
        raise _apart(row)
    return tuple(before), chosen["content"], rejected["content"]


def _apart(row: Row) -> WhetError:
    return mistake(
        row,
        "rejected",
        "leaves the conversation of 'chosen' before the last turn",
        "two conversations that differ in their last assistant turn only",
        "cut both after the first turn that differs",
    )


def _label(row: Row) -> bool:
    _require(row, "label")
    value = row.values["label"]
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.strip().lower(), value)
    if not isinstance(value, bool):
        raise mistake(
            row, "label", f"is {value_text(value)}", "true or false", "write true for a good completion, else false"
        )
    return value


def _opening(row: Row, as_chat: bool) -> PromptContent:
    value = row.values["prompt"]
    if not isinstance(value, str):
        return _conversation(row, "prompt", value)
    _require_text(row, "prompt", value)
    return ({"role": "user", "content": value},) if as_chat else value


def _completed(row: Row, opening: PromptContent, field: str) -> tuple[PromptContent, str]:
    """The opening and the completion of one completion column; its earlier turns, if any, join the opening."""
    value = row.values[field]
    if isinstance(value, str):
        _require_text(row, field, value)
        return opening, value
    turns = _conversation(row, field, value)
    if isinstance(opening, str):
        raise mistake(
            row,
            field,
            "is a list of messages but 'prompt' is plain text",
            "both as text or both as messages",
            "pass as_chat=True to send the prompt as a user message, or write the completion as text",
        )
    _require_completion(row, field, turns[0])
    _require_completion(row, field, turns[-1])
    return (*opening, *turns[:-1]), turns[-1]["content"]


def _conversation(row: Row, field: str, value: Any) -> tuple[Message, ...]:
    if not isinstance(value, list | tuple) or not value:
        fault = "is an empty list" if value in ([], ()) else f"is {value_text(value)}"
        expected = "a list of {role, content} messages"
        if field != "messages":
            expected = f"text, or {expected}"
        raise mistake(row, field, fault, expected, f"correct the {row.shown(field)!r} of this row")
    return tuple(_message(row, f"{field}[{index}]", message) for index, message in enumerate(value))


def _message(row: Row, field: str, message: Any) -> Message:
    calls = isinstance(message, Mapping) and message.get("role") == "assistant" and message.get("tool_calls")
    if not isinstance(message, Mapping) or "role" not in message or ("content" not in message and not calls):
        fault = f"has the keys {_names(message)}" if isinstance(message, Mapping) else f"is {value_text(message)}"
        raise mistake(row, field, fault, "the keys 'role' and 'content'", 'write {"role": ..., "content": ...}')
    role, content = message["role"], message.get("content")
    if role not in ROLES:
        close = nearest(role, ROLES) if isinstance(role, str) else None
        fix = f"did you mean {close!r}?" if close else "use one of these names"
        raise mistake(row, f"{field}.role", f"is {value_text(role)}", f"one of {', '.join(ROLES)}", fix)
    if calls and not (isinstance(content, str) and content.strip()):
        content = ""
    else:
        _require_text(row, f"{field}.content", content)
    # tables fill absent keys with null; other text keys (a tool's name, say) are for the chat template
    extra = {key: value for key, value in message.items() if value is not None} | {"content": content}
    if calls:
        extra["tool_calls"] = [
            _tool_call(row, f"{field}.tool_calls[{at}]", call_value)
            for at, call_value in enumerate(calls if isinstance(calls, list | tuple) else [calls])
        ]
    elif role == "assistant":
        extra.pop("tool_calls", None)
    for key, value in extra.items():
        if key == "tool_calls" and calls:
            continue
        if not isinstance(value, str):
            raise mistake(
                row, f"{field}.{key}", f"is {value_text(value)}", "a string", "write it as text or drop the key"
            )
    return extra


def _tool_call(row: Row, field: str, call: Any) -> dict[str, Any]:
    """A call as chat templates want it: OpenAI's, but with the arguments as an object."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        fix = 'write {"type": "function", "function": {"name": ..., "arguments": {...}}}'
        raise mistake(row, field, f"is {value_text(call)}", "a call with the name of a function", fix)
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            arguments = None
    if not isinstance(arguments, Mapping):
        fault = f"is {value_text(function.get('arguments'))}"
        raise mistake(row, f"{field}.function.arguments", fault, "an object, or one as JSON text", "correct it")
    header = {key: value for key, value in call.items() if key in ("id", "type") and value is not None}
    return {"type": "function", **header, "function": {"name": function["name"], "arguments": dict(arguments)}}


def _prompt(row: Row, opening: PromptContent, *used: str, field: str | None = None) -> Prompt:
    """The prompt of a row; `used` are the columns already read, `field` the one to blame for the opening."""
    field = field or used[0]
    if not isinstance(opening, str):
        if not any(message["role"] == "user" for message in opening):
            raise mistake(
                row, field, "has no user turn before the completion", "at least one", "add the user's message"
            )
        if opening[-1]["role"] == "assistant":
            fix = (
                "move the completion to 'completion', or name the column 'messages'" if field == "prompt" else "drop it"
            )
            raise mistake(row, field, "has an assistant turn right before the completion", "a user or tool turn", fix)
    text, messages = (opening, ()) if isinstance(opening, str) else (None, opening)
    read = {*used, "answer", "id"}
    meta = {name: value for name, value in row.values.items() if name not in read}
    # a chat template shows the tools; plain text is sent as it is, and the column stays for the rewards
    tools = () if isinstance(opening, str) else _tools(row)
    return Prompt(_id(row), messages, text, _answer(row), meta, tools=tools)


def _answer(row: Row) -> Any:
    """The gold answer; tables write NaN where there is none, and a reward would take it for an answer."""
    value = row.values.get("answer")
    if isinstance(value, float) and not math.isfinite(value):
        raise mistake(row, "answer", f"is {value}", "text or a number", "write the answer, or null for none")
    return value


def _id(row: Row) -> str:
    value = row.values.get("id")
    if value is None:
        return re.sub(r": (?:item|row) (?=\d+$)", ":", row.where)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise mistake(row, "id", f"is {value_text(value)}", "text or a whole number", "correct it or drop the column")
    return str(value)


def _require_unique_ids(rows: Sequence[Row], prompts: Sequence[Prompt]) -> None:
    first: dict[str, Row] = {}
    for row, prompt in zip(rows, prompts, strict=True):
        if prompt.id in first:
            fault = f"{prompt.id!r} is also the id of {first[prompt.id].where}"
            raise mistake(row, "id", fault, "a different id for each row", "change one, or rename the column")
        first[prompt.id] = row


def renamed(rows: Sequence[Row], columns: Mapping[str, str]) -> list[Row]:
    """Rows with columns renamed as `{old: new}` says; raises `WhetError` for a column that no row has."""
    present = {name: None for row in rows for name in row.values}
    for source, target in columns.items():
        if source not in present:
            close = nearest(source, present)
            fix = f"did you mean {close!r}?" if close else "name one of these"
            raise WhetError(
                f"columns: {source!r} (to become {target!r}) is not a column of the data; "
                f"expected one of {_names(present)}; {fix}"
            )
    return [_renamed_row(row, columns) if row.fault is None else row for row in rows] if columns else list(rows)


def _renamed_row(row: Row, columns: Mapping[str, str]) -> Row:
    values: dict[str, Any] = {}
    source_of: dict[str, str] = {}
    for source, value in row.values.items():
        target = columns.get(source, source)
        if target in values:
            spare = source if source == target else source_of[target]
            raise mistake(
                row,
                target,
                f"would come from both {source_of[target]!r} and {source!r}",
                "one column for each name",
                f"rename the other one too, such as data.columns.{spare}=other_{spare}",
            )
        values[target], source_of[target] = value, source
    names = {target: source for target, source in source_of.items() if target != source}
    return row.changed(values, **names)


def _has(row: Row, column: str) -> bool:
    return row.values.get(column) is not None


def _require(row: Row, column: str) -> None:
    if not _has(row, column):
        raise _missing(row, column)


def _missing(row: Row, *wanted: str) -> WhetError:
    expected = " or ".join(repr(column) for column in wanted)
    if any(column in row.values for column in wanted):
        return mistake(row, expected, "is null", "a value", "fill it in or drop the row")
    expected = " or ".join(repr(row.shown(column)) for column in wanted)
    guesses = ((nearest(column, row.columns()), column) for column in wanted)
    close, column = next((guess for guess in guesses if guess[0]), (None, wanted[0]))
    hint = f"did you mean {close!r}? " if close else ""
    fix = f"{hint}rename the column, or set data.columns.{close or 'YOURS'}={column}"
    message = f"{row.where}: {expected} is missing; the row has {_names(row.columns())}; {fix}"
    return BadRow(message, f"{expected} is missing")


def _require_text(row: Row, field: str, value: Any) -> None:
    if not isinstance(value, str):
        raise mistake(row, field, f"is {value_text(value)}", "a string", "write the text itself")
    if not value.strip():
        raise mistake(row, field, "is empty", "some text", "fill it in or drop it")


def _require_completion(row: Row, field: str, turn: Message) -> None:
    if turn["role"] != "assistant":
        raise mistake(
            row,
            field,
            f"has a {turn['role']} turn where the completion should be",
            "an assistant turn",
            "add or move the completion",
        )


def _names(names: Any) -> str:
    return ", ".join(repr(name) for name in names) or "none"
