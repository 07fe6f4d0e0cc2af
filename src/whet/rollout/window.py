"""Which group is trained on next, when completions are written ahead: first in, first out, with a bounded exception.

A step trains on P groups, and no group may be older than S policy versions when it is trained on. So a group may see at
most (S + 1) P - 1 others trained on between its admission and itself. Some of those are in front of it in the queue;
the rest are younger groups that may pass it while it is unfinished:

    in flight <= capacity,    passed <= passes,    capacity + passes = (S + 1) P

`share` of (S + 1) P, rounded down, less one, is what a straggler may be passed by. A step's worth of groups is always
written while another is trained on, so passes <= (S - 1) P; with S = 1, and with share 0, the order is strict. Nothing
is dropped: a straggler that has been passed often enough is waited for. The windowed queue is that of MiniMax
(2605.26494, section 6.2.4) and torchtitan, where passing comes on top of S; here S is a promise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class InFlight:
    """A group that was asked for and is not trained on yet."""

    number: int  # groups are numbered in the order of their admission
    finished: bool = False
    passed: int = 0  # younger groups that were taken before it


class GroupWindow:
    """The groups in flight, the oldest first; a value of plain numbers, which knows nothing of samples."""

    def __init__(self, per_step: int, max_staleness: int, share: float) -> None:
        if per_step < 1 or max_staleness < 0 or not 0 <= share <= 1:
            raise ValueError(f"a window of {per_step} groups per step, staleness {max_staleness}, share {share:g}")
        budget = (max_staleness + 1) * per_step
        self.passes = max(0, min(int(share * budget) - 1, (max_staleness - 1) * per_step))
        self.capacity = budget - self.passes
        self._per_step = per_step
        self._queue: list[InFlight] = []
        self._num_taken = 0  # since the last step was trained
        self._next = 0

    @property
    def room(self) -> int:
        """Groups that may be admitted now; those that are trained on at the moment still take theirs."""
        return self.capacity - self._num_taken - len(self._queue)

    @property
    def in_flight(self) -> Sequence[InFlight]:
        """The groups that were asked for and not yet taken, the oldest first."""
        return tuple(self._queue)

    @property
    def num_finished(self) -> int:
        """How many of the groups in flight are finished."""
        return sum(entry.finished for entry in self._queue)

    def admit(self) -> int:
        """The number of a new group at the end of the queue."""
        if self.room < 1:
            raise ValueError(f"{self.capacity} groups are in flight, as many as may be")
        number, self._next = self._next, self._next + 1
        self._queue.append(InFlight(number))
        return number

    def finish(self, number: int) -> None:
        """Mark a group as written, so that `take` may return it; its place in the queue stays the same."""
        index = next(position for position, entry in enumerate(self._queue) if entry.number == number)
        self._queue[index] = replace(self._queue[index], finished=True)

    def take(self) -> InFlight | None:
        """The oldest finished group, unless it would pass one that has been passed often enough; None: wait."""
        for index, entry in enumerate(self._queue):
            if entry.finished:
                del self._queue[index]
                passed = self._queue[:index]  # made anew and not by `replace`, which a simulation would wait for
                self._queue[:index] = [InFlight(older.number, older.finished, older.passed + 1) for older in passed]
                self._num_taken += 1
                return entry
            if entry.passed >= self.passes:
                return None
        return None

    def reject(self) -> None:
        """A group that was just taken is not trained on after all: its place is free at once."""
        self._num_taken -= 1

    def trained(self) -> None:
        """The groups that were taken are trained on: their places are free."""
        self._num_taken = 0

    def state(self) -> dict[str, object]:
        """The queue and the next number as JSON values; groups taken and not trained on yet are not among them."""
        queue = [[entry.number, entry.finished, entry.passed] for entry in self._queue]
        return {"queue": queue, "next": self._next}

    def restore(self, queue: Sequence[tuple[int, bool, int]], following: int) -> None:
        """Replace the queue by a saved one; `following` is the number that the next group gets."""
        self._queue = [InFlight(number, finished, passed) for number, finished, passed in queue]
        self._num_taken, self._next = 0, following
