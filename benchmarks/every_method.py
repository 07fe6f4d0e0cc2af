"""Every RL method on the built-in task: same prompts, same completions per step, same budget, several seeds.

    python benchmarks/every_method.py --seeds 3 --folder methods

prints the table of docs/method-runs.md and writes it to FOLDER/methods.md. A run that is there already is not repeated.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import whet
from whet.config.config import merged
from whet.objective import PRESETS
from whet.report.record import read_metrics

STEPS, PROMPTS, GROUP = 18, 10, 8
RATE = 4e-4

# Methods whose own numbers make no sense on 18 steps of completions of 40 tokens, and what they get instead.
SHORTER: dict[str, dict[str, Any]] = {
    "vapo": {"objective": {"baseline": {"alpha": 1.0}, "value": {"warmup": 4}}},
}


def settings(name: str, seed: int = 0, updates: int = 0) -> dict[str, Any]:
    """One budget for all: STEPS steps of PROMPTS prompts and GROUP completions.

    A method that is nothing with one update per batch gets two, at half the learning rate, and one that trains on
    completions of an older policy has half the rate as well. Adam forgets the gradient's scale, so one rate serves
    methods that divide by a budget and methods that divide by a length alike. `updates` is the number of updates per
    batch, for every method.
    """
    preset = PRESETS[name]
    batch = preset.run.get("batch", {})
    several, stale = batch.get("updates_per_step", 1) > 1, batch.get("staleness", 0) > 0
    values = {
        "seed": seed,
        "steps": STEPS,
        "model": {"device": "cpu", "threads": 1},
        "optimizer": {"learning_rate": RATE / (2 if several or stale or updates > 1 else 1)},
        "sampling": {"max_new_tokens": 40},
        "batch": {
            "prompts_per_step": PROMPTS,
            "group_size": GROUP,
            "updates_per_step": updates or (2 if several else 1),
        },
        "eval": {"prompts": 40, "every": 0},
        "report": {"save_every": 100, "samples_per_step": 0},
    }
    if preset.objective.value.needs:
        values["critic"] = {"learning_rate": 2e-3}
    return merged(values, SHORTER.get(name, {}))


def result(name: str, seed: int, folder: Path, updates: int) -> dict[str, float]:
    saved = folder / f"{name}-{seed}.json"
    if saved.exists():
        return dict(json.loads(saved.read_text()))
    started = time.monotonic()
    run = whet.train(name, config=settings(name, seed, updates), folder=str(folder / f"{name}-{seed}"), console=False)
    steps = [line for line in read_metrics(run.folder) if "eval" not in line]
    first = steps[0]["reward"].get("exact_answer", steps[0]["reward"]["total"])
    last = [line["reward"].get("exact_answer", line["reward"]["total"]) for line in steps[-3:]]
    spent = sum(line["counts"].get("samples_spent", line["counts"]["samples"]) for line in steps)
    metrics = {
        "before": run.before["accuracy"],
        "after": run.after["accuracy"],
        "first": first,
        "last": fmean(last),
        "completions": spent,
        "seconds": time.monotonic() - started,
    }
    saved.write_text(json.dumps(metrics))
    return metrics


def line(name: str, results: list[dict[str, float]]) -> str:
    def cell(key: str) -> str:
        values = [each[key] for each in results]
        spread = f" ± {100 * stdev(values):.0f}" if len(values) > 1 else ""
        return f"{100 * fmean(values):.0f}{spread}"

    completions = f"{fmean([each['completions'] for each in results]):.0f}"
    return f"| {name} | {cell('before')} | {cell('after')} | {cell('first')} | {cell('last')} | {completions} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=0, help="optimizer updates per batch; 0: the method's own")
    parser.add_argument("--folder", type=Path, default=Path("methods"))
    parser.add_argument("--methods", default=",".join(PRESETS))
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    head = "| method | greedy before | greedy after | drawn, first step | drawn, last three | completions |"
    lines = [head, "|---|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    for name in chosen.methods.split(","):
        lines.append(line(name, [result(name, seed, chosen.folder, chosen.updates) for seed in range(chosen.seeds)]))
        print(lines[-1], flush=True)
    (chosen.folder / "methods.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
