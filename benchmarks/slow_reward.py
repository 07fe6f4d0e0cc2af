"""A reward that takes as long as the model: how much of it a run can hide.

    python benchmarks/slow_reward.py --results                    # the built-in model, on this machine's CPU
    python benchmarks/slow_reward.py --steps 4 --prompts 2        # does it run?

The reward waits in every completion, one after the other, as for a server that judges them. Measured per step, as
medians: a run in turns, in which nothing is judged before all is written, gives the time of the reward and of all else,
the model. Beside it are runs whose completions are judged as they end, where each step waits for its own
(scale.max_staleness 0) and where they are written ahead (1). `ratio` is the time of a step beside the larger of
model and reward: 1 means that the smaller one costs nothing. With `--computes` the reward computes in Python instead of
waiting, which one interpreter cannot hide: then the ratio shows what that costs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from results_file import add_results_flag, child_environment, write_results

WARM_UP = 3  # steps whose times do not count: processes start, and the reward is seen to wait
REWARD = """
import os
import time

SECONDS, COMPUTES = float(os.environ["SLOW_REWARD"]), os.environ["SLOW_REWARD_COMPUTES"] == "1"


def slow(completion: str, answer: str) -> float:
    if COMPUTES:
        end = time.thread_time() + SECONDS
        while time.thread_time() < end:
            pass
    elif SECONDS:
        time.sleep(SECONDS)
    return float(completion.strip() == str(answer).strip())


if os.environ["SLOW_REWARD_AHEAD"] == "0":
    slow.ahead = False
"""


def one_run(options: argparse.Namespace, staleness: int, seconds: float, folder: Path, ahead: bool) -> dict[str, Any]:
    """Train with one bound and one reward; medians over the steps of what the run wrote down."""
    settings = {
        "batch.prompts_per_step": options.prompts,
        "batch.group_size": options.group,
        "sampling.max_new_tokens": options.tokens,
        "objective.mismatch": "truncate",
        "scale.max_staleness": staleness,
        "reward.defences": "[]",
        "eval.prompts": 0,
        "report.save_every": 10 * options.steps,
        "model.device": options.device,
        "model.threads": 1,
    }
    reward = folder / "slow.py"
    reward.write_text(REWARD)
    words = [sys.executable, "-m", "whet", "train", options.method, "--steps", str(options.steps), "--seed", "0"]
    words += ["--folder", str(folder / "run"), "--reward", f"{reward}:slow"]
    for name, value in settings.items():
        words += ["--set", f"{name}={value}"]
    environment = child_environment(SLOW_REWARD=repr(seconds))
    environment |= {"SLOW_REWARD_COMPUTES": str(int(options.computes)), "SLOW_REWARD_AHEAD": str(int(ahead))}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=options.timeout)
    if done.returncode:
        raise SystemExit(f"max_staleness={staleness}: {(done.stderr or done.stdout)[-2000:]}")
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line["seconds"] for line in lines if "metrics" in line][min(WARM_UP, options.steps - 1) :]
    phases = sorted({name for seconds in steps for name in seconds})
    return {
        "step_s": median(sum(seconds.values()) for seconds in steps),
        "phases_s": {name: median(seconds.get(name, 0.0) for seconds in steps) for name in phases},
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="grpo")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--shares", default="0.5,1", help="the reward's time, in shares of the model's")
    parser.add_argument("--staleness", default="0,1")
    parser.add_argument("--computes", action="store_true", help="a reward that computes instead of waiting")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds of one run at most")
    add_results_flag(parser, "slow_reward_cpu")
    options = parser.parse_args()
    values: dict[str, Any] = {
        "shape": {"prompts": options.prompts, "group": options.group, "tokens": options.tokens},
        "reward": "computes" if options.computes else "waits",
    }

    def run(staleness: int, seconds: float, ahead: bool = True) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            return one_run(options, staleness, seconds, Path(folder), ahead)

    values["model"] = run(0, 0.0)
    print(json.dumps({"model": values["model"]}), flush=True)
    for share in map(float, options.shares.split(",")):
        seconds = share * values["model"]["step_s"] / (options.prompts * options.group)
        turns = run(0, seconds, ahead=False)
        reward = turns["phases_s"]["reward"]
        larger = max(reward, turns["step_s"] - reward)
        measured: dict[str, Any] = {"reward_s": reward, "model_s": turns["step_s"] - reward}
        measured["in_turns"] = {**turns, "ratio": turns["step_s"] / larger}
        for staleness in map(int, options.staleness.split(",")):
            step = run(staleness, seconds)
            measured[f"staleness_{staleness}"] = {**step, "ratio": step["step_s"] / larger}
        values[f"share_{share:g}"] = measured
        print(json.dumps({f"share_{share:g}": measured}), flush=True)
    if options.results:
        write_results(options.results, values)


if __name__ == "__main__":
    main()
