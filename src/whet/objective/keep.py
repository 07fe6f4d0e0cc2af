"""Which groups are worth training on? Verdicts on one group at a time; the loop draws more where a method asks for
it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from whet.objective.component import Component, number


class Keep(Component):
    """Which groups are trained on, and whether others are drawn in place of those left out."""

    refills: ClassVar[bool] = False  # True: groups that are left out are replaced by new ones
    grows: ClassVar[bool] = False  # True: a group that is not yet worth it gets more completions instead

    @property
    def most_rounds(self) -> int:
        """How many times the loop may draw for one step."""
        return 1

    def __call__(self, outcomes: Sequence[float], staleness: int) -> bool:
        """Whether to train on a group, given its completions' first reward part and the age of its oldest policy."""
        return True


class Everything(Keep):
    """Train on every group."""

    name = "everything"


def mixed(outcomes: Sequence[float]) -> bool:
    """Whether outcomes differ by more than float noise."""
    return len(outcomes) > 1 and max(outcomes) - min(outcomes) > 1e-6 * max(1.0, abs(sum(outcomes) / len(outcomes)))


@dataclass(frozen=True)
class MixedOutcome(Keep):
    """Keep a group whose completions are neither all right nor all wrong; draw new prompts for the rest.

    Yu 2025 (2503.14476), section 3.2. Judged by the first part of the reward, never by the shaped sum: a length
    penalty would make uniform groups look mixed. At most `rounds` draws a step.
    """

    rounds: float = number(10, least=1)
    name = "mixed_outcome"
    refills = True
    in_words = "train on groups with both outcomes, drawing new prompts for the others up to {0.rounds:g} times"

    @property
    def most_rounds(self) -> int:
        """How often a step may ask for more groups, at most."""
        return int(self.rounds)

    def __call__(self, outcomes: Sequence[float], staleness: int) -> bool:
        return mixed(outcomes)


@dataclass(frozen=True)
class Balanced(MixedOutcome):
    """Draw more completions to a prompt until both outcomes are there, then train on a balanced group of the usual
    size.

    RLHFlow 2025 (2510.04996), its idea; the number of rounds is whet's. The statistics of a group drawn this way are
    biased: use it with baseline drawn_mean, which sees every completion drawn.
    """

    rounds: float = 4
    name = "balanced"
    refills = False
    grows = True
    in_words = "draw more completions to a prompt until both outcomes are there, up to {0.rounds:g} times"


@dataclass(frozen=True)
class Fresh(Keep):
    """Leave out groups whose oldest policy is more than `max_staleness` versions behind."""

    max_staleness: float = number(1, least=0)
    name = "fresh"
    in_words = "train on completions at most {0.max_staleness:g} policy versions old"

    def __call__(self, outcomes: Sequence[float], staleness: int) -> bool:
        return staleness <= self.max_staleness
