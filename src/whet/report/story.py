"""A pipeline's stages as they are told: the table of rounds and an honest verdict. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from whet.report.text import headline, metric_text

NOISE = 2.0  # standard errors that two marks must be apart to be called different


@dataclass(frozen=True)
class StageLine:
    """One stage: what it was to do and, once it is done, what came out."""

    name: str
    about: str
    said: str = ""
    seconds: float | None = None  # None: not done
    marks: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    measures: tuple[str, int] | None = None  # whose marks, after which round
    asked: int = 0  # held-out prompts behind the marks
    over: str = ""  # why the stages after it were not done
    report: str = ""  # link to the page of its run

    @property
    def is_done(self) -> bool:
        return self.seconds is not None


@dataclass(frozen=True)
class Story:
    name: str
    about: str
    status: str  # finished, interrupted, failed
    stages: tuple[StageLine, ...]
    command: str = ""
    config: str = ""


def main_metric(story: Story) -> str | None:
    """The mark that rounds are compared by."""
    return next((headline(stage.marks) for stage in story.stages if stage.measures and stage.marks), None)


def metrics_by_round(story: Story, mark: str) -> dict[str, dict[int, StageLine]]:
    """who -> round -> the stage that marked it, in the order of the stages."""
    found: dict[str, dict[int, StageLine]] = {}
    for stage in story.stages:
        if stage.measures and mark in stage.marks:
            found.setdefault(stage.measures[0], {})[stage.measures[1]] = stage
    return found


def rounds_table(story: Story) -> list[list[str]]:
    """Marks by round: a head, then one row for each model that was marked. Empty without marks."""
    mark = main_metric(story)
    if mark is None:
        return []
    courses = metrics_by_round(story, mark)
    rounds = sorted({number for course in courses.values() for number in course})
    rows = [[f"held-out {mark.replace('_', ' ')}", *("before" if not at else f"round {at}" for at in rounds)]]
    for who, course in courses.items():
        rows.append([who, *(metric_text(mark, course[at].marks[mark]) if at in course else "" for at in rounds)])
    return rows


def aligned(rows: list[list[str]]) -> list[str]:
    """A table as lines of text, numbers to the right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))] if rows else []
    return [
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width) for at, (cell, width) in enumerate(pairs)
        ).rstrip()
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    ]


def verdict(story: Story) -> str:
    """What the pipeline did to its policy, and whether that is more than noise."""
    mark = main_metric(story)
    ended = next((f" It ended early: {stage.over}." for stage in story.stages if stage.over), "")
    left = sum(not stage.is_done for stage in story.stages)
    if left and not ended:
        ended = f" {left} of {len(story.stages)} stages are still to do."
    if mark is None:
        return f"Nothing was measured: there are no held-out prompts with a reward to mark them.{ended}"
    courses = metrics_by_round(story, mark)
    who, course = next(iter(courses.items()))
    first, last = course[min(course)], course[max(course)]
    name = mark.replace("_", " ")
    if first is last:
        return f"Held-out {name} before the first round: {metric_text(mark, first.marks[mark])}.{ended}"
    said = f"Held-out {name} of {who}: {metric_text(mark, first.marks[mark])} to {metric_text(mark, last.marks[mark])}"
    said += f" in {max(course)} round{'s' if max(course) > 1 else ''}, {_difference(first, last, mark)}."
    said += _peak(course, mark)
    for other, compared in list(courses.items())[1:]:
        if max(compared) == max(course):
            rival = compared[max(compared)]
            said += f" {other.capitalize()}: {metric_text(mark, rival.marks[mark])}, {_difference(last, rival, mark)}."
    return said + ended


def _peak(course: Mapping[int, StageLine], mark: str) -> str:
    """The round that was better than the last, where that is more than noise."""
    best = max(course, key=lambda at: course[at].marks[mark])
    words = _difference(course[best], course[max(course)], mark)
    if best == max(course) or not words.startswith("worse"):
        return ""
    when = f"after round {best}" if best else "before the first round"
    return f" It was best {when}: {metric_text(mark, course[best].marks[mark])}; later rounds lost some of that."


def _difference(one: StageLine, two: StageLine, mark: str) -> str:
    """How the second mark stands to the first, in words."""
    gap = two.marks[mark] - one.marks[mark]
    asked = min(one.asked, two.asked)
    shares = (one.marks[mark], two.marks[mark])
    if not asked or not all(0 <= share <= 1 for share in shares):
        return "higher" if gap > 0 else "lower" if gap < 0 else "the same"
    # an unlucky 0% or 100% has no spread of its own: Laplace's rule gives it one
    errors = [(share * asked + 1) / (asked + 2) for share in shares]
    noise = math.sqrt(sum(share * (1 - share) / asked for share in errors))
    if abs(gap) <= NOISE * noise:
        return f"no further apart than the noise of {asked} prompts"
    return f"{'better' if gap > 0 else 'worse'} by more than the noise of {asked} prompts"
