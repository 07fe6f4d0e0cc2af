"""What the environment paid: the reward of a run whose environment gives one."""

from __future__ import annotations


def environment(completion: str, returned: float | None) -> float | None:
    """The sum of the environment's rewards over the turns of an episode. Unscorable where it gave none."""
    return returned
