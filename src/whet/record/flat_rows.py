"""The logs of a run as flat rows under one set of names: tables, CSV, Parquet and trackers all use these.

A long log in bounded memory and time: the first items, the last, and evenly spaced ones in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

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
        """Add an item; some between the first and the last may be dropped."""
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


COUNTS_PREFIX = "counts/"  # in front of a count whose name a metric has taken


def step_row(line: Mapping[str, Any]) -> dict[str, Any]:
    """One step of metrics.jsonl, flat: `reward` is the total and `reward/PART` a part, `seconds` all of the step and
    `seconds/PHASE` one phase; metrics and counts keep their names. `completion_length`, `truncated_share` and
    `tokens_per_second` are what the counts come to. None for what was not finite."""
    seconds = {name: value for name, value in line["seconds"].items() if value is not None}
    row: dict[str, Any] = {"step": line["step"]}
    if "total" in line["reward"]:
        row["reward"] = line["reward"]["total"]
    row |= {f"reward/{name}": value for name, value in line["reward"].items() if name != "total"}
    row |= {name: value for name, value in line["metrics"].items() if name not in row}
    for name, count in line["counts"].items():
        row[f"{COUNTS_PREFIX}{name}" if name in row else name] = count
    row["seconds"] = sum(seconds.values())
    for name, (part, whole) in shares(line["counts"], row["seconds"]).items():
        if name not in row and part is not None and whole:
            row[name] = part / whole
    row |= {f"seconds/{name}": value for name, value in seconds.items()}
    return {**row, "policy_version": line["policy_version"], "health": list(line["health"])}


def shares(counts: Mapping[str, int], seconds: float) -> dict[str, tuple[int | None, float | None]]:
    """The quantities of a step that are one count over another, or over its time."""
    samples = counts.get("samples")
    return {
        "completion_length": (counts.get("tokens"), samples),
        "truncated_share": (counts.get("truncated"), samples),
        "tokens_per_second": (counts.get("tokens"), seconds),
    }


def eval_row(line: Mapping[str, Any]) -> dict[str, Any]:
    """One evaluation of metrics.jsonl, flat."""
    return {"step": line["step"], "eval": line["eval"], **line["result"], "seconds": line["seconds"].get("evaluate")}


def sample_row(line: Mapping[str, Any]) -> dict[str, Any]:
    """One line of samples.jsonl, flat: `reward/PART` for its parts, the turns of an episode as they are."""
    parts = {f"reward/{name}": value for name, value in (line.get("parts") or {}).items()}
    return {**{name: value for name, value in line.items() if name != "parts"}, **parts}


def sample_reward(line: Mapping[str, Any]) -> float | None:
    """The reward of a line of samples.jsonl; None where it could not be scored."""
    reward = line.get("reward")
    return None if reward is None else float(reward)
