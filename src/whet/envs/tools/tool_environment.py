"""The environment whose answers are the results of tool calls.

A completion that calls tools is answered with one message per call, in the order of the calls; a completion that
calls none ends the episode. Everything that goes wrong with a call is a result that the model can read, and is
counted: `step` raises nothing but the error that ends the run because too many tools hang.

A tool's result as text for the model: whatever it is, and never more than a limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import enum
import functools
import inspect
import itertools
import json
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whet.data.call_formats import Calls
from whet.data.tool_syntax import ToolCall
from whet.envs.tools.schema import fitting
from whet.envs.tools.tool import (
    OpenTools,
    Tool,
    ToolFailed,
    ToolLimits,
    ToolSource,
    ToolText,
    ToolTimedOut,
    tool_name,
)
from whet.registry import error_text
from whet.rollout.call_pool import CallPool, finished, side_by_side
from whet.types import Completion, InitialObservation, Message, Prompt, StepResult, WhetError, did_you_mean

NOTHING = "(no result)"
LONGEST_ERROR = 300  # characters
MOST_ITEMS = 1000  # of what a generator yields
# the folders in front of a file: not the slash of 1/2, nor what follows https:
FOLDERS = re.compile(r"(?<![\w/.:<])(?:/[\w.@~+-]+)+/")


def result_text(value: Any, most: int) -> ToolText:
    """The result as text, cut. Whatever its methods do, a text comes of it."""
    if isinstance(value, ToolText):
        return value
    text = _text(value)
    # what no tokenizer takes: halves of surrogate pairs
    text = text.encode("utf-8", "replace").decode("utf-8")
    return ToolText(text[:most], len(text))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    if value is None:
        return NOTHING
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return f"({len(value)} bytes that are no text)"
    if isinstance(value, Iterator):  # what a generator yields is its result
        value = list(itertools.islice(value, MOST_ITEMS))
    elif (dataclasses.is_dataclass(value) and not isinstance(value, type)) or isinstance(value, set | frozenset):
        value = _json_part(value)
    elif _is_bare(type(value)):
        value = _attributes(value)  # its own text would be an address, another one in every run
    # what stands alone keeps its own text
    default = _json_part if isinstance(value, dict | list | tuple) else None
    makers: list[Callable[[Any], str]] = [
        lambda value: json.dumps(value, ensure_ascii=False, default=default),
        str,
        repr,
    ]
    for make in makers:
        try:
            text = make(value)
        except Exception:  # not JSON, endless, too many digits, or a method of its own that raises
            continue
        if isinstance(text, str):
            return text
    return f"(a {type(value).__name__} that has no text)"


def _json_part(value: Any) -> Any:
    """What JSON has no form for, inside of a result: fields of dataclasses and plain objects, values of enums and
    arrays, sets in a fixed order, and for dates, decimals and whatever else its text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return sorted(value, key=lambda item: (type(item).__name__, str(item)))
    if hasattr(value, "tolist"):
        return value.tolist()
    return _attributes(value) if _is_bare(type(value)) else str(value)


def _is_bare(kind: Any) -> bool:
    """A class that says nothing about how it is written."""
    return kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__


def _attributes(value: Any) -> Any:
    """The public attributes of a plain object, or the name of its class."""
    public = {name: content for name, content in getattr(value, "__dict__", {}).items() if not name.startswith("_")}
    return public or f"(a {type(value).__name__})"


def shown(result: ToolText, most: int) -> tuple[str, bool]:
    """The text the model is shown, and whether something was left out."""
    if result.length <= most:
        return result.text, False
    return f"{result.text[:most]}\n... ({result.length - most} more characters were left out)", True


