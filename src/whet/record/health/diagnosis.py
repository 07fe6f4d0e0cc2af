"""The registry of health rules, and what they say about the steps of a run. Pure.

A run that improves, or that has solved its task, is left in peace: low entropy, short completions and groups that agree
are what success looks like. The problems of each step are recorded with it, so the page shows each with the steps in
which it held, also when it is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from whet.record.health.completion_rules import GROUP_RULES, LENGTH_RULES
from whet.record.health.data_rules import DATA_RULES
from whet.record.health.episode_rules import EPISODE_RULES
from whet.record.health.evaluation_rules import EVALUATION_RULES
from whet.record.health.finding import FindingSpan, HealthFinding, recorded_finding
from whet.record.health.hacking import HACKING_RULES
from whet.record.health.health_rule import HealthRule
from whet.record.health.history import RECENT, TREND_STEPS, History, history_of
from whet.record.health.out_of_range import RANGE_RULES
from whet.record.health.policy_rules import CRITIC_RULES, POLICY_RULES
from whet.record.health.preference_rules import PREFERENCE_RULES
from whet.record.health.reward_rules import REWARD_RULES
from whet.record.health.rollout_rules import ROLLOUT_RULES
from whet.record.health.row_rules import ROW_RULES
from whet.record.log import EvalRecord
from whet.record.run_kinds import PREFERENCE, kind_of
from whet.types import StepReport

RULES: Mapping[str, HealthRule] = {
    rule.name: rule
    for rule in (
        *EVALUATION_RULES,
        *DATA_RULES,
        *RANGE_RULES,
        *POLICY_RULES,
        *GROUP_RULES,
        *REWARD_RULES,
        *LENGTH_RULES,
        *ROLLOUT_RULES,
        *HACKING_RULES,
        *CRITIC_RULES,
        *EPISODE_RULES,
        *PREFERENCE_RULES,
        *ROW_RULES,
    )
}

MOST_REPLAYED = 200  # steps


def rules_of(steps: Sequence[StepReport]) -> tuple[HealthRule, ...]:
    """The rules about such a run. One that writes its own pairs reports rewards too, and is asked about both."""
    kinds = {kind_of(steps).name} | ({PREFERENCE} if steps and "chosen_logp" in steps[-1].metrics else set())
    return tuple(rule for rule in RULES.values() if kinds & set(rule.kinds))


def findings(
    steps: Sequence[StepReport],
    dtype: str = "float32",
    settings: Mapping[str, Any] | None = None,
    evals: Sequence[EvalRecord] = (),
    *,
    timed: bool = True,
) -> tuple[HealthFinding, ...]:
    """What the rules find at the last step: problems first, then notes; without `timed`, not by the clock."""
    if not steps:
        return ()
    history = history_of(steps, dtype, settings, evals)
    asked = [rule for rule in rules_of(steps) if timed or not (rule.is_timed or rule.is_stated)]
    by_rule = {rule: finding for rule in asked if (finding := rule.find(history)) is not None}
    if any(finding.is_problem and rule.lasting for rule, finding in by_rule.items()):
        most = min(max(rule.lasting for rule in by_rule), len(steps) - 1)
        before = [history.without_last(count) for count in range(1, most + 1)]
        by_rule = {
            rule: finding
            for rule, finding in by_rule.items()
            if not finding.is_problem
            or all(_is_problem(rule.find(history_before)) for history_before in before[: rule.lasting])
        }
    hidden = {name for rule, finding in by_rule.items() if finding.is_problem for name in rule.hides}
    shown = [finding for finding in by_rule.values() if finding.name not in hidden]
    shown.sort(key=lambda finding: (not finding.is_problem, RULES[finding.name].depth))
    return _without_opposites(shown)


def _without_opposites(problems_first: Sequence[HealthFinding]) -> tuple[HealthFinding, ...]:
    """The findings without advice that contradicts that of an earlier one, which is nearer to the root."""
    advised: dict[str, tuple[int, str]] = {}  # direction and value of each setting
    agreeing = []
    for finding in problems_first:
        wanted = {advice.setting: (advice.direction, advice.value) for advice in finding.advice}
        opposite = {
            setting
            for setting, (direction, value) in wanted.items()
            if setting in advised
            and (advised[setting][0] != direction or (not direction and advised[setting][1] != value))
        }
        agreeing.append(finding.without(opposite))
        advised = {**wanted, **advised}
    return tuple(agreeing)


def _is_problem(finding: HealthFinding | None) -> bool:
    return finding is not None and finding.is_problem


def diagnosis(
    steps: Sequence[StepReport],
    dtype: str = "float32",
    settings: Mapping[str, Any] | None = None,
    evals: Sequence[EvalRecord] = (),
) -> tuple[str, ...]:
    """The problems of the last step as they are recorded with it, one sentence each; empty when the run is healthy.

    Equal runs record equal lines, so what the clock says is not among them.
    """
    current = findings(steps, dtype, settings, evals, timed=False)
    return tuple(finding.text for finding in current if finding.is_problem)


def finding_spans(
    steps: Sequence[StepReport],
    dtype: str = "float32",
    recorded: Sequence[tuple[int, tuple[str, ...]]] | None = None,
    settings: Mapping[str, Any] | None = None,
    evals: Sequence[EvalRecord] = (),
) -> tuple[FindingSpan, ...]:
    """Every problem recorded in any step, in the order they first appeared, then the notes of the last step.

    `recorded` are the problems by step, where `steps` are not all there are. A problem that still holds is told with
    all that its rule knows of it; of one that is over, only the sentence was recorded.
    """
    if not steps:
        return ()
    spans: dict[str, FindingSpan] = {}
    for step, texts in ((report.step, report.health) for report in steps) if recorded is None else recorded:
        for text in texts:
            finding = recorded_finding(text)
            before = spans.get(finding.name)
            first, count = (before.first, before.num_steps + 1) if before else (step, 1)
            spans[finding.name] = FindingSpan(finding, first, step, count, False)
    return current_spans(spans, steps, dtype, settings, evals)


def current_spans(
    recorded: Mapping[str, FindingSpan],
    steps: Sequence[StepReport],
    dtype: str = "float32",
    settings: Mapping[str, Any] | None = None,
    evals: Sequence[EvalRecord] = (),
) -> tuple[FindingSpan, ...]:
    """What was recorded, with what today's rules find at the last step: that holds, and what they cannot judge.

    The last evaluation comes after the last step's line, and the clock is never recorded: what only they show is asked
    of the steps before.
    """
    end = steps[-1].step
    spans = {
        name: replace(span, holds=span.last == end and not _is_judged(name, steps[-1]))
        for name, span in recorded.items()
    }
    now, history = findings(steps, dtype, settings, evals), history_of(steps, dtype, settings, evals)
    for finding in (finding for finding in now if finding.is_problem):
        before = spans.get(finding.name)
        if before is not None and before.last == end:
            first, count = before.first, before.num_steps
        else:
            first, count = since_when(finding.name, history)
        spans[finding.name] = FindingSpan(finding, first, end, count, True)
    for name, span in spans.items():
        if not span.holds and lingers(span, end) and _is_judged(name, steps[-1]):
            spans[name] = _asked_again(span, history)
    last = [FindingSpan(note, end, end, 1, True) for note in now if not note.is_problem]
    return (*spans.values(), *last)


def lingers(span: FindingSpan, end: int) -> bool:
    """Whether a problem held for a while until just before the last step."""
    return end - TREND_STEPS < span.last < end and span.num_steps >= RECENT


def _asked_again(span: FindingSpan, history: History) -> FindingSpan:
    """A problem that was recorded until just now, as today's rules tell it; unchanged where they do not."""
    later = sum(step.step > span.last for step in history.steps)
    finding = RULES[span.finding.name].find(history.without_last(later)) if later < len(history.steps) else None
    return span if finding is None or not finding.is_problem else replace(span, finding=finding, lingers=True)


def _is_judged(name: str, step: StepReport) -> bool:
    """Whether today's rules have what they need to say whether a problem of this name holds."""
    return name in RULES and not RULES[name].missing(step)


def since_when(name: str, history: History) -> tuple[int, int]:
    """The step since which a rule has found its problem without a break, and in how many steps."""
    steps = history.steps
    if RULES[name].is_stated:
        return steps[0].step, len(steps)
    count = 1
    while count < min(len(steps), MOST_REPLAYED) and RULES[name].find(history.without_last(count)) is not None:
        count += 1
    return steps[-count].step, count
