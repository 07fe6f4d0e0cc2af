"""Methods as a trainer sees them: it never asks for a name, only for what a method needs (house rule 2)."""

from collections.abc import Mapping
from typing import Any

from whet.objective.clip.whole_batch import StepClip


def told_apart(presets: Mapping[str, Any]) -> list[str]:
    """One method of each kind: fields it needs, how its reference moves, whether its clip rule surveys the step.

    What a method computes with them is shown for every one in tests/oracle and tests/properties.
    """
    kinds: dict[Any, str] = {}
    for name, preset in presets.items():
        row = preset.objective
        surveys = isinstance(getattr(row, "clip", None), StepClip)
        kinds.setdefault((row.needs(), type(row.reference), surveys), name)
    return list(kinds.values())
