"""How often a model solved each prompt, written into the rows that hold the prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from whet.data.prompts import prompts_from
from whet.data.reference_rewards import REFERENCE_REWARDS
from whet.data.shingles import text_key
from whet.data.spool import RowWriter, StoredRows
from whet.types import WhetError

PASS_RATE = "pass_rate"


def rows_with_pass_rates(
    source: str,
    completions: Sequence[Mapping[str, Any]],
    writer: RowWriter,
    right_from: float = 1.0,
    keep_rewards: bool = False,
) -> dict[str, Any]:
    """Write the rows whose prompts were sampled, each with its share of right completions and, with `keep_rewards`,
    what each completion earned.

    A completion that could not be scored does not count; a prompt without one that could is left out and counted.
    """
    earned: dict[bytes, list[float]] = {}
    unscored: set[bytes] = set()
    for completion in completions:
        key = text_key(str(completion["prompt"]))
        if completion["reward"] is None:
            unscored.add(key)
        else:
            earned.setdefault(key, []).append(float(completion["reward"]))
    right = {key: [reward >= right_from for reward in rewards] for key, rewards in earned.items()}
    reader, never, always = StoredRows(source, drop=True), 0, 0
    missing = 0
    for row, prompts in reader.read(lambda rows: prompts_from(rows)):
        key = text_key(prompts[0].question())
        if key not in right:
            missing += key in unscored
            continue
        rate = sum(right[key]) / len(right[key])
        never, always = never + (rate == 0), always + (rate == 1)
        reference_column = {REFERENCE_REWARDS: earned[key]} if keep_rewards else {}
        writer.write({**row.values, PASS_RATE: round(rate, 6), "samples": len(right[key]), **reference_column})
    if not writer.rows:
        raise WhetError(f"{source}: no completion could be scored, so there is no pass rate; give another --reward")
    mean = sum(sum(flags) for flags in right.values()) / sum(len(flags) for flags in right.values())
    counts = {"rows": reader.rows, "kept": writer.rows, "mean_pass_rate": round(mean, 4)}
    return {**counts, "never_solved": never, "always_solved": always, **({"unscorable": missing} if missing else {})}
