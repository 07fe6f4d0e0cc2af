"""Preference pairs of a pipeline: read, split by prompt, and refused where a held-out prompt is also learnt from.

One half teaches the policy and its reward model; the other half teaches the judge, a reward model that nothing is
optimised against. All pairs of a prompt lie on one side.
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
from whet.tools.pipelines.pairs import pair_row, prompt_row
from whet.types import WhetError

PairRow = dict[str, Any]


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
    kept = {prompt_key(row) for row in measured}
    learnt = [row for row in rows if held_out is not None or prompt_key(row) not in kept]
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
