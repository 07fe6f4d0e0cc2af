"""The evaluations of a run: each with its 95% interval, the best and the last, and which of them differ. Pure.

Two evaluations of a run ask the same prompts, so they are compared prompt by prompt where the log has what each prompt
scored (`whet.record.metrics.intervals`), else as two shares of so many prompts. A metric of which neither is known (a
held-out loss) has no interval: any better value is then a new best, and nothing is ever said to have fallen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any

from whet.record.log import EvalRecord
from whet.record.metrics.intervals import (
    IntervalEstimate,
    mcnemar_p,
    mean_estimate,
    more_right_p,
    paired_t,
    share_interval,
)
from whet.record.text import ACCURACY_NAMES, LOWER_IS_BETTER, estimate_text, headline, metric_text, plain_metrics, words

ONE_LOOK = 0.05  # one-sided, of a verdict that is given once
NEW_BEST_LEVEL = 0.05  # one-sided: a look that is wrongly a new best only lets a run go on
# Of runs in which nothing changes, so many are wrongly said to have fallen, or risen, at any of their looks. A single
# look at k evaluations spends 1 / (k (k - 1)) of it, which sums to 1 over all k, over the k - 1 that the best is of.
WRONG_RUNS = 0.02
# one-sided, of each of two evaluations in a row, over the number that the best is of: slow falls are seen sooner
TWICE_BELOW = 0.005
VERDICTS = frozenset((0, 1))


@dataclass(frozen=True)
class Measurement:
    """The headline metric of one evaluation."""

    step: int  # 0 is before the first step
    metric: str
    value: float
    size: int = 0  # prompts or rows it is a mean over; 0: not known
    scores: tuple[float, ...] = ()  # of each prompt; NaN: it could not be scored

    @cached_property
    def estimate(self) -> IntervalEstimate | None:
        """The value with its 95% interval: Wilson's of a share, Student's of a mean; None where neither is known."""
        if _is_share(self.metric) and self.size and 0 <= self.value <= 1:
            return IntervalEstimate(self.value, *share_interval(self.value, self.size))
        scored = [score for score in self.scores if math.isfinite(score)]
        if len(scored) < 2:
            return None
        interval = mean_estimate(scored)
        return IntervalEstimate(self.value, interval.low, interval.high)

    @property
    def text(self) -> str:
        """The value as it is read, with its interval where there is one."""
        if self.estimate is None:
            return metric_text(self.metric, self.value)
        return estimate_text(self.estimate, _is_share(self.metric))

    def is_better_than(self, other: Measurement) -> bool:
        """Whether the value alone is better, whatever noise explains."""
        return self.value < other.value if self.metric in LOWER_IS_BETTER else self.value > other.value

    def better_p(self, other: Measurement) -> float | None:
        """One-sided p of this evaluation being better than `other`; None where there is nothing to judge by.

        Scores of 0 and 1: McNemar's exact test; other scores: Student's test on the differences; without scores: two
        shares of as many prompts each, by Fisher's exact test.
        """
        pairs = self._pairs(other)
        if not pairs:
            if not (_is_share(self.metric) and self.size and self.size == other.size):
                return None
            return more_right_p(round(self.value * self.size), round(other.value * self.size), self.size)
        if VERDICTS.issuperset(chain.from_iterable(pairs)):
            p: float | None = _changed_p(pairs.count((0, 1)), pairs.count((1, 0)))
        else:
            p = paired_t([after - before for before, after in pairs])[0]
        if p is None:
            return None
        return p / 2 if self.is_better_than(other) else 1 - p / 2

    def _pairs(self, other: Measurement) -> list[tuple[float, float]]:
        """What each prompt scored, before and now; empty where it is not known."""
        if len(self.scores) != len(other.scores):
            return []
        both = zip(other.scores, self.scores, strict=True)
        if self._are_all_scored and other._are_all_scored:
            return [*both]
        return [(before, after) for before, after in both if math.isfinite(before) and math.isfinite(after)]

    @cached_property
    def _are_all_scored(self) -> bool:
        return all(map(math.isfinite, self.scores))

    def values(self) -> dict[str, Any]:
        """The point as JSON."""
        interval = self.estimate
        low, high = (None, None) if interval is None else (interval.low, interval.high)
        return {"step": self.step, "value": self.value, "low": low, "high": high}


_changed_p = lru_cache(maxsize=256)(mcnemar_p)  # asked again in every step between two evaluations


@dataclass(frozen=True)
class Evaluations:
    """The evaluations of a run so far, by their headline metric."""

    measured: tuple[Measurement, ...] = ()

    @cached_property
    def best(self) -> Measurement | None:
        """The best one, the evaluation before the first step included; of equal ones the first."""
        return _best(self.measured)

    @property
    def last(self) -> Measurement | None:
        """The newest evaluation."""
        return self.measured[-1] if self.measured else None

    @cached_property
    def fell_from(self) -> Measurement | None:
        """The best evaluation where the last is below it beyond noise, or each of the last two is; else None."""
        count = len(self.measured)
        if count < 2:
            return None
        for looks, level in ((1, WRONG_RUNS / (count * (count - 1))), (2, TWICE_BELOW)):
            best = _best(self.measured[:-looks])
            if best is None:
                return None
            ps = [best.better_p(measurement) for measurement in self.measured[-looks:]]
            if all(p is not None and p <= level / (count - looks) for p in ps):
                return best
        return None

    @cached_property
    def gain(self) -> int:
        """The change from the first to the last evaluation: 1 better, -1 worse, 0 within noise or unknown."""
        if len(self.measured) < 2:
            return 0
        better, worse = (self.measured[end].better_p(self.measured[-1 - end]) for end in (-1, 0))
        return int(better is not None and better <= ONE_LOOK) - int(worse is not None and worse <= ONE_LOOK)

    @cached_property
    def rose(self) -> bool:
        """Whether the last evaluation is above the first beyond noise, however often that was looked at."""
        count = len(self.measured)
        p = self.measured[-1].better_p(self.measured[0]) if count > 1 else None
        return p is not None and p <= WRONG_RUNS / (count * (count - 1))

    @cached_property
    def since_new_best(self) -> int:
        """Evaluations since one was better than the last such one beyond noise; the first counts as one.

        Slow gains add up, because each is compared with the last new best and not with its neighbour.
        """
        reference, count = None, -1
        for measurement in self.measured:
            p = None if reference is None else measurement.better_p(reference)
            if reference is None or (measurement.is_better_than(reference) if p is None else p <= NEW_BEST_LEVEL):
                reference, count = measurement, 0
            else:
                count += 1
        return max(0, count)

    def values(self) -> dict[str, Any]:
        """The evaluations as JSON; empty without one."""
        if self.best is None or self.last is None:
            return {}
        return {
            "metric": self.last.metric,
            "size": self.last.size,
            "best": self.best.values(),
            "last": self.last.values(),
            "fell": self.fell_from is not None,
            "text": self.text,
        }

    @property
    def change(self) -> str:
        """The change from the first to the last in words, with the noise and the best on the way; empty without one."""
        if self.last is None:
            return ""
        first, last, best = self.measured[0], self.measured[-1], self.best
        name, of = words(last.metric), f" of {last.size:,} eval rows" if last.size else ""
        if first is last:
            return f"{name} was {last.text}{of} at step {last.step}"
        ends = f"from {first.text} to {last.text}{of}"
        is_between = best is not None and best is not first and best is not last
        on_the_way = f"; the best was {best.text} at step {best.step}" if best is not None and is_between else ""
        if first.value == last.value:
            return f"{name} stayed at {last.text}{of}{on_the_way}"
        if last.better_p(first) is not None and not self.gain:
            return f"{name} went {ends}: within noise{on_the_way}"
        return f"{name} {'rose' if last.value > first.value else 'fell'} {ends}{on_the_way}"

    @property
    def text(self) -> str:
        """Best and last in one line; empty without an evaluation after a step."""
        best, last = self.best, self.last
        if best is None or last is None or not last.step:
            return ""
        of = f" of {last.size:,} eval rows" if last.size else ""
        if best is last:
            return f"{words(last.metric)} is best at the last step, {last.step}: {last.text}{of}"
        at = f"best at step {best.step}" if best.step else "best before the first step"
        fell = ", significantly below it" if self.fell_from is not None else ""
        return f"{words(last.metric)} {at}: {best.text}{of}; the last, step {last.step}: {last.text}{fell}"


def evaluations_of(evals: Sequence[EvalRecord], preferred: Sequence[str]) -> Evaluations:
    """`preferred` are the metrics of the run's kind, the headline first.

    The metric is one that all evaluations have: a reward that can be a fraction is an accuracy only where every
    completion happened to get all or nothing.
    """
    if not evals:
        return Evaluations()
    own = [evaluation for evaluation in evals if evaluation.name == evals[0].name]
    last = plain_metrics(own[-1].result)
    shared = {name: value for name, value in last.items() if all(name in evaluation.result for evaluation in own)}
    name = headline(shared or last, preferred)
    if name is None:
        return Evaluations()
    return measured_by(own, name)


def measured_by(evals: Sequence[EvalRecord], metric: str) -> Evaluations:
    """Evaluations of one eval set by one metric; those that did not measure it are left out."""
    return Evaluations(
        tuple(
            Measurement(
                evaluation.step,
                metric,
                float(evaluation.result[metric]),
                len(evaluation.scores.get(metric, ())) or evaluation.size,
                tuple(evaluation.scores.get(metric, ())),
            )
            for evaluation in evals
            if math.isfinite(evaluation.result.get(metric, math.nan))
        )
    )


def with_size(evals: Sequence[EvalRecord], size: Any) -> list[EvalRecord]:
    """The evaluations of a run whose log does not say how many prompts there were, and whose summary does."""
    known = size if isinstance(size, int) else 0
    return [evaluation if evaluation.size else replace(evaluation, size=known) for evaluation in evals]


def best_measurement(summary: Mapping[str, Any]) -> Measurement | None:
    """The best evaluation by a run's summary; None where it has none."""
    stated = summary.get("evaluations")
    try:
        best = stated["best"]  # type: ignore[index]
        return Measurement(int(best["step"]), str(stated["metric"]), float(best["value"]), int(stated["size"]))  # type: ignore[index]
    except (KeyError, TypeError, ValueError):
        return None


def best_remark(summary: Mapping[str, Any]) -> str:
    """The best evaluation by a run's summary, where it is not the last; for one line of a list."""
    best = best_measurement(summary)
    if best is None or best.step == (summary["evaluations"].get("last") or {}).get("step"):
        return ""
    return f"best {metric_text(best.metric, best.value)} at step {best.step}"


def _best(measured: Sequence[Measurement]) -> Measurement | None:
    best: Measurement | None = None
    for measurement in measured:
        if best is None or measurement.is_better_than(best):
            best = measurement
    return best


def _is_share(metric: str) -> bool:
    return metric in ACCURACY_NAMES or metric.endswith("accuracy")
