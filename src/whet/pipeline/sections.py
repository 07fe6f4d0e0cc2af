"""What every pipeline can be told, as typed sections; a recipe adds its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import tomli_w
from pydantic import Field

from whet.config.config import idle_data_keys, merged, origin_of, validated
from whet.config.sections import DataSection, ModelSection, RewardSection, SamplingSection, Section
from whet.pipeline import Recipe
from whet.types import WhetError

TRAIN_KEYS = "any key of `whet config METHOD` that the pipeline does not set itself"
OWN_KEYS = {"method": "method", "seed": "seed", "folder": "folder", "data": "data.source", "steps": "epochs"}


class PipelineEval(Section):
    source: str = Field("", description="file or hub dataset to evaluate on; a task and a gym dataset bring their own")
    prompts: int = Field(200, ge=0, description="eval prompts that every round is scored on; 0 is off")


class PipelineReport(Section):
    save_every: int = Field(10, ge=1, description="training steps between checkpoints")


class PipelineSettings(Section):
    """What every pipeline has."""

    recipe: str = Field(description="a row of `whet pipeline`")
    seed: int = Field(0, description="of everything random in the pipeline")
    folder: str = Field("", description="of the pipeline; empty: the next free one under runs/")
    model: ModelSection = Field(ModelSection(), description="the policy to begin with")
    data: DataSection = DataSection()
    sampling: SamplingSection = Field(SamplingSection(), description="how completions are drawn")
    marks: RewardSection = Field(
        RewardSection(), description="what held-out completions are marked by; empty: the task's own reward"
    )
    eval: PipelineEval = PipelineEval()
    report: PipelineReport = PipelineReport()

    def idle(self) -> dict[str, str]:
        """Paths that cannot change this pipeline, with the reason."""
        return idle_data_keys(self.data)

    # defaults for the built-in model, which wants other numbers than one of a billion weights
    small_run: ClassVar[Mapping[str, Any]] = {}


def resolved_pipeline(recipe: Recipe, *layers: Mapping[str, Any]) -> PipelineSettings:
    """The settings from nested layers, later ones winning; unknown keys and bad values are one-line errors."""
    given: dict[str, Any] = {}
    for layer in layers:
        given = merged(given, layer)
    if given.get("recipe", recipe.name) != recipe.name:
        raise WhetError(f"the config is for pipeline {given['recipe']!r}, not {recipe.name!r}; run that one")
    section = given.get("model")
    name = str(section.get("name") or ModelSection().name) if isinstance(section, Mapping) else ModelSection().name
    is_small = origin_of(name) == ModelSection().name
    base = dict(getattr(recipe.settings, "small_run", {})) if is_small else {}
    settings = validated(recipe.settings, merged(merged(base, given), {"recipe": recipe.name}))
    assert isinstance(settings, PipelineSettings)
    for path, reason in settings.idle().items():
        section, _, key = path.partition(".")
        if section in given and (not key or key in given[section]):
            raise WhetError(f"{path} {reason}")
    return settings


def pipeline_toml(settings: PipelineSettings) -> str:
    """The settings as they can be read back: every key that matters here, and no other."""
    values = settings.model_dump(mode="json")
    for name in type(settings).model_fields:
        section = getattr(settings, name)
        if isinstance(section, RewardSection):  # of a reward only what was said
            values[name] = section.model_dump(mode="json", exclude_defaults=True)
    for path in settings.idle():
        section, _, key = path.partition(".")
        (values[section] if key else values).pop(key or section, None)
    return tomli_w.dumps(values)


def without_own_keys(settings: Mapping[str, Any], section: str, decides_steps: bool) -> dict[str, Any]:
    """A free section of training keys, which must not contradict the pipeline's own."""
    for key, own in OWN_KEYS.items():
        if key in settings and (key != "steps" or decides_steps):
            raise WhetError(f"{section}.{key} is set by the pipeline; set {own} instead")
    if isinstance(settings.get("model"), Mapping) and "name" in settings["model"]:
        raise WhetError(f"{section}.model.name is set by the pipeline; set model.name instead")
    return dict(settings)
