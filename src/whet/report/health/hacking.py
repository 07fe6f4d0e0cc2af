"""Rewards that are gamed: the total holds while what it stands for falls, or it pays for something else."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from whet.report.health.finding import HealthFinding, problem
from whet.report.health.history import RECENT, TREND_STEPS, History, finite
from whet.report.health.rule import HealthRule
from whet.report.kinds import completion_length
from whet.report.text import ACCURACY_NAMES, number, percent
from whet.types import StepReport

FEWEST_FOR_HACKING = 12  # steps before a trend of the parts is one
FALL = 0.05  # of the first part, below which a fall is noise
GIVE = 0.01  # by how much the total may fall and still be said to hold
DISAGREEMENT = "_disagreement"  # ends the name of a metric, after the reward's own
LEAST_DISAGREEMENT = 0.1  # of checked completions: below, a check says nothing
MUCH_DISAGREEMENT = 0.5  # from here on it need not have grown
STRONG_COMPANY = 0.6  # a correlation from here on is one
FEWEST_FOR_PARTING = 8
ENDS = 3  # steps that the first and last disagreement are taken over
GROWTH = 2.0  # times the first disagreement
LEAST_APART = 0.05  # in the scores' own scale: below, members agree


def _hacked(history: History) -> HealthFinding | None:
    """The first part of a reward says whether a completion is right: the total must not hold or rise without it."""
    steps = [step.reward for step in history.steps if len(step.reward) > 2]  # the total and at least two parts
    if len(steps) < FEWEST_FOR_HACKING:
        return None
    first = next((name for name in history.setting("reward.parts") or () if name in steps[-1]), "")
    first = first or next(name for name in steps[-1] if name != "total")
    quarter = len(steps) // 4

    def ends(name: str) -> tuple[float, float]:
        values = finite(rewards.get(name) for rewards in steps)
        return fmean(values[:quarter] or [0.0]), fmean(values[-quarter:] or [0.0])

    (part_before, part_after), (before, after) = ends(first), ends("total")
    if not (part_before - part_after > FALL and before - after < GIVE):
        return None
    return problem(
        f"{first} fell from {part_before:.2f} to {part_after:.2f} while the total reward went from {before:.2f} to "
        f"{after:.2f}",
        "another part pays without it",
        f"let it count only where {first} passes (gate)",
        "lower its weight",
    )


def _held_out(history: History) -> HealthFinding | None:
    """A stricter verifier no longer accepts what the reward pays."""
    shares = finite(step.metrics.get("held_out_disagreement") for step in history.steps)
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


def _frame(history: History) -> HealthFinding | None:
    """The score of the same answer depends on what stands around it."""
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


def _may_be_better(history: History) -> bool:
    """Where an accuracy rises too, longer or rarer completions are simply better ones."""
    return history.doing_well and any(name in history.steps[-1].reward for name in ACCURACY_NAMES)


def _follows_length(history: History) -> HealthFinding | None:
    """The reward goes with length, and the policy follows."""
    together = history.start_and_now(lambda step: step.metrics.get("reward_length_correlation"))
    lengths = history.start_and_now(completion_length)
    if not together or not lengths or _may_be_better(history):
        return None
    if not (together[1] > STRONG_COMPANY and lengths[1] > 1.5 * lengths[0]):
        return None
    return problem(
        f"Within groups the reward goes with length (correlation {together[1]:.2f}), and completions grew from "
        f"{number(lengths[0])} to {number(lengths[1])} tokens",
        "longer completions are paid more, whether or not they are better",
        "add a length cost",
        "normalise the reward by length",
        "look at `whet reward test --run`",
    )


def _against_reference(history: History) -> HealthFinding | None:
    """What is paid is more and more what the starting model would hardly write."""
    together = history.start_and_now(lambda step: step.metrics.get("reward_reference_correlation"))
    if not together or _may_be_better(history):
        return None
    if not (together[1] < -STRONG_COMPANY and together[1] < together[0] - 0.3):
        return None
    return problem(
        f"Within groups the reward goes against the reference's log-probability (correlation {together[1]:.2f}, "
        f"{together[0]:.2f} at first)",
        "what is paid is what the starting model would hardly write, a sign of a reward that is being gamed",
        "read the best completions in review.html and run `whet reward attack`",
        history.tie(),
    )


def _members_part(history: History) -> HealthFinding | None:
    """The members of a learned reward are further apart on the policy's completions than they were at first."""
    names = [name for name in history.steps[-1].metrics if name.endswith(DISAGREEMENT)]
    evidence = "; ".join(text for name in names if (text := _parting(history.steps, name)))
    if not evidence:
        return None
    return problem(
        evidence,
        "the policy writes what they have not learnt to judge",
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


HACKING_RULES = (
    HealthRule(
        "reward hacked",
        _hacked,
        "the first part of the reward, which says whether a completion is right, falls while the total holds or rises",
        "the total falls with it, or the reward has a single part",
        ("reward",),
        earliest=FEWEST_FOR_HACKING,
    ),
    HealthRule(
        "held-out disagreement",
        _held_out,
        "a stricter reward rejects more and more of what the reward pays",
        "it rejected as much at the start: the two were never the same",
        ("metrics.held_out_disagreement",),
        earliest=FEWEST_FOR_PARTING,
    ),
    HealthRule(
        "reward follows the frame",
        _frame,
        "the score of the same answer depends on the text around it",
        "fewer than a tenth of the checked completions are concerned",
        ("metrics.frame_moves",),
        earliest=RECENT,
    ),
    HealthRule(
        "reward follows length",
        _follows_length,
        "within groups the reward goes with length, and completions grow",
        "an accuracy rises too: longer completions are better ones",
        ("metrics.reward_length_correlation",),
        earliest=TREND_STEPS,
    ),
    HealthRule(
        "reward against the reference",
        _against_reference,
        "within groups the reward goes more and more against the reference's log-probability",
        "an accuracy rises too: the policy learns what the reference could not do",
        ("metrics.reward_reference_correlation",),
        earliest=TREND_STEPS,
    ),
    HealthRule(
        "members part",
        _members_part,
        "the members of a learned reward are twice as far apart as on the first completions",
        "they are less than 0.05 apart",
        (f"metrics.*{DISAGREEMENT}",),
        earliest=FEWEST_FOR_PARTING,
    ),
)
