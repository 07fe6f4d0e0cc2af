"""How often one policy's completions score above another's to the same prompts. Pure.

A score is a reward model's, so a win rate is that model's opinion; who judges is for the caller to say. Every
completion of the one is compared with every completion of the other, ties count half, the interval is over prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from whet.record.metrics.intervals import IntervalEstimate, estimate
from whet.record.metrics.selection import best_of

Scores = Sequence[float | None]  # of the completions to one prompt; None: unscorable
Length = Literal["shorter", "same", "longer"]
SEVERAL = 2  # comparisons behind a value at least: ties count half, so it is no plain 0 or 1


@dataclass(frozen=True)
class WinRate(IntervalEstimate):
    """A share of comparisons won, with a 95% interval over prompts."""

    prompts: int

    @property
    def differs(self) -> bool:
        """True where 1/2, which is no preference, is outside the interval."""
        return self.low > 0.5 or self.high < 0.5


def mean_with_interval(values: Sequence[float | None]) -> WinRate | None:
    """The mean over prompts with its interval; prompts without a value do not count. None: no prompt has one."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    mean = estimate(known, SEVERAL)
    return WinRate(mean.value, mean.low, mean.high, len(known))


def win_shares(ours: Sequence[Scores], theirs: Sequence[Scores]) -> list[float | None]:
    """Per prompt, the share of all pairs (one of ours, one of theirs) in which ours scores higher."""
    return [_mean(completion_wins(own, other)) for own, other in zip(ours, theirs, strict=True)]


def completion_wins(ours: Scores, theirs: Scores) -> list[float | None]:
    """For each completion of ours, the share of their completions to the same prompt that it beats; None: unknown."""
    known = [score for score in theirs if score is not None]
    return [None if score is None or not known else fmean(_win(score, other) for other in known) for score in ours]


def win_shares_by_length(
    ours: Sequence[Scores],
    theirs: Sequence[Scores],
    our_lengths: Sequence[Sequence[int]],
    their_lengths: Sequence[Sequence[int]],
) -> dict[Length, list[float | None]]:
    """`win_shares` by whether our completion is shorter than theirs, as long, or longer."""
    shares_by_length: dict[Length, list[float | None]] = {"shorter": [], "same": [], "longer": []}
    for own, other, mine, others in zip(ours, theirs, our_lengths, their_lengths, strict=True):
        wins: dict[Length, list[float | None]] = {"shorter": [], "same": [], "longer": []}
        for score, length in zip(own, mine, strict=True):
            for rival, rival_length in zip(other, others, strict=True):
                if score is not None and rival is not None:
                    wins[_length(length, rival_length)].append(_win(score, rival))
        for name, values in shares_by_length.items():
            values.append(_mean(wins[name]))
    return shares_by_length


def best_of_shares(wins: Sequence[Scores], scores: Sequence[Scores], n: int) -> list[float | None]:
    """Per prompt, what is expected of the best scored of n out of the pool, where `wins` says what each is worth."""
    shares: list[float | None] = []
    for worth, pair_scores in zip(wins, scores, strict=True):
        known = [(value, score) for value, score in zip(worth, pair_scores, strict=True) if value is not None]
        shares.append(
            best_of([value for value, _ in known], [score for _, score in known], n) if len(known) >= n else None
        )
    return shares


def change_with_interval(before: Scores, after: Scores) -> WinRate | None:
    """The mean of after - before over the items that have both, with its interval: a paired comparison."""
    pairs = zip(before, after, strict=True)
    return mean_with_interval([None if one is None or two is None else two - one for one, two in pairs])


def _win(score: float, other: float) -> float:
    return 0.5 if score == other else float(score > other)


def _length(ours: int, theirs: int) -> Length:
    return "same" if ours == theirs else "longer" if ours > theirs else "shorter"


def _mean(values: Scores) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
