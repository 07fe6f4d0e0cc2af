"""What completions of the reference earned, kept with the prompts that they answer."""

from __future__ import annotations

import json
from contextlib import suppress

from whet.types import Prompt, WhetError, is_finite_number

REFERENCE_REWARDS = "reference_rewards"  # the column: a list of numbers, or the same as JSON text
WRITTEN_BY = "whet data difficulty FILE --model MODEL --keep-rewards -o OUT"


def reference_rewards(prompt: Prompt) -> tuple[float, ...]:
    """The rewards of one prompt: at least one."""
    value = prompt.meta.get(REFERENCE_REWARDS)
    if value is None:
        raise WhetError(f"{prompt.id}: {REFERENCE_REWARDS} is missing; write it with `{WRITTEN_BY}`, then train on OUT")
    if isinstance(value, str):
        with suppress(ValueError):  # then it is refused below, as it stands
            value = json.loads(value)
    if not isinstance(value, list | tuple) or not value or not all(is_finite_number(reward) for reward in value):
        raise WhetError(
            f"{prompt.id}: {REFERENCE_REWARDS} is no list of numbers, one or more; write it with `{WRITTEN_BY}`"
        )
    return tuple(map(float, value))
