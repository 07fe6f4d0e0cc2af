"""The settings that all pipelines of library stages share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from whet.reward.sections import RewardPartSection, RewardSection
from whet.settings.bounds import MOST_ROWS, MOST_SAMPLES
from whet.settings.sections import Temperature
from whet.tools.pipelines.settings import PipelineEval, PipelineSettings
from whet.training.config import idle_data_keys


class ComposedEval(PipelineEval):
    """How every stage is measured."""

    by: str = Field("", description="column of the eval rows; each of its values is an eval set of its own")
    samples: int = Field(
        1, ge=1, le=MOST_SAMPLES, description="completions drawn per prompt for pass@k and the majority vote; 1: none"
    )
    temperature: Temperature = Field(1.0, description="of those samples")
    sampled_prompts: int = Field(
        0, ge=0, le=MOST_ROWS, description="prompts of each eval set that samples are drawn for; 0: all"
    )


class ComposedSettings(PipelineSettings):
    """What every pipeline of library stages has."""

    eval: ComposedEval = ComposedEval()
    reward: RewardSection = Field(
        RewardSection(), description="what scores completions, as in `whet train`; empty: the task's own"
    )
    allow_contamination: bool = Field(False, description="train although eval prompts stand in the training data")


MACHINE_KEYS = frozenset({"device", "threads"})  # of the model: where it runs, not what comes out


def shared_values(settings: ComposedSettings, sections: Sequence[str]) -> dict[str, Any]:
    """What the outcome of a stage depends on of the shared settings: the seed, the model's, and these sections."""
    values: dict[str, Any] = {"seed": settings.seed}
    model = settings.model.model_dump(mode="json")
    values["model"] = {key: value for key, value in model.items() if key != "name" and key not in MACHINE_KEYS}
    for name in sections:
        values[name] = getattr(settings, name).model_dump(mode="json")
    return values


def answer_reward(settings: ComposedSettings) -> RewardSection:
    """What says whether a held-out completion is right: eval.reward, else the first part of the reward."""
    if settings.eval.reward.parts or settings.eval.reward.template:
        return settings.eval.reward
    first = settings.reward.parts[:1]
    if not first or settings.data.parsed_source.is_generated:
        return RewardSection()
    return RewardSection(parts=(RewardPartSection(reward=first[0].reward, settings=first[0].settings),))


def is_scored(reward: RewardSection) -> bool:
    return bool(reward.parts or reward.template)


def given_reward(reward: RewardSection) -> Mapping[str, Any]:
    """As a training's config takes it."""
    return reward.model_dump(mode="json", exclude_defaults=True)


def own_data(settings: ComposedSettings) -> dict[str, Any]:
    """The pipeline's prompts as a training's config takes them: what was given, and has an effect."""
    values = settings.data.model_dump(exclude_defaults=True)
    idle = {path.partition(".")[2] for path in idle_data_keys(settings.data)}
    return {key: value for key, value in values.items() if key not in idle}
