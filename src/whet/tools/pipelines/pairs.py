"""Pairs made of a policy's own completions. Pure: rows in; rows for preference training out, and what was dropped.

A row of completions has `id`, `prompt`, `completions`, `finished` (False: cut off at the budget) and, where they were
scored, `scores` (None: unscorable).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from whet.types import Prompt

JSONRow = Mapping[str, Any]


def prompt_row(prompt: Prompt) -> dict[str, Any]:
    """The columns that a prompt is read back from."""
    content: Any = prompt.text if prompt.text is not None else [dict(message) for message in prompt.messages]
    return {"id": prompt.id, "prompt": content}


def row_prompt(row: JSONRow) -> Prompt:
    """The prompt that `prompt_row` wrote."""
    content = row["prompt"]
    is_text = isinstance(content, str)
    return Prompt(row["id"], () if is_text else tuple(content), content if is_text else None)


def pair_row(row: JSONRow, chosen: str, rejected: str, **more: Any) -> dict[str, Any]:
    return {"id": row["id"], "prompt": row["prompt"], "chosen": chosen, "rejected": rejected, **more}


def best_against_worst(rows: Sequence[JSONRow]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The best completion of each prompt against its worst.

    Trap: a completion that was cut off must not be chosen: as text it would teach to end there.
    """
    pairs: list[dict[str, Any]] = []
    counts = {"prompts": len(rows), "pairs": 0, "ties": 0, "cut_off": 0, "unscorable_completions": 0}
    for row in rows:
        scored = list(zip(row["scores"], row["completions"], row["finished"], strict=True))
        known = [each for each in scored if each[0] is not None]
        counts["unscorable_completions"] += len(scored) - len(known)
        wholes = [each for each in known if each[2]]
        if len(known) < 2 or max(each[0] for each in known) == min(each[0] for each in known):
            counts["ties"] += 1
            continue
        worst = min(known, key=lambda each: float(each[0]))
        best = max(wholes, key=lambda each: float(each[0]), default=worst)
        if best[0] <= worst[0]:
            counts["cut_off"] += 1
            continue
        if best[1] == worst[1]:  # a judge may score one text twice, and differently
            counts["ties"] += 1
            continue
        pairs.append(pair_row(row, best[1], worst[1], chosen_score=best[0], rejected_score=worst[0]))
    counts["pairs"] = len(pairs)
    return pairs, counts


def shown_against_own(
    demonstrations: Sequence[JSONRow], rows: Sequence[JSONRow]
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Each demonstration against the policy's own completion to its prompt; those that are the same teach nothing."""
    pairs: list[dict[str, Any]] = []
    counts = {"demonstrations": len(rows), "pairs": 0, "identical": 0, "empty": 0, "cut_off_rejected": 0}
    for shown, row in zip(demonstrations, rows, strict=True):
        (own,), (finished,) = row["completions"], row["finished"]
        if own == shown["completion"]:
            counts["identical"] += 1
        elif not own.strip():
            counts["empty"] += 1
        else:
            counts["cut_off_rejected"] += not finished
            pairs.append(pair_row(shown, shown["completion"], own))
    counts["pairs"] = len(pairs)
    return pairs, counts
