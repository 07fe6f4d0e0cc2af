"""What a finding is: what the numbers show, why, what to change, and when the same numbers are fine. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class SettingAdvice:
    """A setting to change, by the name it has in a config."""

    setting: str
    value: str  # what to give; in words where the run's own value is not known
    words: str  # as part of a sentence
    is_exact: bool = False  # the value can be given as it stands


@dataclass(frozen=True)
class HealthFinding:
    """One thing the numbers say: a problem with its fix, or a note on what looks alarming and is normal."""

    name: str
    sentence: str
    is_problem: bool = True
    evidence: str = ""
    cause: str = ""
    remedy: str = ""
    settings: tuple[tuple[str, str], ...] = ()  # (setting, value or advice in words), the first to try first
    normal_when: str = ""  # when the same numbers are fine
    changes: tuple[str, ...] = ()  # those of the settings that can be given as they stand: name=value

    @property
    def text(self) -> str:
        """As it is recorded and printed: the name, a colon, the sentence."""
        return f"{self.name}: {self.sentence}"


@dataclass(frozen=True)
class FindingSpan:
    """The steps in which a finding held, with its last wording."""

    finding: HealthFinding
    first: int
    last: int
    num_steps: int
    holds: bool  # still true at the last step


def problem(evidence: str, cause: str, *remedies: str | SettingAdvice | None) -> HealthFinding:
    """A problem; of its remedies, None stands for one that the run has no use for. Its rule gives it a name."""
    usable = [option for option in remedies if option is not None]
    remedy = ", or ".join(option if isinstance(option, str) else option.words for option in usable)
    advice = [option for option in usable if isinstance(option, SettingAdvice)]
    return HealthFinding(
        "",
        f"{evidence}: {cause}; {remedy}." if remedy else f"{evidence}: {cause}.",
        evidence=evidence,
        cause=cause,
        remedy=remedy,
        settings=tuple((change.setting, change.value) for change in advice),
        changes=tuple(f"{change.setting}={change.value}" for change in advice if change.is_exact),
    )


def note(evidence: str, cause: str) -> HealthFinding:
    """What may look wrong and is normal."""
    return HealthFinding("", f"{evidence}: {cause}.", is_problem=False, evidence=evidence, cause=cause)


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
