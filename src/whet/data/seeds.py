"""Prompts that are numbers: for environments that make their tasks from a seed, such as games and simulators.

`seeds:1000` stands for the tasks 0 to 999. One in ten is kept for evaluation, whatever the seed of the run. The
prompt itself is empty: the environment says what there is to do.
"""

from __future__ import annotations

import random

from whet.data.tasks.item import EVAL_SHARE, SPLITS
from whet.types import Prompt, WhetError

SEED = "seed"  # the column


def seed_prompts(total: str, count: int, seed: int, split: str) -> list[Prompt]:
    """`count` different numbers below `total`, fewer where the split has no more; the same arguments, the same list."""
    if not total.isdecimal() or int(total) < EVAL_SHARE:
        raise WhetError(f"data.source=seeds:{total}: give how many tasks there are, {EVAL_SHARE} or more: seeds:1000")
    if split not in SPLITS:
        raise WhetError(f"split is {split!r}; give one of {', '.join(SPLITS)}")
    places = range(int(total))
    held_out = places[::EVAL_SHARE]
    if split == "eval":
        numbers = random.Random(f"seeds/eval/{seed}").sample(held_out, min(count, len(held_out)))
    else:
        # every place of the training split stands for a number that is no multiple of EVAL_SHARE
        size = len(places) - len(held_out)
        drawn = random.Random(f"seeds/train/{seed}").sample(range(size), min(count, size))
        numbers = [1 + position + position // (EVAL_SHARE - 1) for position in drawn]
    empty = {"role": "user", "content": ""}
    return [Prompt(f"seed-{number}", (empty,), meta={SEED: number}) for number in numbers]
