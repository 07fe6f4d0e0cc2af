"""The steps of a run so far and its settings, with what every rule asks of them. Pure.

The settings of a run that health rules look at, or advise to change, by their names in a config.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import mul
from statistics import fmean, median
from typing import Any

from whet.record.evaluations import Evaluations, evaluations_of
from whet.record.health.finding import SettingAdvice
from whet.record.log import EvalRecord
from whet.record.metrics.intervals import t_quantile
from whet.record.run_kinds import kind_of
from whet.record.text import ACCURACY_NAMES
from whet.types import StepReport

SETTINGS = (
    "batch.group_size",
    "batch.prompts_per_step",
    "batch.epochs_per_batch",
    "batch.routing_replay",
    "batch.staleness",
    "batch.updates_per_step",
    "critic.learning_rate",
    "env.max_tokens",
    "env.max_turns",
    "env.seconds",
    "env.step_seconds",
    "env.tool_seconds",
    "eval.every",
    "eval.prompts",
    "model.lora.alpha",
    "model.lora.rank",
    "objective.aggregate",
    "objective.baseline",
    "objective.baseline.gamma",
    "objective.clip",
    "objective.clip.high",
    "objective.clip.low",
    "objective.curve",
    "objective.curve.beta",
    "objective.imitate",
    "objective.keep",
    "objective.kl",
    "objective.kl.beta",
    "objective.mismatch",
    "objective.ratio",
    "objective.scale",
    "objective.score",
    "objective.value.warmup",
    "optimizer.epsilon",
    "optimizer.learning_rate",
    "optimizer.max_gradient_norm",
    "optimizer.warmup_steps",
    "optimizer.weight_decay",
    "report.save_every",
    "reward.parts",
    "reward.timeout",
    "sampling.max_new_tokens",
    "sampling.temperature",
    "scale.max_staleness",
    "scale.reward_workers",
    "steps",
)

# what a summary says besides the settings, and rules look at: they stand beside them under these names
OVERLAP, DATA, DEVICE, DECODING = "run.overlap", "run.data", "run.device", "run.decode_path"
SPENT = "run.seconds."  # and a phase


def known_settings(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run by its summary, with what rules look at of its facts and of where its time went."""
    settings, facts, seconds = (
        value if isinstance(value := summary.get(name), Mapping) else {} for name in ("settings", "facts", "seconds")
    )
    read = {OVERLAP: "overlap", DATA: "data", DEVICE: "device", DECODING: "decode path"}
    stated = {name: facts[fact] for name, fact in read.items() if facts.get(fact)}
    spent = {f"{SPENT}{phase}": took for phase, took in seconds.items() if isinstance(took, int | float)}
    return {**settings, **stated, **spent}


LASTING = 4  # steps before the last in which a trend of noisy numbers must have shown as well
RECENT = 5  # steps that must agree before a finding is made
TREND_WINDOWS = (10, 20, 40, 80, 160)  # steps over which a rise of the reward is looked for, and the whole run
WRONG_LOOKS = 0.01  # of looks at pure noise, those in which it is said to rise
MOST_FREEDOM = 30  # of Student's quantiles: beyond, they hardly differ
UNMOVED_KL, UNMOVED_DRIFT = 1e-4, 0.05  # nats per token, nats per completion: what no policy that learns stays below
KEPT = 0.8  # of its entropy
FLAT_STEPS = 20
TREND_STEPS = min(TREND_WINDOWS)  # before it is known whether a run goes well
DIP = 0.2  # of a score that ends at 1: what a run that holds may lose for a while
SOLVED, FAILED = 0.95, 0.05  # mean score from which a task counts as solved, or as never solved
EARNED = 0.2  # mean score of a step that no accident explains
# parts of a reward that say whether a completion is right, and are hard to please otherwise
VERIFIED = (
    *(*ACCURACY_NAMES, "exact_answer", "math_answer", "choice_answer", "set_answer", "gym_answer", "code_tests"),
    *("countdown", "instructions", "tool_calls", "environment"),
)
HALF_PRECISION = ("bf16", "bfloat16", "fp16", "float16", "half")


