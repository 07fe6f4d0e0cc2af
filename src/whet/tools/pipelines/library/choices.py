"""Sections of a pipeline's settings that say how one of its stages works."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from whet.settings.layers import merged
from whet.settings.sections import Section, Table, Temperature
from whet.tools.pipelines import amounts
from whet.tools.pipelines.library.sampling import RejectionEntry, RejectionRule, SampleEntry
from whet.tools.pipelines.settings import TRAIN_KEYS


class TrainingChoice(Section):
    """How a stage trains. Keys that are not its own are the training's: `sft.batch.rows_per_step=64`."""

    epochs: amounts.Epochs = Field(1.0, description="passes over its rows or prompts")
    train: Table = Field({}, description=f"settings of the training: {TRAIN_KEYS}")

    @model_validator(mode="before")
    @classmethod
    def _keys_of_training(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        own = {key: value for key, value in values.items() if key in cls.model_fields}
        other = {key: value for key, value in values.items() if key not in cls.model_fields}
        train = own.get("train", {})
        return {**own, "train": merged(train, other)} if other and isinstance(train, Mapping) else own

    def values(self) -> dict[str, Any]:
        """As the entry of a stage takes them."""
        return {name: getattr(self, name) for name in type(self).model_fields}


class SFTChoice(TrainingChoice):
    """A stage of imitation, or another that learns from rows."""

    epochs: amounts.Epochs = Field(2.0, description="passes over its rows; train.steps wins")


class RLChoice(TrainingChoice):
    """A stage of reinforcement learning."""

    method: str = Field("grpo", description="a policy method of `whet algorithms`")
    epochs: amounts.Epochs = Field(1.0, description="passes over its prompts, where steps is 0")
    steps: amounts.StepsOrNone = Field(0, description="steps; 0: as many as `epochs` passes take")


class RejectionChoice(RejectionRule):
    """What is sampled from a model, and what of it is learned from."""

    prompts: amounts.CountOrNone = Field(0, description="only the first of the training prompts; 0: all")
    completions: amounts.Samples = Field(4, description="drawn per prompt")
    temperature: Temperature = Field(1.0, description="sampling temperature")

    def entries(
        self, model: str, names: tuple[str, str] = ("completions", "kept"), hint: bool = False
    ) -> tuple[SampleEntry, RejectionEntry]:
        """The stage that samples the model, and the one that keeps the right completions."""
        sample, keep = names
        return (
            SampleEntry(
                name=sample,
                model=model,
                count=self.prompts,
                completions=self.completions,
                temperature=self.temperature,
                hint=hint,
            ),
            RejectionEntry(name=keep, completions=sample, **self.model_dump(include=set(RejectionRule.model_fields))),
        )
