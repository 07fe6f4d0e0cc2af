"""Whether the reward rises, and whether completions can be scored at all."""

from __future__ import annotations

import math
from statistics import fmean, stdev

from whet.record.health.finding import HealthFinding, note, problem
from whet.record.health.health_rule import health_rule
from whet.record.health.history import (
    EARNED,
    FLAT_STEPS,
    LASTING,
    RECENT,
    TREND_STEPS,
    History,
    share_of,
    trend,
    trend_in_errors,
)
from whet.record.metrics.intervals import t_quantile
from whet.record.text import number, percent

FEW = 3  # steps after which a share of completions is one
LOST = 0.2  # of the reward: less is noise
MANY_FAILURES = 0.01  # of the completions
MANY_TIMEOUTS = 0.02  # of the programs
NEAR_TOP = 0.8  # of a score that ends at 1
FEWEST_UNMOVED = 30  # steps after which a policy that stays where it began is not warming up
FEWEST_FLAT = 150  # steps after which a slow gain would have shown
LEAST_GAIN = 0.05  # of the scale of the reward, over the whole run: what slow runs that learn would show
SURE = 2.5  # standard errors that a rise may be larger than it looks
LEAST_GROWTH = 0.5  # of the mean reward: where little is earned, a little more is much
MOST_NOISE = 2.5  # standard errors that a rise may have and be none
SAME = 1e-6  # of a mean reward
HALF = 0.5  # of what the first step earned
BROKEN = 0.001  # of looks at pure noise, those in which the first step is so far above the others
FALLS = -3.6  # standard errors: one in a thousand looks at pure noise, over 20 steps


@health_rule(
    "unscorable completions",
    "more than a tenth of the completions could not be scored",
    "a few rows without an answer are left out and counted",
    ("counts.unscorable",),
    earliest=FEW,
    depth=0,
)
def _unscorable(history: History) -> HealthFinding | None:
    share = share_of(history.steps[-RECENT:], "unscorable")
    if len(history.steps) < FEW or share <= 0.1:
        return None
    return problem(
        f"{percent(share)} of the completions of the last steps could not be scored",
        "the reward gave no score, so they were left out of training",
        "read them in samples.jsonl, then fix the reward or the answers in the data",
    )


@health_rule(
    "failing rewards",
    "the reward raises, or runs out of time, on one completion in a hundred or more",
    "a single one in a thousand: it is left out and counted",
    ("counts.unscorable",),
    earliest=RECENT,
    depth=0,
)
def _failing(history: History) -> HealthFinding | None:
    recent = history.steps[-RECENT:]
    share = fmean([step.metrics.get("failed_rewards", 0.0) for step in recent])
    if len(recent) < RECENT or share < MANY_FAILURES:
        return None
    return problem(
        f"The reward raised or ran out of time on {percent(share)} of the completions of the last {RECENT} steps",
        "its code fails on some completions, which are left out of training",
        "the warnings of the run name them; fix the reward",
        history.higher("reward.timeout"),
    )


@health_rule(
    "programs out of time",
    "one program in fifty or more runs into the time limit",
    "a few endless loops: a model that explores writes some",
    ("counts.samples",),
    earliest=RECENT,
    depth=0,
)
def _timeouts(history: History) -> HealthFinding | None:
    recent = history.steps[-RECENT:]
    late = sum(step.metrics.get("code_timeouts", 0.0) for step in recent)
    programs = sum(step.counts.get("samples", 0) for step in recent)
    if len(recent) < RECENT or not programs or late / programs < MANY_TIMEOUTS:
        return None
    seconds = sum(step.metrics.get("code_timeout_seconds", 0.0) for step in recent)
    return problem(
        f"{late:.0f} of {programs} programs of the last {RECENT} steps ran into the time limit, {seconds:.0f} s in all",
        "they loop or sleep, count as wrong, and hold a core each until then",
        "the warnings of the run name the rows that cost most; give rows a gold solution, from which fitting limits "
        "are measured, or lower `seconds` of code_tests",
    )


