"""What a run's numbers say about its health. Pure functions from the steps so far to findings.

A finding is a problem (evidence, likely cause, a setting to change) or a note on something that looks alarming and
is normal. A run that improves, or that has solved its task, is left in peace: low entropy, short completions and groups
that agree are what success looks like.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from whet.report.text import ACCURACY_NAMES, number, percent
from whet.types import StepReport

RECENT = 5  # steps that must agree before a finding is made
TREND_WINDOWS = (10, 20, 40)  # steps over which a rise of the reward is looked for
FLAT_STEPS = 20
SOLVED, FAILED = 0.95, 0.05  # mean score from which a task counts as solved, or as never solved
HALF_PRECISION = ("bf16", "bfloat16", "fp16", "float16", "half")


@dataclass(frozen=True)
class Finding:
    """One thing the numbers say; `fix` is empty for a note."""

    name: str
    evidence: str
    cause: str
    fix: str = ""

    @property
    def is_problem(self) -> bool:
        return bool(self.fix)

    @property
    def sentence(self) -> str:
        return f"{self.evidence}: {self.cause}; {self.fix}." if self.fix else f"{self.evidence}: {self.cause}."


@dataclass(frozen=True)
class Episode:
    """The steps during which a finding held, with its last wording."""

    finding: Finding
    first: int
    last: int
    num_steps: int
    holds: bool  # still true at the last step


@dataclass(frozen=True)
class Course:
    """The steps so far, with what every check asks of them."""

    history: Sequence[StepReport]
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
        return finite(step.metrics.get(name) for step in self.history[-last:])

    def start_and_now(self, measure: Callable[[StepReport], float | None]) -> tuple[float, float] | None:
        """The medians of the first and the last three steps; None while they would nearly overlap."""
        if len(self.history) < 8:
            return None
        start, now = (finite(map(measure, steps)) for steps in (self.history[:3], self.history[-3:]))
        return (median(start), median(now)) if start and now else None


def diagnosis(history: Sequence[StepReport], dtype: str = "float32") -> tuple[str, ...]:
    """The problems visible at the last step, one sentence each; empty when the run is healthy."""
    return tuple(finding.sentence for finding in findings(history, dtype) if finding.is_problem)


def notes(history: Sequence[StepReport], dtype: str = "float32") -> tuple[str, ...]:
    """What may look wrong at the last step and is normal, one sentence each."""
    return tuple(finding.sentence for finding in findings(history, dtype) if not finding.is_problem)


def findings(history: Sequence[StepReport], dtype: str = "float32") -> tuple[Finding, ...]:
    """Problems first, then notes."""
    if not history:
        return ()
    course = course_of(history, dtype)
    found = [finding for check in CHECKS if (finding := check(course)) is not None]
    if any(finding.name == "no reward signal" for finding in found):
        found = [finding for finding in found if finding.name != "flat reward"]
    return tuple(sorted(found, key=lambda finding: not finding.is_problem))


def episodes(history: Sequence[StepReport], dtype: str = "float32") -> tuple[Episode, ...]:
    """Everything found at any step of a run, problems first, in the order they first appeared."""
    seen: dict[str, Episode] = {}
    for place, report in enumerate(history, start=1):
        for finding in findings(history[:place], dtype):
            key = f"{finding.name} {finding.is_problem}"
            before = seen.get(key)
            first, count = (before.first, before.num_steps + 1) if before else (report.step, 1)
            seen[key] = Episode(finding, first, report.step, count, place == len(history))
    return tuple(sorted(seen.values(), key=lambda episode: not episode.finding.is_problem))


def course_of(history: Sequence[StepReport], dtype: str = "float32") -> Course:
    scores = finite(score(step) for step in history[-max(TREND_WINDOWS) :])
    return Course(
        history,
        0.05 if any(name in dtype.lower() for name in HALF_PRECISION) else 1e-3,
        is_rising(scores),
        is_solved(history[-RECENT:]),
        has_gained(finite(map(score, history))),
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
    falling = _slope_in_errors(scores[-min(len(scores), FLAT_STEPS) :]) < -2
    return now >= start + 0.5 * (1 - start) and not falling


def is_rising(values: Sequence[float]) -> bool:
    return any(len(values) >= window and _slope_in_errors(values[-window:]) > 2 for window in TREND_WINDOWS)


def finite(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _slope_in_errors(values: Sequence[float]) -> float:
    """Least-squares slope over its standard error; 0 where the line rises by less than 1% of the values."""
    num = len(values)
    middle, mean = (num - 1) / 2, fmean(values)
    spread = sum((place - middle) ** 2 for place in range(num))
    slope = sum((place - middle) * (value - mean) for place, value in enumerate(values)) / spread
    if abs(slope) * num <= 0.01 * max(abs(value) for value in values):
        return 0.0
    residue = sum((value - mean - slope * (place - middle)) ** 2 for place, value in enumerate(values))
    error = math.sqrt(residue / (num - 2) / spread)
    return math.copysign(math.inf, slope) if error == 0 else slope / error


def _share(history: Sequence[StepReport], name: str) -> float:
    """The share of the samples counted under a name."""
    samples = sum(step.counts.get("samples", 0) for step in history)
    return sum(step.counts.get(name, 0) for step in history) / samples if samples else 0.0


def completion_length(report: StepReport) -> float | None:
    """Mean number of tokens of a completion."""
    if "completion_length" in report.metrics:
        return report.metrics["completion_length"]
    samples = report.counts.get("samples", 0)
    return report.counts.get("tokens", 0) / samples if samples else None


def entropy(report: StepReport) -> float | None:
    return report.metrics.get("entropy")


def gradient_norm(report: StepReport) -> float | None:
    return report.metrics.get("gradient_norm", report.metrics.get("grad_norm"))


def _not_finite(course: Course) -> Finding | None:
    last = course.history[-1]
    broken = [name for name in ("loss", "gradient_norm", "grad_norm") if not _is_finite(last.metrics.get(name))]
    if not broken:
        return None
    return Finding(
        "not a number",
        f"{' and '.join(broken)} of step {last.step} is not a number",
        "the update overflowed and the weights may be lost",
        "go back to the last checkpoint, lower learning_rate or train in float32",
    )


def _is_finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)


def _no_signal(course: Course) -> Finding | None:
    uniform = course.metric("uniform_groups")
    if len(uniform) < RECENT or min(uniform) < 0.999:
        return None
    evidence = f"All groups of the last {RECENT} steps scored alike (mean {number(course.score)})"
    name = "no reward signal"
    if course.solved:
        idle = sorted(part for part, mean in course.history[-1].reward.items() if mean == 0)
        doubt = f"; look at {', '.join(idle)}, though, which stays at 0" if idle else ""
        cause = f"every completion is right, which is normal once a task is solved{doubt}"
        return Finding(name, evidence, f"{cause}. Give harder data to learn more")
    if course.rising:
        return None
    if course.score <= FAILED:
        cause = "every completion is wrong, so there is nothing to learn from"
        fix = "give easier data, raise temperature or enlarge group_size"
        return Finding(name, evidence, cause, fix)
    cause = "each prompt is always solved or never, so no completion is better than its group"
    return Finding(name, evidence, cause, "give data of middling difficulty, raise temperature or group_size")


def _entropy(course: Course) -> Finding | None:
    pair = course.start_and_now(entropy)
    if pair is None or course.doing_well:
        return None
    start, now = pair
    moved = f"from {number(start)} to {number(now)}"
    if start > 0 and now < 0.1 * start:
        cause = "the policy has stopped exploring"
        fix = "lower optimizer.learning_rate, or raise sampling.temperature or objective.clip.high"
        return Finding("entropy collapse", f"Entropy fell {moved} while the reward stays flat", cause, fix)
    if now > 3 * start and now > start + 1:
        cause = "the policy is being washed out towards random text"
        fix = "lower optimizer.learning_rate, or raise objective.kl.beta"
        return Finding("entropy explosion", f"Entropy grew {moved} without a better reward", cause, fix)
    return None


def _kl(course: Course) -> Finding | None:
    values = course.metric("kl", 13)
    if len(values) < 3:
        return None
    now = median(values[-3:])
    earlier = median(values[-13:-3]) if len(values) >= 13 else math.inf
    if not (now > 10 or (now > 1 and now > 4 * earlier and not course.doing_well)):
        return None
    return Finding(
        "KL runaway",
        f"KL from the reference reached {number(now)} per token",
        "the policy is leaving the language it started from, often to please a flaw in the reward",
        "raise the kl coefficient, lower learning_rate and read the best samples for reward hacking",
    )


def _gradient_spike(course: Course) -> Finding | None:
    # a step without signal has norm 0: it says nothing about what is typical
    earlier = [norm for norm in finite(map(gradient_norm, course.history[-21:-1])) if norm > 0]
    norm = gradient_norm(course.history[-1]) or 0.0
    if len(earlier) < RECENT or not norm > 10 * (typical := median(earlier)):
        return None
    return Finding(
        "gradient spike",
        f"The gradient norm of step {course.history[-1].step} was {number(norm)},"
        f" {norm / typical:.0f} times its median of {number(typical)}",
        "a few samples dominate the update",
        "clip the gradient norm lower, lower learning_rate or raise prompts_per_step",
    )


def _truncation(course: Course) -> Finding | None:
    if course.solved or len(course.history) < RECENT:
        return None
    share = _share(course.history[-RECENT:], "truncated")
    if share <= 0.5:
        return None
    return Finding(
        "truncated completions",
        f"{percent(share)} of the completions of the last {RECENT} steps ran out of tokens",
        "they are cut before their answer",
        "raise max_new_tokens, or reward shorter completions",
    )


def _length(course: Course) -> Finding | None:
    pair, scores = course.start_and_now(completion_length), course.start_and_now(score)
    if pair is None or course.doing_well or (scores is not None and scores[1] > scores[0] + 0.1 * abs(scores[0])):
        return None
    start, now = pair
    moved = f"from {number(start)} to {number(now)} tokens"
    if start >= 8 and now < 0.25 * start:
        cause = "the policy found that short completions cost less, not that they are right"
        fix = "weaken length costs and check that the reward gives nothing to an empty completion"
        return Finding("length collapse", f"Completions shrank {moved} without a better reward", cause, fix)
    if now > 4 * start and now >= 32:
        cause = "length is being rewarded, or the end of the completion is no longer learned"
        fix = "set objective.aggregate=token_mean, or lower sampling.max_new_tokens"
        return Finding("length blow-up", f"Completions grew {moved} without a better reward", cause, fix)
    return None


def _sampler_gap(course: Course) -> Finding | None:
    gap = course.history[-1].metrics.get("sampler_gap")
    if gap is None or not gap > course.tolerance:
        return None
    return Finding(
        "sampler gap",
        f"Sampler and trainer disagree by {number(gap)} per token (at most {course.tolerance:g} is expected)",
        "the completions are not quite from the policy that is trained",
        "run sampler and trainer in the same precision (model.precision) and with the same weights",
    )


def _unscorable(course: Course) -> Finding | None:
    share = _share(course.history[-RECENT:], "unscorable")
    if len(course.history) < min(RECENT, 3) or share <= 0.1:
        return None
    return Finding(
        "unscorable completions",
        f"{percent(share)} of the completions of the last steps could not be scored",
        "the reward gave None, so they were left out of training",
        "read them in samples.jsonl, then fix the reward or the answers in the data",
    )


def _flat(course: Course) -> Finding | None:
    scores = finite(score(step) for step in course.history[-FLAT_STEPS:])
    if len(scores) < FLAT_STEPS or course.doing_well:
        return None
    start, now = fmean(scores[: FLAT_STEPS // 2]), fmean(scores[FLAT_STEPS // 2 :])
    falling = _slope_in_errors(scores) < -2
    if not falling and 0.8 <= now <= 1:
        evidence = f"The reward stays at {number(now)}"
        return Finding("little to gain", evidence, "this is normal so near its top; harder data would teach more")
    course_words = "fell" if falling else "has not risen"
    cause = "the updates do harm" if falling else "the updates are too small, too noisy, or have nothing to reward"
    fix = (
        "lower learning_rate and check the reward on samples.jsonl"
        if falling
        else "raise learning_rate or prompts_per_step, or give easier data"
    )
    evidence = f"The reward {course_words} over {FLAT_STEPS} steps ({number(start)} to {number(now)})"
    return Finding("flat reward", evidence, cause, fix)


def _surrogate_near_zero(course: Course) -> Finding | None:
    values = course.metric("surrogate")
    if len(values) < 3 or median(abs(value) for value in values) > 0.01:
        return None
    evidence = f"The surrogate objective is near 0 ({number(values[-1])})"
    cause = "this is normal; while the ratio is 1 the advantages of a group cancel in its value, not in its gradient"
    return Finding("surrogate near zero", evidence, cause + ". Watch the reward instead")


def _entropy_falls_with_success(course: Course) -> Finding | None:
    pair = course.start_and_now(entropy)
    if pair is None or not course.doing_well or pair[1] >= 0.5 * pair[0]:
        return None
    evidence = f"Entropy fell from {number(pair[0])} to {number(pair[1])}"
    return Finding("entropy falls", evidence, "this is normal while the reward grows or is at its top")


def _some_uniform(course: Course) -> Finding | None:
    uniform = course.metric("uniform_groups")
    if len(uniform) < RECENT or not course.doing_well or not 0.5 < (share := fmean(uniform)) < 0.999:
        return None
    evidence = f"{percent(share)} of the groups scored alike and gave no gradient"
    return Finding("groups agree", evidence, "this is normal as the accuracy grows; harder data would use them better")


CHECKS: tuple[Callable[[Course], Finding | None], ...] = (
    _not_finite,
    _no_signal,
    _flat,
    _entropy,
    _kl,
    _gradient_spike,
    _truncation,
    _length,
    _sampler_gap,
    _unscorable,
    _surrogate_near_zero,
    _entropy_falls_with_success,
    _some_uniform,
)
