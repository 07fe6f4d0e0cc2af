"""How calls are written in a run: read, explained and answered as the chat template does, as JSON, or as Python.

How the policy calls tools, for environments that have some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whet.data.call_formats import (
    EXAMPLES,
    Calls,
    call_openings,
    call_reader,
    call_stops,
    call_text,
    chosen_format,
    expected_call,
    template_shows,
    tool_instructions,
)
from whet.data.chat import templated
from whet.data.turns import turn_renderer
from whet.envs.tools.tool_environment import CallFormat
from whet.types import Completion, WhetError


@dataclass(frozen=True)
class Calling:
    """The settings of a run that environments with tools need."""

    tools: Sequence[str | Callable[..., Any]] = ()  # beside the environment's own
    call_format: str = "auto"
    tool_seconds: float = 10.0
    tokenizer: Any = None
    history: str = "template"
    instructions: bool = True


def call_format_of(
    name: str,
    schemas: Sequence[Mapping[str, Any]],
    tokenizer: Any,
    history: str = "template",
    instructions: bool = True,
) -> CallFormat:
    """The format of a run. A template that cannot write calls, or not the tools' answers, is refused here.

    `instructions` False: prompts say themselves what can be called, where the template does not; of "loose" calls
    the template says nothing then.
    Without a tokenizer nothing is known of a template: the format is then JSON, to look at an environment before a
    model is read.
    """
    chosen = "json" if tokenizer is None else chosen_format(name, tokenizer, schemas)

    def reader(schemas: Sequence[Mapping[str, Any]]) -> Callable[[Completion], Calls]:
        return call_reader(chosen, tokenizer, schemas)

    def instruct(schemas: Sequence[Mapping[str, Any]]) -> str:
        return tool_instructions(chosen, schemas) if instructions else ""

    def written(name: str, arguments: Any) -> str:
        return call_text(chosen, name, arguments)

    if tokenizer is None:
        return CallFormat(reader, EXAMPLES[chosen])
    if not tokenizer.chat_template:
        return CallFormat(reader, EXAMPLES[chosen], instruct, call_stops(chosen), answers_as="user", written=written)
    if chosen == "template" or (chosen == "loose" and instructions and template_shows(tokenizer, schemas)):
        turn_renderer(tokenizer, chat=True, tools=schemas, history=history, roles=("tool",))
        openings = call_openings(chosen, tokenizer, schemas)
        return CallFormat(reader, expected_call(chosen, tokenizer, schemas), openings=openings)
    instructs_as, answers_as = _instructing_role(tokenizer), _answering_role(tokenizer, history)
    openings = call_openings(chosen, tokenizer, schemas)
    return CallFormat(
        reader, EXAMPLES[chosen], instruct, call_stops(chosen), instructs_as, answers_as, written, openings
    )


def _instructing_role(tokenizer: Any) -> str:
    """The role whose message holds the instructions: the system where the template shows it, else the user."""
    probe = "probe0instructions"
    try:
        shown: str = templated(
            tokenizer, [{"role": "system", "content": probe}, {"role": "user", "content": "?"}], "tools"
        )
    except WhetError:
        return "user"
    return "system" if probe in shown else "user"


def _answering_role(tokenizer: Any, history: str) -> str:
    """The role that brings tool results: the tool where the template knows that role, else the user."""
    try:
        turn_renderer(tokenizer, chat=True, history=history, roles=("tool",))
    except WhetError:
        turn_renderer(tokenizer, chat=True, history=history, roles=("user",))
        return "user"
    return "tool"
