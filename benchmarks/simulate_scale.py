"""What limits a run at 8, 64 and 1,000 GPUs, by the simulator of `whet plan --simulate`. Nothing here is a measurement.

python benchmarks/simulate_scale.py --results        # results/simulate_scale.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from results_file import PLANNER, add_results_flag, write_results

from whet.api.planning import simulation
from whet.tools.planner.cluster_simulation import cluster_record

NAMES = ("colocated", "waiting", "ahead_1", "ahead_4")  # layouts, in the order of the plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="7B")
    parser.add_argument("--card", default="H100")
    parser.add_argument("--counts", default="8,64,1000")
    parser.add_argument("--prompts-per-gpu", type=int, default=8)
    parser.add_argument("--most-prompts", type=int, default=1024, help="of a step: more teach little more")
    parser.add_argument("--completion", type=int, default=4096)
    add_results_flag(parser, "simulate_scale")
    chosen = parser.parse_args()
    values: dict[str, Any] = {"simulated": "by measured constants; no cluster of this size was used"}
    for count in map(int, chosen.counts.split(",")):
        plan = simulation(
            "grpo",
            model=chosen.model,
            gpus=f"{count}x{chosen.card}",
            completion_tokens=chosen.completion,
            settings={
                "batch": {"prompts_per_step": min(chosen.most_prompts, count * chosen.prompts_per_gpu), "group_size": 8}
            },
        )
        record = cluster_record(plan)
        layouts = dict(zip(NAMES, record.pop("layouts"), strict=True))
        best = max(layouts.values(), key=lambda layout: layout["tokens_per_second"])
        values[str(count)] = {**record, **layouts, "prompts": plan.work.prompts_per_step, "best": best}
        print(json.dumps({count: {name: layout["seconds_per_step"] for name, layout in layouts.items()}}), flush=True)
    if chosen.results:
        write_results(chosen.results, values, measured=PLANNER)


if __name__ == "__main__":
    main()
