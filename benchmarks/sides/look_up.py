"""The environment that both sides of a comparison play, as TRL has them: a class whose public methods are tools.

What it answers differs with every call and has always the same length. Standard library only.
"""

from __future__ import annotations

import zlib
from typing import Any

WORDS = 60  # of an answer


class LookUp:
    """Looks words up."""

    def __init__(self) -> None:
        self._asked = ""

    def reset(self, **row: Any) -> None:
        self._asked = ""

    def look_up(self, about: str) -> str:
        """
        Look something up.

        Args:
            about: What to look up.

        Returns:
            What is known about it.
        """
        self._asked += about
        start = zlib.crc32(about.encode())
        return " ".join(f"w{(start + 7919 * place) % 20000}" for place in range(WORDS))

    def get_reward(self) -> float:
        return zlib.crc32(self._asked.encode()) % 1000 / 1000
