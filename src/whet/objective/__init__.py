"""The loss layer: pure functions on tensors. Needs torch, `whet.types` and `whet.registry`, nothing else."""

from whet.objective.advantage import Memory
from whet.objective.aggregate import step_totals
from whet.objective.axes import (
    AXES,
    PAIR_AXES,
    POLICY,
    PREFERENCE,
    description,
    differences,
    preset_named,
    title,
    with_changes,
)
from whet.objective.check import RunSetting, check_setting
from whet.objective.policy import Loss, Objective
from whet.objective.preference.objective import PairObjective
from whet.objective.presets import PRESETS
from whet.objective.presets.preference import PAIR_PRESETS
from whet.objective.presets.preset import Preset

__all__ = [
    "AXES",
    "PAIR_AXES",
    "PAIR_PRESETS",
    "POLICY",
    "PREFERENCE",
    "PRESETS",
    "Loss",
    "Memory",
    "Objective",
    "PairObjective",
    "Preset",
    "RunSetting",
    "check_setting",
    "description",
    "differences",
    "preset_named",
    "step_totals",
    "title",
    "with_changes",
]
