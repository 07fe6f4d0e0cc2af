"""Rewards that are gamed: the total holds while what it stands for falls, or it pays for something else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from whet.record.health.finding import HealthFinding, problem
from whet.record.health.health_rule import health_rule
from whet.record.health.history import FLAT_STEPS, RECENT, TREND_STEPS, History, finite, improves_truly
from whet.record.run_kinds import completion_length
from whet.record.text import number, percent
from whet.types import StepReport

FARMED_GAIN = 0.1  # of the total and of the easier part
FAILED_MOST = 0.5  # of the first part: above, it is earned often enough to be learned from
DECIDES = 0.8  # of the variance within groups
NEAR_LIMIT = 0.9  # of the longest completion
FEWEST_FOR_HACKING = 12  # steps before a trend of the parts is one
FALL = 0.05  # of the first part, below which a fall is noise
MORE_KL = 25.0  # times: at 0.04 a learned reward was exploited, from 1 on no seed lost by it (docs/rlhf.md)
GIVE = 0.01  # by how much the total may fall and still be said to hold
DISAGREEMENT = "_disagreement"  # ends the name of a metric, after the reward's own
HELD_OUT = "held_out_disagreement"  # of the reward and a stricter one, not of members
LEAST_DISAGREEMENT = 0.1  # of checked completions: below, a check says nothing
MUCH_DISAGREEMENT = 0.5  # from here on it need not have grown
STRONG_COMPANY = 0.6  # a correlation from here on is one
FEWEST_FOR_PARTING = 8
ENDS = 3  # steps that the first and last disagreement are taken over
GROWTH = 2.0  # times the first disagreement
LEAST_APART = 0.05  # in the scores' own scale: below, members agree


def _parts(history: History) -> tuple[str, tuple[str, ...]]:
    """The first part of the reward, which says whether a completion is right, and the others; none while it is too
    early to say, or where there is one."""
    names = [name for name in history.steps[-1].reward if name != "total"]
    if len(names) < 2 or len(history.steps) < FEWEST_FOR_HACKING:
        return "", ()
    first = next((name for name in history.setting("reward.parts") or () if name in names), names[0])
    return first, tuple(name for name in names if name != first)


def _is_unpaid(history: History, name: str) -> bool:
    """Whether a part has a weight of 0: it is measured beside a reward that stands for it."""
    weights = history.setting("reward.parts")  # of older runs a list of names
    return isinstance(weights, Mapping) and not any(weights.get(name, (1,)))


def _ends(history: History, name: str) -> tuple[float, float]:
    """Means of a part over the first and the last quarter of the steps."""
    values = finite(step.reward.get(name) for step in history.steps)
    quarter = max(1, len(values) // 4)
    return fmean(values[:quarter] or [0.0]), fmean(values[-quarter:] or [0.0])


@health_rule(
    "reward hacked",
    "the first part of the reward, which says whether a completion is right, falls while the total holds or rises",
    "the total falls with it, or the reward has a single part",
    ("reward",),
    earliest=FEWEST_FOR_HACKING,
    depth=1,
)
def _hacked(history: History) -> HealthFinding | None:
    """The first part of a reward says whether a completion is right: the total must not hold or rise without it."""
    first, others = _parts(history)
    if not others:
        return None
    (part_before, part_after), (before, after) = _ends(history, first), _ends(history, "total")
    if not (part_before - part_after > FALL and before - after < GIVE):
        return None
    evidence = (
        f"{first} fell from {part_before:.2f} to {part_after:.2f} while the total reward went from {before:.2f} to "
        f"{after:.2f}"
    )
    if _is_unpaid(history, first):
        cause = f"{first} is measured and not paid for, and what is paid for can be had without it"
        return problem(
            evidence, cause, history.higher("objective.kl.beta", MORE_KL), f"begin again from {history.best_model}"
        )
    return problem(
        evidence,
        "another part pays without it",
        f"let it count only where {first} passes (gate)",
        "lower its weight",
    )


@health_rule(
    "format farmed",
    "the reward rose by a part that is easier than the first, and the first has not moved",
    "the first part moves too, or its weight is 0, or the format is being learned first and 20 steps are not over",
    ("reward",),
    earliest=FLAT_STEPS,
    depth=1,
)
def _farmed(history: History) -> HealthFinding | None:
    first, others = _parts(history)
    if not others or len(history.steps) < FLAT_STEPS or _is_unpaid(history, first):
        return None
    right, total = _ends(history, first), _ends(history, "total")
    if total[1] - total[0] < FARMED_GAIN or right[1] - right[0] > FALL or not right[1] <= FAILED_MOST:
        return None
    for name in others:
        easy = _ends(history, name)
        if easy[1] - easy[0] >= FARMED_GAIN and history.steps[-1].reward.get(name, 0.0) > 0:
            return problem(
                f"The reward rose from {total[0]:.2f} to {total[1]:.2f} by {name} ({easy[0]:.2f} to {easy[1]:.2f}) "
                f"while {first} went from {right[0]:.2f} to {right[1]:.2f}",
                f"{name} is easier to earn, and nothing is left that asks for more",
                f"let {name} count only where {first} passes (gate)",
                f"lower the weight of {name}",
                "give easier data",
            )
    return None


@health_rule(
    "one part dominates",
    "four fifths of the differences within groups are those of a part other than the first, which does not improve",
    "the first part improves or is at its top: what is left to tell completions apart is the rest; or its weight is 0",
    ("metrics.*_decides",),
    earliest=FEWEST_FOR_HACKING,
    depth=1,
)
def _dominates(history: History) -> HealthFinding | None:
    first, others = _parts(history)
    if not others or history.doing_well or _is_unpaid(history, first):
        return None
    right = _ends(history, first)
    if right[1] - right[0] > FALL:
        return None
    for name in others:
        shares = history.metric(f"{name}_decides", FEWEST_FOR_HACKING)
        if len(shares) >= FEWEST_FOR_HACKING // 2 and (share := fmean(shares)) > DECIDES:
            return problem(
                f"{percent(share)} of the differences within groups are those of {name}, while {first} stays at "
                f"{right[1]:.2f}",
                f"which completion is learned from is decided by {name}, not by {first}",
                f"lower the weight of {name}",
                f"let {name} count only where {first} passes (gate)",
            )
    return None


@health_rule(
    "held-out disagreement",
    "a stricter reward rejects more and more of what the reward pays",
    "it rejected as much at the start: the two were never the same",
    (f"metrics.{HELD_OUT}",),
    earliest=FEWEST_FOR_PARTING,
    depth=1,
)
def _held_out(history: History) -> HealthFinding | None:
    shares = finite(step.metrics.get(HELD_OUT) for step in history.steps)
    if len(shares) < FEWEST_FOR_PARTING:
        return None
    start, now = fmean(shares[:ENDS]), fmean(shares[-RECENT:])
    if now < LEAST_DISAGREEMENT or (now < MUCH_DISAGREEMENT and now < start + LEAST_DISAGREEMENT):
        return None
    return problem(
        f"The held-out reward rejects {percent(now)} of what the reward paid, {percent(start)} at first",
        "the policy has found what the reward pays and a stricter one does not",
        "read such completions in review.html, run `whet reward attack`, and make the held-out reward the first part",
    )


@health_rule(
    "reward follows the frame",
    "the score of the same answer depends on the text around it",
    "fewer than a tenth of the checked completions are concerned",
    ("metrics.frame_moves",),
    earliest=RECENT,
    depth=1,
)
def _frame(history: History) -> HealthFinding | None:
    shares = history.metric("frame_moves", FEWEST_FOR_PARTING)
    if len(shares) < RECENT or fmean(shares) < LEAST_DISAGREEMENT:
        return None
    pays = history.metric("frame_pays", FEWEST_FOR_PARTING)
    return problem(
        f"{percent(fmean(shares))} of the rewarded completions score otherwise when only the text around their answer "
        f"is changed, by {fmean(pays):.2f} on average",
        "the reward is paid for its frame, not for its answer",
        "make the first part compare the answer alone",
        "add reward.defences",
    )


@health_rule(
    "reward follows length",
    "within groups the reward goes with length, and completions are 2.5 times as long as at first or near their limit",
    "a verdict on the answer rises too: longer completions are better ones",
    ("metrics.reward_length_correlation",),
    earliest=TREND_STEPS,
    depth=1,
)
def _follows_length(history: History) -> HealthFinding | None:
    """The reward goes with length, and the policy follows."""
    # the last steps that could tell: where all completions are paid alike, as at their limit, there is no correlation
    known = finite(step.metrics.get("reward_length_correlation") for step in history.steps)
    lengths = history.start_and_now(completion_length)
    if len(known) < ENDS or not lengths or improves_truly(history):
        return None
    together = median(known[-ENDS:])
    limit = history.setting("sampling.max_new_tokens") or math.inf
    far = lengths[1] > 2.5 * lengths[0] or (lengths[1] > 1.5 * lengths[0] and lengths[1] > NEAR_LIMIT * limit)
    if not (together > STRONG_COMPANY and far):
        return None
    return problem(
        f"Within groups the reward goes with length (correlation {together:.2f}), and completions grew from "
        f"{number(lengths[0])} to {number(lengths[1])} tokens",
        "longer completions are paid more, whether or not they are better",
        "add a length cost",
        "normalise the reward by length",
        "look at `whet reward test --run`",
    )


@health_rule(
    "members part",
    "the members of a learned reward are twice as far apart as on the first completions",
    "they are less than 0.05 apart",
    (f"metrics.*{DISAGREEMENT}",),
    earliest=FEWEST_FOR_PARTING,
)
def _members_part(history: History) -> HealthFinding | None:
    names = [name for name in history.steps[-1].metrics if name.endswith(DISAGREEMENT) and name != HELD_OUT]
    evidence = "; ".join(text for name in names if (text := _parting(history.steps, name)))
    if not evidence:
        return None
    return problem(
        evidence,
        "the policy writes what they have not learned to judge",
        "take a cautious ensemble (worst, mean_minus_variance)",
        history.tie(),
        "train the reward model on new completions",
    )


def _parting(steps: Sequence[StepReport], name: str) -> str:
    measured = [step for step in steps if name in step.metrics]
    if len(measured) < FEWEST_FOR_PARTING:
        return ""
    start, now = (median(step.metrics[name] for step in part) for part in (measured[:ENDS], measured[-ENDS:]))
    if now < LEAST_APART or now <= GROWTH * start:
        return ""
    reward = name.removesuffix(DISAGREEMENT)
    scores = [finite(step.reward.get(reward) for step in part) for part in (measured[:ENDS], measured[-ENDS:])]
    moved = f" while it went from {fmean(scores[0]):.2f} to {fmean(scores[1]):.2f}" if all(scores) else ""
    return f"The members of {reward} were {start:.2g} apart on the first completions and are {now:.2g} apart now{moved}"


HACKING_RULES = (_hacked, _farmed, _dominates, _held_out, _frame, _follows_length, _members_part)
