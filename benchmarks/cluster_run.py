"""`whet cluster-demo`, with its table as a file: who wrote and scored how much, and how many bytes of weights went out.

python benchmarks/cluster_run.py --steps 2 --results
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from results_file import add_results_flag, write_results

from whet.api.cluster_demo import NODES, WORKERS, cluster_demo


def step_means(folder: Path) -> dict[str, float]:
    """Of the run's steps, without the first, in which processes start: what `benchmarks/simulate_check.py` compares."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [line for line in lines if "metrics" in line]
    timed = steps[1:] or steps
    return {
        "steps": len(timed),
        "seconds": fmean(sum(line["seconds"].values()) for line in timed),
        "rollout_s": fmean(line["seconds"].get("rollout", 0.0) for line in timed),
        "samples": fmean(line["counts"]["samples"] for line in timed),
        "groups": fmean(line["counts"]["prompts"] for line in timed),
        "tokens": fmean(line["counts"]["tokens"] for line in timed),
    }


def measured(folder: str, method: str, steps: int) -> dict[str, Any]:
    """A run of the cluster demo: what each process did, and the seconds of a step."""
    began = time.monotonic()
    run, table, left = cluster_demo(method, steps, folder=folder)
    seconds = time.monotonic() - began
    print(f"\n{table}")
    summary = json.loads((run.folder / "run.json").read_text(encoding="utf-8"))
    rows = {
        process["process"]: {name: value for name, value in process.items() if name not in ("process", "place")}
        for process in summary["processes"]
    }
    return {
        "method": method,
        "steps": steps,
        "nodes": NODES,
        "ranks": WORKERS,
        "seconds": seconds,
        "tokens": summary["tokens"],
        "step": step_means(run.folder),
        "processes": rows,
        "left_behind": len(left),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="grpo")
    parser.add_argument("--steps", type=int, default=4)
    add_results_flag(parser, "cluster_run")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        values = measured(str(Path(folder) / "run"), chosen.method, chosen.steps)
    if chosen.results:
        write_results(chosen.results, values)


if __name__ == "__main__":
    main()
