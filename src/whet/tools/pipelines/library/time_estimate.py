"""How long a training of a stage may take, where rates were measured on a device like this one."""

from __future__ import annotations

from typing import Any

from whet.model.load import device_choice
from whet.tools.planner.from_config import UNKNOWN_PROMPT, device_plan, this_device


def training_seconds(config: Any, steps: int, room: Any = None) -> float | None:
    """Seconds of so many steps by the plan of `whet plan`; None on a CPU, whose rates nobody measured."""
    if room is None:
        device = device_choice(config.model.device)
        if device.type != "cuda":
            return None
        room = this_device(device)
    plan = device_plan(config, room, UNKNOWN_PROMPT, 1)
    return plan.time.step * steps if plan is not None and plan.time.phases and steps else None
