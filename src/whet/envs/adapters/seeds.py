"""Which task an episode plays: every sample of a prompt plays the same one."""

from __future__ import annotations

import zlib

from whet.types import Prompt

SEED = "seed"  # the column that names it


def seed_of(prompt: Prompt) -> int:
    """The prompt's column `seed`, or a number made from its id: the same in every run."""
    given = prompt.meta.get(SEED)
    if given is None:
        return zlib.crc32(prompt.id.encode())
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise ValueError(f"prompt {prompt.id!r} has the seed {given!r}; expected a whole number from 0 on")
    return given
