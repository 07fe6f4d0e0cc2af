"""How good is a reward model? Metrics on held-out pairs, outcomes and steps, from its scores alone.

The probability that a completion is better is sigma(margin), that it is right sigma(score). Calibration: the expected
error sorts the rows by how sure the model is and compares that with how often it is right in each tenth of the range.
Metrics with a slash in their name are the single tenths, for a page to draw; they are too many for a line.

Does a model know when it is right? What it is sure of against how often it is right. Pure.

How good is an ensemble of reward models, and what does it know about its own mistakes? From scores alone.

Members are put on one scale first: each one's centre and scale over the held-out completions. Disagreement is the
standard deviation of the members' margins on a row; a row is wrong where the mean of the margins is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, isnan
from statistics import fmean, pstdev
from typing import Literal

from whet.record.metrics.distribution import pearson, ranks

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


def pair_metrics(
    chosen: Sequence[float], rejected: Sequence[float], chosen_length: Sequence[int], rejected_length: Sequence[int]
) -> dict[str, float]:
    """Accuracy, calibration and what length has to do with it. One entry per pair; equal scores count half.

    `length_correlation` is that of score and length over all completions, `longer_correlation` that of the two
    differences within a pair, which a harder question cannot cause.
    """
    margins = [better - worse for better, worse in zip(chosen, rejected, strict=True)]
    longer = [first - second for first, second in zip(chosen_length, rejected_length, strict=True)]
    right = [_right(margin) for margin in margins]
    result = {
        "accuracy": fmean(right),
        "margin": fmean(margins),
        "chosen_score": fmean(chosen),
        "rejected_score": fmean(rejected),
        "brier": fmean([(1 - _sigmoid(margin)) ** 2 for margin in margins]),
        **calibration([_sigmoid(abs(margin)) for margin in margins], right),
    }
    for name, in_bin in (("when_shorter", lambda gap: gap < 0), ("when_longer", lambda gap: gap > 0)):
        chances = [hit for hit, gap in zip(right, longer, strict=True) if in_bin(gap)]
        if chances:
            result[f"accuracy_{name}"] = fmean(chances)
    together = {
        "length_correlation": pearson([*chosen, *rejected], [*chosen_length, *rejected_length]),
        "longer_correlation": pearson(margins, longer),
    }
    return {**result, **{name: value for name, value in together.items() if value is not None}}


def outcome_metrics(scores: Sequence[float], labels: Sequence[float]) -> dict[str, float]:
    """Right or wrong: accuracy at probability 1/2, the area under the curve, calibration."""
    truth = [label > 0.5 for label in labels]
    chances = [_sigmoid(score) for score in scores]
    right = [float((score > 0) == true) for score, true in zip(scores, truth, strict=True)]
    result = {
        "accuracy": fmean(right),
        "brier": fmean([(chance - label) ** 2 for chance, label in zip(chances, labels, strict=True)]),
        **calibration([max(chance, 1 - chance) for chance in chances], right),
    }
    area = area_under_curve(scores, truth)
    return result if area is None else {**result, "area_under_curve": area}


def step_metrics(scores: Sequence[Sequence[float]], labels: Sequence[Sequence[float | None]]) -> dict[str, float]:
    """`outcome_metrics` over single steps; and over whole solutions: is the first wrong step found?

    `errors_found` are the solutions with an error whose first one the model names, `right_kept` those without one in
    which it finds none, `f1` their harmonic mean.
    """
    labelled = [
        (score, label)
        for row, step_labels in zip(scores, labels, strict=True)
        for score, label in zip(row, step_labels, strict=True)
        if label is not None
    ]
    result = {f"step_{name}": value for name, value in outcome_metrics(*zip(*labelled, strict=True)).items()}
    hits_by_kind: dict[bool, list[float]] = {True: [], False: []}
    for row, step_labels in zip(scores, labels, strict=True):
        first_wrong = next((at for at, label in enumerate(step_labels) if label is not None and label < 0.5), None)
        named_wrong = next((at for at, score in enumerate(row) if score < 0), None)
        hits_by_kind[first_wrong is not None].append(float(named_wrong == first_wrong))
    for name, hits in (("errors_found", hits_by_kind[True]), ("right_kept", hits_by_kind[False])):
        if hits:
            result[name] = fmean(hits)
    both = result.get("errors_found"), result.get("right_kept")
    if both[0] is not None and both[1] is not None:
        result["f1"] = 2 * both[0] * both[1] / (both[0] + both[1]) if any(both) else 0.0
    return result


def calibration(sureness: Sequence[float], right: Sequence[float]) -> dict[str, float]:
    """The expected error, and of each tenth that holds rows: how many, how sure, how often right."""
    reliability = calibration_of(sureness, right)
    result = {"calibration_error": reliability.error}
    for tenth in reliability.bins:
        result[f"calibration/{tenth.tenth}/rows"] = float(tenth.rows)
        result[f"calibration/{tenth.tenth}/sure"] = tenth.sure
        result[f"calibration/{tenth.tenth}/right"] = tenth.right
    return result


def area_under_curve(scores: Sequence[float], truth: Sequence[bool]) -> float | None:
    """The chance that a right completion scores above a wrong one, equal scores counting half; None without both."""
    count = sum(truth)
    if count in (0, len(truth)):
        return None
    total = sum(rank for rank, true in zip(ranks(scores), truth, strict=True) if true)
    return (total - count * (count + 1) / 2) / (count * (len(truth) - count))


def _right(margin: float) -> float:
    return 0.5 if margin == 0 else float(margin > 0)


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))
