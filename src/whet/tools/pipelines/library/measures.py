"""What held-out completions come to: accuracy, pass@k and the majority vote with intervals; re-checks. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from whet.record.metrics.intervals import IntervalEstimate, mean_estimate, share_estimate
from whet.record.metrics.pass_at_k import pass_curve, vote_curve

ALL = "all"  # the eval prompts together
# words with which a text goes back over what it has said; counted, never paid for
RECHECK = re.compile(
    r"\b(?:wait|hmm|actually|re-?check(?:ing)?|double[- ]check(?:ing)?|let me (?:check|verify|re-?think|see again)"
    r"|let's (?:check|verify)|check(?:ing)? again|on second thought|that(?:'s| is) (?:wrong|not right)|correction)\b",
    re.IGNORECASE,
)
Measured = tuple[float, float, float]  # the value, and its 95% interval


@dataclass(frozen=True)
class EvalRow:
    """A held-out prompt: its greedy completion, and what the drawn ones came to."""

    id: str
    prompt: Any
    set: str
    answer: Any
    completion: str
    right: float | None
    reward: float | None
    tokens: int
    finished: bool
    rechecks: int
    sample_right: Sequence[float | None] = ()
    sample_answers: Sequence[str | None] = ()
    sample_tokens: Sequence[int] = ()
    sample_rechecks: Sequence[int] = ()


@dataclass(frozen=True)
class RecheckStudy:
    """Whether completions that go back over their work are right more often."""

    completions: int = 0
    with_rechecks: int = 0
    right_with: float | None = None
    right_without: float | None = None
    words: Mapping[str, int] = field(default_factory=dict)


def rechecks(text: str) -> int:
    """How often a text goes back over what it has said."""
    return len(RECHECK.findall(text))


def recheck_study(pairs: Sequence[tuple[int, float | None]]) -> RecheckStudy:
    """From the re-checks of each completion and whether it is right."""
    known = [(count, right) for count, right in pairs if right is not None]
    having, lacking = [right for count, right in known if count], [right for count, right in known if not count]
    return RecheckStudy(len(known), len(having), fmean(having) if having else None, fmean(lacking) if lacking else None)


def set_measures(rows: Sequence[EvalRow]) -> dict[str, Measured]:
    """Each metric with its interval; every interval takes a prompt as one observation."""
    measured: dict[str, Measured] = {}
    known = [row.right for row in rows if row.right is not None]
    is_binary = bool(known) and all(right in (0.0, 1.0) for right in known)
    if is_binary:
        measured["accuracy"] = _bounds(share_estimate(known))
        measured |= _sampled(rows)
    else:
        measured["reward"] = _mean([row.reward for row in rows if row.reward is not None])
    measured["completion_tokens"] = _mean([float(row.tokens) for row in rows])
    measured["truncated"] = _bounds(share_estimate([float(not row.finished) for row in rows]))
    measured["rechecks"] = _mean([float(row.rechecks) for row in rows])
    return measured


def _sampled(rows: Sequence[EvalRow]) -> dict[str, Measured]:
    """pass@k, and the vote of all attempts."""
    drawn = [row for row in rows if row.sample_right]
    if not drawn:
        return {}
    outcomes = [[right or 0.0 for right in row.sample_right] for row in drawn]
    count = len(outcomes[0])
    measured = {f"pass@{estimate.n}": _bounds(estimate) for estimate in pass_curve(outcomes)}
    (vote,) = vote_curve(outcomes, [list(row.sample_answers) for row in drawn], [count])
    return {**measured, f"majority@{count}": _bounds(vote)}


def _mean(values: Sequence[float]) -> Measured:
    """JSON has no infinity: without an interval the bounds are the value itself."""
    return _bounds(mean_estimate(values)) if len(values) > 1 else (sum(values), sum(values), sum(values))


def _bounds(estimate: IntervalEstimate) -> Measured:
    return estimate.value, estimate.low, estimate.high
