"""A few steps of whole runs, by one process or by this rank among several: what they report.

As a script it is a rank: `python distributed_runs.py FILE NAME ...` with
RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.support.rank_processes import joined_ranks
from whet.record.metrics.timer import PhaseTimer
from whet.training.assembly.assembly import assemble
from whet.training.config import resolved
from whet.training.distributed.ranks import ALONE, Ranks
from whet.types import Sample

STEPS = 2
RL = {
    "batch": {"prompts_per_step": 5, "group_size": 4, "micro_batch_tokens": 300, "updates_per_step": 2},
    "sampling": {"max_new_tokens": 12},
    "data": {"source": "task:arithmetic", "count": 40},
    "eval": {"prompts": 5},
}
ROWS = {"batch": {"rows_per_step": 5, "micro_batch_tokens": 200}, "data": {"source": "task:arithmetic", "count": 40}}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {**RL, "objective": {"kl": "k3"}}),
    "ppo": ("ppo", RL),
    "ppo shared": ("ppo", {**RL, "critic": {"trunk": "shared"}}),
    "grpo lora": ("grpo", {**RL, "model": {"lora": {"rank": 4}}}),
    "sft": ("sft", {**ROWS, "eval": {"prompts": 4}, "sampling": {"max_new_tokens": 12}}),
    "dpo": ("dpo", {**ROWS, "eval": {"prompts": 4}, "sampling": {"max_new_tokens": 12}}),
    "dpo online": ("dpo", {**ROWS, "sampling": {"max_new_tokens": 12}, "preference": {"online": 3}}),
    "reward model": ("rm", ROWS),
}


def reported(name: str, ranks: Ranks) -> list[dict[str, Any]]:
    """Metrics and counts of each step, then of the evaluation."""
    method, settings = RUNS[name]
    # far from certain, so that completions of a group differ
    config = resolved(method, {"steps": STEPS, "seed": 3, "optimizer": {"learning_rate": 1e-4}}, settings)
    trainer = assemble(config, ranks=ranks).trainer
    lines: list[dict[str, Any]] = []
    for step in range(1, STEPS + 1):
        report, samples = trainer.step(step, PhaseTimer())
        texts = [sample.completion for _, sample in samples]
        metrics = {**report.metrics, **report.reward, **report.counts, **_traced([each for _, each in samples])}
        lines.append({"metrics": metrics, "texts": texts})
    lines.append({"metrics": trainer.evaluate(), "texts": []})
    return lines


def _traced(samples: Sequence[Sample]) -> dict[str, float]:
    """Sums over the tokens that are recorded; nothing where no method says what became of them."""
    traces = [sample.trace for sample in samples if sample.trace is not None]
    names = ("advantage", "weight", "logp") if traces else ()
    return {f"traced {name}": sum(float(getattr(trace, name).abs().sum()) for trace in traces) for name in names}


def main(file: str, names: Sequence[str]) -> None:
    torch.set_num_threads(1)
    ranks = joined_ranks()
    found = {name: reported(name, ranks) for name in names}
    if ranks.is_first:
        Path(file).write_text(json.dumps(found), encoding="utf-8")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
    sys.stdout.flush()
    os._exit(0)


def alone(names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    return {name: reported(name, ALONE) for name in names}
