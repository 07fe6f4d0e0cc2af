"""How good is an ensemble of reward models, and what does it know about its own mistakes? From scores alone.

Members are put on one scale first: each one's centre and scale over the held-out completions. Disagreement is the
standard deviation of the members' margins on a row; a row is wrong where the mean of the margins is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Literal

from whet.record.metrics.reward_model import area_under_curve

Ensemble = Literal["mean", "worst", "mean_minus_std", "mean_minus_variance"]

CAUTIOUS: tuple[Ensemble, ...] = ("worst", "mean_minus_std", "mean_minus_variance")
VARIANCE_WEIGHT = 0.5  # Coste 2023 (2310.02743): for choosing among completions
FLAT = 1e-6  # a member whose scores vary less tells nothing apart

Scales = list[tuple[float, float]]
MemberScores = Sequence[float]  # K, one per member


def ensemble_score(
    scores: Sequence[float], how: Ensemble, deviations: float = 1.0, variance_weight: float = 0.1
) -> float:
    """The mean; the worst; mean - deviations * Bessel's std; or mean - variance_weight * population variance.

    The worst and the last: Coste 2023 (2310.02743), there with 0.5 for best-of-n and 0.1 in RL. A single score is
    returned as it is.
    """
    mean = sum(scores) / len(scores)
    if how == "worst":
        return min(scores)
    if how == "mean" or len(scores) == 1:
        return mean
    squares = sum((score - mean) ** 2 for score in scores)
    if how == "mean_minus_variance":
        return mean - variance_weight * squares / len(scores)
    return mean - deviations * math.sqrt(squares / (len(scores) - 1))


def standardized(scores: Sequence[float], scales: Sequence[tuple[float, float]] | None) -> list[float]:
    """Each member's distance from its own centre in its own scale; as they are where that is not known."""
    if scales is None:
        return list(scores)
    return [(value - centre) / scale for value, (centre, scale) in zip(scores, scales, strict=True)]


def disagreement(scores: Sequence[float]) -> float:
    """The population standard deviation of the members."""
    return pstdev(scores)


def member_scales(scores: Sequence[MemberScores]) -> Scales | None:
    """(mean, population std) of each member's scores; None where one of them does not vary."""
    scales = [(fmean(column), pstdev(column)) for column in zip(*scores, strict=True)]
    return scales if scales and all(math.isfinite(scale) and scale > FLAT for _, scale in scales) else None


def pair_ensemble_metrics(better: Sequence[MemberScores], worse: Sequence[MemberScores]) -> dict[str, float]:
    """Metrics of members on one scale, from their scores of the better and the worse completion of each pair."""
    margins = [[one - two for one, two in zip(*pair, strict=True)] for pair in zip(better, worse, strict=True)]
    cautious = {
        how: [_score(one, how) - _score(two, how) for one, two in zip(better, worse, strict=True)] for how in CAUTIOUS
    }
    return ensemble_metrics(margins, cautious)


def label_ensemble_metrics(logits: Sequence[MemberScores], labels: Sequence[float]) -> dict[str, float]:
    """Metrics of members that say right (above 0) or wrong, a row or step each."""
    signs = [1 if label > 0.5 else -1 for label in labels]
    margins = [[sign * value for value in row] for row, sign in zip(logits, signs, strict=True)]
    cautious = {how: [sign * _score(row, how) for row, sign in zip(logits, signs, strict=True)] for how in CAUTIOUS}
    return ensemble_metrics(margins, cautious)


def ensemble_metrics(margins: Sequence[MemberScores], cautious: Mapping[Ensemble, Sequence[float]]) -> dict[str, float]:
    """Accuracy of each member and of the cautious aggregates; disagreement on right and on wrong rows.

    `disagreement_finds_errors` is the chance that a wrong row has more of it than a right one, and
    `small_margin_finds_errors` the same for how small the mean margin is: the first is worth its cost where it is
    above the second.
    """
    means = [fmean(row) for row in margins]
    apart = [disagreement(row) for row in margins]
    wrong = [mean <= 0 for mean in means]
    accuracies = [_accuracy(column) for column in zip(*margins, strict=True)]
    metrics = {f"member/{number}/accuracy": accuracy for number, accuracy in enumerate(accuracies, 1)}
    metrics |= {"accuracy_lowest_member": min(accuracies), "accuracy_highest_member": max(accuracies)}
    metrics |= {f"accuracy_{how}": _accuracy(values) for how, values in cautious.items()}
    for name, which in (("right", False), ("wrong", True)):
        values = [value for value, is_wrong in zip(apart, wrong, strict=True) if is_wrong is which]
        if values:
            metrics[f"disagreement_{name}"] = fmean(values)
    areas = {
        "disagreement_finds_errors": area_under_curve(apart, wrong),
        "small_margin_finds_errors": area_under_curve([-abs(mean) for mean in means], wrong),
    }
    return {**metrics, **{name: area for name, area in areas.items() if area is not None}}


def _score(scores: MemberScores, how: Ensemble) -> float:
    return ensemble_score(scores, how, variance_weight=VARIANCE_WEIGHT)


def _accuracy(margins: Sequence[float]) -> float:
    return fmean([0.5 if margin == 0 else float(margin > 0) for margin in margins])
