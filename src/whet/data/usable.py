"""Rows that cannot be read: the first is an error that says how many there are, or all are left out and counted.

A reader is any function from rows to values. Rules about the data as a whole (ids that differ, labels of both kinds)
are checked on the rows that are kept, by reading those together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from whet.data.rows import BadRow, Row
from whet.types import WhetError

Value = TypeVar("Value")
MOST_REASONS = 4


class Usable(list[Value]):
    """The values of usable rows; `left_out` counts the others by reason, `notes` names the columns they came from."""

    def __init__(
        self, values: Iterable[Value] = (), left_out: Mapping[str, int] | None = None, notes: str = ""
    ) -> None:
        super().__init__(values)
        self.left_out = Counter(getattr(values, "left_out", {})) + Counter(left_out or {})
        self.notes = notes or getattr(values, "notes", "")
        self.places: list[str] = []  # file and line of each value, where a row became one value
        self.total: int = getattr(values, "total", 0)  # values that these were chosen of; 0: these are all


def usable(rows: Sequence[Row], read: Callable[[Sequence[Row]], list[Value]], drop: bool = False) -> Usable[Value]:
    """What `read` makes of the rows; with `drop` of those it takes, and at least half of them must be."""
    if not drop:
        try:
            fault = next((row.fault for row in rows if row.fault is not None), None)
            if fault is not None:
                raise fault
            return _placed(Usable(read(rows)), rows)
        except BadRow as error:
            raise WhetError(f"{error}{_others(rows, read)}") from error
    good_rows, refused = _sorted_out(rows, read)
    if 2 * len(refused) > len(rows):
        raise WhetError(
            f"{refused[0]}; {len(refused)} of {len(rows)} rows cannot be used, and data.unusable=drop leaves out at "
            "most half; is it the right file, and do its columns have the right names (data.columns)?"
        )
    return _placed(Usable(read(good_rows), Counter(bad_row.reason for bad_row in refused)), good_rows)


def _placed(values: Usable[Value], rows: Sequence[Row]) -> Usable[Value]:
    if len(values) == len(rows):
        values.places = [row.where for row in rows]
    return values


def without(values: Sequence[Value], numbers: Sequence[int], left_out: Mapping[str, int]) -> Usable[Value]:
    """The values of these numbers; the others are counted by reason, beside those that were left out before."""
    before = Counter(getattr(values, "left_out", {}))
    remaining = Usable([values[number] for number in numbers], before + Counter(left_out), getattr(values, "notes", ""))
    places = getattr(values, "places", [])
    remaining.places = [places[number] for number in numbers] if places else []
    remaining.total = getattr(values, "total", 0)
    return remaining


def evenly(values: Sequence[Value], count: int) -> Usable[Value]:
    """At most `count` of the values, at equal distances: the first ones of a file may all be of one kind."""
    count = min(count, len(values))
    chosen = without(values, [number * len(values) // count for number in range(count)], {})
    chosen.total = chosen.total or (len(values) if count < len(values) else 0)
    return chosen


def count_words(values: Sequence[Any], count: int | None = None) -> str:
    """How many there are, or `count` of them that fit, and of how many they were chosen: `200 of 1,319`."""
    total, count = getattr(values, "total", 0), len(values) if count is None else count
    return f"{count} of {total:,}" if total else str(count)


def chosen_facts(values: Sequence[Any]) -> dict[str, str]:
    """That an evaluation asks only some of the questions; empty where it asks all."""
    total = getattr(values, "total", 0)
    return {"questions": f"{count_words(values)}, evenly spread; eval.prompts={total} asks all"} if total else {}


def left_out_words(left_out: Mapping[str, int]) -> str:
    """`5 unusable: chosen is empty (3), label is null (2)`, the commonest first; nothing where none was left out."""
    if not left_out:
        return ""
    ordered = Counter(left_out).most_common()
    reasons = [f"{reason} ({count})" for reason, count in ordered[:MOST_REASONS]]
    rest = sum(count for _, count in ordered[MOST_REASONS:])
    reasons += [f"other reasons ({rest})"] if rest else []
    return f"{sum(left_out.values())} unusable: {', '.join(reasons)}"


def _sorted_out(rows: Sequence[Row], read: Callable[[Sequence[Row]], list[Value]]) -> tuple[list[Row], list[BadRow]]:
    good_rows, refused = [], []
    for row in rows:
        try:
            if row.fault is not None:
                raise row.fault
            read([row])
            good_rows.append(row)
        except BadRow as error:
            refused.append(error)
    return good_rows, refused


def _others(rows: Sequence[Row], read: Callable[[Sequence[Row]], list[Value]]) -> str:
    """The fix for all bad rows at once, where leaving them out would be one."""
    refused = _sorted_out(rows, read)[1]
    if not refused or 2 * len(refused) > len(rows):
        return ""
    return f"; or leave out the {len(refused)} of {len(rows)} rows that cannot be used: data.unusable=drop"
