"""The health of a run: rules over its steps, each with evidence, cause, remedy and the cases where all is well.

A rule is a value in `RULES`; `findings` asks those of a run's kind. The files are the topics.
"""

from whet.record.health.finding import ACTIONS, FindingSpan, HealthFinding, recorded_finding
from whet.record.health.history import SETTINGS, History, history_of, known_settings
from whet.record.health.registry import (
    RULES,
    current_spans,
    diagnosis,
    finding_spans,
    findings,
    notes,
    rules_of,
)
from whet.record.health.rule import HealthRule
from whet.record.health.story import RunEnding, Story, story_of

__all__ = [
    "ACTIONS",
    "FindingSpan",
    "HealthFinding",
    "HealthRule",
    "History",
    "RULES",
    "RunEnding",
    "SETTINGS",
    "Story",
    "current_spans",
    "diagnosis",
    "finding_spans",
    "findings",
    "history_of",
    "known_settings",
    "notes",
    "recorded_finding",
    "rules_of",
    "story_of",
]
