"""Throughput and learning against how far completions may lie behind: runs with scale.max_staleness 0, 1, 2, 4.

    python benchmarks/asynchrony.py --results                          # the built-in model, on this machine's CPU
    python benchmarks/asynchrony.py --model FOLDER --steps 20 --prompts 32 --tokens 256 --results asynchrony_gpu
    python benchmarks/asynchrony.py --latency 0.05,0.5,5 --lags 0,1,2 --steps 12 --prompts 4 --results asynchrony_tools
    python benchmarks/asynchrony.py --lags 0,1 --steps 3 --prompts 2 --group 2   # does it run?

With --latency the policy plays episodes of three turns, and its environment takes so many seconds for each answer.
Everything is real: with 0 one process writes and trains in turns; above 0 a second process writes on the same device
while the first trains, and both share it. Nothing is simulated. Every lag is a run of its own with the same seed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

from results_file import ROOT, add_results_flag, child_environment, write_results

ENVIRONMENT, TURNS = f"{ROOT / 'benchmarks' / 'sides' / 'slow_environment.py'}:SlowEnvironment", 3
WARM_UP = 2  # steps whose times do not count: processes start, kernels compile


def one_run(options: argparse.Namespace, lag: int, latency: float | None, folder: Path) -> dict[str, Any]:
    """Train with one bound, and read what the run wrote down; `latency` None: single completions."""
    settings = {
        "batch.prompts_per_step": options.prompts,
        "batch.group_size": options.group,
        "sampling.max_new_tokens": options.tokens,
        "objective.mismatch": "truncate",
        "scale.max_staleness": lag,
        "eval.every": options.eval_every,
        "eval.prompts": options.eval_prompts,
        "report.save_every": options.steps,
        "model.device": options.device,
        **({} if latency is None else {"env.settings.latency": latency, "env.settings.turns": TURNS}),
        **dict(option.split("=", 1) for option in options.set),
    }
    words = [sys.executable, "-m", "whet", "train", options.method, "--steps", str(options.steps)]
    words += ["--seed", str(options.seed), "--folder", str(folder)]
    words += ["--model", options.model] if options.model else []
    words += ["--data", options.data] if options.data else []
    words += ["--reward", options.reward] if options.reward else []
    words += ["--env", ENVIRONMENT] if latency is not None else []
    for name, value in settings.items():
        words += ["--set", f"{name}={value}"]
    environment = child_environment()
    began, load = time.monotonic(), os.getloadavg()[0]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=options.timeout)
    if done.returncode:
        raise SystemExit(f"max_staleness={lag}: {(done.stderr or done.stdout)[-2000:]}")
    return {"wall_s": time.monotonic() - began, "load_average": load, **summary(folder)}


def summary(folder: Path) -> dict[str, Any]:
    """Speed, staleness, rewards and evaluations of a run, from its log."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "metrics" in line]
    evals = [line for line in lines if "eval" in line]
    timed = steps[min(WARM_UP, len(steps) - 1) :]
    seconds = [sum(line["seconds"].values()) for line in timed]

    def mean(name: str) -> float:
        return fmean([line["metrics"].get(name, 0.0) for line in timed])

    quarter = max(1, len(steps) // 4)
    rewards = [line["reward"]["total"] for line in steps]
    return {
        "step_s": median(seconds),
        "mean_step_s": fmean(seconds),
        "tokens_per_s": sum(line["counts"]["tokens"] for line in timed) / sum(seconds),
        "versions_behind": mean("versions_behind"),
        "versions_behind_max": max(line["metrics"].get("versions_behind_max", 0.0) for line in steps),
        "trainer_idle_s": mean("trainer_idle_seconds"),
        "engine_idle_s": mean("engine_idle_seconds"),
        "groups_passed": sum(line["metrics"].get("groups_passed", 0.0) for line in steps),
        "logp_gap": mean("staleness"),
        "reward_first_quarter": fmean(rewards[:quarter]),
        "reward_last_quarter": fmean(rewards[-quarter:]),
        "accuracy": {str(line["step"]): line["result"].get("accuracy", 0.0) for line in evals},
        "accuracy_end": evals[-1]["result"].get("accuracy", 0.0) if evals else None,
        "rewards": rewards,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lags", default="0,1,2,4")
    parser.add_argument(
        "--latency", default="", help="seconds that an environment takes for an answer; several by comma"
    )
    parser.add_argument("--method", default="grpo")
    parser.add_argument("--model", default="", help="name or folder; the built-in model without it")
    parser.add_argument("--data", default="")
    parser.add_argument("--reward", default="")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--eval-every", type=int, default=10)
    parser.add_argument("--eval-prompts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds of one run at most")
    add_results_flag(parser, "asynchrony_cpu")
    options = parser.parse_args()
    values: dict[str, Any] = {"real": "two processes on one device above 0, one process at 0; nothing is simulated"}
    values["shape"] = {"prompts": options.prompts, "group": options.group, "tokens": options.tokens}
    latencies = [float(one) for one in options.latency.split(",")] if options.latency else [None]
    for latency in latencies:
        measured = {}
        for lag in map(int, options.lags.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                measured[f"lag_{lag}"] = one_run(options, lag, latency, Path(folder) / "run")
            base = measured.get("lag_0")
            if base is not None:
                measured[f"lag_{lag}"]["speed"] = measured[f"lag_{lag}"]["tokens_per_s"] / base["tokens_per_s"]
            print(json.dumps({"latency": latency, f"lag_{lag}": measured[f"lag_{lag}"]}), flush=True)
        values |= measured if latency is None else {f"{latency:g}": measured}
    if options.results:
        write_results(options.results, values)


if __name__ == "__main__":
    main()
