"""The simulator beside real runs: constants are read from a part of what was measured, the rest is predicted.

    python benchmarks/asynchrony.py --results && python benchmarks/simulate_check.py --results
    whet cluster-demo --folder runs/demo && python benchmarks/simulate_check.py --run runs/demo
    python benchmarks/cluster_run.py --steps 6 --results && python benchmarks/simulate_check.py --results

`--asynchrony` reads results/asynchrony_cpu.json: how long trainer and engine work in a step is taken from the run
with the least staleness above 0; the steps of all others are predicted. `--cluster` reads results/cluster_run.json,
`--run` the folder of a run on engines of their own (`whet cluster-demo`): the rate of the engines and the time outside
of rollouts are taken from it, the whole step is predicted. Times of processes that share a device are those of sharing
it: where they slow each other down, a step with staleness 0 is predicted too slow by that much.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from cluster_run import step_means
from results_file import PLANNER, RESULTS, add_results_flag, write_results

from whet.tools.planner.cluster_simulation import ClusterModel, Lengths, simulate


def check_asynchrony(values: dict[str, Any], prompts: int, group: int) -> dict[str, Any]:
    """Predicted over real seconds of a step, by staleness."""
    lags = {int(name.removeprefix("lag_")): value for name, value in values.items() if name.startswith("lag_")}
    known = min((lag for lag in lags if lag > 0), default=None)
    if known is None:
        raise SystemExit(
            "no run with a staleness above 0 is in the file; run benchmarks/asynchrony.py with --lags 0,1,2"
        )
    source = lags[known]
    train = source["step_s"] - source["trainer_idle_s"]
    write = source["step_s"] - source["engine_idle_s"]
    tokens = source["tokens_per_s"] * source["step_s"]
    mean_tokens = tokens / (prompts * group)
    checks: dict[str, Any] = {}
    for lag, real in sorted(lags.items()):
        model = ClusterModel(
            engines=1,
            rows_per_engine=(lag + 1) * prompts * group,
            prompts_per_step=prompts,
            group_size=group,
            lengths=Lengths(mean_tokens, 10 * round(mean_tokens) + 1, 0.3),
            token_seconds=lambda rows: rows * write / tokens,  # a processor: twice the rows take twice the time
            train_seconds=train,
            max_staleness=lag,
        )
        said = simulate(model, 20)
        checks[f"lag_{lag}"] = {
            "real_s": real["step_s"],
            "simulated_s": said.seconds_per_step,
            "ratio": said.seconds_per_step / real["step_s"],
            "staleness_real": real["versions_behind"],
            "staleness_simulated": said.staleness_mean,
            "calibrated": lag == known,
        }
    return {"calibrated_on": known, "train_s": train, "write_s": write, "tokens_per_step": tokens, **checks}


def check_cluster(engines: Sequence[Mapping[str, Any]], step: Mapping[str, float]) -> dict[str, Any]:
    """A run on engines of their own, each step waiting for its completions: the rate of the engines and the time
    outside of rollouts are taken from it, the length of a step is predicted."""
    busy = sum(engine["seconds"] for engine in engines) / sum(engine["tokens"] for engine in engines)
    tokens, group = step["tokens"] / step["samples"], max(1, round(step["samples"] / step["groups"]))
    outside = step["seconds"] - step["rollout_s"]
    model = ClusterModel(
        engines=len(engines),
        rows_per_engine=round(step["samples"]),
        prompts_per_step=max(1, round(step["groups"])),
        group_size=group,
        lengths=Lengths(tokens, 10 * round(tokens) + 1, 0.3),
        token_seconds=lambda rows: rows * busy,
        train_seconds=outside,
    )
    said = simulate(model, 20)
    return {
        "engines": len(engines),
        "steps": step["steps"],
        "seconds_per_token": busy,
        "train_s": outside,
        "rollout_s": step["rollout_s"],
        "rollout_simulated_s": said.seconds_per_step - outside,
        "real_s": step["seconds"],
        "simulated_s": said.seconds_per_step,
        "ratio": said.seconds_per_step / step["seconds"],
    }


def check_run(folder: Path) -> dict[str, Any]:
    """`check_cluster` of a run folder."""
    summary = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    engines = [process for process in summary.get("processes", ()) if "tokens" in process]
    if not engines:
        raise SystemExit(f"{folder}: this run had no engines of their own; give one of whet cluster-demo")
    return check_cluster(engines, step_means(folder))


def check_demo(values: Mapping[str, Any]) -> dict[str, Any]:
    """`check_cluster` of what benchmarks/cluster_run.py wrote."""
    if "step" not in values:
        raise SystemExit("the file does not say how long a step took; write it anew with benchmarks/cluster_run.py")
    return check_cluster([process for process in values["processes"].values() if "tokens" in process], values["step"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--asynchrony", default=str(RESULTS / "asynchrony_cpu.json"))
    parser.add_argument("--cluster", default=str(RESULTS / "cluster_run.json"))
    parser.add_argument("--prompts", type=int, default=16, help="per step, of the runs in a file that does not say it")
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--run", type=Path, help="a run on engines of their own")
    add_results_flag(parser, "simulate_check")
    chosen = parser.parse_args()
    checked: dict[str, Any] = {}
    if chosen.run is not None:
        checked["cluster"] = check_run(chosen.run)
    elif Path(chosen.cluster).is_file():
        checked["cluster"] = check_demo(json.loads(Path(chosen.cluster).read_text(encoding="utf-8"))["values"])
    if Path(chosen.asynchrony).is_file():
        values = json.loads(Path(chosen.asynchrony).read_text(encoding="utf-8"))["values"]
        shape = values.get("shape", {})
        checked["asynchrony"] = check_asynchrony(
            values, shape.get("prompts", chosen.prompts), shape.get("group", chosen.group)
        )
    if not checked:
        raise SystemExit(
            f"{Path(chosen.asynchrony).name} is not there; write it with benchmarks/asynchrony.py, or give --run"
        )
    print(json.dumps(checked, indent=1))
    if chosen.results:
        write_results(chosen.results, checked, measured=PLANNER)


if __name__ == "__main__":
    main()
