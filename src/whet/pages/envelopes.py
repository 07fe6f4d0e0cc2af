"""Columns of a long log in bounded memory: per stretch of rows the lowest, the highest and the mean value.

A stretch is one row at first. When there are too many, neighbours are merged and every stretch is twice as wide, so no
extreme is ever lost, whatever the length of the run. A chart gets as many points as it can show, for the steps it
shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

MOST_STRETCHES = 16_384
MOST_COLUMNS = 400  # names that are kept; a run that invents a name per step must not fill the memory
DIGITS = 6
Floats = np.ndarray


@dataclass
class Column:
    low: Floats
    high: Floats
    total: Floats
    count: Floats


@dataclass
class SeriesPoints:
    """What is drawn: means, and where several rows share a point, their extremes."""

    x: list[float] = field(default_factory=list)
    y: list[float | None] = field(default_factory=list)
    low: list[float | None] = field(default_factory=list)
    high: list[float | None] = field(default_factory=list)
    is_merged: bool = False  # some point stands for several rows


class Envelopes:
    """Rows are added in order; the first `size` entries of the arrays are in use."""

    def __init__(self, most: int = MOST_STRETCHES) -> None:
        self._most = most  # even
        self.width = 1  # rows of a stretch
        self.num_rows = 0
        self.num_left_out = 0  # names beyond MOST_COLUMNS
        self._steps, self._places = np.zeros(0), np.zeros(0, np.int64)  # of each stretch's first row
        self._columns: dict[str, Column] = {}

    @property
    def size(self) -> int:
        """Stretches so far."""
        return -(-self.num_rows // self.width)

    @property
    def names(self) -> list[str]:
        return list(self._columns)

    def add(self, steps: Sequence[float], places: Sequence[int], rows: Sequence[Mapping[str, float]]) -> None:
        """Rows with their steps and the places of their lines."""
        for start in range(0, len(rows), 1024):
            end = start + 1024
            self._add(np.asarray(steps[start:end], float), np.asarray(places[start:end], np.int64), rows[start:end])

    def _add(self, steps: Floats, places: Floats, rows: Sequence[Mapping[str, float]]) -> None:
        while -(-(self.num_rows + len(rows)) // self.width) > self._most:
            self._merge_neighbours()
        stretches = (self.num_rows + np.arange(len(rows))) // self.width
        first, cuts = stretches[0], np.flatnonzero(np.diff(stretches, prepend=stretches[0] - 1))
        self._reserve(int(stretches[-1]) + 1)
        begins = (self.num_rows + np.arange(len(rows))) % self.width == 0
        self._steps[stretches[begins]], self._places[stretches[begins]] = steps[begins], places[begins]
        used = slice(int(first), int(stretches[-1]) + 1)
        for name in dict.fromkeys(name for row in rows for name in row):
            column = self._column(name)
            if column is None:
                continue
            values = np.array([row.get(name, np.nan) for row in rows], float)
            values[~np.isfinite(values)] = np.nan
            column.low[used] = np.fmin(column.low[used], np.fmin.reduceat(values, cuts))
            column.high[used] = np.fmax(column.high[used], np.fmax.reduceat(values, cuts))
            column.total[used] += np.add.reduceat(np.nan_to_num(values), cuts)
            column.count[used] += np.add.reduceat(np.isfinite(values).astype(np.int64), cuts)
        self.num_rows += len(rows)

    def _column(self, name: str) -> Column | None:
        if name not in self._columns:
            if len(self._columns) >= MOST_COLUMNS:
                self.num_left_out += 1
                return None
            length = len(self._steps)
            empty = np.full(length, np.nan, np.float32)
            self._columns[name] = Column(empty, empty.copy(), np.zeros(length), np.zeros(length, np.int32))
        return self._columns[name]

    def _reserve(self, length: int) -> None:
        have = len(self._steps)
        if have >= length:
            return
        more = max(length, 2 * have, 256) - have
        self._steps, self._places = (
            np.append(self._steps, np.zeros(more)),
            np.append(self._places, np.zeros(more, np.int64)),
        )
        for column in self._columns.values():
            column.low = np.append(column.low, np.full(more, np.nan, np.float32))
            column.high = np.append(column.high, np.full(more, np.nan, np.float32))
            column.total = np.append(column.total, np.zeros(more))
            column.count = np.append(column.count, np.zeros(more, np.int32))

    def _merge_neighbours(self) -> None:
        size = self.size
        self.width *= 2
        half = -(-size // 2)
        self._steps[:half], self._places[:half] = self._steps[:size:2].copy(), self._places[:size:2].copy()
        for column in self._columns.values():
            for name, join, rest in (
                ("low", np.fmin, np.nan),
                ("high", np.fmax, np.nan),
                ("total", np.add, 0),
                ("count", np.add, 0),
            ):
                values = getattr(column, name)
                left, right = values[:size:2].copy(), values[1:size:2].copy()
                left[: len(right)] = join(left[: len(right)], right)
                values[:half], values[half:size] = left, rest

    def points(self, name: str, start: float | None, end: float | None, most: int) -> SeriesPoints:
        """A column between two steps, at most so many points."""
        column = self._columns.get(name)
        first, last = self._range(start, end)
        if column is None or first >= last:
            return SeriesPoints()
        group = max(1, -(-(last - first) // most))
        cuts = np.arange(first, last, group)
        edge = slice(0, last)
        count = np.add.reduceat(column.count[edge], cuts)
        total = np.add.reduceat(column.total[edge], cuts)
        low, high = np.fmin.reduceat(column.low[edge], cuts), np.fmax.reduceat(column.high[edge], cuts)
        there = count > 0
        mean = total[there] / count[there]
        return SeriesPoints(
            self._steps[cuts][there].tolist(),
            _rounded(mean),
            _rounded(low[there]),
            _rounded(high[there]),
            bool((count > 1).any()),
        )

    def place_of(self, step: float) -> int:
        """Where to begin reading the log to find a step."""
        size = self.size
        found = int(np.searchsorted(self._steps[:size], step, "right")) - 1
        return int(self._places[max(found, 0)]) if size else 0

    def rows_between(self, start: float | None, end: float | None) -> int:
        """About how many rows have a step between these."""
        first, last = self._range(start, end)
        return int(min((last - first) * self.width, self.num_rows))

    def last_values(self, name: str, count: int) -> list[float]:
        """The means of the last stretches that have any value."""
        column, size = self._columns.get(name), self.size
        if column is None:
            return []
        there = np.flatnonzero(column.count[:size])[-count:]
        return [float(value) for value in column.total[there] / column.count[there]]

    def _range(self, start: float | None, end: float | None) -> tuple[int, int]:
        steps = self._steps[: self.size]
        # one stretch more on either side: a line must reach the edges of the chart
        first = 0 if start is None else max(0, int(np.searchsorted(steps, start, "right")) - 2)
        last = len(steps) if end is None else min(len(steps), int(np.searchsorted(steps, end, "right")) + 1)
        return first, last


def _rounded(values: Floats) -> list[float | None]:
    """To what a screen can show; None where there is no value."""
    size = np.abs(values, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        power = np.where(size > 0, np.clip(np.floor(np.log10(size)), -290, 290), 0.0)
    unit = 10.0 ** (power - DIGITS + 1)
    short = np.round(values / unit) * unit
    # a unit such as 1e-6 is not exact in binary: the last digits are cut once more
    there = np.isfinite(short)
    return [float(f"{value:.7g}") if ok else None for value, ok in zip(short.tolist(), there.tolist(), strict=True)]
