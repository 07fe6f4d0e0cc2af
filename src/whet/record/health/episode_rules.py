"""Health of episodes: calls that cannot be read, environments that fail, limits that end what should end by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

from whet.record.health.finding import HealthFinding, note, problem
from whet.record.health.health_rule import health_rule
from whet.record.health.history import RECENT, TREND_STEPS, History, score, share_of
from whet.record.run_kinds import per_sample
from whet.record.text import number, percent
from whet.types import StepReport, StopReason

MANY_MALFORMED = 0.2  # of all calls that were begun
SOME_MALFORMED = 0.05  # of the episodes: fewer are chance
MANY_ERRORS = 0.3  # of the calls that were read
MANY_FAILED = 0.05  # of the episodes
MANY_LIMITED, MOST_LIMITED = 0.3, 0.5  # of the episodes
MANY_SECONDS = 0.3  # of the run's own, spent waiting for environments
MANY_CALLS = 2.0  # of an episode
LIMITS = {  # what an episode may run out of, the setting that says how much there is, and what else helps
    StopReason.TURNS: ("turns", "env.max_turns", "reward fewer calls"),
    StopReason.TOKENS: ("tokens", "env.max_tokens", "shorten what tools answer"),
    StopReason.STEP_SECONDS: ("time", "env.step_seconds", "look at why the environment is slow"),
    StopReason.SECONDS: ("time", "env.seconds", "look at which tool is slow"),
}


@health_rule(
    "malformed calls",
    "a fifth of the tool calls or more cannot be read",
    "a few of them: the policy is still learning the format",
    ("counts.turns",),
    earliest=RECENT,
    depth=0,
)
def _malformed(history: History) -> HealthFinding | None:
    recent = history.steps[-RECENT:]
    broken, read = _sum(recent, "malformed_calls"), _sum(recent, "tool_calls")
    if len(recent) < RECENT or not broken or broken < MANY_MALFORMED * (broken + read):
        return None
    if share_of(recent, "malformed_calls") < SOME_MALFORMED:  # hardly anybody calls: that is not the matter
        return None
    return problem(
        f"{percent(broken / (broken + read))} of the tool calls of the last {RECENT} steps could not be read",
        "the model does not know the format of calls",
        "begin with SFT on a few hundred demonstrations of calls",
        "try another env.call_format",
    )


@health_rule(
    "failing tools",
    "three in ten tool calls end in an error or run out of time",
    "the tool is meant to refuse, and the reward rises",
    ("counts.turns",),
    earliest=RECENT,
    depth=0,
)
def _tool_errors(history: History) -> HealthFinding | None:
    recent = history.steps[-RECENT:]
    calls, failed = _sum(recent, "tool_calls"), _sum(recent, "tool_errors") + _sum(recent, "tool_timeouts")
    if len(recent) < RECENT or not calls or failed < MANY_ERRORS * calls:
        return None
    return problem(
        f"{percent(failed / calls)} of the tool calls of the last {RECENT} steps ended in an error or ran out of time",
        "arguments are wrong, or the tool is broken",
        "read the errors in samples.jsonl",
        history.higher("env.tool_seconds") if _sum(recent, "tool_timeouts") else None,
    )


@health_rule(
    "failing environment",
    "one in twenty episodes or more fails and is left out",
    "never; single failures are left out and counted",
    ("counts.turns",),
    depth=0,
)
def _failed_episodes(history: History) -> HealthFinding | None:
    share = share_of(history.steps[-RECENT:], "failed_episodes")
    if share < MANY_FAILED:
        return None
    return problem(
        f"{percent(share)} of the episodes of the last {RECENT} steps failed and were left out",
        "the environment raises, or answers something that is no answer",
        "the warnings of the run name the episodes; fix the environment",
    )


@health_rule(
    "needless calls",
    "episodes call tools twice as often as at first, and are no better for it",
    "the reward rises: the calls help",
    ("counts.tool_calls",),
    earliest=TREND_STEPS,
    depth=1,
)
def _needless(history: History) -> HealthFinding | None:
    pair, scores = history.start_and_now(per_sample("tool_calls")), history.start_and_now(score)
    if pair is None or scores is None or history.doing_well or scores[1] > scores[0] + 0.1 * abs(scores[0]):
        return None
    if not (pair[1] >= MANY_CALLS and pair[1] > 2 * pair[0]):
        return None
    return problem(
        f"Episodes call tools {number(pair[1])} times, {number(pair[0])} at first, without a better reward",
        "calls are paid for, or cost nothing",
        "take a cost of calls into the reward",
        history.lower("env.max_turns", 0.5),
    )


@health_rule(
    "episodes cut off",
    "three in ten episodes run out of turns, tokens or time",
    "the reward rises and fewer than half do, or the task is solved",
    ("counts.turns",),
    earliest=TREND_STEPS,
    depth=1,
)
def _limits(history: History) -> HealthFinding | None:
    recent = history.steps[-RECENT:]
    if len(history.steps) < TREND_STEPS:
        return None
    for reason, (what, setting, otherwise) in LIMITS.items():
        share = share_of(recent, f"ended_by_{reason}")
        if share >= MANY_LIMITED and not history.solved and (share >= MOST_LIMITED or not history.doing_well):
            return problem(
                f"{percent(share)} of the episodes of the last {RECENT} steps ran out of {what}",
                "they are rewarded for what they had until then",
                # 0 tokens stand for twice the budget of its turns
                history.higher(setting) or history.higher("sampling.max_new_tokens", 1.5),
                otherwise,
            )
    return None


@health_rule(
    "slow environment",
    "an answer took so long that the engine no longer waits for answers; where three tenths of the time go by "
    "waiting nevertheless, that is said",
    "always: a note that equal seeds may now differ in rounding",
    ("counts.turns",),
    is_note=True,
)
def _slow(history: History) -> HealthFinding | None:
    if not any(step.counts.get("slow_environments") for step in history.steps):
        return None
    recent = history.steps[-RECENT:]
    phases = [phase for step in recent for phase in step.seconds.items() if math.isfinite(phase[1])]
    spent = sum(seconds for _, seconds in phases)
    waited = sum(seconds for name, seconds in phases if name == "environment") / spent if spent else 0.0
    if waited >= MANY_SECONDS:
        return note(
            f"{percent(waited)} of the time of the last {len(recent)} steps went by waiting for the environment",
            "nobody could write meanwhile. More episodes at once (batch.prompts_per_step) or rollouts beside training "
            "(scale.max_staleness=1) hide the wait, a quicker tool shortens it",
        )
    return note(
        "Answers of the environment take too long to be waited for while others can write",
        "the engine keeps writing for whoever is ready; two runs of the same seed may now differ in rounding",
    )


def _sum(steps: Sequence[StepReport], name: str) -> int:
    return sum(step.counts.get(name, 0) for step in steps)


EPISODE_RULES = (_malformed, _tool_errors, _needless, _failed_episodes, _limits, _slow)
