"""Whether the reward rises, and whether completions can be scored at all."""

from __future__ import annotations

from statistics import fmean

from whet.record.health.finding import HealthFinding, note, problem
from whet.record.health.history import FLAT_STEPS, LASTING, RECENT, History, finite, score, share_of, trend_in_errors
from whet.record.health.rule import HealthRule
from whet.record.text import ACCURACY_NAMES, number, percent

FEW = 3  # steps after which a share of completions is one
LOST = 0.2  # of the reward: less is noise
MANY_FAILURES = 0.01  # of the completions
MANY_TIMEOUTS = 0.02  # of the programs
NEAR_TOP = 0.8  # of a score that ends at 1


def _unscorable(history: History) -> HealthFinding | None:
    share = share_of(history.steps[-RECENT:], "unscorable")
    if len(history.steps) < FEW or share <= 0.1:
        return None
    return problem(
        f"{percent(share)} of the completions of the last steps could not be scored",
        "the reward gave no score, so they were left out of training",
        "read them in samples.jsonl, then fix the reward or the answers in the data",
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


def _halves(history: History) -> tuple[float, float, bool] | None:
    """Mean scores of the older and the newer half of the last steps, and whether they fall; None while all is well."""
    scores = finite(score(step) for step in history.steps[-FLAT_STEPS:])
    if len(scores) < FLAT_STEPS or history.doing_well:
        return None
    half = FLAT_STEPS // 2
    start, now = fmean(scores[:half]), fmean(scores[half:])
    lost = start - fmean(scores[-RECENT:]) > LOST * max(abs(start), 0.1)
    return start, now, lost and trend_in_errors(scores) < -2


def _flat(history: History) -> HealthFinding | None:
    halves = _halves(history)
    if halves is None or halves[2] or NEAR_TOP <= halves[1] <= 1:
        return None
    seen = f"The reward has not risen over {FLAT_STEPS} steps ({number(halves[0])} to {number(halves[1])})"
    values = [value for _, value in history.evaluated((*ACCURACY_NAMES, "reward"))]
    easier = (history.higher("batch.prompts_per_step"), "give easier data", history.lower("objective.kl.beta"))
    if len(values) > 1 and values[-1] < values[0] - LOST * max(abs(values[0]), 0.1):
        evidence = f"{seen}, and evaluation fell from {number(values[0])} to {number(values[-1])}"
        return problem(evidence, "the updates do harm", history.lower("optimizer.learning_rate"), *easier[:1])
    evaluated = f", and evaluation went from {number(values[0])} to {number(values[-1])}" if len(values) > 1 else ""
    return problem(
        f"{seen}{evaluated}",
        "the updates are too small or too noisy, or have nothing to reward",
        "look at the evaluations, and read the best and the worst completions in samples.jsonl",
        *easier,
    )


def _falling(history: History) -> HealthFinding | None:
    halves = _halves(history)
    if halves is None or not halves[2]:
        return None
    return problem(
        f"The reward fell over {FLAT_STEPS} steps ({number(halves[0])} to {number(halves[1])})",
        "the updates do harm",
        history.lower("optimizer.learning_rate"),
        "check the reward on samples.jsonl",
    )


def _little_to_gain(history: History) -> HealthFinding | None:
    halves = _halves(history)
    if halves is None or halves[2] or not NEAR_TOP <= halves[1] <= 1:
        return None
    evidence = f"The reward stays at {number(halves[1])}"
    return note(evidence, "this is normal so near its top; harder data would teach more")


REWARD_RULES = (
    HealthRule(
        "flat reward",
        _flat,
        f"the reward has not risen over {FLAT_STEPS} steps",
        "it rose before and holds, or it is near the top of its scale (a note)",
        ("reward",),
        earliest=FLAT_STEPS + LASTING,
        lasting=LASTING,
    ),
    HealthRule(
        "falling reward",
        _falling,
        f"the reward falls over {FLAT_STEPS} steps, beyond noise",
        "it is still at its top, or far above where it began and holding",
        ("reward",),
        earliest=FLAT_STEPS + LASTING,
        lasting=LASTING,
    ),
    HealthRule(
        "little to gain",
        _little_to_gain,
        "the reward stays near the top of its scale",
        "always: a note",
        ("reward",),
        earliest=FLAT_STEPS,
        is_note=True,
    ),
    HealthRule(
        "failing rewards",
        _failing,
        "the reward raises, or runs out of time, on one completion in a hundred or more",
        "a single one in a thousand: it is left out and counted",
        ("counts.unscorable",),
        earliest=RECENT,
    ),
    HealthRule(
        "programs out of time",
        _timeouts,
        "one program in fifty or more runs into the time limit",
        "a few endless loops: a model that explores writes some",
        ("counts.samples",),
        earliest=RECENT,
    ),
    HealthRule(
        "unscorable completions",
        _unscorable,
        "more than a tenth of the completions could not be scored",
        "a few rows without an answer are left out and counted",
        ("counts.unscorable",),
        earliest=FEW,
    ),
)
