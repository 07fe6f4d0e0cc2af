"""What every piece of a row has: a name, what it needs annotated, and itself in words."""

from __future__ import annotations

from typing import ClassVar


class Piece:
    """One choice on one axis of a row. A frozen dataclass whose fields are its numbers."""

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()  # fields of TokenBatch or Extras beyond rewards

    def words(self) -> str:
        """The piece in a sentence; empty where there is nothing to say."""
        return ""
