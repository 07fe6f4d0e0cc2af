"""Preference pairs as rows: made of a policy's own completions, read from files, split by prompt. What was dropped is
counted.

A row of completions has `id`, `prompt`, `completions`, `finished` (False: cut off at the budget) and, where they were
scored, `scores` (None: unscorable).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from whet.data.sections import DataSection
from whet.record.text import count_of
from whet.types import Prompt, WhetError

JSONRow = Mapping[str, Any]
PairRow = dict[str, Any]


def prompt_row(prompt: Prompt) -> dict[str, Any]:
    """The columns that a prompt is read back from."""
    content: Any = prompt.text if prompt.text is not None else [dict(message) for message in prompt.messages]
    return {"id": prompt.id, "prompt": content}


def row_prompt(row: JSONRow) -> Prompt:
    """The prompt that `prompt_row` wrote."""
    content = row["prompt"]
    is_text = isinstance(content, str)
    return Prompt(row["id"], () if is_text else tuple(content), content if is_text else None, row.get("answer"))


def pair_row(row: JSONRow, chosen: str, rejected: str, **more: Any) -> PairRow:
    """A pair of two completions to the prompt of a row, with its answer where that is known."""
    answer = {} if row.get("answer") is None else {"answer": row["answer"]}
    return {"id": row["id"], "prompt": row["prompt"], "chosen": chosen, "rejected": rejected, **answer, **more}


def best_against_worst(rows: Sequence[JSONRow]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The best completion of each prompt against its worst.

    Trap: a completion that was cut off must not be chosen: as text it would teach to end there.
    """
    pairs: list[dict[str, Any]] = []
    counts = {"prompts": len(rows), "pairs": 0, "ties": 0, "cut_off": 0, "unscorable_completions": 0}
    for row in rows:
        scored = list(zip(row["scores"], row["completions"], row["finished"], strict=True))
        known = [completion for completion in scored if completion[0] is not None]
        counts["unscorable_completions"] += len(scored) - len(known)
        wholes = [completion for completion in known if completion[2]]
        if len(known) < 2 or max(completion[0] for completion in known) == min(completion[0] for completion in known):
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


@dataclass(frozen=True)
class SplitPairs:
    """Rows with `id`, `prompt`, `chosen` and `rejected`."""

    own: list[PairRow]  # of the policy and its reward model
    judge: list[PairRow]  # of the judge
    held_out: list[PairRow]  # nobody learns from these


def read_pairs(source: str, data: DataSection) -> list[PairRow]:
    """The pairs of a file in any shape that whet reads, prompts as `data` says."""
    from whet.data.pairs import preferences_from
    from whet.training.assembly.rows import read_usable

    stored = data.model_copy(update={"source": source})
    pairs = read_usable(stored, source, lambda _: preferences_from)
    return [_row(pair) for pair in pairs]


def _row(pair: Any) -> PairRow:
    row = pair_row(prompt_row(pair.prompt), pair.chosen, pair.rejected)
    extra = {"margin": pair.margin, "preference": pair.preference}
    return {**row, "id": prompt_key(row), **{name: value for name, value in extra.items() if value}}


def prompt_key(row: Mapping[str, Any]) -> str:
    """What two pairs of one prompt share."""
    return hashlib.sha256(json.dumps(row["prompt"], sort_keys=True).encode()).hexdigest()[:16]


def split_by_prompt(rows: Sequence[PairRow], held_out: Sequence[PairRow] | None, share: float, seed: int) -> SplitPairs:
    """Halves by the prompt's text and the seed; without held-out rows of their own, `share` of the prompts.

    Which prompts are held out does not depend on the seed: what several seeds measure can be compared.
    """
    measured = list(held_out) if held_out is not None else [row for row in rows if _place("held out", row) < share]
    held_out_keys = {prompt_key(row) for row in measured}
    learnt = [row for row in rows if held_out is not None or prompt_key(row) not in held_out_keys]
    own, judge = partial(filter, partial(_is_first, seed)), partial(filter, lambda row: not _is_first(seed, row))
    return SplitPairs(list(own(learnt)), list(judge(learnt)), measured)


def _is_first(seed: int, row: PairRow) -> bool:
    return _place(f"half {seed}", row) < 0.5


def _place(salt: str, row: Mapping[str, Any]) -> float:
    """A number in [0, 1) that the prompt and the salt decide."""
    return int.from_bytes(hashlib.sha256(f"{salt}/{prompt_key(row)}".encode()).digest()[:6], "little") / 2**48


def check_split(split: SplitPairs, source: str, held_out_source: str, allow_overlap: bool) -> None:
    """Refuse a side without pairs, and held-out prompts that are learnt from."""
    learnt = {prompt_key(row) for row in (*split.own, *split.judge)}
    inside = sum(row_key in learnt for row_key in {prompt_key(row) for row in split.held_out})
    if inside and not allow_overlap:
        raise WhetError(
            f"held_out: {count_of(inside, 'prompt')} of {held_out_source or source} are in {source} too, so the test "
            "set is inside the train set; take them out, or say --set allow_overlap=true"
        )
    for name, side in (("to learn from", split.own), ("for the judge", split.judge), ("held out", split.held_out)):
        if len(side) < 2:
            raise WhetError(
                f"pairs: {source} has {count_of(len(side), 'pair')} {name} after the split by prompt; give more pairs"
                + (", or another held_out_share" if name == "held out" and not held_out_source else "")
            )


def is_longer(row: PairRow) -> float:
    """1 where the chosen completion is the longer one, 0 where it is the shorter, 1/2 for equal lengths."""
    chosen, rejected = len(row["chosen"]), len(row["rejected"])
    return 0.5 if chosen == rejected else float(chosen > rejected)
