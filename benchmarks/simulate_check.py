"""The simulator beside real runs: constants are read from a part of what was measured, the rest is predicted.

    python benchmarks/asynchrony.py --results && python benchmarks/simulate_check.py --results
    whet cluster-demo --folder runs/demo && python benchmarks/simulate_check.py --run runs/demo

`--asynchrony` reads results/asynchrony_cpu.json: how long trainer and engine work in a step is taken from the run
with the least staleness above 0; the steps of all others are predicted. `--run` reads a run on engines of their own
(`whet cluster-demo`): the rate of the engines and the training time are taken from it, the whole step is predicted.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from results_file import RESULTS, add_results_flag, write_results

from whet.plan.simulate import ClusterModel, Lengths, simulate


def check_asynchrony(values: dict[str, Any], prompts: int, group: int) -> dict[str, Any]:
    """Predicted over real seconds of a step, by staleness."""
    lags = {int(name.removeprefix("lag_")): each for name, each in values.items() if name.startswith("lag_")}
    known = min((lag for lag in lags if lag > 0), default=None)
    if known is None:
        raise SystemExit(
            "no run with a staleness above 0 is in the file; run benchmarks/asynchrony.py with --lags 0,1,2"
        )
    source = lags[known]
    train = source["step_s"] - source["trainer_idle_s"]
    write = source["step_s"] - source["engine_idle_s"]
    tokens = source["tokens_per_s"] * source["step_s"]
    each = tokens / (prompts * group)
    found: dict[str, Any] = {}
    for lag, real in sorted(lags.items()):
        model = ClusterModel(
            engines=1,
            rows_per_engine=(lag + 1) * prompts * group,
            prompts_per_step=prompts,
            group_size=group,
            lengths=Lengths(each, 10 * round(each) + 1, 0.3),
            token_seconds=lambda rows: rows * write / tokens,  # a processor: twice the rows take twice the time
            train_seconds=train,
            max_staleness=lag,
        )
        said = simulate(model, 20)
        found[f"lag_{lag}"] = {
            "real_s": real["step_s"],
            "simulated_s": said.seconds_per_step,
            "ratio": said.seconds_per_step / real["step_s"],
            "staleness_real": real["versions_behind"],
            "staleness_simulated": said.staleness_mean,
            "calibrated": lag == known,
        }
    return {"train_s": train, "write_s": write, "tokens_per_step": tokens, **found}


def check_run(folder: Path) -> dict[str, Any]:
    """One run on engines of their own, each step waiting for its completions."""
    summary = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    engines = [each for each in summary.get("processes", ()) if "tokens" in each]
    if not engines:
        raise SystemExit(f"{folder}: this run had no engines of their own; give one of whet cluster-demo")
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [line for line in steps if "metrics" in line][1:]
    real = fmean(sum(line["seconds"].values()) for line in steps)
    rollout = fmean(line["seconds"].get("rollout", 0.0) for line in steps)
    completions = fmean(line["counts"]["samples"] for line in steps)
    tokens = fmean(line["counts"]["tokens"] for line in steps) / completions
    busy = sum(each["seconds"] for each in engines) / sum(each["tokens"] for each in engines)
    group = int(summary.get("group_size", 8))
    model = ClusterModel(
        engines=len(engines),
        rows_per_engine=round(completions),
        prompts_per_step=max(1, round(completions / group)),
        group_size=group,
        lengths=Lengths(tokens, 10 * round(tokens) + 1, 0.3),
        token_seconds=lambda rows: rows * busy,
        train_seconds=real - rollout,
    )
    said = simulate(model, 20)
    return {
        "engines": len(engines),
        "seconds_per_token": busy,
        "train_s": real - rollout,
        "real_s": real,
        "simulated_s": said.seconds_per_step,
        "ratio": said.seconds_per_step / real,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--asynchrony", default=str(RESULTS / "asynchrony_cpu.json"))
    parser.add_argument("--prompts", type=int, default=16, help="per step, of the runs in that file")
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--run", type=Path, help="a run on engines of their own")
    add_results_flag(parser, "simulate_check")
    chosen = parser.parse_args()
    found: dict[str, Any] = {}
    if chosen.run is not None:
        found["cluster"] = check_run(chosen.run)
    if Path(chosen.asynchrony).is_file():
        values = json.loads(Path(chosen.asynchrony).read_text(encoding="utf-8"))["values"]
        found["asynchrony"] = check_asynchrony(values, chosen.prompts, chosen.group)
    if not found:
        raise SystemExit(
            f"{Path(chosen.asynchrony).name} is not there; write it with benchmarks/asynchrony.py, or give --run"
        )
    print(json.dumps(found, indent=1))
    if chosen.results:
        write_results(chosen.results, found)


if __name__ == "__main__":
    main()