@health_rule(
    "flat reward",
    f"the reward has not risen since the first step: from step {FEWEST_FLAT} on where a gain of {LEAST_GAIN:g} of "
    f"its scale would have shown, from step {FEWEST_UNMOVED} on where the policy is still where it began",
    "evaluation rose, the reward rose before and holds, it is near the top of its scale (a note), or it is too "
    "noisy to tell",
    ("reward",),
    earliest=FEWEST_UNMOVED + LASTING,
    lasting=LASTING,
    depth=3,
)
def _flat(history: History) -> HealthFinding | None:
    """A run in which nothing was learned: a gain would have shown, or the policy has not moved."""
    scores = history.scores
    if len(scores) < FEWEST_UNMOVED or history.doing_well or NEAR_TOP <= history.score <= 1:
        return None
    if max(scores) - min(scores) < SAME and min(history.metric("uniform_groups", TREND_STEPS), default=1.0) < 1:
        return None  # what one side of a game wins the other loses: the mean says nothing
    rise, error = trend(scores)
    least = min(LEAST_GAIN * max(1.0, *map(abs, scores)), LEAST_GROWTH * abs(fmean(scores)))
    unmoved = history.is_unmoved and rise <= error
    shown = len(scores) >= FEWEST_FLAT and rise <= MOST_NOISE * error and rise + SURE * error <= least
    if not (unmoved or shown) or history.direction < 0:
        return None
    half = len(scores) // 2
    means = f"{number(fmean(scores[:half]))} to {number(fmean(scores[half:]))}"
    seen = f"The reward has not risen over {len(scores)} steps ({means})"
    measured = history.evaluations.measured
    if len(measured) > 1:
        seen += f", and evaluation is {measured[0].text} at step {measured[0].step}, {measured[-1].text} now"
    samples = "read the best and the worst completions in samples.jsonl"
    if unmoved:
        return problem(seen, "the updates are too small to move the policy", history.faster(), samples)
    return problem(
        seen,
        "the policy moves and learns nothing: few completions are rewarded, or for what it cannot influence",
        samples,
        history.higher("batch.prompts_per_step"),
        "give easier data",
    )


@health_rule(
    "falling reward",
    f"the reward falls over {FLAT_STEPS} or {2 * FLAT_STEPS} steps, beyond noise, or has lost half of what the first "
    "step had before any update",
    "it is still at its top, or far above where it began and holding",
    ("reward",),
    earliest=FLAT_STEPS + LASTING,
    lasting=LASTING,
    depth=3,
)
def _falling(history: History) -> HealthFinding | None:
    scores = history.scores[-2 * FLAT_STEPS :]
    if len(history.scores) < FLAT_STEPS or history.doing_well:
        return None
    for window in (FLAT_STEPS, 2 * FLAT_STEPS):
        last = scores[-window:]
        start, now = fmean(last[: window // 2]), fmean(last[-RECENT:])
        if len(last) == window and trend_in_errors(last) < FALLS and start - now > LOST * max(abs(start), 0.1):
            return problem(
                f"The reward fell over {window} steps ({number(start)} to {number(now)})",
                "the updates do harm",
                history.lower("optimizer.learning_rate"),
                "check the reward on samples.jsonl",
            )
    return _broken(history)


def _broken(history: History) -> HealthFinding | None:
    """The first update took what the policy could do, and no later one brought it back: no trend shows that."""
    first, *later = history.scores
    spread, recent = stdev(later), later[-FLAT_STEPS:]
    is_noise = first - fmean(later) <= t_quantile(1 - BROKEN, len(later) - 1) * spread * math.sqrt(1 + 1 / len(later))
    if history.steps[0].step != 1 or first < EARNED or fmean(recent) > HALF * first or is_noise:
        return None
    return problem(
        f"The reward fell from {number(first)} in the first step to {number(fmean(recent))} in the last {len(recent)}",
        "the first updates broke the policy, unless the later data is harder",
        history.lower("optimizer.learning_rate"),
        f"begin again from {history.best_model}",
    )


@health_rule(
    "little to gain",
    "the reward stays near the top of its scale",
    "always: a note",
    ("reward",),
    earliest=FLAT_STEPS,
    is_note=True,
)
def _little_to_gain(history: History) -> HealthFinding | None:
    scores = history.scores
    if len(scores) < FLAT_STEPS or history.doing_well or not NEAR_TOP <= history.score <= 1 or history.direction < 0:
        return None
    evidence = f"The reward stays at {number(history.score)}"
    return note(evidence, "this is normal so near its top; harder data would teach more")


REWARD_RULES = (_flat, _falling, _little_to_gain, _failing, _timeouts, _unscorable)
