"""Has the policy left the region where the members of a learned reward agree? There its scores mean little."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from whet.types import StepReport

DISAGREEMENT = "_disagreement"  # ends the name of the metric, after the reward's own
FEWEST = 8  # steps before a trend is one
ENDS = 3  # steps that its first and last values are taken over
GROWTH = 2.0  # times the first disagreement
LEAST = 0.05  # in the scores' own scale: below, members agree


def parted(history: Sequence[StepReport]) -> list[str]:
    """A finding for each reward whose members are further apart on the policy's completions than they were at first."""
    if len(history) < FEWEST:
        return []
    names = dict.fromkeys(name for name in history[-1].metrics if name.endswith(DISAGREEMENT))
    return [finding for name in names if (finding := _finding(history, name)) is not None]


def _finding(history: Sequence[StepReport], name: str) -> str | None:
    known = [step for step in history if name in step.metrics]
    if len(known) < FEWEST:
        return None
    start, now = (median(step.metrics[name] for step in steps) for steps in (known[:ENDS], known[-ENDS:]))
    if now < LEAST or now <= GROWTH * start:
        return None
    reward = name.removesuffix(DISAGREEMENT)
    scores = [
        [step.reward[reward] for step in steps if reward in step.reward] for steps in (known[:ENDS], known[-ENDS:])
    ]
    moved = f" while it went from {fmean(scores[0]):.2f} to {fmean(scores[1]):.2f}" if all(scores) else ""
    return (
        f"The members of {reward} were {start:.2g} apart on the first completions and are {now:.2g} apart now{moved}: the "
        "policy writes what they have not learnt to judge; take a cautious ensemble (worst, mean_minus_variance), "
        "raise objective.kl.beta, or train the reward model on new completions"
    )
