"""What a claim of the documents is, and how it is judged: by a rule that is written down once, never by hand.

A claim about training is an effect of paired runs: one number per seed, and the sign that the claim gives it. With
three seeds or more the verdict follows from the 95% interval of Student's t over the seeds. A claim about
arithmetic is computed and is either so or not. A claim that needs what is not here says what that is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from run_archive import evaluations

from whet.record.metrics.intervals import t_quantile

REPRODUCED, SMALL, REFUTED, UNTESTED = "reproduced", "not at this scale", "refuted", "cannot be tested here"
MISSING = "runs are missing"
FEWEST_SEEDS = 3
CONFIDENCE = 0.95

Record = Mapping[str, Any]
Effect = Callable[[Mapping[str, Record]], float | None]


@dataclass(frozen=True)
class RunClaim:
    """`effect` of the runs `arms` with one seed, by arm; a claim that it is above 0 has the sign 1, below 0 the -1."""

    name: str
    text: str
    said: str  # document and section
    arms: tuple[str, ...]
    measure: str  # what the effect is, in words
    effect: Effect
    sign: int = 1


@dataclass(frozen=True)
class ArithmeticClaim:
    """A claim that needs no run: `compute` gives what comes out, in words, and whether that is what was claimed."""

    name: str
    text: str
    said: str
    compute: Callable[[], tuple[str, bool]]


@dataclass(frozen=True)
class UntestedClaim:
    """A claim that nothing here can decide, and why."""

    name: str
    text: str
    said: str
    reason: str


def interval(effects: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95% interval (Student's t) of one number per seed."""
    mean = fmean(effects)
    half = t_quantile((1 + CONFIDENCE) / 2, len(effects) - 1) * stdev(effects) / math.sqrt(len(effects))
    return mean, mean - half, mean + half


def verdict(effects: Sequence[float], sign: int) -> str:
    """Reproduced where the interval excludes 0 on the claimed side, refuted on the other, else not at this scale."""
    if len(effects) < FEWEST_SEEDS:
        return MISSING
    _, low, high = interval(effects)
    if low <= 0 <= high:
        return SMALL
    return REPRODUCED if (low > 0) == (sign > 0) else REFUTED


def judged(claim: RunClaim, seeds: Mapping[int, Mapping[str, Record]]) -> dict[str, Any]:
    """The row of a claim about training: its effect in every seed that has all of its runs, interval and verdict."""
    effects: dict[int, float] = {}
    for seed, records in sorted(seeds.items()):
        if all(arm in records for arm in claim.arms):
            value = claim.effect(records)
            if value is not None and math.isfinite(value):
                effects[seed] = value
    row: dict[str, Any] = {
        "text": claim.text,
        "said": claim.said,
        "kind": "runs",
        "arms": list(claim.arms),
        "measure": claim.measure,
        "sign": claim.sign,
        "effects": {str(seed): value for seed, value in effects.items()},
        "verdict": verdict(list(effects.values()), claim.sign),
    }
    if len(effects) >= 2:
        row["mean"], row["low"], row["high"] = interval(list(effects.values()))
    return row


def computed(claim: ArithmeticClaim) -> dict[str, Any]:
    """The row of a claim about arithmetic."""
    words, holds = claim.compute()
    verdict = REPRODUCED if holds else REFUTED
    return {"text": claim.text, "said": claim.said, "kind": "arithmetic", "outcome": words, "verdict": verdict}


def untested(claim: UntestedClaim) -> dict[str, Any]:
    """The row of a claim that nothing here can decide."""
    return {"text": claim.text, "said": claim.said, "kind": "untested", "reason": claim.reason, "verdict": UNTESTED}


START, END, LATE, ALL = slice(0, 5), slice(-5, None), "late", slice(None)


def steps_of(record: Record) -> list[Mapping[str, Any]]:
    """The lines of the steps, without evaluations."""
    return [line for line in record["lines"] if "eval" not in line]


def of_step(line: Mapping[str, Any], name: str) -> float | None:
    """One number of a step: a metric, `reward` and `reward.PART`, or a share of the counts."""
    counts = line.get("counts", {})
    if name == "reward" or name.startswith("reward."):
        return line["reward"].get(name.partition(".")[2] or "total")
    if name in ("tokens", "truncated"):
        return counts[name] / counts["samples"]
    if name == "spent":
        return counts.get("samples_spent", counts["samples"]) / counts["samples"]
    if name == "rollout_share":
        return line["seconds"].get("rollout", 0.0) / sum(line["seconds"].values())
    return line["metrics"].get(name)


def mean_of(record: Record, name: str, window: slice | str = ALL) -> float | None:
    """The mean of a number over some steps: all, the first or last five, or the second half (`LATE`)."""
    lines = steps_of(record)
    chosen = lines[len(lines) // 2 :] if isinstance(window, str) else lines[window]
    values = [value for line in chosen if (value := of_step(line, name)) is not None]
    return fmean(values) if values else None


def last_held_out(record: Record, metric: str = "accuracy") -> float | None:
    """The last evaluation."""
    values = evaluations(record, metric)
    return values[-1][1] if values else None


def first_held_out(record: Record, metric: str = "accuracy") -> float | None:
    """The evaluation before training."""
    values = evaluations(record, metric)
    return values[0][1] if values else None


def whole_curve(record: Record, metric: str = "accuracy") -> float | None:
    """The mean of the evaluations after the first: higher where learning was faster, or went further."""
    values = [value for _, value in evaluations(record, metric)[1:]]
    return fmean(values) if values else None


Measure = Callable[[Record], float | None]


def curve_until(step: int) -> Measure:
    """`whole_curve` up to a step: where one of two runs may end early."""

    def measure(record: Record) -> float | None:
        values = [value for at, value in evaluations(record) if 0 < at <= step]
        return fmean(values) if values else None

    return measure


def metric(name: str, window: slice | str = ALL) -> Measure:
    """`mean_of` as a measure of one run."""
    return lambda record: mean_of(record, name, window)


def ending(name: str) -> Measure:
    """An evaluation after training, by the name of its metric."""
    return lambda record: last_held_out(record, name)


def apart(first: str, second: str, measure: Measure) -> Effect:
    """What the run of the first arm has more than that of the second."""

    def effect(records: Mapping[str, Record]) -> float | None:
        a, b = measure(records[first]), measure(records[second])
        return None if a is None or b is None else a - b

    return effect


def change(arm: str, later: Measure, earlier: Measure) -> Effect:
    """How far a run moved between two measures of it."""

    def effect(records: Mapping[str, Record]) -> float | None:
        a, b = later(records[arm]), earlier(records[arm])
        return None if a is None or b is None else a - b

    return effect


def moved(arm: str, name: str) -> Effect:
    """The last five steps against the first five."""
    return change(arm, metric(name, END), metric(name, START))


def learned(arm: str, name: str = "accuracy") -> Effect:
    """The last evaluation against the one before training."""
    return change(arm, lambda record: last_held_out(record, name), lambda record: first_held_out(record, name))


def above(arm: str, measure: Measure, limit: float) -> Effect:
    """How far a run's measure is above a number that the claim names."""

    def effect(records: Mapping[str, Record]) -> float | None:
        value = measure(records[arm])
        return None if value is None else value - limit

    return effect


def best_of(arms: Sequence[str], other: str, measure: Measure) -> Effect:
    """The other arm against the best of several in that seed: what a claim belittles is tried in several ways."""

    def effect(records: Mapping[str, Record]) -> float | None:
        values = [value for arm in arms if (value := measure(records[arm])) is not None]
        base = measure(records[other])
        return None if not values or base is None else base - max(values)

    return effect
