"""How the policy calls tools, for environments that have some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Calling:
    """The settings of a run that environments with tools need."""

    tools: Sequence[str | Callable[..., Any]] = ()  # beside the environment's own
    call_format: str = "auto"
    tool_seconds: float = 10.0
    tokenizer: Any = None
    history: str = "template"
    instructions: bool = True
