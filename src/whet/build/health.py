"""What the health rules are told of a run: its settings, and the components of its method by the same names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from whet.config.config import Config, PolicyConfig, PreferenceConfig, flattened
from whet.objective import preset_named, with_changes
from whet.objective.axes import family_of
from whet.report.health import SETTINGS
from whet.reward import RewardPart


def health_settings(config: Config, parts: Sequence[RewardPart] = ()) -> dict[str, Any]:
    """The settings that rules look at, as they are in this run: those of its method included, the parts by name."""
    values = flattened(config.model_dump(mode="json", exclude={"objective"}))
    if isinstance(config, PolicyConfig | PreferenceConfig):
        objective = with_changes(preset_named(config.method).objective, flattened(config.objective))
        for axis in family_of(objective).axes:
            component = getattr(objective, axis)
            values[f"objective.{axis}"] = component.name
            values |= {f"objective.{axis}.{each.name}": getattr(component, each.name) for each in fields(component)}
    values["reward.parts"] = [part.name for part in parts]
    return {name: values[name] for name in SETTINGS if name in values}
