"""Health of episodes: calls that cannot be read, environments that fail, limits that end what should end by itself."""

from __future__ import annotations

from collections.abc import Sequence

from whet.report.findings import RECENT, Check, HealthFinding, History, note, problem, share_of
from whet.report.text import percent
from whet.types import StepReport, StopReason

MANY_MALFORMED = 0.2  # of all calls that were begun
MANY_ERRORS = 0.3  # of the calls that were read
MANY_FAILED = 0.05  # of the episodes
MANY_LIMITED = 0.3  # of the episodes
REMEDIES = {
    StopReason.TURNS: "raise env.max_turns, or reward fewer calls",
    StopReason.TOKENS: "raise env.max_tokens, shorten what tools answer, or lower sampling.max_new_tokens",
    StopReason.STEP_SECONDS: "raise env.step_seconds, or look at why the environment is slow",
    StopReason.SECONDS: "raise env.seconds, or look at which tool is slow",
}


def _malformed(history: History) -> HealthFinding | None:
    recent = history.steps[-RECENT:]
    broken, read = _sum(recent, "malformed_calls"), _sum(recent, "tool_calls")
    if len(recent) < RECENT or not broken or broken < MANY_MALFORMED * (broken + read):
        return None
    return problem(
        "malformed calls",
        f"{percent(broken / (broken + read))} of the tool calls of the last {RECENT} steps could not be read",
        "the model does not know the format of calls",
        "begin with SFT on a few hundred demonstrations of calls, or try another env.call_format",
    )


def _tool_errors(history: History) -> HealthFinding | None:
    recent = history.steps[-RECENT:]
    calls, failed = _sum(recent, "tool_calls"), _sum(recent, "tool_errors") + _sum(recent, "tool_timeouts")
    if len(recent) < RECENT or not calls or failed < MANY_ERRORS * calls:
        return None
    return problem(
        "failing tools",
        f"{percent(failed / calls)} of the tool calls of the last {RECENT} steps ended in an error or ran out of time",
        "arguments are wrong, or the tool is broken",
        "read the errors in samples.jsonl; raise env.tool_seconds where calls run out of time",
    )


def _failed_episodes(history: History) -> HealthFinding | None:
    share = share_of(history.steps[-RECENT:], "failed_episodes")
    if share < MANY_FAILED:
        return None
    return problem(
        "failing environment",
        f"{percent(share)} of the episodes of the last {RECENT} steps failed and were left out",
        "the environment raises, or answers something that is no answer",
        "the warnings of the run name the episodes; fix the environment",
    )


def _limits(history: History) -> HealthFinding | None:
    recent = history.steps[-RECENT:]
    if len(recent) < RECENT:
        return None
    for reason, remedy in REMEDIES.items():
        share = share_of(recent, f"ended_by_{reason}")
        if share >= MANY_LIMITED and not history.doing_well:
            what = {"turns": "turns", "tokens": "tokens"}.get(reason, "time")
            return problem(
                "episodes cut off",
                f"{percent(share)} of the episodes of the last {RECENT} steps ran out of {what}",
                "they are rewarded for what they had until then",
                remedy,
            )
    return None


def _slow(history: History) -> HealthFinding | None:
    if not any(step.counts.get("slow_environments") for step in history.steps):
        return None
    return note(
        "slow environment",
        "An answer took longer than a second, and the engine no longer waits for answers",
        "it goes on writing for whoever is ready; two runs of the same seed may now differ in rounding",
    )


def _sum(steps: Sequence[StepReport], name: str) -> int:
    return sum(step.counts.get(name, 0) for step in steps)


EPISODE_CHECKS: tuple[Check, ...] = (_malformed, _tool_errors, _failed_episodes, _limits, _slow)
