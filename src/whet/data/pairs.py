"""Rows become what preference methods and reward models learn from: pairs, labelled completions, rankings, steps.

Each reader takes the shapes of `whet.data.foreign_rows` besides its own columns, and stops at the first bad row with
its file, line and fix; `whet.data.usable` reads on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from whet.data.foreign_rows import completion_row, holds_ranking, pair_row, ranked_rows
from whet.data.prompts import (
    LabelledCompletion,
    PreferencePair,
    labelled_from,
    pairs_from,
    prompts_from,
)
from whet.data.rows import Row, column_notes, mistake, value_text
from whet.data.usable import Usable
from whet.types import Prompt


@dataclass(frozen=True)
class RankedCompletions:
    """Completions to one prompt, the best first."""

    prompt: Prompt
    completions: tuple[str, ...]  # K
    ranks: tuple[int, ...]  # [K], 0 is the best; equal where two are as good

    def pairs(self) -> list[PreferencePair]:
        """Every two completions of different rank."""
        return [
            PreferencePair(self.prompt, self.completions[better], self.completions[worse])
            for better, worse in combinations(range(len(self.completions)), 2)
            if self.ranks[better] < self.ranks[worse]
        ]


def preferences_from(rows: Sequence[Row], *, as_chat: bool = False) -> list[PreferencePair]:
    """From `prompt`, `chosen`, `rejected`, perhaps `margin` or `preference`; all pairs of a ranking or message tree."""
    pairs: list[PreferencePair] = []
    compared: list[Row] = []
    empty = 0
    for row in rows:
        if holds_ranking(row):
            ranked_pairs = [pair for ranked in _rankings(row, as_chat) for pair in ranked.pairs()]
            pairs += ranked_pairs
            empty += not ranked_pairs
            continue
        compared.append(pair_row(row))
        (pair,) = pairs_from(compared[-1:], as_chat=as_chat)
        pairs.append(PreferencePair(pair.prompt, pair.chosen, pair.rejected, _margin(row), _preference(row)))
    return Usable(pairs, _unranked(empty), column_notes(compared))


def labelled_completions_from(rows: Sequence[Row], *, as_chat: bool = False) -> list[LabelledCompletion]:
    """From `prompt`, `completion` (or `reply`) and `label` (or `right`), or `messages`
    and a label. Rows of both labels are needed."""
    judged = [completion_row(row) for row in rows]
    labelled = [labelled_from([row], as_chat=as_chat)[0] for row in judged]
    require_both(rows, [completion.label for completion in labelled])
    return Usable(labelled, notes=column_notes(judged))


def rankings_from(rows: Sequence[Row], *, as_chat: bool = False) -> list[RankedCompletions]:
    """From `prompt`, `completions` and `scores`, `ranks` or `order`; from message trees; a pair is a ranking of two."""
    by_row = [_rankings(row, as_chat) for row in rows]
    rankings = [ranked for row_rankings in by_row for ranked in row_rankings]
    if not rankings and len(rows) > 1:
        raise mistake(rows[0], "the data", "holds no ranked completions", "two or more per prompt", "give another file")
    return Usable(rankings, _unranked(sum(not row_rankings for row_rankings in by_row)))


def _unranked(empty: int) -> dict[str, int]:
    """A message tree may have no turn with two ranked answers: such rows are counted, not passed over."""
    return {"no two ranked completions": empty} if empty else {}


def require_both(rows: Sequence[Row], labels: Sequence[bool]) -> None:
    """Raise unless there are good and bad completions: a method that compares them learns nothing from one kind."""
    if len(rows) > 1 and len(set(labels)) == 1:
        fault = f"is {str(labels[0]).lower()} in all {len(labels)} rows, from here to {rows[-1].where}"
        raise mistake(
            rows[0], "label", fault, "good and bad completions", f"add rows with {str(not labels[0]).lower()}"
        )


def _rankings(row: Row, as_chat: bool) -> list[RankedCompletions]:
    rankings = []
    for ranked_row in ranked_rows(row):
        completions, ranks = ranked_row.values.get("completions"), ranked_row.values.get("ranks")
        if completions is None or ranks is None:  # two whole conversations, whose opening is the prompt
            (pair,) = pairs_from([ranked_row], as_chat=as_chat)
            rankings.append(RankedCompletions(pair.prompt, (pair.chosen, pair.rejected), (0, 1)))
            continue
        _require_completions(ranked_row, completions)
        rest = {name: value for name, value in ranked_row.values.items() if name not in ("completions", "ranks")}
        (prompt,) = prompts_from([ranked_row.changed(rest)], as_chat=as_chat)
        order = sorted(range(len(completions)), key=lambda at: ranks[at])
        rankings.append(
            RankedCompletions(prompt, tuple(completions[at] for at in order), tuple(ranks[at] for at in order))
        )
    return rankings


def _require_completions(row: Row, completions: Any) -> None:
    if not isinstance(completions, list | tuple) or len(completions) < 2:
        raise mistake(
            row,
            "completions",
            f"is {value_text(completions)}",
            "two or more completions",
            "add completions or drop the row",
        )
    for at, completion in enumerate(completions):
        if not isinstance(completion, str) or not completion.strip():
            raise mistake(
                row, f"completions[{at}]", f"is {value_text(completion)}", "some text", "fill it in or drop it"
            )
        if completion in completions[:at]:
            fault = f"is the same text as completions[{completions.index(completion)}]"
            raise mistake(row, f"completions[{at}]", fault, "different completions", "keep one of them")
    if len(set(row.values["ranks"])) == 1:
        raise mistake(
            row, "scores", "are all equal", "a completion that is better", "drop the row: ties teach no order"
        )


def _margin(row: Row) -> float:
    return _stated(row, "margin", (0.0, math.inf), "0 or more", 0.0)


def _preference(row: Row) -> float:
    return _stated(row, "preference", (0.5, 1.0), "a probability of 0.5 to 1", 1.0)


def _stated(row: Row, name: str, bounds: tuple[float, float], expected: str, absent: float) -> float:
    """A number that says how much the chosen completion is preferred; below its least the other one is."""
    value = row.values.get(name)
    if value is None:
        return absent
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not bounds[0] <= value <= bounds[1]:
        fix = "swap chosen and rejected" if number and value < bounds[0] else "write such a number or drop the column"
        raise mistake(row, name, f"is {value_text(value)}", expected, fix)
    return float(value)