def error_line(text: str) -> str:
    """One line that the model can read: no line breaks, no folders of the machine, not too long."""
    line = FOLDERS.sub("", " ".join(text[: 20 * LONGEST_ERROR].split()))
    line = line.encode("utf-8", "replace").decode("utf-8")
    return f"error: {line if len(line) <= LONGEST_ERROR else line[: LONGEST_ERROR - 3] + '...'}"


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CallFormat:
    """The text that tells the model about its tools, and the reader of its calls."""

    reader: Callable[[Sequence[Mapping[str, Any]]], Callable[[Completion], Calls]]  # of the calls of these tools
    expected: str  # what a call that cannot be read should have been
    instructions: Callable[[Sequence[Mapping[str, Any]]], str] | None = None  # None: the chat template shows the tools
    stops: tuple[str, ...] = ()  # texts that end a turn after its call
    instructs_as: str = (
        "system"  # the role of the message with the instructions; "user" where a template shows no other
    )
    answers_as: str = "tool"  # the role that brings results; "user" where a template knows no other, in tags
    written: Callable[[str, Any], str] | None = None  # a call as text, by name and arguments, where instructions are
    openings: tuple[str, ...] | None = None  # texts that a call begins with; None: a call may begin with anything

    def said(self, text: str) -> str:
        """The part of an unfinished text that is certainly not a tool call, without trailing blanks."""
        if self.openings is None or text[:1].isspace():
            return ""
        ends = [_first_opening(text, opening) for opening in self.openings]
        return text[: min(ends, default=len(text))].rstrip()

    def conversation(
        self, messages: Sequence[Message], schemas: Sequence[Mapping[str, Any]]
    ) -> tuple[tuple[Message, ...], tuple[Mapping[str, Any], ...]]:
        """Messages and tools as the chat template is given them."""
        if self.instructions is None:
            return tuple(messages), tuple(schemas)
        text = self.instructions(schemas)
        plain = tuple(self.plain(message) for message in messages)
        return (with_instructions(plain, text, self.instructs_as) if text else plain), ()

    def plain(self, message: Message) -> Message:
        """A message as a template without tools can write it: calls are text, and results have a role it knows."""
        if self.instructions is None:
            return message
        if message.get("role") == "tool":
            return self.result(str(message.get("name") or "unknown"), str(message.get("content") or ""))
        if not message.get("tool_calls") or self.written is None:
            return message
        calls = [
            self.written(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]
        ]
        rest = {key: value for key, value in message.items() if key != "tool_calls"}
        return {**rest, "content": f"{message.get('content') or ''}{''.join(calls)}"}

    def result(self, name: str, text: str) -> Message:
        """The message that brings a tool's result."""
        if self.answers_as != "tool":
            text = f"<tool_response>{_without_frames(text)}</tool_response>"
        return {"role": self.answers_as, "name": name, "content": text}


def _first_opening(text: str, opening: str) -> int:
    """Where the opening stands in a text, whole or as the text's end; the text's length where it does not."""
    index = text.find(opening)
    if index >= 0:
        return index
    sizes = range(min(len(opening), len(text)), 0, -1)
    return len(text) - next((size for size in sizes if text.endswith(opening[:size])), 0)


@dataclass(frozen=True)
class _Answer:
    """The result of a call, and what it counts as."""

    text: str
    counts: tuple[str, ...] = ()
    error: str = ""


