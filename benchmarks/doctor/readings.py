"""What a run of the corpus did, as series of numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

Line = Mapping[str, Any]
Run = Mapping[str, Any]


def steps_of(run: Run) -> list[Line]:
    return [line for line in run["lines"] if "eval" not in line]


def evals_of(run: Run, name: str) -> list[float]:
    return [line["result"][name] for line in run["lines"] if "eval" in line and line["result"].get(name) is not None]


def series(run: Run, path: str) -> list[float]:
    """The known values of `metrics/kl`, `reward/total`, `seen/right`, `counts/truncated` (per sample) or `seconds`."""
    room, _, name = path.partition("/")
    found = []
    for line in steps_of(run):
        if room == "seconds":
            value = sum(each for each in line["seconds"].values() if each is not None)
        else:
            value = line.get(room, {}).get(name)
        if room == "counts":
            samples = line["counts"].get("samples", 0)
            value = line["counts"].get(name, 0) / samples if samples else None
        if value is not None and math.isfinite(value):
            found.append(float(value))
    return found


def first(values: Sequence[float], count: int = 5) -> float:
    return fmean(values[:count]) if values else math.nan


def last(values: Sequence[float], count: int = 8) -> float:
    return fmean(values[-count:]) if values else math.nan


def died(run: Run) -> bool:
    return run["status"] == "failed" and any(word in run["error"] for word in ("not finite", "NaN", "infinity"))


def since(run: Run, values: Sequence[float]) -> list[float]:
    return list(values[run["start"] - 1 :])


def no_gain(run: Run) -> bool:
    right = series(run, "seen/right")
    return last(right, 15) - first(right, 10) < 0.1
