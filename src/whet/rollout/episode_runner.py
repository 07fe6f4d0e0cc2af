"""Who plays the episodes of a rollout, and what it tells about them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from whet.types import Prompt, Sample, Sampling

logger = logging.getLogger(__name__)
MOST_FAILURES = 20  # failures in words that are kept for the report
MOST_LINES = 3  # failures of an evaluation that are told in words


@dataclass(frozen=True)
class PlayNotes:
    """What the episodes of a step cost, and what went wrong in them."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    failures: tuple[str, ...] = ()  # each with the id of its episode
    counts: Mapping[str, int] = field(default_factory=dict)  # of what belongs to no sample

    @classmethod
    def joined(cls, notes: Sequence[PlayNotes], seconds: Callable[[list[float]], float] = sum) -> PlayNotes:
        """The notes of several players as one; `seconds` makes one time of theirs."""
        names = sorted({name for note in notes for name in note.seconds})
        return cls(
            {name: seconds([note.seconds.get(name, 0.0) for note in notes]) for name in names},
            tuple(failure for note in notes for failure in note.failures)[:MOST_FAILURES],
            dict(sum((Counter(note.counts) for note in notes), Counter())),
        )


def tell_failures(notes: PlayNotes) -> None:
    """Say what went wrong in episodes that belong to no step."""
    for failure in notes.failures[:MOST_LINES]:
        logger.warning("%s", failure)
    if len(notes.failures) > MOST_LINES:
        logger.warning("%d episodes failed in all", max(notes.counts.get("failed_episodes", 0), len(notes.failures)))


@dataclass(frozen=True)
class EpisodePlan:
    """Which episodes are played: `count` to each prompt, prompt by prompt, each with a seed of its own.

    `numbers` tell the prompts apart among all that are played with this seed, here and elsewhere: the seeds of their
    episodes depend on them. Without it each has its position.
    """

    prompts: Sequence[Prompt]
    prompt_tokens: Sequence[tuple[int, ...]]
    count: int
    sampling: Sampling
    seed: tuple[int, ...]
    numbers: Sequence[tuple[int, ...]] | None = None

    def seeds(self) -> list[tuple[int, ...]]:
        """The seed of each episode; the last number is its own among those to its prompt."""
        numbers = self.numbers or [(position,) for position in range(len(self.prompts))]
        return [(*self.seed, *number, index) for number in numbers for index in range(self.count)]

    def share(self, rows: Sequence[int]) -> EpisodePlan:
        """The episodes to some of the prompts, with the seeds that they have here."""
        return replace(
            self,
            prompts=[self.prompts[row] for row in rows],
            prompt_tokens=[self.prompt_tokens[row] for row in rows],
            numbers=[(row,) if self.numbers is None else self.numbers[row] for row in rows],
        )


EpisodeEnded = Callable[[int, Sequence[Sample]], None]
"""(number of the episode among those that are played, its samples): told when it is over, while others go on."""


class EpisodeRunner(Protocol):
    """Plays episodes to prompts: `EnvironmentRunner` with an environment or without one, or an agent's own program."""

    def play(self, plan: EpisodePlan, ended: EpisodeEnded | None = None) -> list[list[Sample]]:
        """The samples of the episodes to each prompt, prompt by prompt; an episode may leave several.

        `ended` hears of each episode once, at the latest when all are over, with the very samples that are returned; a
        runner whose episodes are played elsewhere may leave it out.
        """
        ...

    def take_notes(self) -> PlayNotes:
        """What happened since the last time."""
        ...
