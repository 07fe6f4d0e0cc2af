"""What a finding is: what the numbers show, why, what to change, and when the same numbers are fine. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class SettingAdvice:
    """A setting to change, by the name it has in a config."""

    setting: str
    value: str  # what to give; in words where the run's own value is not known
    words: str  # as part of a sentence
    is_exact: bool = False  # the value can be given as it stands
    direction: int = 0  # 1: a larger number, -1: a smaller one, 0: another kind of value


@dataclass(frozen=True)
class HealthFinding:
    """A problem with its fix, or a note on something that looks alarming and is normal."""

    name: str
    sentence: str
    is_problem: bool = True
    evidence: str = ""
    cause: str = ""
    options: tuple[str | SettingAdvice, ...] = ()  # what may be done about it, the first to try first
    normal_when: str = ""  # when the same numbers are fine

    @property
    def remedy(self) -> str:
        """What may be done about it, in words."""
        return ", or ".join(option if isinstance(option, str) else option.words for option in self.options)

    @property
    def advice(self) -> tuple[SettingAdvice, ...]:
        """The options that change a setting."""
        return tuple(option for option in self.options if isinstance(option, SettingAdvice))

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        """(setting, value or advice in words)."""
        return tuple((option.setting, option.value) for option in self.advice)

    @property
    def changes(self) -> tuple[str, ...]:
        """The settings that can be given as they stand, as name=value."""
        return tuple(f"{option.setting}={option.value}" for option in self.advice if option.is_exact)

    def without(self, settings: Collection[str]) -> HealthFinding:
        """The same finding without its advice on these settings."""
        options = tuple(option for option in self.options if isinstance(option, str) or option.setting not in settings)
        if options == self.options:
            return self
        return replace(self, options=options, sentence=_sentence(self.evidence, self.cause, options))

    @property
    def text(self) -> str:
        """The finding as it is recorded and printed: the name, a colon, the sentence."""
        return f"{self.name}: {self.sentence}"


@dataclass(frozen=True)
class FindingSpan:
    """The steps in which a finding held, with its last wording."""

    finding: HealthFinding
    first: int
    last: int
    num_steps: int
    holds: bool  # still true at the last step
    lingers: bool = False  # true for a while until just before it


def problem(evidence: str, cause: str, *options: str | SettingAdvice | None) -> HealthFinding:
    """A problem; of what may be done, None stands for what the run has no use for. Its rule gives it a name."""
    usable = tuple(option for option in options if option is not None)
    return HealthFinding("", _sentence(evidence, cause, usable), evidence=evidence, cause=cause, options=usable)


def note(evidence: str, cause: str) -> HealthFinding:
    """What may look wrong and is normal."""
    return HealthFinding("", _sentence(evidence, cause, ()), is_problem=False, evidence=evidence, cause=cause)


def _sentence(evidence: str, cause: str, options: tuple[str | SettingAdvice, ...]) -> str:
    remedy = HealthFinding("", "", options=options).remedy
    return f"{evidence}: {cause}; {remedy}." if remedy else f"{evidence}: {cause}."


# what a run may do about a problem, and what it records it as; no problems themselves
ACTIONS = {"stop": "run stopped", "checkpoint": "checkpoint saved", "lower_rate": "rate lowered"}
KNOWN_NAME = re.compile(r"[A-Za-z][A-Za-z -]{2,38}")
NUMBERS = re.compile(r"[-+]?\d[\d.,]*")


def recorded_finding(text: str) -> HealthFinding:
    """A problem or an action as it was recorded; a problem of a run of 0.1 has no name and is known by its words."""
    name, colon, sentence = text.partition(": ")
    if colon and KNOWN_NAME.fullmatch(name):
        return HealthFinding(name, sentence, is_problem=name not in ACTIONS.values())
    return HealthFinding(NUMBERS.sub("", text), text)
