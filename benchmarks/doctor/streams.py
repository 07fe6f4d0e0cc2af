"""Runs as streams of numbers, slow and noisy as real ones are: drawn around given courses, not trained."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from whet.record.log import EvalRecord
from whet.types import StepReport

Points = Sequence[tuple[int, float]]
SETTINGS = {
    "optimizer.learning_rate": 5e-6,
    "optimizer.max_gradient_norm": 1.0,
    "batch.group_size": 8,
    "batch.prompts_per_step": 16,
    "objective.kl": "none",
    "sampling.max_new_tokens": 256,
    "sampling.temperature": 1.0,
}
MOVING = {"entropy": ((1, 0.30), (200, 0.22)), "kl": ((1, 1e-4), (200, 0.01)), "uniform_groups": ((1, 0.4), (200, 0.3))}
# what runs on pairs and reward models log while they learn slowly
PAIRS = {
    "chosen_logp": ((1, -50.0), (200, -60.0)),
    "rejected_logp": ((1, -50.0), (200, -75.0)),
    "chosen_mean_logp": ((1, -1.0), (200, -1.2)),
    "margin": ((1, 0.001), (200, 0.5)),
    "accuracy": ((1, 0.5), (200, 0.68)),
    "drift": ((1, 0.001), (200, 8.0)),
    "loss": ((1, 0.69), (200, 0.55)),
    "chosen_length": ((1, 50.0), (200, 50.0)),
}
SCORES = {"loss": ((1, 0.7), (200, 0.6)), "accuracy": ((1, 0.5), (200, 0.68)), "score": ((1, 0.1), (200, 0.3))}


def through(points: Points) -> Callable[[int], float]:
    """The line through (step, value) points."""

    def at(step: int) -> float:
        for (x0, y0), (x1, y1) in pairwise(points):
            if step <= x1:
                return y0 + (y1 - y0) * (step - x0) / (x1 - x0)
        return points[-1][1]

    return at


@dataclass(frozen=True)
class Stream:
    """A run by the courses of its numbers; a step's mean reward is that of so many completions."""

    reward: Points
    steps: int
    evals: Points = ()
    eval_size: int = 200
    truncated: Points = ((1, 0.05), (2, 0.05))
    metrics: Mapping[str, Points] = field(default_factory=dict)
    samples: int = 128
    settings: Mapping[str, object] = field(default_factory=lambda: SETTINGS)

    def reports(self, seed: int) -> list[StepReport]:
        chance = random.Random(seed)
        reward, truncated = through(self.reward), through(self.truncated)
        courses = {name: through(points) for name, points in self.metrics.items()}
        reports = []
        for step in range(1, self.steps + 1):
            # completions to one prompt are alike: a step of 128 is worth some 48 independent ones
            spread = math.sqrt(max(1e-4, reward(step) * (1 - reward(step))) / (0.375 * self.samples))
            value = min(1.0, max(0.0, reward(step) + chance.gauss(0, spread)))
            share = truncated(step)
            cut = sum(chance.random() < share for _ in range(self.samples))
            counts = {"samples": self.samples, "prompts": 16, "tokens": 120 * self.samples, "truncated": cut}
            metrics = {name: course(step) * chance.lognormvariate(0, 0.1) for name, course in courses.items()}
            metrics.setdefault("gradient_norm", chance.lognormvariate(-1, 0.4))
            parts = {"total": value, "exact": value}
            reports.append(StepReport(step, step, {**counts, "unscorable": 0}, parts, metrics))
        return reports

    def evaluations(self) -> list[EvalRecord]:
        return [EvalRecord(step, "eval", {"accuracy": value}, 1.0, self.eval_size) for step, value in self.evals]


def row_reports(seed: int, steps: int = 200, **courses: Points) -> list[StepReport]:
    """A run that learns from rows: each metric with a noise of a tenth."""
    chance, lines = random.Random(seed), {name: through(points) for name, points in courses.items()}
    return [
        StepReport(
            step,
            step,
            {"rows": 16, "tokens": 2000},
            {},
            {"gradient_norm": 1.0} | {name: line(step) * (1 + chance.gauss(0, 0.1)) for name, line in lines.items()},
        )
        for step in range(1, steps + 1)
    ]
