"""Does a run learn as well with weights of 16 bits and moments of 8? The built-in model, several seeds.

    python benchmarks/narrow_convergence.py --results           # on a GPU: every kind; about four minutes
    python benchmarks/narrow_convergence.py --kinds float32,int8 --results narrow_cpu    # on a CPU, in fp32

Kinds: `float32` is whet's default; `int8` keeps the moments in 8 bits; `bfloat16` the weights in 16, steps rounded at
random; `both`; `nearest` is `bfloat16` with steps rounded to the nearest, which nobody should use: it shows what
rounding at random is for. All compute in the precision of the device (--precision).
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
from unittest.mock import patch

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from results_file import add_results_flag, write_results

import whet
from whet.settings.layers import merged
from whet.training import optimizer as narrow_adamw

KINDS: dict[str, dict[str, Any]] = {
    "float32": {},
    "int8": {"optimizer": {"states": "int8"}},
    "bfloat16": {"model": {"weights": "bfloat16"}},
    "both": {"model": {"weights": "bfloat16"}, "optimizer": {"states": "int8"}},
    "nearest": {"model": {"weights": "bfloat16"}},
}
LAST = 5  # steps whose mean reward is reported


def to_nearest(values: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Rounding to the nearest, in place of rounding at random."""
    return values.to(torch.bfloat16)


def run_of(kind: str, seed: int, method: str, steps: int, precision: str, folder: Path) -> dict[str, Any]:
    """Train once with weights of this kind; its rewards."""
    settings = {"seed": seed, "steps": steps, "model": {"precision": precision}, "eval": {"every": 0}}
    rounded = to_nearest if kind == "nearest" else narrow_adamw.stochastically_rounded
    start = time.perf_counter()
    with patch.object(narrow_adamw, "stochastically_rounded", rounded):
        run = whet.train(
            method, config=merged(settings, KINDS[kind]), folder=str(folder / f"{kind}-{seed}"), console=False
        )
    rewards = [float(value) for value in run.metrics()["reward"]]
    return {
        "accuracy": float(run.after["accuracy"]),
        "reward": fmean(rewards[-LAST:]),
        "halfway": fmean(rewards[len(rewards) // 2 - LAST : len(rewards) // 2]),
        "seconds": time.perf_counter() - start,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--method", default="grpo")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--precision", default="auto", choices=("auto", "fp32", "bf16"))
    parser.add_argument("--out", type=Path, help="write the values as JSON there as well")
    add_results_flag(parser, "gpu_narrow")
    chosen = parser.parse_args()
    values: dict[str, Any] = {"method": chosen.method, "steps": chosen.steps, "seeds": chosen.seeds}
    with tempfile.TemporaryDirectory() as folder:
        for kind in chosen.kinds.split(","):
            runs = [
                run_of(kind, seed, chosen.method, chosen.steps, chosen.precision, Path(folder))
                for seed in range(chosen.seeds)
            ]
            names = ("accuracy", "reward", "halfway", "seconds")
            values[kind] = {name: fmean(run[name] for run in runs) for name in names}
            values[kind]["runs"] = {str(seed): run for seed, run in enumerate(runs)}
            print(json.dumps({kind: values[kind]}), flush=True)
    if chosen.out:
        chosen.out.write_text(json.dumps(values, indent=1) + "\n")
    if chosen.results:
        write_results(chosen.results, values)


if __name__ == "__main__":
    main()
