"""A rule as a value: what it is called, what it looks at, when it speaks, and when its numbers are normal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from whet.record.health.finding import HealthFinding
from whet.record.health.history import History
from whet.record.run_kinds import PREFERENCE, REWARD_MODEL, RL, SFT
from whet.types import StepReport

ALL_KINDS = (RL, PREFERENCE, SFT, REWARD_MODEL)
Check = Callable[[History], HealthFinding | None]


@dataclass(frozen=True)
class HealthRule:
    """One question to the steps of a run; `check` answers it with what it found, or None."""

    name: str
    check: Check
    about: str  # what it sees
    normal_when: str  # when it stays silent, or makes a note: the same numbers are fine then
    reads: tuple[str, ...] = ()  # what a step must have: metrics.NAME, counts.NAME, reward or seconds
    kinds: tuple[str, ...] = (RL,)
    earliest: int = 1  # the first step at which it can speak
    lasting: int = 0  # steps before the last that it must have held in as well: noise passes, a problem stays
    hides: tuple[str, ...] = ()  # names of rules that say the same less well
    depth: int = 2  # 0: a part is broken, 1: reward or data, 2: how the policy moves, 3: what comes of it
    is_note: bool = False  # it never finds a problem
    by_evaluation: bool = False  # it reads evaluations alone: between two of them nothing new is known
    is_timed: bool = False  # it reads the clock, so equal runs may differ: not recorded with the steps
    is_stated: bool = False  # it reads what the run's summary states: true from the start, not recorded with the steps

    def find(self, history: History) -> HealthFinding | None:
        """What `check` finds, with this rule's name filled in; None where the rule has nothing to say."""
        finding = self.check(history)
        return None if finding is None else replace(finding, name=self.name, normal_when=self.normal_when)

    def missing(self, step: StepReport) -> tuple[str, ...]:
        """What of it a step has not."""
        return tuple(name for name in self.reads if not _has(step, name))


Ruled = Callable[[Check], HealthRule]


def health_rule(name: str, about: str, normal_when: str, reads: tuple[str, ...] = (), **more: Any) -> Ruled:
    """Stands above a check and makes it the rule of that name; `more` are further fields of `HealthRule`."""
    return lambda check: HealthRule(name, check, about, normal_when, reads, **more)


def _has(step: StepReport, quantity: str) -> bool:
    part, _, name = quantity.partition(".")
    values = getattr(step, part)
    if not name:
        return bool(values)
    return any(key.endswith(name[1:]) for key in values) if name.startswith("*") else name in values
