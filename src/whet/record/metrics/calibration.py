"""Does a model know when it is right? What it is sure of against how often it is right. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isnan
from statistics import fmean

BINS = 10


@dataclass(frozen=True)
class ReliabilityBin:
    """The rows of one tenth of the range of confidence."""

    tenth: int  # 0 is the least sure
    rows: int
    sure: float  # mean confidence
    right: float  # share that is right


@dataclass(frozen=True)
class Calibration:
    """How far confidence is from accuracy."""

    error: float  # expected calibration error: SUM over bins of share * |sure - right|
    brier: float  # mean (confidence - right)^2: rewards knowing as well as being calibrated
    bins: tuple[ReliabilityBin, ...]  # that hold rows, the least sure first


def calibration_of(confidence: Sequence[float], right: Sequence[float]) -> Calibration:
    """Tenths of [0, 1]; 1 belongs to the last."""
    rows: list[list[tuple[float, float]]] = [[] for _ in range(BINS)]
    for sure, hit in zip(confidence, right, strict=True):
        if not 0 <= sure <= 1 + 1e-9:
            raise ValueError(f"a confidence of {sure} is no share")
        rows[min(int(sure * BINS), BINS - 1)].append((sure, hit))
    gaps = [abs(sum(sure for sure, _ in pairs) - sum(hit for _, hit in pairs)) for pairs in rows]
    bins = [
        ReliabilityBin(tenth, len(pairs), fmean([sure for sure, _ in pairs]), fmean([hit for _, hit in pairs]))
        for tenth, pairs in enumerate(rows)
        if pairs
    ]
    brier = fmean([(sure - hit) ** 2 for sure, hit in zip(confidence, right, strict=True)])
    return Calibration(sum(gaps) / len(right), brier, tuple(bins))


def vote_confidence(outcomes: Sequence[float], answers: Sequence[str | None]) -> tuple[float, float]:
    """(share of the votes for the most frequent answer, how often that answer is right) of one prompt.

    Votes are out of all completions: one without an answer is a vote for nothing. Tied answers share.
    """
    counts = Counter(answer for answer in answers if answer is not None)
    if not counts:
        return 0.0, 0.0
    top = max(counts.values())
    leaders = {answer for answer, count in counts.items() if count == top}
    worth = [
        fmean([outcome for outcome, answer in zip(outcomes, answers, strict=True) if answer == leader])
        for leader in leaders
    ]
    return top / len(answers), fmean(worth)


def token_confidence(logp: Sequence[float]) -> float | None:
    """exp(mean log-probability of the tokens), their geometric mean; None where an engine gave none."""
    if not logp or any(isnan(value) for value in logp):
        return None
    return min(1.0, exp(fmean(logp)))