class ToolEnvironment:
    """One episode in which the policy may call tools."""

    waits_for_calls_only = True

    def __init__(
        self,
        sources: Sequence[ToolSource],
        call_format: CallFormat,
        limits: ToolLimits,
        most_calls: int,
        pools: Mapping[bool, CallPool],
    ) -> None:
        """`pools`: where calls run; True for those that keep to the time limit by themselves."""
        self._sources, self._format, self._limits, self._most_calls = sources, call_format, limits, most_calls
        self._pools = pools
        self._opened: list[OpenTools] = []
        self._tools: dict[str, Tool] = {}
        self._schemas = [schema for source in sources for schema in source.schemas]
        self._read = call_format.reader(self._schemas)
        self.stops = call_format.stops

    @property
    def no_branches(self) -> str:
        """Why an episode with these tools cannot branch: one of them remembers its calls; empty where none does."""
        keeping = [source.name for source in self._sources if source.keeps]
        return f"the tool {keeping[0]} may keep what its calls leave; plain functions can branch" if keeping else ""

    def fork(self) -> ToolEnvironment:
        """The same tools for another branch of the episode; what is open is closed with this one."""
        twin = copy.copy(self)
        twin._opened = []
        return twin

    async def start(self, prompt: Prompt) -> InitialObservation | None:
        """The prompt with the tools. A plain text is sent as it is: it has to say itself what can be called."""
        for source in self._sources:
            opened, problem = await self._within_limit(functools.partial(source.open, self._limits), source.name, False)
            if problem is not None:
                raise problem
            self._opened.append(opened)
            self._tools |= {tool.name: tool for tool in opened.tools}
        if prompt.text is not None:
            return None
        return InitialObservation(*self._format.conversation(prompt.messages, self._schemas))

    async def step(self, completion: Completion) -> StepResult:
        """Run the completion's calls and answer with their results; a completion without a call ends the episode."""
        calls = self._read(completion).announced
        if not calls:
            return StepResult(done=True)
        answers = await self._answers(calls)
        counts = Counter(name for answer in answers for name in answer.counts)
        messages: list[Message] = [
            self._format.result(call.name or "unknown", answer.text)
            for call, answer in zip(calls, answers, strict=True)
        ]
        errors = tuple(answer.error for answer in answers if answer.error)
        return StepResult(tuple(messages), counts=dict(counts), errors=errors)

    def close(self) -> None:
        """Close the episode's tools; an error in one is logged and does not keep the others open."""
        for opened in self._opened:
            try:
                opened.close()
            except Exception as error:
                logger.warning("a tool did not close: %s", error_text(error))
        self._opened = []

    async def _answers(self, calls: Sequence[ToolCall]) -> list[_Answer]:
        """All answers in the order of the calls. Calls run side by side, but for those that share a state."""
        if len(calls) == 1:  # nothing to do side by side: no tasks for it
            return [await self._answer(calls[0], 0)]
        chains: dict[object, list[int]] = {}
        for position, call in enumerate(calls):
            tool = self._tools.get(call.name)
            state = ("alone", position) if tool is None or tool.state is None else ("shared", id(tool.state))
            chains.setdefault(state, []).append(position)
        answers: list[_Answer | None] = [None] * len(calls)

        async def run(chain: Sequence[int]) -> None:
            for index in chain:
                answers[index] = await self._answer(calls[index], index)

        await side_by_side([run(chain) for chain in chains.values()])
        return [answer for answer in answers if answer is not None]

    async def _answer(self, call: ToolCall, index: int) -> _Answer:
        if not call.name:
            return _failure(f"the call cannot be read; expected {self._format.expected}", "malformed_calls")
        if index >= self._most_calls:
            return _failure(f"not run: a turn may have {self._most_calls} calls", "tool_calls", "tool_errors")
        tool = self._tools.get(call.name)
        if tool is None:
            there = ", ".join(self._tools)
            problem = f"there is no tool {call.name[:60]!r}{did_you_mean(call.name, self._tools)}; there are: {there}"
            return _failure(problem, "tool_calls", "unknown_tools")
        arguments, complaint = fitting(tool.schema, call.arguments)
        if complaint:
            return _failure(f"{tool.name}: {complaint}", "tool_calls", "malformed_calls")
        return await self._called(tool, arguments)

    async def _called(self, tool: Tool, arguments: Mapping[str, Any]) -> _Answer:
        work = _async_work if inspect.iscoroutinefunction(tool.call) else _work
        call = functools.partial(work, tool, dict(arguments), self._limits.characters)
        result, problem = await self._within_limit(call, tool.name, tool.ends_itself)
        if isinstance(problem, WhetError):
            raise problem  # what runs the tools is broken, not the tool
        if isinstance(problem, ToolTimedOut):
            return _failure(f"{tool.name}: {problem}", "tool_calls", "tool_timeouts")
        if problem is not None:
            text = str(problem) if isinstance(problem, ToolFailed) else error_text(problem)
            return _failure(f"{tool.name}: {text}", "tool_calls", "tool_errors")
        text, is_cut = shown(result, self._limits.characters)
        return _Answer(text, ("tool_calls", "truncated_results") if is_cut else ("tool_calls",))

    async def _within_limit(
        self, call: Callable[[], Any], what: str, ends_itself: bool
    ) -> tuple[Any, BaseException | None]:
        """What a call gives, or what it met. One that hangs is given up: its thread is lost, and those are counted."""
        pool = self._pools[ends_itself]
        future = pool.submit(call)
        await finished(future, None if ends_itself else self._limits.seconds)
        if future.done():
            error = future.exception()
            return (None, error) if error is not None else (future.result(), None)
        pool.give_up(future, f"the tool {what}")
        return None, ToolTimedOut(f"took longer than {self._limits.seconds:g} s and was given up")


