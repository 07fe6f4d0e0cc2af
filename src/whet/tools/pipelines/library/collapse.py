"""Signals of collapse in rounds of self-improvement, each with its number and its threshold. Pure.

A loop that feeds on its own judgment can go wrong while its own scores rise. So what the policy says of itself (scores,
ties, unreadable answers, length, variety) is set beside what is known without it: the truth, an anchor, eval accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, pstdev
from typing import Any

from whet.record.metrics.significance import shares_apart
from whet.tools.pipelines.library.self_scores import self_scores

LONGER = 1.5  # times the length of the first round's completions
TOP, FLAT = 0.9, 0.05  # mean score and spread within a prompt, both as shares of the scale
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
    length: float = math.nan  # characters per completion
    own_score: float = math.nan  # mean, as a share of the scale
    spread: float = math.nan  # of the scores of one prompt
    ties: float = math.nan  # of the prompts
    unreadable: float = math.nan  # of the judgments
    distinct: float = math.nan  # of a prompt's completions
    truth_agreement: float = math.nan  # own completions: how often a right one scores above a wrong one
    anchor_agreement: float = math.nan  # the same with the anchor in place of the truth
    judge_accuracy: float = math.nan  # the same on fixed completions, for the model after this round
    accuracy: float = math.nan  # on the eval prompts, after this round

    def known(self) -> dict[str, float]:
        """The signals that were measured, by name."""
        return {name: value for name, value in asdict(self).items() if name != "number" and not math.isnan(value)}


def collapse_signals(number: int, rows: Sequence[Mapping[str, Any]], ties: int) -> CollapseSignals:
    """What the judged rows of a round show."""
    scores = [self_scores(row) for row in rows]
    known = [[score for score in row_scores if score is not None] for row_scores in scores]
    judgments = [score for row in rows for completion_scores in row["judgments"] for score in completion_scores]
    return CollapseSignals(
        number=number,
        length=_mean([len(completion) for row in rows for completion in row["completions"]]),
        own_score=_mean([score for row_scores in known for score in row_scores]),
        spread=_mean([pstdev(row_scores) for row_scores in known if len(row_scores) > 1]),
        ties=ties / max(1, len(rows)),
        unreadable=_mean([float(score is None) for score in judgments]),
        distinct=_mean([len(set(row["completions"])) / len(row["completions"]) for row in rows]),
        truth_agreement=order_accuracy(
            [(own, row["truth"]) for own, row in zip(scores, rows, strict=True) if row.get("truth")]
        ),
        anchor_agreement=order_accuracy(
            [(own, row["anchor"]) for own, row in zip(scores, rows, strict=True) if row.get("anchor")]
        ),
    )


def order_accuracy(groups: Sequence[tuple[Scores, Scores]]) -> float:
    """The share of pairs ordered by the second scores of a group that its first order the same way; ties count half.

    An unscorable completion counts as wrong: a judge must not gain by giving unreadable answers.
    """
    met, total = 0.0, 0
    for own, truth in groups:
        known = [(score, true) for score, true in zip(own, truth, strict=True) if true is not None]
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
    """The signals past their threshold, each in words with its number. `before` is the first model, as a judge."""
    raised = []
    if now.length > LONGER * first.length:
        raised.append(f"completions grew from {first.length:.0f} to {now.length:.0f} characters (over {LONGER}x)")
    if now.own_score > TOP and now.spread < FLAT:
        raised.append(
            f"scores are saturated: mean {now.own_score:.2f} of 1 (over {TOP}), spread {now.spread:.3f} (under {FLAT})"
        )
    if now.ties > TIED:
        raised.append(f"{now.ties:.0%} of the prompts are ties (over {TIED:.0%})")
    if now.unreadable > UNREADABLE:
        raised.append(f"{now.unreadable:.0%} of the judgments cannot be read (over {UNREADABLE:.0%})")
    if now.distinct < ALIKE * first.distinct:
        raised.append(f"distinct completions fell from {first.distinct:.0%} to {now.distinct:.0%} (under half)")
    judges = [signals.judge_accuracy for signals in (before, now) if signals is not None]
    if now.judge_accuracy < JUDGE_LEAST:
        raised.append(
            f"the judge orders {now.judge_accuracy:.0%} of the reference pairs right, unreadable answers counted as "
            f"wrong (under {JUDGE_LEAST:.0%})"
        )
    elif len(judges) == 2 and judges[1] < judges[0] - JUDGE_FALL:
        raised.append(
            f"the judge fell from {judges[0]:.0%} to {judges[1]:.0%} of the reference pairs (by over {JUDGE_FALL:.0%})"
        )
    if now.truth_agreement < JUDGE_LEAST:
        raised.append(
            f"its scores order {now.truth_agreement:.0%} of its completions as the truth does (under {JUDGE_LEAST:.0%})"
        )
    if now.anchor_agreement < AGREEMENT_LEAST:
        raised.append(f"its scores agree with the anchor on {now.anchor_agreement:.0%} (under {AGREEMENT_LEAST:.0%})")
    return raised


@dataclass(frozen=True)
class CollapseVerdict:
    """Whether self-training collapsed, and a summary in words."""

    summary: str
    is_collapse: bool


def collapse_verdict(
    before: CollapseSignals, rounds: Sequence[CollapseSignals], raised: Sequence[str], eval_prompts: int
) -> CollapseVerdict:
    """Where the loop stands after the last round. Where accuracy is known it decides; else two signals do."""
    known = [signals for signals in (before, *rounds) if not math.isnan(signals.accuracy)]
    others = f"; {'; '.join(raised)}" if raised else "; no other signal of it"
    if not eval_prompts or len(known) < 2:
        if len(raised) > 1:
            return CollapseVerdict(f"COLLAPSE is likely, {len(raised)} signals: {'; '.join(raised)}", True)
        return CollapseVerdict(f"one signal to watch: {raised[0]}" if raised else "no signal of collapse", False)
    best, last = max(known, key=lambda each: each.accuracy), known[-1]
    if shares_apart(best.accuracy, last.accuracy, eval_prompts) > NOISE:
        when = f"after round {best.number}" if best.number else "before the first round"
        fell = f"held-out accuracy fell from {best.accuracy:.1%} {when} to {last.accuracy:.1%}"
        return CollapseVerdict(f"COLLAPSE: {fell}; take the policy {when}{others}", True)
    gain = shares_apart(last.accuracy, before.accuracy, eval_prompts)
    change = f"held-out accuracy {before.accuracy:.1%} to {last.accuracy:.1%}"
    what = "better by more than noise" if gain > NOISE else "no gain beyond noise"
    watched = f"; to watch: {'; '.join(raised)}" if raised else "; no signal of collapse"
    return CollapseVerdict(f"{change}, {what}{watched}", False)


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan
