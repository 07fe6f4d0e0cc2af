"""What an evaluation says about a model, from its attempts at each prompt. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from whet.record.metrics.distribution import quantile
from whet.record.metrics.intervals import IntervalEstimate, mean_estimate, share_estimate
from whet.record.metrics.pass_at_k import AccuracyEstimate, SizedEstimate, accuracy_estimate, pass_curve, vote_curve
from whet.record.metrics.reward_model import Calibration, calibration_of, vote_confidence


@dataclass(frozen=True)
class Attempt:
    """One completion, or one episode."""

    outcome: float  # the reward's first part; an unscorable one is 0
    tokens: int
    finished: bool  # ended by itself, not by a limit
    answer: str | None = None  # in its normal form: equal ones vote for the same
    confidence: float | None = None  # geometric mean of its tokens' probabilities; None where they are not known
    refused: bool = False
    in_format: bool | None = None  # <think>...</think> closed and an answer after it; None where it does not think
    budgets: Mapping[int, tuple[float, int]] = field(default_factory=dict)  # tokens: outcome, tokens written


@dataclass(frozen=True)
class BudgetPoint(IntervalEstimate):
    """Accuracy under a token budget."""

    budget: int
    tokens: float  # that were written, on average


@dataclass(frozen=True)
class LengthSummary:
    """The lengths of the completions, in tokens."""

    mean: float
    median: float
    tenth_longest: float  # the 90% quantile
    right: float | None  # mean of those that are right
    wrong: float | None
    truncated: IntervalEstimate  # share that a limit cut off


@dataclass(frozen=True)
class EvalSummary:
    """The evaluation of one model on one task. What does not apply is None or empty."""

    prompts: int
    samples: int
    measure: str  # accuracy, or reward where outcomes are not 0 or 1
    value: IntervalEstimate
    accuracy: AccuracyEstimate | None
    pass_at: tuple[SizedEstimate, ...]
    votes: tuple[SizedEstimate, ...]
    calibration: Mapping[str, Calibration]  # by "votes" or "tokens"
    lengths: LengthSummary | None  # None where nothing was written: choices were scored
    answered: IntervalEstimate | None  # share with an explicit final answer; None where none has one
    in_format: IntervalEstimate | None
    budgets: tuple[BudgetPoint, ...]
    refusals: Mapping[str, IntervalEstimate]  # by the value of a column; "" is all prompts
    tasks: Mapping[str, IntervalEstimate]  # by the value of a column
    readings: Mapping[str, IntervalEstimate] = field(default_factory=dict)  # the same attempts, judged otherwise


def summarized(
    attempts: Sequence[Sequence[Attempt]],
    labels: Sequence[str] = (),
    refusals: bool = False,
    counts: Sequence[int] = (),
    readings: Mapping[str, Sequence[float]] | None = None,
) -> EvalSummary:
    """Summarize [prompts][attempts], each prompt with as many; `labels` name the part of the task a prompt belongs to.

    `counts` are the k of pass@k and the n of votes. `readings` are other verdicts, 0 or 1 for each prompt, where
    choices were scored and nothing was written.
    """
    outcomes = [[attempt.outcome for attempt in row] for row in attempts]
    flat = [attempt for row in attempts for attempt in row]
    samples = min(map(len, attempts))
    is_share = all(attempt.outcome in (0.0, 1.0) for attempt in flat)
    accuracy = accuracy_estimate(outcomes) if is_share else None
    answers = [[attempt.answer for attempt in row] for row in attempts]
    votable = samples > 1 and any(answer is not None for row in answers for answer in row)
    right = [attempt.tokens for attempt in flat if attempt.outcome == 1.0] if is_share else []
    wrong = [attempt.tokens for attempt in flat if attempt.outcome != 1.0] if is_share else []
    lengths = sorted(float(attempt.tokens) for attempt in flat)
    return EvalSummary(
        prompts=len(attempts),
        samples=samples,
        measure="accuracy" if is_share else "reward",
        value=accuracy or mean_estimate([fmean(row) for row in outcomes]),
        accuracy=accuracy,
        pass_at=pass_curve(outcomes, counts) if is_share and samples > 1 else (),
        votes=vote_curve(outcomes, answers, counts) if is_share and votable else (),
        calibration=_calibrations(attempts) if is_share else {},
        lengths=None
        if readings
        else LengthSummary(
            fmean(lengths),
            median(lengths),
            quantile(lengths, 0.9),
            fmean(right) if right else None,
            fmean(wrong) if wrong else None,
            _share(attempts, lambda attempt: not attempt.finished),
        ),
        answered=_share(attempts, lambda attempt: attempt.answer is not None)
        if any(attempt.answer is not None for attempt in flat)
        else None,
        in_format=_formats(attempts),
        budgets=_budget_points(attempts, is_share),
        refusals=_by_label(attempts, labels, lambda attempt: float(attempt.refused), is_share=True) if refusals else {},
        tasks={
            name: value
            for name, value in _by_label(attempts, labels, lambda attempt: attempt.outcome, is_share).items()
            if name
        },
        readings={name: share_estimate(list(values), 1) for name, values in (readings or {}).items()},
    )


def _share(attempts: Sequence[Sequence[Attempt]], holds: Callable[[Attempt], bool]) -> IntervalEstimate:
    return share_estimate(
        [fmean([float(holds(attempt)) for attempt in row]) for row in attempts], min(map(len, attempts))
    )


def _formats(attempts: Sequence[Sequence[Attempt]]) -> IntervalEstimate | None:
    """The share of attempts in the required format; None for a model that does not think in tags."""
    if not any(attempt.in_format is not None for row in attempts for attempt in row):
        return None
    return _share(attempts, lambda attempt: bool(attempt.in_format))


def _calibrations(attempts: Sequence[Sequence[Attempt]]) -> dict[str, Calibration]:
    calibrations = {}
    if min(map(len, attempts)) > 1 and any(attempt.answer is not None for row in attempts for attempt in row):
        votes = [
            vote_confidence([attempt.outcome for attempt in row], [attempt.answer for attempt in row])
            for row in attempts
        ]
        calibrations["votes"] = calibration_of([sure for sure, _ in votes], [right for _, right in votes])
    flat = [attempt for row in attempts for attempt in row]
    if all(attempt.confidence is not None for attempt in flat):
        calibrations["tokens"] = calibration_of(
            [attempt.confidence or 0.0 for attempt in flat], [attempt.outcome for attempt in flat]
        )
    return calibrations


def _budget_points(attempts: Sequence[Sequence[Attempt]], is_share: bool) -> tuple[BudgetPoint, ...]:
    points = []
    samples = min(map(len, attempts))
    for budget in sorted(attempts[0][0].budgets):
        cells = [[attempt.budgets[budget] for attempt in row] for row in attempts]
        values = [fmean([outcome for outcome, _ in row]) for row in cells]
        estimate = share_estimate(values, samples) if is_share else mean_estimate(values)
        tokens = fmean([fmean([count for _, count in row]) for row in cells])
        points.append(BudgetPoint(estimate.value, estimate.low, estimate.high, budget, tokens))
    return tuple(points)


def _by_label(
    attempts: Sequence[Sequence[Attempt]], labels: Sequence[str], value: Callable[[Attempt], float], is_share: bool
) -> dict[str, IntervalEstimate]:
    """Estimates over all prompts, under "", and over those of each label."""
    parts = {"": list(attempts)}
    for label, row in zip(labels, attempts, strict=bool(labels)):
        parts.setdefault(label, []).append(row)
    samples = min(map(len, attempts))
    estimates = {}
    for label, rows in parts.items():
        values = [fmean([value(attempt) for attempt in row]) for row in rows]
        estimates[label] = share_estimate(values, samples) if is_share else mean_estimate(values)
    return estimates
