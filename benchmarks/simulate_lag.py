"""Asynchrony on one GPU and on two, simulated with constants that were measured on one H200. Nothing here was run.

    python benchmarks/simulate_lag.py --results        # results/simulate_lag.json

Taken from results/: seconds of a rollout of 256 and of 1,024 completions side by side (gpu_rollout_*.json; between and
beyond them a line through both), and of training on a step of 256 (gpu_step_135m.json, gpu_train_1.5b.json). Lengths
are drawn (lognormal, cut at the budget); training takes as long as for full rows times the mean share of the budget.

On one GPU a writer and the trainer compete. How much they slow each other down was not measured: simulated are both
bounds, full speed for both (`free`) and half of it while both work (`turns`: time slices, nothing gained but the gaps).
Two GPUs: one writes, one trains; weights travel over the card's link.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from results_file import PLANNER, RESULTS, add_results_flag, write_results

from whet.tools.planner.cluster_simulation import LATENCY, ClusterModel, Lengths, simulate
from whet.tools.planner.seconds import DECODE_RATE
from whet.tools.planner.shapes import NAMED
from whet.tools.planner.workload import MEASURED_ON

PROMPTS, GROUP, BUDGET = 32, 8, 512  # the measured rollouts: 32 x 8 and 128 x 8, 128 + 512 tokens
MOST_ROWS = 1024  # side by side, the most that was measured
MODELS = {"135m": "smollm2-135m", "1.5b": "qwen2.5-1.5b"}


def values(name: str) -> Mapping[str, Any]:
    """The values of a results file."""
    stored: Mapping[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["values"]
    return stored


def token_line(name: str) -> Callable[[int], float]:
    """Seconds of one token for so many rows, by the two rollouts that were measured."""
    few, many = (values(f"gpu_rollout_{name}")[count]["seconds"] / BUDGET for count in ("256", "1024"))
    slope = (many - few) / (1024 - 256)
    return lambda rows: few + (rows - 256) * slope


def training_seconds(name: str) -> float:
    """Seconds of training on 32 x 8 full rows."""
    if name == "135m":
        return float(values("gpu_step_135m")["train_s"])
    return float(values("gpu_train_1.5b")["seconds"]) * PROMPTS / 8  # measured on 8 prompts x 8


def drawn_mean(lengths: Lengths) -> float:
    """The mean of the lengths as they are cut at the budget."""
    stream = random.Random(0)
    return fmean(lengths.draw(stream) for _ in range(20_000))


def model_of(name: str, mean: float) -> ClusterModel:
    """The cluster model of one GPU, from measured constants."""
    shape, lengths = NAMED[MODELS[name]], Lengths(mean, BUDGET)
    return ClusterModel(
        engines=1,
        rows_per_engine=MOST_ROWS,
        prompts_per_step=PROMPTS,
        group_size=GROUP,
        lengths=lengths,
        token_seconds=token_line(name),
        train_seconds=training_seconds(name) * drawn_mean(lengths) / BUDGET,
        reread_seconds=2 * shape.anatomy.used_weights / DECODE_RATE,
    )


def layouts(name: str, mean: float) -> dict[str, ClusterModel]:
    """One device that trains and writes at full speed at once, one that shares its time, and two devices."""
    base, weights = model_of(name, mean), 2.0 * NAMED[MODELS[name]].weights
    link = LATENCY + weights / MEASURED_ON.link_rate
    inside = LATENCY + weights / MEASURED_ON.bytes_rate * 2  # read and written once on the same device
    return {
        "free": replace(base, sync_seconds=inside),
        "turns": replace(base, sync_seconds=inside, both_busy=0.5),
        "two": replace(base, sync_seconds=link),
    }


def simulated(name: str, mean: float, lags: list[int], steps: int) -> dict[str, Any]:
    """The simulated steps of every layout at every lag."""
    known = model_of(name, mean)
    values: dict[str, Any] = {"train_s": known.train_seconds, "mean_tokens": drawn_mean(known.lengths)}
    for lag in lags:
        by_layout = {}
        for layout, model in layouts(name, mean).items():
            # in one process nothing travels, and no row lives through a change of weights
            alone = {"sync_seconds": 0.0, "reread_seconds": 0.0} if lag == 0 and layout != "two" else {}
            by_layout[layout] = asdict(simulate(replace(model, max_staleness=lag, **alone), steps))
        values[f"lag_{lag}"] = by_layout
    for layout in ("free", "turns", "two"):
        base = values[f"lag_{lags[0]}"]["free"]["tokens_per_second"]
        for lag in lags:
            values[f"lag_{lag}"][layout]["speed"] = values[f"lag_{lag}"][layout]["tokens_per_second"] / base
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lags", default="0,1,2,4")
    parser.add_argument("--mean", type=float, default=0.5 * BUDGET, help="tokens of a completion before the cut")
    parser.add_argument("--steps", type=int, default=40)
    add_results_flag(parser, "simulate_lag")
    chosen = parser.parse_args()
    lags = [int(lag) for lag in chosen.lags.split(",")]
    values: dict[str, Any] = {"simulated": "with constants measured on one H200; no asynchronous run was made on a GPU"}
    for name in MODELS:
        values[name] = simulated(name, chosen.mean, lags, chosen.steps)
        for lag in lags:
            for layout, outcome in values[name][f"lag_{lag}"].items():
                print(
                    f"{name:5} lag {lag} {layout:6} {outcome['seconds_per_step']:.2f} s, "
                    f"{outcome['tokens_per_second']:9,.0f} tokens/s, x {outcome['speed']:.2f}, trainer idle "
                    f"{outcome['trainer_idle']:.0%}, writer idle {outcome['engine_idle']:.0%}, staleness "
                    f"{outcome['staleness_mean']:.2f} (most {outcome['staleness_most']}), {outcome['limit']}"
                )
    if chosen.results:
        write_results(chosen.results, values, measured=PLANNER)


if __name__ == "__main__":
    main()
