"""What a preference row is besides its components."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from whet.objective.preference.objective import PairObjective


@dataclass(frozen=True)
class PairPreset:
    """A preference row and what a reader should know about it."""

    objective: PairObjective
    title: str
    paper: str
    formula: str  # the paper's own expression; d = log pi/ref, m = d_w - d_l, q = log pi a token, b = beta
    fixes: str
    breaks: str
    deviations: tuple[str, ...] = ()  # what the paper does not state, or codes do otherwise, and whet chose
    unverified: str = ""  # what could not be read in the paper or its authors' code
    run: Mapping[str, Any] = field(default_factory=dict)  # the paper's settings of a run


def settings(learning_rate: float, pairs_per_step: int | None = None) -> dict[str, Any]:
    """The settings of a run that belong to a row."""
    batch = {} if pairs_per_step is None else {"batch": {"rows_per_step": pairs_per_step}}
    return {"optimizer": {"learning_rate": learning_rate}, **batch}
