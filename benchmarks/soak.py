"""Does a long run drift? Memory, open files, threads and step time over thousands of steps, each as a fitted slope.

    python benchmarks/soak.py --results                                    # 2,000 steps of the built-in model
    python benchmarks/soak.py --model smollm2 --steps 500 --results real_soak_smollm2

The run trains, evaluates and saves as any run does. Its learning rate is so small that completions keep their length:
what still grows is not the work. The first tenth of the steps is left out and the rest cut into blocks; a line is
fitted to the blocks' medians, and what it rises from one end to the other is the drift. A quantity drifts when that is
above its limit and more than chance (the lower end of the 95% interval is above 0).

On a GPU, step time is wall time. On a CPU it is CPU time over that of a fixed piece of work done after each step, in
seconds of its median: what other processes on the machine slow down, they slow down in both.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

BLOCKS = 20
WARM_UP = 0.1  # share of the steps that allocators and caches are given


@dataclass(frozen=True)
class DriftLimit:
    """How much a quantity may rise over a run: a share of its level, and at least so much."""

    share: float
    least: float
    unit: str


LIMITS = {
    "resident_bytes": DriftLimit(0.02, 16e6, "bytes"),
    "gpu_allocated_bytes": DriftLimit(0.01, 8e6, "bytes"),
    "gpu_reserved_bytes": DriftLimit(0.02, 64e6, "bytes"),
    "open_files": DriftLimit(0.0, 0.5, "files"),
    "threads": DriftLimit(0.0, 0.5, "threads"),
    "step_seconds": DriftLimit(0.05, 0.0, "s"),
}


REFERENCE = "reference_seconds"


def fixed_work() -> float:
    """CPU seconds of a piece of work that is always the same, half in Python and half in small matrix products."""
    import torch

    began = time.process_time()
    total = 0
    for number in range(60_000):
        total += number & 7
    matrix = torch.full((96, 96), 1.0 / 96)
    for _ in range(60):
        matrix = matrix @ matrix
    return time.process_time() - began


class SoakWatch:
    """A callback that notes what the process holds after every step."""

    def __init__(self, on_gpu: bool) -> None:
        self.on_gpu = on_gpu
        self.noted: dict[str, list[float]] = {}
        self._last = self._clock()

    def stepped(self, report: Any, samples: Sequence[Any]) -> None:
        now = self._clock()
        values = {"step_seconds": now - self._last, **held(self.on_gpu)}
        if not self.on_gpu:
            values[REFERENCE] = fixed_work()
        for name, value in values.items():
            self.noted.setdefault(name, []).append(value)
        self._last = self._clock()

    def evaluated(self, step: int, name: str, result: Mapping[str, float], seconds: float) -> None:
        self._last = self._clock()

    def saved(self, step: int, checkpoint: Path) -> None:
        self._last = self._clock()

    def _clock(self) -> float:
        return time.monotonic() if self.on_gpu else time.process_time()


def held(on_gpu: bool) -> dict[str, float]:
    """What this process holds now."""
    from whet.tools.bench.meter import resident_bytes

    values = {
        "resident_bytes": float(resident_bytes()),
        "open_files": float(len(os.listdir("/proc/self/fd"))),
        "threads": float(len(os.listdir("/proc/self/task"))),
    }
    if on_gpu:
        import torch

        values["gpu_allocated_bytes"] = float(torch.cuda.memory_allocated())
        values["gpu_reserved_bytes"] = float(torch.cuda.memory_reserved())
    return values


def block_medians(values: Sequence[float]) -> list[float]:
    """The medians of equal stretches, the first steps left out."""
    after = list(values[round(WARM_UP * len(values)) :])
    count = min(BLOCKS, len(after))
    if count < 10:
        raise SystemExit(f"{len(values)} steps are too few to fit a line; give --steps 20 or more")
    cuts = [len(after) * place // count for place in range(count + 1)]
    return [median(after[start:stop]) for start, stop in pairwise(cuts)]


def fitted_drift(values: Sequence[float], limit: DriftLimit, reference: Sequence[float] = ()) -> dict[str, Any]:
    """The rise of a line through the medians of blocks, with its 95% interval, beside what is allowed."""
    medians = block_medians(values)
    count = len(medians)
    if reference:
        usual = block_medians(reference)
        medians = [value * median(usual) / each for value, each in zip(medians, usual, strict=True)]
    places = [(place + 0.5) / count for place in range(count)]
    centre, level = fmean(places), fmean(medians)
    spread = sum((place - centre) ** 2 for place in places)
    slope = sum((place - centre) * (value - level) for place, value in zip(places, medians, strict=True)) / spread
    errors = [value - level - slope * (place - centre) for place, value in zip(places, medians, strict=True)]
    around = 2.1 * (sum(error**2 for error in errors) / (count - 2) / spread) ** 0.5  # Student's t, 18 degrees
    allowed = max(limit.share * abs(level), limit.least)
    return {
        "level": level,
        "drift": slope,
        "interval": around,
        "limit": allowed,
        "first": medians[0],
        "last": medians[-1],
        "drifts": slope > allowed and slope - around > 0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="whetstone")
    parser.add_argument("--method", default="grpo")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=100, help="steps between evaluations and checkpoints")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--folder", type=Path, help="of the run; default: one that is removed afterwards")
    parser.add_argument("--results", nargs="?", const="soak", metavar="NAME", help="write results/NAME.json")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="whet-soak-") as scratch:
        values = soak(chosen, chosen.folder or Path(scratch) / "run")
    print(json.dumps(values, indent=1))
    if chosen.results:
        from results_file import write_results

        write_results(chosen.results, values)
    drifting = [name for name in LIMITS if name in values and values[name]["drifts"]]
    if drifting:
        raise SystemExit(f"drifts: {', '.join(drifting)}")


def soak(chosen: Any, folder: Path) -> dict[str, Any]:
    """Train, and fit a line to everything that was noted."""
    import torch

    import whet
    from whet.settings.layers import from_settings, merged

    on_gpu = torch.cuda.is_available()
    watch = SoakWatch(on_gpu)
    config = merged(
        {
            "optimizer": {"learning_rate": 1e-9},
            "eval": {"every": chosen.every, "prompts": 50},
            "report": {"save_every": chosen.every, "keep_checkpoints": 1},
        },
        from_settings(chosen.settings),
    )
    began = time.monotonic()
    whet.train(
        chosen.method,
        model=chosen.model,
        steps=chosen.steps,
        config=config,
        folder=str(folder),
        callbacks=[watch, Heartbeat(chosen.steps)],
        console=False,
    )
    reference = watch.noted.pop(REFERENCE, [])
    found = {
        name: fitted_drift(values, LIMITS[name], reference if name == "step_seconds" else ())
        for name, values in watch.noted.items()
    }
    about = {
        "model": chosen.model,
        "method": chosen.method,
        "steps": chosen.steps,
        "device": "gpu" if on_gpu else "cpu",
    }
    return {**about, "seconds": time.monotonic() - began, "python_threads": threading.active_count(), **found}


class Heartbeat:
    """A line now and then."""

    def __init__(self, steps: int) -> None:
        self._steps, self._said = steps, time.monotonic()

    def stepped(self, report: Any, samples: Sequence[Any]) -> None:
        if time.monotonic() - self._said > 30:
            self._said = time.monotonic()
            print(f"step {report.step}/{self._steps}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
