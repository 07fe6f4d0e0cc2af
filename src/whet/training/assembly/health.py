"""What the health rules are told of a run: its settings, and the components of its method by the same names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from whet.objective import preset_named, with_changes
from whet.objective.axes import family_of
from whet.record.health.diagnosis import RULES
from whet.record.health.history import SETTINGS
from whet.record.run_kinds import RL
from whet.record.sections import HealthSection
from whet.reward.combine import RewardPart
from whet.settings.layers import flattened
from whet.training.config import Config, PolicyConfig, PreferenceConfig
from whet.types import WhetError, did_you_mean


def health_settings(config: Config, parts: Sequence[RewardPart] = ()) -> dict[str, Any]:
    """The settings that rules look at, as they are in this run: its method's included, the parts' weights by name."""
    values = flattened(config.model_dump(mode="json", exclude={"objective"}))
    if isinstance(config, PolicyConfig | PreferenceConfig):
        objective = with_changes(preset_named(config.method).objective, flattened(config.objective))
        for axis in family_of(objective).axes:
            component = getattr(objective, axis)
            values[f"objective.{axis}"] = component.name
            values |= {
                f"objective.{axis}.{setting.name}": getattr(component, setting.name) for setting in fields(component)
            }
    values["reward.parts"] = {part.name: list(part.weights) for part in parts}
    return {name: values[name] for name in SETTINGS if name in values}


def health_policy(config: Config) -> HealthSection:
    """`[health]` with the names of rules; one that no rule of such a run has is an error."""
    section = config.health
    kinds = {RL if config.kind == "policy" else config.kind}
    if isinstance(config, PreferenceConfig) and config.preference.online:
        kinds.add(RL)
    # what the clock says is not recorded with the steps, and a note is no problem
    able = [rule for rule in RULES.values() if not rule.is_timed and not rule.is_note and kinds & set(rule.kinds)]
    known = {rule.name.lower(): rule.name for rule in able}
    chosen: dict[str, str] = {}
    for problem, action in section.on_problem.items():
        name = problem.lower().replace("_", " ")
        if name not in known:
            names = ", ".join(rule.replace(" ", "_") for rule in known.values())
            hint = did_you_mean(name, known) or f"; it has {names}"
            raise WhetError(f"health.on_problem.{problem}: no rule of such a run finds a problem of this name{hint}")
        chosen[known[name]] = action
    return section.model_copy(update={"on_problem": chosen})
