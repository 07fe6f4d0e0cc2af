"""What a row is besides its components."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from whet.objective.policy import Objective


@dataclass(frozen=True)
class Preset:
    """A row and what a reader should know about it."""

    objective: Objective
    title: str
    paper: str
    formula: str  # the paper's own expression
    fixes: str
    breaks: str
    deviations: tuple[str, ...] = ()  # what the paper does not state and whet chose
    run: Mapping[str, Any] = field(default_factory=dict)  # settings of a run the row is nothing without
    small_run: Mapping[str, Any] = field(
        default_factory=dict
    )  # and for the built-in model, whose completions are short
