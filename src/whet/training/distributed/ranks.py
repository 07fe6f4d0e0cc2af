"""The processes of one run, and how they share its work.

Every rank runs the same loop over the same whole batch. Work on rows is shared out, done, and gathered, so that what
follows (advantages, filters, memory, the report) is computed everywhere from the same values in the same order. Sums
are taken over gathered numbers in the order of the ranks: every rank holds the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from whet.types import WhetError

T = TypeVar("T")

UNEVEN = 1.2  # times the mean: a rank with more work than this is not worth keeping families together


class OtherRankFailed(Exception):
    """Another rank could not do its part; this one did. The message has that rank's own error."""

    def __init__(self, rank: int, error: str) -> None:
        super().__init__(f"rank {rank}: {error}")
        self.rank, self.error = rank, error


@dataclass(frozen=True)
class Ranks:
    """The ranks that train together, as this process sees them. All methods but `shares` are for all ranks at once."""

    rank: int = 0
    size: int = 1
    group: Any = None  # of torch.distributed; None: all ranks

    @property
    def is_first(self) -> bool:
        """True on the one rank that owns the run's folder and speaks for it."""
        return self.rank == 0

    def gather(self, mine: T) -> list[T]:
        """The objects of all ranks, in the order of the ranks."""
        if self.size == 1:
            return [mine]
        values: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(values, mine, group=self.group)
        return values

    def all_of(self, work: Callable[[], T]) -> list[T]:
        """What `work` gives on every rank. Where it raises on one, every rank raises: none is left waiting.

        Only for work without collectives of its own.
        """
        if self.size == 1:
            return [work()]
        error: Exception | None = None
        value: T | None = None
        try:
            value = work()
        except Exception as raised:
            error = raised
        answers = self.gather((None if error is None else _in_words(error), value))
        if error is not None:
            raise error
        for rank, (failure, _) in enumerate(answers):
            if failure is not None:
                raise OtherRankFailed(rank, failure)
        return [answer for _, answer in answers]  # type: ignore[misc]

    def first(self, work: Callable[[], T]) -> T:
        """Run `work` on the first rank alone and return its value on all. Where it raises, every rank raises."""
        if self.size == 1:
            return work()
        answers: list[Any] = self.all_of(lambda: work() if self.is_first else None)
        return answers[0]

    def most(self, number: int) -> int:
        """The greatest number that any rank has."""
        return max(self.gather(number))

    def sum(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Each name's sum over the ranks, exactly rounded; a rank need not have every name."""
        if self.size == 1:
            return dict(numbers)
        parts: dict[str, list[float]] = {}
        for share in self.gather(dict(numbers)):
            for name, number in share.items():
                parts.setdefault(name, []).append(number)
        return {name: _exact_sum(terms) for name, terms in parts.items()}

    def sum_tensor(self, mine: Tensor) -> Tensor:
        """The sum over the ranks; the same shape everywhere."""
        if self.size == 1:
            return mine
        total = mine.clone()
        torch.distributed.all_reduce(total, group=self.group)
        return total

    def shares(self, costs: Sequence[float], families: Sequence[Hashable] | None = None) -> list[list[int]]:
        """Row numbers of each rank, ascending: about equal in cost. The same on every rank.

        Rows of one family (a prompt that is computed once) stay together, unless that leaves a rank with much more.
        """
        if self.size == 1:
            return [list(range(len(costs)))]
        if families is not None:
            units: dict[Hashable, list[int]] = {}
            for row, family in enumerate(families):
                units.setdefault(family, []).append(row)
            shares, load = self._spread(list(units.values()), costs)
            if load <= UNEVEN * sum(costs) / self.size:
                return shares
        return self._spread([[row] for row in range(len(costs))], costs)[0]

    def _spread(self, units: Sequence[list[int]], costs: Sequence[float]) -> tuple[list[list[int]], float]:
        """The dearest first, each to the rank with the least so far; and the largest load."""
        price = [sum(costs[row] for row in rows) for rows in units]
        shares: list[list[int]] = [[] for _ in range(self.size)]
        loads = [0.0] * self.size
        for unit in sorted(range(len(units)), key=lambda number: (-price[number], number)):
            least = min(range(self.size), key=lambda rank: (loads[rank], len(shares[rank]), rank))
            shares[least] += units[unit]
            loads[least] += price[unit]
        return [sorted(rows) for rows in shares], max(loads)

    def spread(
        self,
        costs: Sequence[float],
        work: Callable[[list[int]], Sequence[T]],
        families: Sequence[Hashable] | None = None,
    ) -> list[T]:
        """Do the work on this rank's rows; the results of all rows, in their order.

        `work` gets row numbers and gives one result for each. It must not talk to other ranks itself.
        """
        if self.size == 1:
            return list(work(list(range(len(costs)))))
        shares = self.shares(costs, families)
        mine = shares[self.rank]
        results: dict[int, T] = {}
        for rows, answers in zip(shares, self.all_of(lambda: list(work(mine)) if mine else []), strict=True):
            results.update(zip(rows, answers, strict=True))
        return [results[row] for row in range(len(costs))]


ALONE = Ranks()


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if not isinstance(error, WhetError) else str(error)


def _exact_sum(numbers: Sequence[float]) -> float:
    """NaN and infinities stay what they are: `fsum` refuses opposite infinities."""
    return math.fsum(numbers) if all(map(math.isfinite, numbers)) else sum(numbers)
