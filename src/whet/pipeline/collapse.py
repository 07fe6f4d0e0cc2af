"""CollapseSignals of collapse in rounds of self-improvement, each with its number and its threshold. Pure.

A loop that feeds on its own judgement can go wrong while its own marks rise: so what the policy says of itself (marks,
ties, silence, length, variety) stands beside what is known without it (the truth, an anchor, held-out accuracy).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, pstdev
from typing import Any

from whet.pipeline.self_scores import self_scores

LONGER = 1.5  # times the length of the first round's completions
TOP, FLAT = 0.9, 0.05  # mean mark and spread within a prompt, both as shares of the scale
TIED = 0.5  # of the prompts
UNREADABLE = 0.1  # of the judgments
ALIKE = 0.5  # times the distinct completions of the first round
JUDGE_LEAST, JUDGE_FALL = 0.65, 0.1  # of pairs ordered right; a coin has 1/2
AGREEMENT_LEAST = 0.65
NOISE = 2.0  # standard errors

Scores = Sequence[float | None]


@dataclass(frozen=True)
class CollapseSignals:
    """One round: of the completions that it was trained on, and of the model that it made. NaN: unknown."""

    number: int
    length: float = math.nan  # characters a completion
    mark: float = math.nan  # mean own mark, as a share of the scale
    spread: float = math.nan  # of the marks of one prompt
    ties: float = math.nan  # of the prompts
    unreadable: float = math.nan  # of the judgments
    distinct: float = math.nan  # of a prompt's completions
    meets_truth: float = math.nan  # own completions: how often a right one is marked above a wrong one
    agreement: float = math.nan  # the same with the anchor in place of the truth
    judge: float = math.nan  # the same on the fixed exam, for the model after this round
    accuracy: float = math.nan  # held-out, after this round

    def known(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if name != "number" and not math.isnan(value)}


def collapse_signals(number: int, rows: Sequence[Mapping[str, Any]], ties: int) -> CollapseSignals:
    """What the judged rows of a round show."""
    marks = [self_scores(row) for row in rows]
    known = [[mark for mark in each if mark is not None] for each in marks]
    flat = [mark for each in known for mark in each]
    completions = [completion for row in rows for completion in row["completions"]]
    judgments = [mark for row in rows for each in row["judgments"] for mark in each]
    return CollapseSignals(
        number,
        _mean([len(completion) for completion in completions]),
        _mean(flat),
        _mean([pstdev(each) for each in known if len(each) > 1]),
        ties / max(1, len(rows)),
        _mean([float(mark is None) for mark in judgments]),
        _mean([len(set(row["completions"])) / len(row["completions"]) for row in rows]),
        order_accuracy([(own, row["truth"]) for own, row in zip(marks, rows, strict=True) if row.get("truth")]),
        order_accuracy([(own, row["anchor"]) for own, row in zip(marks, rows, strict=True) if row.get("anchor")]),
    )


def order_accuracy(groups: Sequence[tuple[Scores, Scores]]) -> float:
    """Of the pairs within a group that the second scores order, the share that the first order likewise; ties are half.

    An unscorable completion is a miss: a judge must not gain by silence.
    """
    met, total = 0.0, 0
    for own, truth in groups:
        known = [(mark, true) for mark, true in zip(own, truth, strict=True) if true is not None]
        for at, (one, better) in enumerate(known):
            for other, worse in known[at + 1 :]:
                if better == worse:
                    continue
                total += 1
                if one is not None and other is not None:
                    gap = (one - other) * (better - worse)
                    met += 0.5 if gap == 0 else float(gap > 0)
    return met / total if total else math.nan


def warnings(before: CollapseSignals | None, first: CollapseSignals, now: CollapseSignals) -> list[str]:
    """The signs that are past their threshold, each in words with its number. `before` is the first model, as judge."""
    found = []
    if now.length > LONGER * first.length:
        found.append(f"completions grew from {first.length:.0f} to {now.length:.0f} characters (over {LONGER}x)")
    if now.mark > TOP and now.spread < FLAT:
        found.append(
            f"marks are saturated: mean {now.mark:.2f} of 1 (over {TOP}), spread {now.spread:.3f} (under {FLAT})"
        )
    if now.ties > TIED:
        found.append(f"{now.ties:.0%} of the prompts are ties (over {TIED:.0%})")
    if now.unreadable > UNREADABLE:
        found.append(f"{now.unreadable:.0%} of the judgments cannot be read (over {UNREADABLE:.0%})")
    if now.distinct < ALIKE * first.distinct:
        found.append(f"distinct completions fell from {first.distinct:.0%} to {now.distinct:.0%} (under half)")
    judges = [each.judge for each in (before, now) if each is not None]
    if now.judge < JUDGE_LEAST:
        found.append(
            f"the judge orders {now.judge:.0%} of the exam right, silence being a miss (under {JUDGE_LEAST:.0%})"
        )
    elif len(judges) == 2 and judges[1] < judges[0] - JUDGE_FALL:
        found.append(f"the judge fell from {judges[0]:.0%} to {judges[1]:.0%} of the exam (by over {JUDGE_FALL:.0%})")
    if now.meets_truth < JUDGE_LEAST:
        found.append(
            f"its marks order {now.meets_truth:.0%} of its completions as the truth does (under {JUDGE_LEAST:.0%})"
        )
    if now.agreement < AGREEMENT_LEAST:
        found.append(f"its marks agree with the anchor on {now.agreement:.0%} (under {AGREEMENT_LEAST:.0%})")
    return found


@dataclass(frozen=True)
class CollapseVerdict:
    said: str
    is_collapse: bool


def collapse_verdict(before: CollapseSignals, rounds: Sequence[CollapseSignals], found: Sequence[str], asked: int) -> CollapseVerdict:
    """Where the loop stands after the last of the rounds. Where accuracy is known it decides; else two signs do."""
    trainer = [each for each in (before, *rounds) if not math.isnan(each.accuracy)]
    signs = f"; {'; '.join(found)}" if found else "; no other sign of it"
    if not asked or len(trainer) < 2:
        if len(found) > 1:
            return CollapseVerdict(f"COLLAPSE is likely, {len(found)} signs: {'; '.join(found)}", True)
        return CollapseVerdict(f"one sign to watch: {found[0]}" if found else "no sign of collapse", False)
    best, last = max(trainer, key=lambda each: each.accuracy), trainer[-1]
    if apart(best.accuracy, last.accuracy, asked) > NOISE:
        when = f"after round {best.number}" if best.number else "before the first round"
        fell = f"held-out accuracy fell from {best.accuracy:.1%} {when} to {last.accuracy:.1%}"
        return CollapseVerdict(f"COLLAPSE: {fell}; take the policy {when}{signs}", True)
    gain = apart(last.accuracy, before.accuracy, asked)
    change = f"held-out accuracy {before.accuracy:.1%} to {last.accuracy:.1%}"
    what = "better by more than noise" if gain > NOISE else "no gain beyond noise"
    watched = f"; to watch: {'; '.join(found)}" if found else "; no sign of collapse"
    return CollapseVerdict(f"{change}, {what}{watched}", False)


def apart(one: float, other: float, asked: int) -> float:
    """one - other in standard errors of two shares of `asked` prompts, with Laplace's rule for 0 and 1."""
    shares = [(share * asked + 1) / (asked + 2) for share in (one, other)]
    return (one - other) / math.sqrt(sum(share * (1 - share) / asked for share in shares))


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan
