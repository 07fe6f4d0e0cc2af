"""A long log in bounded memory and time: the first items, the last, and evenly spaced ones in between."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class ThinnedLog(Generic[Item]):
    """Which items are kept depends only on how many there were: a run that is resumed keeps what an unbroken one does.

    Up to `first + last + between` items all are kept, and never more. In between, the distance of two that are kept is
    a power of two, and doubles whenever there is no room left.
    """

    def __init__(self, first: int = 50, last: int = 200, between: int = 500) -> None:
        self._num_first, self._num_last, self._num_between = first, last, between
        self._first: list[Item] = []
        self._between: list[tuple[int, Item]] = []  # with their places in the whole log
        self._last: deque[Item] = deque()
        self._distance = 1
        self.num_items = 0  # in the whole log

    def append(self, item: Item) -> None:
        """Add one; some between the first and the last ones may go."""
        self.num_items += 1
        if len(self._first) < self._num_first:
            self._first.append(item)
            return
        self._last.append(item)
        if len(self._last) <= self._num_last:
            return
        index = self.num_items - 1 - self._num_last
        oldest = self._last.popleft()
        if index % self._distance == 0:
            self._between.append((index, oldest))
        while len(self._between) > self._num_between:
            self._distance *= 2
            self._between = [pair for pair in self._between if pair[0] % self._distance == 0]

    def items(self) -> list[Item]:
        """What is left, in order."""
        return [*self._first, *(item for _, item in self._between), *self._last]