@dataclass(frozen=True)
class History:
    """The steps so far, with what every check asks of them."""

    steps: Sequence[StepReport]
    tolerance: float = 1e-3  # of sampler_gap
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the run, by their names; empty: not known
    evals: Sequence[EvalRecord] = ()

    def without_last(self, count: int) -> History:
        """What was known so many steps ago."""
        steps = self.steps[: len(self.steps) - count]
        return replace(self, steps=steps, evals=[known for known in self.evals if known.step <= steps[-1].step])

    @cached_property
    def knows_settings(self) -> bool:
        """Whether the run's own settings are known; those of an old or damaged folder are not."""
        return any(name in SETTINGS for name in self.settings)

    @cached_property
    def scores(self) -> list[float]:
        """What should grow, by step."""
        name = _score_name(self.steps[-1]) if self.steps else ""
        return finite(step.reward.get(name) for step in self.steps)

    @property
    def score(self) -> float:
        """The mean score of the recent steps."""
        return fmean(self.scores[-RECENT:]) if self.scores else math.nan

    @cached_property
    def evaluations(self) -> Evaluations:
        """The run's own evaluations, by their headline metric."""
        known = [evaluation for evaluation in self.evals if evaluation.step <= self.steps[-1].step]
        return evaluations_of(known, kind_of(self.steps).evals)

    @cached_property
    def direction(self) -> int:
        """Where the score is heading, beyond noise: 1 up, -1 down, 0 nowhere."""
        return direction(self.scores)

    @property
    def rising(self) -> bool:
        """The score grows, beyond noise."""
        return self.direction > 0

    @cached_property
    def solved(self) -> bool:
        """The score is at its top."""
        return is_solved(self.steps[-RECENT:])

    @cached_property
    def gained(self) -> bool:
        """The score took at least half of the way to its top, and holds."""
        return has_gained(self.scores)

    @cached_property
    def doing_well(self) -> bool:
        """Evaluation goes before rewards: one that fell is no run that goes well, whatever the training is paid."""
        if self.evaluations.fell_from is not None:
            return False
        return self.evaluations.rose or self.rising or self.solved or self.gained

    def metric(self, name: str, last: int = RECENT) -> list[float]:
        """The finite values of a metric over the last steps."""
        return finite(step.metrics.get(name) for step in self.steps[-last:])

    def evaluated(self, names: Sequence[str]) -> list[tuple[int, float]]:
        """(step, value) of the first of these metrics that the run's own evaluations have."""
        own = [
            evaluation
            for evaluation in self.evals
            if evaluation.name == self.evals[0].name and evaluation.step <= self.steps[-1].step
        ]
        name = next((name for name in names if any(name in evaluation.result for evaluation in own)), None)
        values = [(evaluation.step, evaluation.result.get(name, math.nan)) for evaluation in own] if name else []
        return [(step, value) for step, value in values if math.isfinite(value)]

    def start_and_now(self, measure: Callable[[StepReport], float | None]) -> tuple[float, float] | None:
        """The medians of the first and the last three steps; None while they would nearly overlap."""
        if len(self.steps) < TREND_STEPS:
            return None
        start, now = (finite(map(measure, steps)) for steps in (self.steps[:3], self.steps[-3:]))
        return (median(start), median(now)) if start and now else None

    def lower(self, setting: str, times: float = 0.3) -> SettingAdvice | None:
        """Advice to lower a number; None where the run has no such setting, or has it at 0."""
        return self._moved(setting, times, "lower")

    def higher(self, setting: str, times: float = 2.0) -> SettingAdvice | None:
        """Advice to raise a number; None where the run has no such setting. For the learning rate there is `faster`."""
        return self._moved(setting, times, "raise")

    @cached_property
    def is_unmoved(self) -> bool:
        """Whether the policy is known to be where it began."""
        kl, drift = self.metric("kl", TREND_STEPS), self.metric("drift", TREND_STEPS)
        if len(kl) >= RECENT:
            return median(map(abs, kl)) < UNMOVED_KL
        return len(drift) >= RECENT and median(drift) < UNMOVED_DRIFT

    def faster(self, times: float = 3.0) -> SettingAdvice | None:
        """Advice to raise the learning rate; None unless nothing speaks against it.

        The policy is where it began, has kept its entropy, and neither evaluation nor reward has fallen.
        """
        entropies, measured = self.start_and_now(entropy), self.evaluations.measured
        is_lower = bool(measured) and measured[0].is_better_than(measured[-1])
        has_lost_entropy = entropies is not None and entropies[1] < KEPT * entropies[0]
        if not self.is_unmoved or is_lower or has_lost_entropy or self.direction < 0:
            return None
        return self.higher("optimizer.learning_rate", times)

    def warmer(self) -> SettingAdvice | None:
        """Advice to sample at a higher temperature; None where the entropy has grown, or evaluation has fallen."""
        entropies = self.start_and_now(entropy)
        if self.evaluations.fell_from is not None or (entropies is not None and entropies[1] > entropies[0]):
            return None
        return self.higher("sampling.temperature", 1.2)

    def setting(self, name: str) -> Any:
        """The value of a setting in this run; None where it has none or settings are unknown."""
        if name not in SETTINGS:
            raise ValueError(f"{name} is no setting of whet.record.health.history; add it there")
        return self.settings.get(name)

    def _moved(self, setting: str, times: float, verb: str) -> SettingAdvice | None:
        now, direction = self.setting(setting), 1 if times > 1 else -1
        if not self.knows_settings:
            return SettingAdvice(setting, f"{times:g} times what it is", f"{verb} {setting}", direction=direction)
        if not isinstance(now, int | float) or not now:
            return None
        value = f"{max(1, round(now * times))}" if isinstance(now, int) else f"{now * times:.2g}"
        if value == f"{now:g}":
            return None
        words = f"{verb} {setting} from {now:g} to {value}"
        return SettingAdvice(setting, value, words, is_exact=True, direction=direction)

    def give(self, setting: str, value: str) -> SettingAdvice | None:
        """Advice to give a setting another value; None where it has it."""
        if str(self.setting(setting)) == value:
            return None
        return SettingAdvice(setting, value, f"give {setting}={value}", is_exact=True)

    @property
    def best_model(self) -> str:
        """The model that evaluated best, in words: where no later one is better than the first, `best/` is not it."""
        best = self.evaluations.best
        return "best/" if best is not None and best.step else "the model it began with"

    def tie(self) -> SettingAdvice | None:
        """Advice to hold the policy closer to its reference."""
        if self.knows_settings and "objective.kl.beta" not in self.settings:
            return self.give("objective.kl", "k3")
        return self.higher("objective.kl.beta")


