"""How calls are written in a run: read and explained as the chat template does, as JSON, or as Python calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from whet.data.tool_syntax import ToolCall, calls_in, named
from whet.envs.tools.environment import CallFormat
from whet.types import Completion

EXPECTED = '<tool_call>{"name": ..., "arguments": {...}}</tool_call>'


def call_format_of(name: str, schemas: Sequence[Mapping[str, Any]], tokenizer: Any) -> CallFormat:
    def read(completion: Completion, schemas: Sequence[Mapping[str, Any]]) -> list[ToolCall]:
        return [named(call, list(schemas)) for call in calls_in(completion)]

    return CallFormat(read, EXPECTED)
