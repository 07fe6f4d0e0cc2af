"""Findings about a run's health: what one is, and the steps so far with what every check asks of them. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from whet.report.text import ACCURACY_NAMES
from whet.types import StepReport

RECENT = 5  # steps that must agree before a finding is made
TREND_WINDOWS = (10, 20, 40)  # steps over which a rise of the reward is looked for
FLAT_STEPS = 20
SOLVED, FAILED = 0.95, 0.05  # mean score from which a task counts as solved, or as never solved
HALF_PRECISION = ("bf16", "bfloat16", "fp16", "float16", "half")


@dataclass(frozen=True)
class HealthFinding:
    """One thing the numbers say: a problem with its fix, or a note on what looks alarming and is normal."""

    name: str
    sentence: str
    is_problem: bool = True

    @property
    def text(self) -> str:
        """As it is recorded and printed: the name, a colon, the sentence."""
        return f"{self.name}: {self.sentence}"


def problem(name: str, evidence: str, cause: str, fix: str) -> HealthFinding:
    return HealthFinding(name, f"{evidence}: {cause}; {fix}.")


def note(name: str, evidence: str, cause: str) -> HealthFinding:
    return HealthFinding(name, f"{evidence}: {cause}.", is_problem=False)


@dataclass(frozen=True)
class History:
    """The steps so far, with what every check asks of them."""

    steps: Sequence[StepReport]
    tolerance: float  # of sampler_gap
    rising: bool  # the score grows, beyond noise
    solved: bool  # the score is at its top
    gained: bool  # it took at least half of the way to its top, and holds
    score: float  # mean over the recent steps

    @property
    def doing_well(self) -> bool:
        return self.rising or self.solved or self.gained

    def metric(self, name: str, last: int = RECENT) -> list[float]:
        """The finite values of a metric over the last steps."""
        return finite(step.metrics.get(name) for step in self.steps[-last:])

    def start_and_now(self, measure: Callable[[StepReport], float | None]) -> tuple[float, float] | None:
        """The medians of the first and the last three steps; None while they would nearly overlap."""
        if len(self.steps) < 8:
            return None
        start, now = (finite(map(measure, steps)) for steps in (self.steps[:3], self.steps[-3:]))
        return (median(start), median(now)) if start and now else None


Check = Callable[[History], HealthFinding | None]


def history_of(steps: Sequence[StepReport], dtype: str = "float32") -> History:
    """The steps of a run, ready to be checked; `dtype` sets how far sampler and trainer may be apart."""
    scores = finite(score(step) for step in steps[-max(TREND_WINDOWS) :])
    return History(
        steps,
        0.05 if any(name in dtype.lower() for name in HALF_PRECISION) else 1e-3,
        is_rising(scores),
        is_solved(steps[-RECENT:]),
        has_gained(finite(map(score, steps))),
        fmean(scores[-RECENT:]) if scores else math.nan,
    )


def score(report: StepReport) -> float | None:
    """The number that should grow: the accuracy where one is a part of the reward, the reward otherwise."""
    name = next((name for name in ACCURACY_NAMES if name in report.reward), "total")
    return report.reward.get(name)


def is_solved(recent: Sequence[StepReport]) -> bool:
    """True when the accuracy, or else every part that pays, is at the top of a scale from 0 to 1."""
    scores = finite(score(step) for step in recent)
    if not scores:
        return False
    if any(name in recent[-1].reward for name in ACCURACY_NAMES):
        return fmean(scores) >= SOLVED
    parts = {name for step in recent for name in step.reward if name != "total"} or {"total"}
    means = {name: fmean(finite(step.reward.get(name) for step in recent) or [0.0]) for name in parts}
    paying = [mean for mean in means.values() if mean > FAILED]
    return bool(paying) and all(SOLVED <= mean <= 1 + 1e-6 for mean in paying)


def has_gained(scores: Sequence[float]) -> bool:
    """True when a score between 0 and 1 has won half of what it could since the first steps, and is not falling."""
    if len(scores) < 2 * RECENT or not all(0 <= value <= 1 for value in scores):
        return False
    start, now = fmean(scores[:3]), fmean(scores[-RECENT:])
    falling = trend_in_errors(scores[-min(len(scores), FLAT_STEPS) :]) < -2
    return now >= start + 0.5 * (1 - start) and not falling


def is_rising(values: Sequence[float]) -> bool:
    return any(len(values) >= window and trend_in_errors(values[-window:]) > 2 for window in TREND_WINDOWS)


def finite(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def trend_in_errors(values: Sequence[float]) -> float:
    """Least-squares rise over its standard error; 0 where the line rises by less than 1% of the values."""
    num = len(values)
    middle, mean = (num - 1) / 2, fmean(values)
    spread = sum((place - middle) ** 2 for place in range(num))
    rise = sum((place - middle) * (value - mean) for place, value in enumerate(values)) / spread
    if abs(rise) * num <= 0.01 * max(abs(value) for value in values):
        return 0.0
    residue = sum((value - mean - rise * (place - middle)) ** 2 for place, value in enumerate(values))
    error = math.sqrt(residue / (num - 2) / spread)
    return math.copysign(math.inf, rise) if error == 0 else rise / error


def share_of(steps: Sequence[StepReport], name: str) -> float:
    """The share of the samples counted under a name."""
    samples = sum(step.counts.get("samples", 0) for step in steps)
    return sum(step.counts.get(name, 0) for step in steps) / samples if samples else 0.0


def entropy(report: StepReport) -> float | None:
    return report.metrics.get("entropy")
