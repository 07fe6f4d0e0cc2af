"""Which prompts a run visits next. The whole state can be saved.

`by_difficulty` visits prompts whose completions all agreed less often, but never forgets them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from whet.data.cursor import Cursor
from whet.rollout.seed import request_seed

SELDOM = 0.1  # how often a prompt whose completions all agreed is visited, relative to one of middling difficulty


class PromptOrder:
    """A walk over the prompts, epoch after epoch, each epoch shuffled anew."""

    def __init__(self, num_prompts: int, seed: int, by_difficulty: bool = False) -> None:
        self.seed, self._by_difficulty = seed, by_difficulty
        self._cursor = Cursor(num_prompts, seed)
        self._rates: dict[int, float] = {}  # mean outcome of a prompt's last visit, by row

    def take(self, count: int) -> list[int]:
        """The rows of the next prompts."""
        rows: list[int] = []
        while len(rows) < count:
            (row,), self._cursor = self._cursor.take(1)
            if not self._by_difficulty or self._is_visited(row):
                rows.append(row)
        return rows

    def record(self, outcomes: Iterable[tuple[int, float]]) -> None:
        """Remember the (row, mean outcome) of prompts that were visited."""
        if self._by_difficulty:
            self._rates.update(outcomes)

    def _is_visited(self, row: int) -> bool:
        draw = request_seed(self.seed, "visit", self._cursor.position) / 2**64
        return draw < visit_share(self._rates.get(row))

    def state(self) -> dict[str, Any]:
        """The position and the rates seen so far, as JSON values; the seed is not saved."""
        return {"position": self._cursor.position, "rates": {str(row): rate for row, rate in self._rates.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; exact only with the same seed and number of prompts."""
        self._cursor = replace(self._cursor, position=state["position"])
        self._rates = {int(row): rate for row, rate in state["rates"].items()}


def visit_share(rate: float | None) -> float:
    """How often a prompt is visited: 1 if new or solved half the time, `SELDOM` if its completions all agreed."""
    if rate is None or not 0 <= rate <= 1:
        return 1.0
    return SELDOM + (1 - SELDOM) * 4 * rate * (1 - rate)