def _without_frames(text: str) -> str:
    """The text without tags that would end its own frame, or open another."""
    return re.sub(r"<(?=\s*/?\s*tool_)", "< ", text, flags=re.IGNORECASE)


def _failure(problem: str, *counts: str) -> _Answer:
    line = error_line(problem)
    return _Answer(line, counts, line.removeprefix("error: "))


def _work(tool: Tool, arguments: dict[str, Any], most: int) -> Any:
    """Call and write the result down, both in the tool's own time."""
    with _only_failures(tool):
        value = tool.call(**arguments)
        if isinstance(value, AsyncIterator) or inspect.isawaitable(value):
            return _async_result(tool, value, most)
        return result_text(value, most)


async def _async_work(tool: Tool, arguments: dict[str, Any], most: int) -> ToolText:
    with _only_failures(tool):
        return result_text(await _awaited(tool.call(**arguments)), most)


async def _async_result(tool: Tool, value: Any, most: int) -> ToolText:
    with _only_failures(tool):
        return result_text(await _awaited(value), most)


async def _awaited(value: Any) -> Any:
    """What a coroutine returns, or an async generator yields."""
    if inspect.isawaitable(value):
        value = await value
    if not isinstance(value, AsyncIterator):
        return value
    items: list[Any] = []
    async for item in value:
        items.append(item)
        if len(items) == MOST_ITEMS:
            break
    return items


@contextlib.contextmanager
def _only_failures(tool: Tool) -> Iterator[None]:
    """Whatever a tool raises becomes a failure: SystemExit would end an event loop, StopIteration fits no future."""
    try:
        yield
    except (ToolFailed, asyncio.CancelledError):
        raise
    except BaseException as error:
        if tool.ends_itself and isinstance(error, WhetError):
            raise
        raise ToolFailed(error_text(error)) from None


def with_instructions(messages: Sequence[Message], instructions: str, role: str = "system") -> tuple[Message, ...]:
    """The conversation with the instructions at the end of its system message, or in one of their own.

    `role` "user": at the beginning of the user's first message.
    """
    first = messages[0] if messages and messages[0].get("role") == role else None
    if first is None or not isinstance(first.get("content"), str):
        return ({"role": role, "content": instructions}, *messages)
    parts = (first["content"], instructions) if role == "system" else (instructions, first["content"])
    return ({**first, "content": "\n\n".join(parts)}, *messages[1:])


def check_names(sources: Sequence[ToolSource]) -> None:
    """Refuse two tools of one name: a call could mean either."""
    owners: dict[str, str] = {}
    for source in sources:
        for schema in source.schemas:
            name = tool_name(schema)
            if name in owners:
                raise WhetError(
                    f"two tools are called {name!r}: of {owners[name]!r} and of {source.name!r}; rename or drop one"
                )
            owners[name] = source.name
