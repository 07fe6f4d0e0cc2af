"""`whet doctor`: the story of a run folder, finished, failed, running or damaged, and what the rules could not see.

The rules are asked again, so a run of an older version is judged by today's; since when a problem holds is known from
the record, or by asking again about the steps before.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.record.evaluations import with_size
from whet.record.flat_rows import ThinnedLog
from whet.record.health.diagnosis import rules_of
from whet.record.health.finding import ACTIONS, FindingSpan, HealthFinding, recorded_finding
from whet.record.health.history import RECENT
from whet.record.health.story import Story, story_of
from whet.record.log import (
    METRICS,
    SUMMARY,
    EvalRecord,
    raw_lines,
    read_summary,
    recorded_line,
)
from whet.record.run import MOST_BETWEEN, RunRecord, StepTotals
from whet.record.run_folder import is_locked
from whet.record.text import WIDTH, count_of
from whet.types import StepReport, WhetError


@dataclass(frozen=True)
class DoctorReport:
    """A run as the rules see it at one step."""

    folder: str
    title: str
    method: str
    status: str
    kind: str
    step: int
    total_steps: int
    story: Story
    problems: tuple[FindingSpan, ...]  # that hold
    over: tuple[FindingSpan, ...]  # that held and no longer do
    notes: tuple[HealthFinding, ...]
    looked_at: tuple[str, ...]  # rules that had what they read
    not_seen: Mapping[str, tuple[str, ...]]  # rules that had not, and what was missing
    damage: tuple[str, ...]  # what of the folder could not be read
    actions: tuple[str, ...] = ()  # what the run did about its problems

    def __str__(self) -> str:
        return doctor_text(self)

    @property
    def is_healthy(self) -> bool:
        """Whether the run did not fail, and its story tells of no problem."""
        return self.story.state not in ("failed", "problem")

    def values(self) -> dict[str, Any]:
        """The findings as JSON."""
        return {
            **{name: getattr(self, name) for name in ("folder", "title", "method", "status", "kind", "step")},
            "total_steps": self.total_steps,
            "healthy": self.is_healthy,
            "story": {**self.story.values(), "command": command(self)},
            "problems": [_span_values(span) for span in self.problems],
            "over": [{"name": span.finding.name, "first": span.first, "last": span.last} for span in self.over],
            "notes": [{"name": finding.name, "sentence": finding.sentence} for finding in self.notes],
            "looked_at": list(self.looked_at),
            "not_seen": {name: list(missing) for name, missing in self.not_seen.items()},
            "damage": list(self.damage),
            "actions": list(self.actions),
        }


def doctor_report(folder: Path | str, step: int | None = None) -> DoctorReport:
    """What is wrong with a run, at its last step or an earlier one; a damaged folder is read as far as it goes."""
    folder = Path(folder)
    is_starting = is_locked(folder)
    if not (folder / METRICS).is_file() and not (folder / SUMMARY).is_file() and not is_starting:
        raise WhetError(
            f"{folder} has neither {METRICS} nor {SUMMARY}; give the folder of a run (`whet runs` lists them)"
        )
    damage: list[str] = []
    summary: Mapping[str, Any] = {}
    try:
        summary = read_summary(folder)
    except WhetError as error:
        if (folder / SUMMARY).exists() or not is_starting:
            damage.append(f"{error}; the settings and the title of the run are not known")
    record = _read(folder, summary, step, damage)
    steps, ending = record.steps, record.ending()
    if not steps and ending.status != "failed":
        if is_starting and step is None:
            raise WhetError(f"{folder} is starting and has made no step yet; there is nothing to look at")
        asked = "" if step is None else f" up to step {step}"
        raise WhetError(f"{folder} has no step{asked} in {METRICS} yet; there is nothing to look at")
    spans = record.finding_spans()
    problems = [span for span in spans if span.finding.is_problem and span.holds]
    # a step in which nothing differs has no correlation: what any of the last ones has was recorded
    lacking = {rule.name: [rule.missing(report) for report in steps[-RECENT:]] for rule in rules_of(steps) if steps}
    missing = {name: min(absent, key=len) for name, absent in lacking.items()}
    return DoctorReport(
        folder=str(folder),
        title=str(summary.get("title") or folder.name),
        method=str(summary.get("method") or ""),
        status=ending.status,
        kind=record.kind.name,
        step=ending.step,
        total_steps=summary.get("total_steps") or 0,
        story=story_of(spans, record.evaluations(), ending if step is None else None),
        problems=tuple(problems),
        over=tuple(span for span in spans if span.finding.is_problem and not span.holds),
        notes=tuple(
            span.finding for span in spans if not span.finding.is_problem and not _is_action(span.finding.text)
        ),
        looked_at=tuple(name for name, absent in missing.items() if not absent),
        not_seen={name: absent for name, absent in missing.items() if absent},
        damage=tuple(damage),
        actions=tuple(
            f"step {at}: {text}" for at, texts in record.totals.problems for text in texts if _is_action(text)
        ),
    )


def _is_action(text: str) -> bool:
    return recorded_finding(text).name in ACTIONS.values()


def _read(folder: Path, summary: Mapping[str, Any], until: int | None, damage: list[str]) -> RunRecord:
    reports: ThinnedLog[StepReport] = ThinnedLog(between=MOST_BETWEEN)
    evals: list[EvalRecord] = []
    totals = StepTotals()
    num_broken = 0
    try:
        for _, text in raw_lines(folder / METRICS):
            known = recorded_line(text)
            if known is None:
                num_broken += 1
            elif until is not None and known.step > until:
                continue
            elif isinstance(known, EvalRecord):
                evals.append(known)
            else:
                reports.append(known)
                totals.problems += [(known.step, known.health)] if known.health else []
    except OSError:
        num_broken += 1
    if num_broken:
        damage.append(f"{folder / METRICS}: {count_of(num_broken, 'line')} could not be read and are passed over")
    evals = with_size(evals, summary.get("eval_size"))
    return RunRecord(folder, summary, "", tuple(reports.items()), tuple(evals), totals=totals)


def _span_values(span: FindingSpan) -> dict[str, Any]:
    finding = span.finding
    return {
        "name": finding.name,
        "since": span.first,
        "steps": span.num_steps,
        "evidence": finding.evidence,
        "cause": finding.cause,
        "remedy": finding.remedy,
        "settings": [list(pair) for pair in finding.settings],
        "changes": list(finding.changes),
        "normal_when": finding.normal_when,
    }


def command(report: DoctorReport) -> str:
    """What to try first, as a command line; empty where nothing is to be set."""
    cause, folder = report.story.cause, shlex.quote(report.folder)
    if report.story.state == "failed":
        return f"whet resume {folder}"
    if cause is None or not cause.finding.changes:
        return ""
    change = shlex.quote(cause.finding.changes[0])
    if report.status == "finished":
        return f"whet train {report.method or 'METHOD'} --config {folder}/config.toml --folder NEW --set {change}"
    return f"whet resume {folder} --set {change} --accept-changes"


def doctor_text(report: DoctorReport) -> str:
    """The report for a terminal."""
    of = f" of {report.total_steps}" if report.total_steps else ""
    lines = [f"{report.title}  {report.folder}", f"{report.status}, looked at as of step {report.step}{of}", ""]
    lines += [f"damaged: {line}" for line in report.damage] + ([""] if report.damage else [])
    lines += textwrap.wrap(report.story.headline, WIDTH)
    for label, text in report.story.lines:
        lines += _wrapped(label, text)
    first = command(report)
    lines += [f"  {'try':14}{first}"] if first else []
    rules = count_of(len(report.looked_at), "rule")
    also = [span for span in report.problems if span is not report.story.cause]
    if report.is_healthy:
        lines += ["", f"healthy: {rules} found no problem"]
    elif report.problems:
        lines += ["", f"{count_of(len(report.problems), 'problem')} in all, {rules} looked"]
    lines += [f"  {span.finding.name}  since step {span.first} ({count_of(span.num_steps, 'step')})" for span in also]
    if report.over:
        lines += ["", "over by now"]
        lines += [f"  {span.finding.name}, steps {span.first} to {span.last}" for span in report.over]
    if report.notes:
        lines += ["", "normal, though it may look otherwise"]
        for note in report.notes:
            lines += textwrap.wrap(note.text, WIDTH, initial_indent="  ", subsequent_indent="    ")
    if report.actions:
        lines += ["", "what the run did about it", *(f"  {action}" for action in report.actions)]
    if report.not_seen:
        absent = "; ".join(
            f"{name} ({', '.join(_short(quantity) for quantity in of)})" for name, of in report.not_seen.items()
        )
        lines += [
            "",
            *textwrap.wrap(f"not looked at, the run does not record it: {absent}", WIDTH, subsequent_indent="  "),
        ]
    return "\n".join(_printable(line) for line in lines)


def _short(quantity: str) -> str:
    return quantity.rpartition(".")[2]


def _wrapped(label: str, text: str) -> list[str]:
    if not text:
        return []
    head, rest = f"  {label:14}", " " * 16
    return textwrap.wrap(
        text, WIDTH, initial_indent=head, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _printable(line: str) -> str:
    """A line without terminal control sequences: names in a record may be anybody's."""
    return "".join(character if character.isprintable() else "?" for character in line)