def history_of(
    steps: Sequence[StepReport],
    dtype: str = "float32",
    settings: Mapping[str, Any] | None = None,
    evals: Sequence[EvalRecord] = (),
) -> History:
    """The steps of a run, ready to be checked; `dtype` sets how far sampler and trainer may be apart."""
    is_half = any(name in dtype.lower().partition(" ")[0] for name in HALF_PRECISION)
    return History(steps, 0.05 if is_half else 1e-3, settings or {}, evals)


def score(report: StepReport) -> float | None:
    """The number that should grow: a verdict on the answer where one is a part of the reward, the reward otherwise."""
    return report.reward.get(_score_name(report))


def _score_name(report: StepReport) -> str:
    return next((name for name in VERIFIED if name in report.reward), "total")


def is_solved(recent: Sequence[StepReport]) -> bool:
    """True when the accuracy, or else every part that pays, is at the top of a scale from 0 to 1."""
    scores = finite(score(step) for step in recent)
    if not scores:
        return False
    if any(name in recent[-1].reward for name in VERIFIED):
        return fmean(scores) >= SOLVED
    parts = {name for step in recent for name in step.reward if name != "total"} or {"total"}
    means = {name: fmean(finite(step.reward.get(name) for step in recent) or [0.0]) for name in parts}
    paying = [mean for mean in means.values() if mean > FAILED]
    return bool(paying) and all(SOLVED <= mean <= 1 + 1e-6 for mean in paying)


def has_gained(scores: Sequence[float]) -> bool:
    """True when a score between 0 and 1 has won half of what it could since the first steps, and holds it."""
    if len(scores) < 2 * RECENT or not all(0 <= value <= 1 for value in scores):
        return False
    start, now = fmean(scores[:3]), fmean(scores[-RECENT:])
    if now < start + 0.5 * (1 - start):
        return False
    return now >= max(fmean(scores[first : first + RECENT]) for first in range(len(scores) - RECENT + 1)) - DIP


def direction(values: Sequence[float]) -> int:
    """1 where the values rise, -1 where they fall, 0 where noise explains it.

    Of `TREND_WINDOWS` and the whole run, the shortest in which a trend shows decides. Pure noise rises, or falls, in
    at most `WRONG_LOOKS` of all looks.
    """
    count = len(values)
    windows = [window for window in TREND_WINDOWS if window < count] + ([count] if count >= TREND_STEPS else [])
    for window in windows:
        errors = trend_in_errors(values[-window:])
        if abs(errors) > t_quantile(1 - WRONG_LOOKS / len(windows), min(window - 2, MOST_FREEDOM)):
            return 1 if errors > 0 else -1
    return 0


def finite(values: Iterable[float | None]) -> list[float]:
    """The values that are numbers; None, NaN and infinities are dropped, so positions shift."""
    return [value for value in values if value is not None and math.isfinite(value)]


def trend(values: Sequence[float]) -> tuple[float, float]:
    """The rise of the least-squares line from the first to the last value, and its standard error."""
    num, mean = len(values), fmean(values)
    middle, spread = (num - 1) / 2, num * (num * num - 1) / 12
    off = [value - mean for value in values]
    slope = sum(map(mul, range(num), off)) / spread
    residue = sum((value - slope * (index - middle)) ** 2 for index, value in enumerate(off))
    return slope * num, num * math.sqrt(residue / (num - 2) / spread)


def trend_in_errors(values: Sequence[float]) -> float:
    """Least-squares rise over its standard error; 0 where the line rises by less than 1% of the values."""
    rise, error = trend(values)
    if abs(rise) <= 0.01 * max(abs(value) for value in values):
        return 0.0
    return math.copysign(math.inf, rise) if error == 0 else rise / error


def share_of(steps: Sequence[StepReport], name: str) -> float:
    """The share of the samples counted under a name."""
    samples = sum(step.counts.get("samples", 0) for step in steps)
    return sum(step.counts.get(name, 0) for step in steps) / samples if samples else 0.0


def improves_truly(history: History) -> bool:
    """True where a verdict on the answer is a part of the reward and goes well: nothing is being gamed then."""
    return history.doing_well and any(name in history.steps[-1].reward for name in VERIFIED)


def entropy(report: StepReport) -> float | None:
    """The policy's entropy in that step; None where it was not measured."""
    return report.metrics.get("entropy")
