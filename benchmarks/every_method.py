"""RL methods on the built-in task: same prompts, same completions per step, same budget, several seeds.

    python benchmarks/every_method.py --seeds 3 --folder methods --results

A run that is there already in FOLDER is not repeated.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from results_file import add_results_flag, write_results
from workers import run_all

import whet
from whet.objective import PRESETS
from whet.record.log import read_metrics
from whet.settings.layers import merged

STEPS, PROMPTS, GROUP = 18, 10, 8
RATE = 4e-4
SHOWN = ("before", "after", "first", "last")  # greedy, greedy, drawn in the first step, drawn in the last three

BEYOND_THE_TASK = {"reference_rewards", "teacher_logp", "teacher_divergence", "demonstrated"}
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


def on_the_task() -> list[str]:
    """The methods that need nothing beyond the task: no episodes, teacher, demonstrations or rewards of the
    reference."""
    return [
        name
        for name, preset in PRESETS.items()
        if not preset.episodes and not BEYOND_THE_TASK & preset.objective.needs()
    ]


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


def summary(results: list[dict[str, float]]) -> dict[str, float]:
    """Means and standard deviations over seeds."""
    found = {key: fmean(each[key] for each in results) for key in results[0]}
    spread = {f"{key}_std": stdev(each[key] for each in results) for key in SHOWN} if len(results) > 1 else {}
    return {**found, **spread, "seeds": len(results)}


def line(name: str, found: dict[str, float]) -> str:
    cells = [f"{found[key]:5.0%} ± {found.get(f'{key}_std', 0.0):.0%}" for key in SHOWN]
    return f"{name:24}" + "".join(f"{cell:>14}" for cell in cells) + f"{found['completions']:14.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=0, help="optimizer updates per batch; 0: the method's own")
    parser.add_argument("--folder", type=Path, default=Path("methods"))
    parser.add_argument("--methods", default=",".join(on_the_task()))
    parser.add_argument("--workers", type=int, default=1, help="runs side by side")
    add_results_flag(parser, "every_method")
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    print(f"{'':24}" + "".join(f"{each:>14}" for each in (*SHOWN, "completions")), flush=True)
    found: dict[str, dict[str, float]] = {}
    names = chosen.methods.split(",")
    jobs = [(name, seed, chosen.folder, chosen.updates) for name in names for seed in range(chosen.seeds)]
    results = run_all(result, jobs, chosen.workers)
    for place, name in enumerate(names):
        found[name] = summary(results[place * chosen.seeds : (place + 1) * chosen.seeds])
        print(line(name, found[name]), flush=True)
    if chosen.results:
        write_results(chosen.results, {"methods": found})


if __name__ == "__main__":
    main()
