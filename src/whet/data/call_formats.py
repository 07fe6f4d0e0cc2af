"""Tool calls in a completion, in the format of a run, and what a model has to be told to write them.

`python` is <tool_call>name(argument=value)</tool_call>.
`json` is <tool_call>{"name": ..., "arguments": {...}}</tool_call>.
`template` is whatever the model's own chat template writes: the tokenizer's response template reads it where it has
one; else a probe call is written with the chat template to see how calls look. `loose` reads these too, and where a
turn has none, what small models write in their place: a call as bare JSON or in a fence, and a fence that is labelled
with a tool of one argument, such as ```python. `auto` is `template` where the template shows tools and writes calls,
else `python`.

Reading never raises, whatever the text: what announces a call and cannot be read is a malformed call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from whet.data.chat import THOUGHT_ENDS, control_tokens, shared_length, templated
from whet.data.tool_syntax import (
    BROKEN,
    MOST_BLOCKS,
    ToolCall,
    argument_names,
    call_of,
    named,
    parsed_calls,
    tagged_blocks,
    untagged_calls,
)
from whet.types import Completion, Message, WhetError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CALL_FORMATS = ("auto", "template", "loose", "json", "python")
OF_TEMPLATE = ("template", "loose")  # calls are read as the chat template writes them
TAG = "</tool_call>"
TAGS = ("<tool_call", "<function_call")  # what announces a call in tags; `tool_syntax` reads their variants
EXAMPLES = {
    "python": "<tool_call>name(argument=value)</tool_call>",
    "json": '<tool_call>{"name": "name", "arguments": {"argument": "value"}}</tool_call>',
    "loose": '```json\n{"name": "name", "arguments": {"argument": "value"}}\n```',
}
XML_CALL = re.compile(r"\s*<function=([^>\s]+)>(.*?)(?:</function>|$)", re.DOTALL)
XML_ARGUMENT = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
GLM_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
HARMONY = re.compile(
    r"to=functions\.([\w.-]+)(?:(?!to=functions\.).)*?<\|message\|>(.*?)(?:<\|(?:call|end|return|start)\|>|$)",
    re.DOTALL,
)
NAME, VALUE = "probe0name", "probe0value"


@dataclass(frozen=True)
class Calls:
    """What a completion calls."""

    announced: tuple[ToolCall, ...]  # in order; `BROKEN` stands where a call cannot be read
    malformed: tuple[str, ...]  # the text of each that cannot be read
    text: str  # the rest of the completion

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls that could be read, without those whose text was broken."""
        return tuple(call for call in self.announced if call is not BROKEN)


def call_reader(
    call_format: str, tokenizer: PreTrainedTokenizerBase | None = None, tools: Sequence[Mapping[str, Any]] = ()
) -> Callable[[Completion | str], Calls]:
    """Reads the calls of completions that were shown these tools, and never raises.

    `call_format` is not "auto": `chosen_format` says what that is. Long lists of tools are looked through here, once.
    """
    read = _template_reader(tokenizer, _key(tools)) if call_format in OF_TEMPLATE and tokenizer is not None else None
    arguments = argument_names(tools) if call_format == "loose" else {}

    def calls_of(completion: Completion | str) -> Calls:
        if read is None:
            calls = _tagged(str(completion), parsed_calls)
        else:
            raw = completion.raw if isinstance(completion, Completion) else completion
            try:
                calls = read(raw)
            except Exception:  # whatever a parser of somebody else's makes of a text
                calls = Calls((BROKEN,), (raw,), "")
        if call_format == "loose" and not calls.announced:
            calls = Calls(tuple(untagged_calls(_spoken(str(completion)), arguments)), (), calls.text)
        return _named(calls, tools)

    return calls_of


