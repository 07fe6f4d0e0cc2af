"""How good is a reward model? Marks on held-out pairs, outcomes and steps, from its scores alone.

The probability that a completion is better is sigma(margin), that it is right sigma(score). Calibration: the expected error
sorts the rows by how sure the model is and compares that with how often it is right in each tenth of the range. Marks
with a slash in their name are the single tenths, for a page to draw; they are too many for a line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

BINS = 10


def pair_marks(
    chosen: Sequence[float], rejected: Sequence[float], chosen_length: Sequence[int], rejected_length: Sequence[int]
) -> dict[str, float]:
    """Accuracy, calibration and what length has to do with it. One entry a pair in each list; equal scores count half.

    `length_correlation` is that of score and length over all completions, `longer_correlation` that of the two
    differences within a pair, which a harder question cannot cause.
    """
    margins = [better - worse for better, worse in zip(chosen, rejected, strict=True)]
    longer = [first - second for first, second in zip(chosen_length, rejected_length, strict=True)]
    right = [_right(margin) for margin in margins]
    found = {
        "accuracy": fmean(right),
        "margin": fmean(margins),
        "chosen_score": fmean(chosen),
        "rejected_score": fmean(rejected),
        "brier": fmean([(1 - _sigmoid(margin)) ** 2 for margin in margins]),
        **calibration([_sigmoid(abs(margin)) for margin in margins], right),
    }
    for name, kept in (("when_shorter", lambda gap: gap < 0), ("when_longer", lambda gap: gap > 0)):
        chances = [each for each, gap in zip(right, longer, strict=True) if kept(gap)]
        if chances:
            found[f"accuracy_{name}"] = fmean(chances)
    together = {
        "length_correlation": correlation([*chosen, *rejected], [*chosen_length, *rejected_length]),
        "longer_correlation": correlation(margins, longer),
    }
    return {**found, **{name: value for name, value in together.items() if value is not None}}


def outcome_marks(scores: Sequence[float], labels: Sequence[float]) -> dict[str, float]:
    """Right or wrong: accuracy at probability 1/2, the area under the curve, calibration."""
    truth = [label > 0.5 for label in labels]
    chances = [_sigmoid(score) for score in scores]
    right = [float((score > 0) == true) for score, true in zip(scores, truth, strict=True)]
    found = {
        "accuracy": fmean(right),
        "brier": fmean([(chance - label) ** 2 for chance, label in zip(chances, labels, strict=True)]),
        **calibration([max(chance, 1 - chance) for chance in chances], right),
    }
    area = area_under_curve(scores, truth)
    return found if area is None else {**found, "area_under_curve": area}


def step_marks(scores: Sequence[Sequence[float]], labels: Sequence[Sequence[float | None]]) -> dict[str, float]:
    """Of single steps as `outcome_marks`; and of solutions: is the first wrong step found?

    `errors_found` are the solutions with an error whose first one the model names, `right_kept` those without one in
    which it finds none, `f1` their harmonic mean.
    """
    known = [
        (score, label)
        for row, given in zip(scores, labels, strict=True)
        for score, label in zip(row, given, strict=True)
        if label is not None
    ]
    found = {f"step_{name}": value for name, value in outcome_marks(*zip(*known, strict=True)).items()}
    named: dict[bool, list[float]] = {True: [], False: []}
    for row, given in zip(scores, labels, strict=True):
        first = next((at for at, label in enumerate(given) if label is not None and label < 0.5), None)
        said = next((at for at, score in enumerate(row) if score < 0), None)
        named[first is not None].append(float(said == first))
    for name, hits in (("errors_found", named[True]), ("right_kept", named[False])):
        if hits:
            found[name] = fmean(hits)
    both = found.get("errors_found"), found.get("right_kept")
    if both[0] is not None and both[1] is not None:
        found["f1"] = 2 * both[0] * both[1] / (both[0] + both[1]) if any(both) else 0.0
    return found


def calibration_error(sureness: Sequence[float], right: Sequence[float]) -> float:
    """SUM over bins of share * |mean sureness - mean right|."""
    gaps = [abs(sum(sure for sure, _ in each) - sum(hit for _, hit in each)) for each in _tenths(sureness, right)]
    return sum(gaps) / len(right)


def calibration(sureness: Sequence[float], right: Sequence[float]) -> dict[str, float]:
    """The expected error, and of each tenth that holds rows: how many, how sure, how often right."""
    found = {"calibration_error": calibration_error(sureness, right)}
    for number, rows in enumerate(_tenths(sureness, right)):
        if rows:
            found[f"calibration/{number}/rows"] = float(len(rows))
            found[f"calibration/{number}/sure"] = fmean([sure for sure, _ in rows])
            found[f"calibration/{number}/right"] = fmean([hit for _, hit in rows])
    return found


def _tenths(sureness: Sequence[float], right: Sequence[float]) -> list[list[tuple[float, float]]]:
    bins: list[list[tuple[float, float]]] = [[] for _ in range(BINS)]
    for sure, hit in zip(sureness, right, strict=True):
        bins[min(int(sure * BINS), BINS - 1)].append((sure, hit))
    return bins


def correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's; None where one of the two does not vary."""
    means = fmean(first), fmean(second)
    spread = [sum((value - mean) ** 2 for value in values) for values, mean in zip((first, second), means, strict=True)]
    if min(spread) <= 1e-12:
        return None
    together = sum((one - means[0]) * (two - means[1]) for one, two in zip(first, second, strict=True))
    return max(-1.0, min(1.0, together / math.sqrt(spread[0] * spread[1])))


def area_under_curve(scores: Sequence[float], truth: Sequence[bool]) -> float | None:
    """The chance that a right completion scores above a wrong one, equal scores counting half; None without both."""
    count = sum(truth)
    if count in (0, len(truth)):
        return None
    order = sorted(range(len(scores)), key=lambda at: scores[at])
    total, start = 0.0, 0
    while start < len(order):
        stop = start
        while stop < len(order) and scores[order[stop]] == scores[order[start]]:
            stop += 1
        # completions of equal score share the mean of their ranks
        total += sum(truth[at] for at in order[start:stop]) * (start + 1 + stop) / 2
        start = stop
    return (total - count * (count + 1) / 2) / (count * (len(truth) - count))


def _right(margin: float) -> float:
    return 0.5 if margin == 0 else float(margin > 0)


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))
