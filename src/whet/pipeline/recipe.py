"""A pipeline's recipe: what it is called, what can be set, and the stages that settings make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from whet.pipeline.stages import Stage


@dataclass(frozen=True)
class Recipe:
    """`stages(settings)` refuses settings that cannot work before anything is done."""

    name: str
    about: str  # one line for the list
    settings: type[BaseModel]
    stages: Callable[[Any], list[Stage]]