def chosen_format(name: str, tokenizer: PreTrainedTokenizerBase, tools: Sequence[Mapping[str, Any]]) -> str:
    """A format that is not "auto"; "template" only where it can be read."""
    if name not in CALL_FORMATS:
        raise WhetError(f"env.call_format is {name!r}; expected one of {', '.join(CALL_FORMATS)}")
    if name not in ("auto", "template"):
        return name
    shows_tools = template_shows(tokenizer, tools)
    if shows_tools and _template_reader(tokenizer, _key(tools)) is not None:
        return "template"
    if name == "auto":
        return "python"
    reason = "writes calls in a way that cannot be read" if shows_tools else "does not show tools to the model"
    raise WhetError(
        f"env.call_format is 'template', but the chat template {reason if tokenizer.chat_template else 'is missing'}; "
        "expected one with tool support; give env.call_format=python or json, or use a model trained with tools"
    )


def call_stops(call_format: str) -> tuple[str, ...]:
    """The stop strings that end a turn after its call; a template's calls end with the turn itself."""
    return (TAG,) if call_format in ("json", "python") else ()


def expected_call(call_format: str, tokenizer: PreTrainedTokenizerBase, tools: Sequence[Mapping[str, Any]] = ()) -> str:
    """A well-formed call, to show to a model that wrote another."""
    written = _readable_call(call_format, tokenizer, tools)
    return written.replace(NAME, "name").replace(VALUE, "value") or EXAMPLES.get(call_format, "")


def call_frame(
    call_format: str, tokenizer: PreTrainedTokenizerBase, tools: Sequence[Mapping[str, Any]] = ()
) -> Callable[[str], tuple[str, str]] | None:
    """What stands before and after the JSON arguments of a call of a tool, by its name; None: calls are no JSON."""
    written = _readable_call(call_format, tokenizer, tools)
    if not written and call_format != "template":
        written = call_text(call_format, NAME, {"x": VALUE})
    value = written.find(VALUE)
    start = written.rfind("{", 0, max(value, 0))
    if value < 0 or start < 0:
        return None
    arguments, closing = _balanced(written, start)
    try:
        is_json = json.loads(arguments) == {"x": VALUE}
    except ValueError:
        is_json = False
    opening = written[:start]
    return (lambda name: (opening.replace(NAME, name), closing)) if is_json and NAME in opening else None


def _readable_call(call_format: str, tokenizer: PreTrainedTokenizerBase, tools: Sequence[Mapping[str, Any]]) -> str:
    """The probe call as the template writes it, where calls are read so and can be; else nothing."""
    written = _written_calls(tokenizer, tools) if call_format in OF_TEMPLATE and tokenizer.chat_template else iter(())
    return next((text.strip() for text in written if _reads(tokenizer, text, tools)), "")


def call_openings(
    call_format: str, tokenizer: PreTrainedTokenizerBase, tools: Sequence[Mapping[str, Any]] = ()
) -> tuple[str, ...] | None:
    """What calls begin with in a completion's plain text; None where that cannot be told, as of control tokens."""
    if call_format == "loose":
        return None
    if call_format != "template":
        return TAGS
    if getattr(tokenizer, "response_template", None) is not None:
        return None
    written = _readable_call(call_format, tokenizer, tools)
    style = _json_style(written) if written and "to=functions." not in written else None
    if written.startswith("<tool_call>"):
        return TAGS
    is_plain = style is not None and style.opening and not any(token in written for token in control_tokens(tokenizer))
    return (style.opening,) if style is not None and is_plain else None


def call_text(call_format: str, name: str, arguments: Any) -> str:
    """A call as a model would write it in "python" or "json"; what is no mapping of arguments stays JSON."""
    if call_format == "python" and isinstance(arguments, Mapping):
        inner = f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
    else:
        inner = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False, default=str)
    return f"<tool_call>{inner}</tool_call>"


def tool_instructions(call_format: str, tools: Sequence[Mapping[str, Any]]) -> str:
    """What tells a model how to call, where its chat template does not."""
    if call_format == "template" or not tools:
        return ""
    where = "a block" if call_format == "loose" else "tags"
    described = [tool.get("function", tool) for tool in tools]
    return (
        f"You can call tools. To call one, write its name and arguments in {where} and stop:\n"
        f"{EXAMPLES[call_format]}\n"
        "The result comes back in the next message. The tools, as JSON schemas:\n"
        + "\n".join(json.dumps(tool, ensure_ascii=False, default=str) for tool in described)
    )


