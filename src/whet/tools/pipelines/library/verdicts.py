"""What a judge's verdicts on two completions come to: pairs, examples to train a judge on, how good a judge is. Pure.

A verdict is the probability that the completion shown first is the better one: 1, 0, 1/2 for a tie, anything between
for a judge whose log-probabilities are read, None where its answer could not be read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whet.tools.pipelines.library.pair_rows import pair_row
from whet.types import Message, Prompt

FIRST, SECOND = "A", "B"
Preference = float | None  # of the completion shown first; None: unreadable


@dataclass(frozen=True)
class CandidatePair:
    """Two different completions to one prompt."""

    row: Mapping[str, Any]  # id and prompt, as pairs have them
    one: str
    other: str
    truth: float | None = None  # 1: `one` is better, 0: `other`, 1/2: neither; None: unknown


@dataclass(frozen=True)
class PairLabel:
    """What both orders came to."""

    preference: float | None  # of `one` over `other`; None: no verdict
    flipped: bool = False  # the judge preferred a position, not a completion


def short_question(prompt: Prompt, first: str, second: str) -> tuple[Message, ...]:
    """A comparison that fits a small model: no rubric, no fences."""
    return ({"role": "user", "content": f"{prompt.question()}\n{FIRST}:{first}\n{SECOND}:{second}\n?"},)


def candidate_pairs(rows: Sequence[Mapping[str, Any]]) -> tuple[list[CandidatePair], dict[str, int]]:
    """The first two completions to each prompt that differ, with the truth where they were scored."""
    candidates: list[CandidatePair] = []
    counts = {"prompts": len(rows), "same_completions": 0}
    for row in rows:
        completions = list(row["completions"])
        at = next((at for at, completion in enumerate(completions) if completion != completions[0]), None)
        if at is None or not completions[0].strip() or not completions[at].strip():
            counts["same_completions"] += 1
            continue
        scores = row.get("scores")
        truth = None if scores is None else preferred(scores[0], scores[at])
        candidates.append(
            CandidatePair(
                {key: row.get(key) for key in ("id", "prompt", "answer")}, completions[0], completions[at], truth
            )
        )
    return candidates, counts


def preferred(one: float | None, other: float | None) -> float | None:
    """Which of two scores is higher, as a verdict."""
    if one is None or other is None:
        return None
    return 0.5 if one == other else float(one > other)


def normalised(first: float, second: float) -> float:
    """P(first) from the log-probabilities of naming the first or the second: e^a / (e^a + e^b)."""
    gap = second - first
    return 1 / (1 + math.exp(gap)) if gap < 700 else 0.0


def combine_orders(forth: Preference, back: Preference) -> PairLabel:
    """The mean over both orders; `back` had the completions exchanged. Orders that contradict each other tie.

    Lee 2023 (2309.00267) averages the two; here a contradiction is counted as a flip and teaches nothing.
    """
    if forth is None or back is None:
        return PairLabel(None)
    turned = 1 - back
    if (forth - 0.5) * (turned - 0.5) < 0:
        return PairLabel(0.5, flipped=True)
    return PairLabel((forth + turned) / 2)


def judged_pairs(
    candidates: Sequence[CandidatePair], labels: Sequence[PairLabel], least: float = 0.0, soft: bool = True
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Pairs of those with a winner, at least `least` from 1/2; and what was counted on the way. Only `soft` ones
    carry how sure the judge was; the loss then weights them by it."""
    pairs: list[dict[str, Any]] = []
    counts = dict.fromkeys(
        ("compared", "pairs", "unreadable", "flips", "ties", "unsure", "truth_known", "truth_met"), 0
    )
    counts["compared"] = len(candidates)
    for candidate, label in zip(candidates, labels, strict=True):
        if label.preference is None:
            counts["unreadable"] += 1
        elif label.preference == 0.5:
            counts["flips" if label.flipped else "ties"] += 1
        elif abs(label.preference - 0.5) < least:
            counts["unsure"] += 1
        else:
            first_wins = label.preference > 0.5
            sides = (candidate.one, candidate.other) if first_wins else (candidate.other, candidate.one)
            sure: dict[str, Any] = {"preference": max(label.preference, 1 - label.preference)} if soft else {}
            pairs.append(pair_row(candidate.row, *sides, **sure))
            if candidate.truth is not None and candidate.truth != 0.5:
                counts["truth_known"] += 1
                counts["truth_met"] += first_wins == (candidate.truth == 1)
    counts["pairs"] = len(pairs)
    return pairs, counts


def judge_metrics(candidates: Sequence[CandidatePair], labels: Sequence[PairLabel]) -> dict[str, float]:
    """A judge where the truth is known: `judge_accuracy` counts flips, ties and unreadable answers as wrong."""
    decided = [
        (candidate.truth, label)
        for candidate, label in zip(candidates, labels, strict=True)
        if candidate.truth not in (None, 0.5)
    ]
    met = [
        label.preference is not None and (label.preference - 0.5) * (float(truth or 0) - 0.5) > 0
        for truth, label in decided
    ]
    return {
        "judge_accuracy": sum(met) / len(met) if met else math.nan,
        "flip_rate": sum(label.flipped for label in labels) / max(1, len(labels)),
        "tie_rate": sum(label.preference == 0.5 and not label.flipped for label in labels) / max(1, len(labels)),
        "unreadable": sum(label.preference is None for label in labels) / max(1, len(labels)),
    }


def judge_examples(candidates: Sequence[CandidatePair], prompts: Mapping[str, Prompt]) -> list[dict[str, Any]]:
    """Demonstrations of judging: the letter of the better completion, each candidate in both orders."""
    rows = []
    for candidate in candidates:
        sides = {"straight": (candidate.one, candidate.other), "turned": (candidate.other, candidate.one)}
        for order, (first, second) in sides.items():
            messages = [dict(message) for message in short_question(prompts[candidate.row["id"]], first, second)]
            letter = FIRST if (candidate.truth == 1) == (order == "straight") else SECOND
            rows.append({"id": f"{candidate.row['id']}/{order}", "prompt": messages, "completion": letter})
    return rows


def true_pairs(pairs: Sequence[dict[str, Any]], candidates: Sequence[CandidatePair]) -> list[dict[str, Any]]:
    """Eval pairs that the truth orders, as it does; as the judge does where no truth is known at all."""
    truths = {candidate.row["id"]: candidate for candidate in candidates if candidate.truth is not None}
    if not truths:
        return list(pairs)
    known = [truths[pair["id"]] for pair in pairs if pair["id"] in truths and truths[pair["id"]].truth != 0.5]
    return [
        pair_row(verdict.row, verdict.one, verdict.other)
        if verdict.truth == 1
        else pair_row(verdict.row, verdict.other, verdict.one)
        for verdict in known
    ]
