"""Which task an episode plays: every sample of a prompt plays the same one."""

from __future__ import annotations

import zlib

from whet.data.seeds import SEED
from whet.types import Prompt


def seed_of(prompt: Prompt) -> int:
    """The prompt's column `seed`, or a number made from its id: the same in every run."""
    seed = prompt.meta.get(SEED)
    if seed is None:
        return zlib.crc32(prompt.id.encode())
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"prompt {prompt.id!r} has the seed {seed!r}; expected a whole number from 0 on")
    return seed
