"""Who plays the episodes of a rollout, and what it tells about them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from whet.types import Prompt, Sample, Sampling

logger = logging.getLogger(__name__)
MOST_LINES = 3  # failures of an evaluation that are told in words


@dataclass(frozen=True)
class PlayNotes:
    """What the episodes of a step cost, and what went wrong in them."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    failures: tuple[str, ...] = ()  # each with the id of its episode
    counts: Mapping[str, int] = field(default_factory=dict)  # of what belongs to no sample


def tell_failures(notes: PlayNotes) -> None:
    """Say what went wrong in episodes that belong to no step."""
    for failure in notes.failures[:MOST_LINES]:
        logger.warning("%s", failure)
    if len(notes.failures) > MOST_LINES:
        logger.warning("%d episodes failed in all", max(notes.counts.get("failed_episodes", 0), len(notes.failures)))


EpisodeEnded = Callable[[int, Sequence[Sample]], None]
"""(number of the episode among those that are played, its samples): told when it is over, while others go on."""


class EpisodeRunner(Protocol):
    """Plays episodes to prompts: `EnvironmentRunner` with an environment or without one, or an agent's own program."""

    def play(
        self,
        prompts: Sequence[Prompt],
        prompt_tokens: Sequence[tuple[int, ...]],
        count: int,
        sampling: Sampling,
        seed: tuple[int, ...],
        rows: Sequence[int] | None = None,
        ended: EpisodeEnded | None = None,
    ) -> list[list[Sample]]:
        """The samples of `count` episodes to each prompt, prompt by prompt; an episode may leave several.

        `rows` numbers the prompts among all that are played at once, here and elsewhere: seeds depend on it. `ended`
        hears of each episode once, at the latest when all are over, with the very samples that are returned; a runner
        whose episodes are played elsewhere may leave it out.
        """
        ...

    def take_notes(self) -> PlayNotes:
        """What happened since the last time."""
        ...
