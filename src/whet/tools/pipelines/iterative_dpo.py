"""Iterative DPO: round by round, the policy's best completions to new prompts against its worst."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from whet.settings.bounds import MOST_SAMPLES
from whet.settings.sections import Table
from whet.tools.pipelines import amounts
from whet.tools.pipelines.library.entry import StageEntry
from whet.tools.pipelines.library.evaluation import evals
from whet.tools.pipelines.library.pairs import PairsEntry
from whet.tools.pipelines.library.sampling import SampleEntry
from whet.tools.pipelines.library.trainings import PreferenceEntry
from whet.tools.pipelines.settings import TRAIN_KEYS, Pipeline, PipelineSettings


class RoundSettings(PipelineSettings):
    """What pipelines of rounds share: the policy writes, pairs are made of that, and it is trained on them."""

    rounds: amounts.Repeats = Field(2, description="how often pairs are written and trained on")
    method: str = Field("dpo", description="a preference method of `whet algorithms`")
    epochs: amounts.Epochs = Field(2.0, description="passes over a round's pairs: few pairs get few updates")
    train: Table = Field({}, description=f"settings of each round's training: {TRAIN_KEYS}")

    def training(self, number: int, start: str) -> PreferenceEntry:
        """Training on a round's pairs."""
        return PreferenceEntry(
            name=f"round{number}-train",
            data=f"round{number}-pairs",
            start=start,
            method=self.method,
            epochs=self.epochs,
            train=self.train,
        )


class IterativeDPOSettings(RoundSettings):
    """The policy's best completions against its worst."""

    prompts_per_round: amounts.Count = Field(1024, description="new ones in every round")
    completions: int = Field(8, ge=2, le=MOST_SAMPLES, description="that the policy writes to each prompt")

    small_run: ClassVar[Mapping[str, Any]] = {
        "prompts_per_round": 128,
        "sampling": {"max_new_tokens": 64},
        "train": {"batch": {"rows_per_step": 32}},
    }


def iterative_dpo_entries(settings: IterativeDPOSettings) -> list[StageEntry]:
    """Round by round: completions to new prompts, pairs of them, training, eval."""
    entries, model = evals(settings, "eval0"), ""
    for number in range(1, settings.rounds + 1):
        written = SampleEntry(
            name=f"round{number}-completions",
            model=model,
            first=(number - 1) * settings.prompts_per_round,
            count=settings.prompts_per_round,
            completions=settings.completions,
            temperature=settings.sampling.temperature,
            reward=settings.reward,
        )
        training = settings.training(number, model)
        model = training.name
        entries += [written, PairsEntry(name=f"round{number}-pairs", completions=written.name), training]
        entries += evals(settings, f"round{number}-eval", model)
    return entries


ITERATIVE_DPO = Pipeline(
    "iterative_dpo",
    "round by round, the best of the policy's own completions to new prompts against the worst; any reward",
    IterativeDPOSettings,
    iterative_dpo_entries,
)
