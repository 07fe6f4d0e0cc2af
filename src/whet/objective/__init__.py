"""The loss layer: pure functions on tensors. Needs torch and `whet.types`, nothing else."""

from whet.objective.advantage import Memory
from whet.objective.aggregate import step_totals
from whet.objective.axes import (
    AXES,
    description,
    differences,
    preset_named,
    title,
    with_changes,
)
from whet.objective.check import Setting, check_setting
from whet.objective.policy import Loss, Objective
from whet.objective.presets import PRESETS
from whet.objective.presets.preset import Preset

__all__ = [
    "AXES",
    "PRESETS",
    "Loss",
    "Memory",
    "Objective",
    "Preset",
    "Setting",
    "check_setting",
    "description",
    "differences",
    "preset_named",
    "step_totals",
    "title",
    "with_changes",
]
