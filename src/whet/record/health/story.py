"""One story instead of a list of alarms: what happened, since when, why most likely, what to change. Pure.

Findings that hold together are ordered by how near to the root they are (`HealthRule.depth`): a part that is broken
explains a reward that is wrong, that explains a policy that runs away, and that explains evaluations that fall. The one
nearest to the root is the likely cause, those further away are evidence, and those beside it are what else it could be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from whet.record.evaluations import Evaluations
from whet.record.health.diagnosis import RULES
from whet.record.health.finding import FindingSpan

OUTCOME = 3  # depth of the rules that say what came of it
MOST_ELSE = 3


@dataclass(frozen=True)
class RunEnding:
    """How a run stands, from what its folder says besides the steps."""

    status: str  # running, finished, interrupted or failed
    step: int = 0
    was_killed: bool = False  # its process is gone and wrote nothing about it
    error: str = ""
    details: tuple[str, ...] = ()  # where the traceback is, which sample was being scored

    @property
    def problem(self) -> str:
        """failed or killed, where a list names problems; empty: it goes on, or ended as it was meant to."""
        return "failed" if self.status == "failed" else "killed" if self.was_killed else ""


@dataclass(frozen=True)
class Story:
    """What a run comes to."""

    state: Literal["failed", "problem", "well", "unclear"]
    headline: str
    since: int | None = None  # step
    evidence: tuple[str, ...] = ()
    cause: FindingSpan | None = None  # the finding that is taken for the cause
    otherwise: tuple[FindingSpan, ...] = ()  # what else it could be

    @property
    def change(self) -> str:
        """What to do, in words; empty where nothing is to be done."""
        return self.cause.finding.remedy if self.cause else ""

    @property
    def lines(self) -> list[tuple[str, str]]:
        """(what it is, text) of all but the headline."""
        lines = [("since", f"step {self.since:,}")] if self.since is not None else []
        lines += [("evidence", text) for text in self.evidence]
        if self.cause is not None:
            finding = self.cause.finding
            lines += [("likely cause", f"{finding.name}: {finding.cause}" if finding.cause else finding.name)]
            lines += [("change", finding.remedy)] if finding.remedy else []
            lines += [("normal when", finding.normal_when)] if finding.normal_when else []
        for span in self.otherwise:
            lines.append(("or else", f"{span.finding.name}: {span.finding.cause or span.finding.sentence}"))
        return lines

    def values(self) -> dict[str, Any]:
        """The story as JSON."""
        return {
            "state": self.state,
            "headline": self.headline,
            "since": self.since,
            "evidence": list(self.evidence),
            "cause": self.cause.finding.name if self.cause else "",
            "change": self.change,
            "changes": list(self.cause.finding.changes) if self.cause else [],
            "otherwise": [span.finding.name for span in self.otherwise],
        }


def story_of(
    spans: Sequence[FindingSpan],
    evaluations: Evaluations | None = None,
    ending: RunEnding | None = None,
) -> Story:
    """The findings of a run, and how it stands, as one story."""
    telling = [span for span in spans if span.finding.is_problem and (span.holds or span.lingers)]
    holding = sorted(telling, key=_nearness)
    if ending is not None and ending.problem:
        return _failure(ending, holding)
    if holding:
        return _problem(holding)
    change = (evaluations or Evaluations()).change
    if evaluations is not None and evaluations.gain > 0:
        return Story("well", f"{change[0].upper()}{change[1:]}")
    reason = "no rule finds a problem"
    if evaluations is not None and evaluations.gain < 0:
        reason = "one in twenty runs in which nothing changes shows as much: evaluate on more prompts to tell"
    return Story(
        "unclear", f"{change[0].upper()}{change[1:]}; {reason}" if change else f"{reason[0].upper()}{reason[1:]}"
    )


def _nearness(span: FindingSpan) -> tuple[int, bool, int]:
    """The nearest to the root first; what the clock says last, and of equals the earlier."""
    rule = RULES.get(span.finding.name)
    return (rule.depth, rule.is_timed, span.first) if rule else (OUTCOME, True, span.first)


def _problem(holding: Sequence[FindingSpan]) -> Story:
    cause, *others = holding
    depth = _nearness(cause)[0]
    outcomes = [span for span in holding if _nearness(span)[:2] == (OUTCOME, False)]
    outcome = min(outcomes, key=lambda span: list(RULES).index(span.finding.name), default=cause)
    headline = outcome.finding.evidence or outcome.finding.text
    if outcome is not cause:
        headline += f"; most likely {cause.finding.name}"
    beside = [span for span in others if _nearness(span)[0] == depth and span is not outcome]
    behind = [span for span in others if _nearness(span)[0] > depth and span is not outcome]
    evidence = [span.finding.evidence or span.finding.text for span in (cause, *behind) if span is not outcome]
    first = min(cause.first, outcome.first)
    return Story("problem", headline, first, tuple(evidence), cause, tuple(beside[:MOST_ELSE]))


def _failure(ending: RunEnding, holding: Sequence[FindingSpan]) -> Story:
    after = f"after step {ending.step:,}" if ending.step else "before its first step"
    error = ending.error or "nothing says why"
    if ending.was_killed:
        error = "its process is gone without a word (killed, crashed in C code, or out of memory)"
    verb = "was killed" if ending.was_killed else "failed"
    evidence = (*ending.details, *(span.finding.evidence or span.finding.text for span in holding))
    return Story("failed", f"The run {verb} {after}: {error}", None, evidence, None, tuple(holding[:MOST_ELSE]))
