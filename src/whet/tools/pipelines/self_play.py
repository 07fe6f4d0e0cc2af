"""Self-play (SPIN): demonstrations against the policy's own completions, round by round; compared with imitation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from whet.data.sections import DemonstrationSection
from whet.settings.sections import Table
from whet.tools.pipelines.iterative_dpo import RoundSettings
from whet.tools.pipelines.library.entry import StageEntry
from whet.tools.pipelines.library.evaluation import evals
from whet.tools.pipelines.library.pairs import PairsEntry
from whet.tools.pipelines.library.sampling import MixEntry, MixSource, SampleEntry
from whet.tools.pipelines.library.trainings import SFTEntry
from whet.tools.pipelines.settings import TRAIN_KEYS, Pipeline, without_reward

SHOWN = "demonstrations"
IMITATION = "plain imitation"


class SelfPlaySettings(RoundSettings):
    """Demonstrations against the policy's own completions."""

    data: DemonstrationSection = DemonstrationSection()
    compare: bool = Field(True, description="imitate the same demonstrations for as many updates, to see which wins")
    imitate: Table = Field({}, description=f"settings of that imitation: {TRAIN_KEYS}")
    stop_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of own completions that equal the demonstrations: from there on nothing is learned",
    )

    small_run: ClassVar[Mapping[str, Any]] = {
        "data": {"count": 512},
        "sampling": {"max_new_tokens": 64},
        "train": {"batch": {"rows_per_step": 32}},
        "imitate": {"batch": {"rows_per_step": 32}},
    }

    def idle(self) -> dict[str, str]:
        return {**super().idle(), **without_reward(self)}


def self_play_entries(settings: SelfPlaySettings) -> list[StageEntry]:
    """Round by round: own completions to the demonstrations' prompts, rejected; and imitation for as many updates."""
    entries: list[StageEntry] = [MixEntry(name=SHOWN, sources=(MixSource(data=settings.data.source),))]
    entries += evals(settings, "eval0")
    model = imitator = ""
    measured = imitated = "eval0"
    for number in range(1, settings.rounds + 1):
        written = SampleEntry(
            name=f"round{number}-completions",
            model=model,
            prompts=SHOWN,
            completions=1,
            temperature=settings.sampling.temperature,
        )
        pairs = PairsEntry(
            name=f"round{number}-pairs",
            completions=written.name,
            demonstrations=SHOWN,
            stop_share=settings.stop_share,
        )
        training = settings.training(number, model)
        model = training.name
        entries += [written, pairs, training, *evals(settings, f"round{number}-eval", model, against=measured)]
        measured = f"round{number}-eval"
        if settings.compare:
            imitation = SFTEntry(
                name=f"round{number}-imitate",
                data=SHOWN,
                start=imitator,
                steps_of=training.name,
                every_completion=settings.data.every_completion,
                train=settings.imitate,
            )
            imitator, name = imitation.name, f"round{number}-imitate-eval"
            entries += [imitation, *evals(settings, name, imitator, who=IMITATION, against=imitated)]
            imitated = name
    return entries


SELF_PLAY = Pipeline(
    "spin",
    "self-play: demonstrations against the policy's own completions, round by round; compared with imitation",
    SelfPlaySettings,
    self_play_entries,
)