def _named(calls: Calls, tools: Sequence[Mapping[str, Any]]) -> Calls:
    """The calls with positional arguments named by the tools' schemas."""
    if not any(call.positional for call in calls.announced):
        return calls
    return Calls(tuple(named(call, list(tools)) for call in calls.announced), calls.malformed, calls.text)


def _collected(blocks: Sequence[tuple[list[ToolCall] | None, str]], text: str) -> Calls:
    """Calls of (what was read, the text it was read from), with None where nothing could be."""
    announced = [call for read, _ in blocks for call in read or [BROKEN]]
    return Calls(tuple(announced), tuple(block for read, block in blocks if not read), text.strip())


def _tagged(text: str, read: Callable[[str], list[ToolCall] | None]) -> Calls:
    """Calls in <tool_call> tags; thoughts call nothing."""
    outside, blocks = tagged_blocks(_spoken(text))
    return _collected([((closed and read(block)) or None, block) for block, closed in blocks], outside)


def _spoken(text: str) -> str:
    """The text without the thoughts before it."""
    for end in THOUGHT_ENDS:
        text = text.rpartition(end)[2]
    return text


def _key(tools: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps(list(tools), default=str)


def template_shows(tokenizer: PreTrainedTokenizerBase, tools: Sequence[Mapping[str, Any]]) -> bool:
    """True when there is a chat template and it writes the tools it is given."""
    if not tokenizer.chat_template:
        return False
    try:
        shown: str = templated(tokenizer, [_QUESTION], "calls", tools=tools or _TOOLS)
        return shown != templated(tokenizer, [_QUESTION], "calls")
    except WhetError:
        return False


_QUESTION: Message = {"role": "user", "content": "probe0question"}
_TOOL = {"name": NAME, "description": "", "parameters": {"type": "object", "properties": {}}}
_TOOLS = ({"type": "function", "function": _TOOL},)


def _written_calls(tokenizer: PreTrainedTokenizerBase, tools: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A turn that is one call, as the template writes it after its generation prompt, where it writes calls.

    The call's arguments are a mapping first and then JSON: templates want the one or the other. One tool says it.
    """
    tools = tools[:1] or _TOOLS
    for arguments in ({"x": VALUE}, json.dumps({"x": VALUE})):
        call = {"type": "function", "id": "functions.probe0name:0", "function": {"name": NAME, "arguments": arguments}}
        for number in (call["id"], "probe0000"):
            turn: Message = {"role": "assistant", "content": "", "tool_calls": [{**call, "id": number}]}
            try:
                opened: str = templated(tokenizer, [_QUESTION], "calls", open_completion=True, tools=tools)
                whole: str = templated(tokenizer, [_QUESTION, turn], "calls", tools=tools)
            except WhetError:
                continue
            written = whole[shared_length(opened, whole) :]
            if VALUE in written and NAME in written:
                yield _spoken(_without_ends(tokenizer, written))
                break


@lru_cache(maxsize=8)
def _turn_ends(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """The control tokens that a template writes after a turn."""
    ends = [str(tokenizer.eos_token)] if tokenizer.eos_token else []
    try:
        turn: Message = {"role": "assistant", "content": VALUE}
        tail: str = templated(tokenizer, [_QUESTION, turn], "calls").rpartition(VALUE)[2]
    except WhetError:
        tail = ""
    return (*ends, *(token for token in control_tokens(tokenizer) if token in tail))


def _without_ends(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """The text without the tokens that end the turn."""
    text, ends = text.rstrip(), _turn_ends(tokenizer)
    while any(text.endswith(end) for end in ends):
        text = text[: -len(next(end for end in ends if text.endswith(end)))].rstrip()
    return text


@lru_cache(maxsize=64)
def _template_reader(tokenizer: PreTrainedTokenizerBase, tools_key: str) -> Callable[[str], Calls] | None:
    """Reads calls as the template writes them; None where it writes none that can be read."""
    tools = json.loads(tools_key)
    if getattr(tokenizer, "response_template", None) is not None:
        return _response_reader(tokenizer, tools)
    for written in _written_calls(tokenizer, tools):
        if _reads(tokenizer, written, tools):
            return _reader_of(tokenizer, written, tools)
    return None


def _reads(tokenizer: PreTrainedTokenizerBase, written: str, tools: Sequence[Mapping[str, Any]]) -> bool:
    """True when the template's own call comes back from it."""
    read = _reader_of(tokenizer, written, tools)
    calls = () if read is None else read(written).announced
    return [(call.name, dict(call.arguments)) for call in calls] == [(NAME, {"x": VALUE})]


def _reader_of(
    tokenizer: PreTrainedTokenizerBase, written: str, tools: Sequence[Mapping[str, Any]]
) -> Callable[[str], Calls] | None:
    """Reads what looks like the written call."""
    if "to=functions." in written:
        return _harmony
    if f"<function={NAME}>" in written:
        return lambda text: _tagged(_cleared(tokenizer, text), lambda block: _xml_call(block, tools))
    if f"<arg_value>{VALUE}" in written:
        return lambda text: _tagged(_cleared(tokenizer, text), lambda block: _glm_call(block, tools))
    style = _json_style(written)
    return None if style is None else lambda text: _with_style(_cleared(tokenizer, text), style)


def _cleared(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """The text without the token that ends the turn, and without thoughts."""
    return _spoken(_without_ends(tokenizer, text))


@dataclass(frozen=True)
class _JsonStyle:
    """JSON between two strings; the name stands in it, or between `opening` and `middle`."""

    opening: str
    middle: str | None  # None: the name is in the JSON
    closing: str


def _json_style(written: str) -> _JsonStyle | None:
    """How a template frames its calls; None where they are neither JSON nor Python calls."""
    name, value = written.index(NAME), written.index(VALUE)
    brackets = [position for position in (written.find(mark) for mark in "{[(") if position >= 0]
    if not brackets:
        return None
    inside = [written.find(mark) for mark in ("[{", "{", f"[{NAME}", f"{NAME}(") if 0 <= written.find(mark) <= name]
    if inside:
        body, rest = _balanced(written, min(inside))
        return _JsonStyle(_one(written[: min(inside)]), None, _one(rest)) if VALUE in body else None
    start = written.rfind("{", name, value)
    body, rest = _balanced(written, start)
    if start < 0 or VALUE not in body:
        return None
    opening, middle = _one(written[:name]), written[name + len(NAME) : start].strip()
    if middle.startswith(":0"):
        # Kimi's calls have an id, functions.NAME:NUMBER, and no other name
        opening, middle = opening.removesuffix("functions."), middle[2:]
    return _JsonStyle(opening, middle, _one(rest))


def _one(frame: str) -> str:
    """What stands around one call, without what stands around all of them."""
    return re.sub(r"<[^<>]*calls[^<>]*>", "", frame).strip()


def _balanced(text: str, start: int) -> tuple[str, str]:
    """What stands between the bracket at `start` and the one that closes it, and what follows."""
    depth, quote = 0, ""
    for position in range(start, len(text)):
        mark = text[position]
        if quote:
            if mark == quote and text[position - 1] != "\\":
                quote = ""
        elif mark in "\"'":
            quote = mark
        elif mark in "{[(":
            depth += 1
        elif mark in "}])":
            depth -= 1
            if depth <= 0:
                return text[start : position + 1], text[position + 1 :]
    return text[start:], ""


def _with_style(text: str, style: _JsonStyle) -> Calls:
    if not style.opening:
        # nothing announces a call: the turn is one, or it is none
        stripped = text.strip()
        if stripped[:1] not in ("{", "[") or not stripped:
            return Calls((), (), stripped)
        calls = parsed_calls(stripped)
        announces = calls is not None or re.match(r'[\[{]\s*[\[{]?\s*"?(?:name|type|function)\b', stripped) is not None
        return _collected([(calls, stripped)] if announces else [], "" if announces else stripped)
    outside, *pieces = text.split(style.opening)
    blocks: list[tuple[list[ToolCall] | None, str]] = []
    for piece in pieces[:MOST_BLOCKS]:
        block, closed, rest = piece.partition(style.closing) if style.closing else (piece, "closed", "")
        outside += rest
        if style.middle is None:
            calls = parsed_calls(block) if closed else None
            if calls is None and not style.closing:
                body, rest = _balanced(block, len(block) - len(block.lstrip()))
                calls, outside = parsed_calls(body), outside + rest
        else:
            name, separator, arguments = block.partition(style.middle) if style.middle else _split_name(block)
            calls = _arguments_call(name, arguments) if closed and separator else None
        blocks.append((calls, block))
    return _collected(blocks, outside)


def _split_name(block: str) -> tuple[str, str, str]:
    name, brace, rest = block.partition("{")
    return name, brace, brace + rest


def _arguments_call(name: str, arguments: str) -> list[ToolCall] | None:
    """A call whose name stands before its JSON arguments; Kimi's ids are functions.NAME:NUMBER."""
    name = name.strip()
    number = name if re.fullmatch(r"functions\.[\w.-]+:\d+", name) else ""
    if number:
        name = number.removeprefix("functions.").rpartition(":")[0]
    arguments = arguments.strip().removeprefix("```json").removesuffix("```").strip()
    call = call_of({"name": name, "arguments": arguments}) if re.fullmatch(r"[\w.-]+", name) else None
    return None if call is None else [ToolCall(call.name, call.arguments, id=number)]


def _harmony(text: str) -> Calls:
    """gpt-oss: the recipient in the header says that a message is a call."""
    blocks = [(_arguments_call(match[1], match[2]), match[0]) for match in list(HARMONY.finditer(text))[:MOST_BLOCKS]]
    if not blocks and "to=functions." in text:
        blocks = [(None, text)]
    _, marker, final = text.rpartition("<|channel|>final<|message|>")
    return _collected(blocks, re.sub(r"<\|[a-z]+\|>", "", final) if marker else "")


def _xml_call(block: str, tools: Sequence[Mapping[str, Any]]) -> list[ToolCall] | None:
    match = XML_CALL.match(block)
    if match is None:
        return None
    pairs = XML_ARGUMENT.findall(match[2])
    return [ToolCall(match[1], {key: _typed(match[1], key, value, tools) for key, value in pairs})]


def _glm_call(block: str, tools: Sequence[Mapping[str, Any]]) -> list[ToolCall] | None:
    name = block.partition("<arg_key>")[0].strip()
    if re.fullmatch(r"[\w.-]+", name) is None:
        return None
    return [
        ToolCall(
            name, {key.strip(): _typed(name, key.strip(), value, tools) for key, value in GLM_ARGUMENT.findall(block)}
        )
    ]


def _typed(name: str, key: str, value: str, tools: Sequence[Mapping[str, Any]]) -> Any:
    """A value that is written without quotes: text where the tool's schema says string, else the JSON it is."""
    for tool in tools:
        described = tool.get("function", tool)
        if described.get("name") == name:
            schema = ((described.get("parameters") or {}).get("properties") or {}).get(key) or {}
            if schema.get("type") == "string":
                return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _response_reader(tokenizer: Any, tools: Sequence[Mapping[str, Any]]) -> Callable[[str], Calls]:
    """Reads with the tokenizer's own response template."""
    try:
        prefix = templated(tokenizer, [_QUESTION], "calls", open_completion=True, tools=tools or _TOOLS)
    except WhetError:
        prefix = ""

    def read(text: str) -> Calls:
        try:
            message = tokenizer.parse_response(text, prefix=prefix, tools=list(tools) or None)
        except Exception:  # of a completion that it cannot read, whatever that is
            return Calls((BROKEN,), (text,), "")
        if not isinstance(message, Mapping):
            return Calls((), (), text)
        calls = [call_of(tool_call) for tool_call in message.get("tool_calls") or ()]
        blocks = [([call] if call is not None else None, text) for call in calls]
        return _collected(blocks, str(message.get("content") or ""))

    return read
