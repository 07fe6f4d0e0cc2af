"""What held-out completions come to: accuracy, pass@k and the majority vote with intervals; re-checks. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from whet.metrics.selection import best_of, interval, majority, sizes
from whet.metrics.significance import share_interval
from whet.reward.answer import final_answer, normal_form

ALL = "all"  # the eval prompts together
# words with which a text goes back over what it has said; counted, never paid for
RECHECK = re.compile(
    r"\b(?:wait|hmm|actually|re-?check(?:ing)?|double[- ]check(?:ing)?|let me (?:check|verify|re-?think|see again)"
    r"|let's (?:check|verify)|check(?:ing)? again|on second thought|that(?:'s| is) (?:wrong|not right)|correction)\b",
    re.IGNORECASE,
)
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
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


def read_answer(completion: str) -> str | None:
    """What a completion votes for: its marked answer, else its last number."""
    marked = final_answer(completion)
    if marked is not None:
        return normal_form(marked)
    numbers = NUMBER.findall(completion)
    return normal_form(numbers[-1]) if numbers else None


def set_measures(rows: Sequence[EvalRow]) -> dict[str, Measured]:
    """Each metric with its interval: Wilson's of shares, a bootstrap over prompts of the others."""
    found: dict[str, Measured] = {}
    known = [row.right for row in rows if row.right is not None]
    is_binary = bool(known) and all(right in (0.0, 1.0) for right in known)
    if is_binary:
        share = fmean(known)
        found["accuracy"] = (share, *share_interval(share, len(known)))
    else:
        found["reward"] = _mean([row.reward for row in rows if row.reward is not None])
    found |= _sampled(rows) if is_binary else {}
    found["completion_tokens"] = _mean([float(row.tokens) for row in rows])
    truncated = fmean(float(not row.finished) for row in rows)
    found["truncated"] = (truncated, *share_interval(truncated, len(rows)))
    found["rechecks"] = _mean([float(row.rechecks) for row in rows])
    return found


def _mean(values: Sequence[float]) -> Measured:
    return (fmean(values), *interval(values)) if values else (0.0, 0.0, 0.0)


def _sampled(rows: Sequence[EvalRow]) -> dict[str, Measured]:
    drawn = [row for row in rows if row.sample_right]
    if not drawn:
        return {}
    found: dict[str, Measured] = {}
    count = len(drawn[0].sample_right)
    outcomes = [[right or 0.0 for right in row.sample_right] for row in drawn]
    for size in sizes(count):
        found[f"pass@{size}"] = _mean([best_of(each, each, size) for each in outcomes])
    votes = [majority(right, list(row.sample_answers), count) for row, right in zip(drawn, outcomes, strict=True)]
    found[f"majority@{count}"] = _mean(votes)
    return found
