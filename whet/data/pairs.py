"""Rows become what preferences and reward models are trained on: pairs, judged replies, rankings and labelled steps.

Each reader takes the shapes of `whet.data.shapes` besides its own columns, and stops at the first bad row with its
file, line and mend; `whet.data.usable` reads on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from whet.data.prompts import Labelled, labelled_from, pairs_from, prompts_from, renamed
from whet.data.rows import Row, mistake
from whet.data.shapes import holds_ranking, pair_row, ranked_rows, reply_row, shown
from whet.types import Prompt


@dataclass(frozen=True)
class Preference:
    """Two replies to one prompt, the first preferred."""

    prompt: Prompt
    chosen: str
    rejected: str
    margin: float = 0.0  # by how much, where the data says so
    preference: float = 1.0  # the probability that the first is the better one


@dataclass(frozen=True)
class Ranked:
    """Replies to one prompt, the best first."""

    prompt: Prompt
    replies: tuple[str, ...]  # K
    ranks: tuple[int, ...]  # [K], 0 is the best; equal where two are as good

    def pairs(self) -> list[Preference]:
        """Every two replies of different rank."""
        return [
            Preference(self.prompt, self.replies[better], self.replies[worse])
            for better, worse in combinations(range(len(self.replies)), 2)
            if self.ranks[better] < self.ranks[worse]
        ]


def preferences_from(
    rows: Sequence[Row], *, columns: Mapping[str, str] | None = None, as_chat: bool = False
) -> list[Preference]:
    """From `prompt`, `chosen`, `rejected`, perhaps `margin` or `preference`; all pairs of a ranking or message tree."""
    found: list[Preference] = []
    for row in renamed(rows, columns or {}):
        if holds_ranking(row):
            found += [pair for ranked in _rankings(row, as_chat) for pair in ranked.pairs()]
            continue
        (pair,) = pairs_from([pair_row(row)], as_chat=as_chat)
        found.append(Preference(pair.prompt, pair.chosen, pair.rejected, _margin(row), _preference(row)))
    return found


def judged_from(
    rows: Sequence[Row], *, columns: Mapping[str, str] | None = None, as_chat: bool = False
) -> list[Labelled]:
    """From `prompt`, `completion` (or `reply`) and `label` (or `right`), or `messages` and a label. Of both labels."""
    found = [labelled_from([reply_row(row)], as_chat=as_chat)[0] for row in renamed(rows, columns or {})]
    require_both(rows, [reply.label for reply in found])
    return found


def rankings_from(
    rows: Sequence[Row], *, columns: Mapping[str, str] | None = None, as_chat: bool = False
) -> list[Ranked]:
    """From `prompt`, `replies` and `scores`, `ranks` or `order`; from message trees; a pair is a ranking of two."""
    found = [ranked for row in renamed(rows, columns or {}) for ranked in _rankings(row, as_chat)]
    if not found and len(rows) > 1:
        raise mistake(rows[0], "the data", "holds no ranked replies", "two or more a prompt", "give another file")
    return found


def require_both(rows: Sequence[Row], labels: Sequence[bool]) -> None:
    """Raise unless good and bad replies are both there: a method that compares them learns nothing from one kind."""
    if len(rows) > 1 and len(set(labels)) == 1:
        given = f"is {str(labels[0]).lower()} in all {len(labels)} rows, from here to {rows[-1].where}"
        raise mistake(rows[0], "label", given, "good and bad replies", f"add rows with {str(not labels[0]).lower()}")


def _rankings(row: Row, as_chat: bool) -> list[Ranked]:
    found = []
    for each in ranked_rows(row):
        replies, ranks = each.values.get("replies"), each.values.get("ranks")
        if replies is None or ranks is None:  # two whole conversations, whose opening is the prompt
            (pair,) = pairs_from([each], as_chat=as_chat)
            found.append(Ranked(pair.prompt, (pair.chosen, pair.rejected), (0, 1)))
            continue
        _require_replies(each, replies)
        rest = {name: value for name, value in each.values.items() if name not in ("replies", "ranks")}
        (prompt,) = prompts_from([Row(rest, each.where)], as_chat=as_chat)
        order = sorted(range(len(replies)), key=lambda at: ranks[at])
        found.append(Ranked(prompt, tuple(replies[at] for at in order), tuple(ranks[at] for at in order)))
    return found


def _require_replies(row: Row, replies: Any) -> None:
    if not isinstance(replies, list | tuple) or len(replies) < 2:
        raise mistake(row, "replies", f"is {shown(replies)}", "two or more replies", "add replies or drop the row")
    for at, reply in enumerate(replies):
        if not isinstance(reply, str) or not reply.strip():
            raise mistake(row, f"replies[{at}]", f"is {shown(reply)}", "some text", "fill it in or drop it")
        if reply in replies[:at]:
            given = f"is the same text as replies[{replies.index(reply)}]"
            raise mistake(row, f"replies[{at}]", given, "different replies", "keep one of them")
    if len(set(row.values["ranks"])) == 1:
        raise mistake(row, "scores", "are all equal", "a reply that is better", "drop the row: ties teach no order")


def _margin(row: Row) -> float:
    return _stated(row, "margin", (0.0, math.inf), "0 or more", 0.0)


def _preference(row: Row) -> float:
    return _stated(row, "preference", (0.5, 1.0), "a probability of 0.5 to 1", 1.0)


def _stated(row: Row, name: str, bounds: tuple[float, float], expected: str, absent: float) -> float:
    """A number that says how much the chosen reply is preferred; below its least the other one is."""
    value = row.values.get(name)
    if value is None:
        return absent
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not bounds[0] <= value <= bounds[1]:
        mend = "swap chosen and rejected" if number and value < bounds[0] else "write such a number or drop the column"
        raise mistake(row, name, f"is {shown(value)}", expected, mend)
    return float(value)
