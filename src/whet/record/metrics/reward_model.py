"""How good is a reward model? Metrics on held-out pairs, outcomes and steps, from its scores alone.

The probability that a completion is better is sigma(margin), that it is right sigma(score). Calibration: the expected
error sorts the rows by how sure the model is and compares that with how often it is right in each tenth of the range.
Metrics with a slash in their name are the single tenths, for a page to draw; they are too many for a line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from whet.record.metrics.calibration import calibration_of
from whet.record.metrics.correlation import pearson, ranks


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
