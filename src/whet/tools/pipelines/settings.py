"""What a pipeline is, and the settings that every pipeline has; each one adds its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import tomli_w
from pydantic import Field

from whet.data.sections import DataSection
from whet.model.sections import ModelSection
from whet.reward.sections import RewardSection, SandboxSection
from whet.rollout.sections import SamplingSection
from whet.settings.bounds import MOST_ROWS, MOST_SEED, MOST_STEPS
from whet.settings.layers import merged, validated
from whet.settings.sections import Section
from whet.tools.pipelines.stages import Stage
from whet.training.config import idle_data_keys, origin_of
from whet.types import WhetError

TRAIN_KEYS = "any key of `whet config METHOD` that the pipeline does not set itself"
OWN_KEYS = {"method": "method", "seed": "seed", "folder": "folder", "data": "data.source", "steps": "epochs"}


# keys of 0.1 that only pipelines had, and where they are now
RENAMED_KEYS = {
    "recipe": "pipeline",
    "marks": "eval.reward",
    "least": "min_margin",
    "soft": "soft_labels",
    "judge.exam": "judge.eval_prompts",
    "feedback.least": "feedback.min_margin",
    "feedback.soft": "feedback.soft_labels",
    "replies": "completions",
}


class PipelineReport(Section):
    save_every: int = Field(10, ge=1, le=MOST_STEPS, description="training steps between checkpoints")


class PipelineEval(Section):
    source: str = Field("", description="file or hub id of eval prompts; a task brings its own held-out split")
    prompts: int = Field(
        200, ge=0, le=MOST_ROWS, description="held-out prompts that the policy is evaluated on; 0 is off"
    )
    reward: RewardSection = Field(
        RewardSection(), description="what scores the held-out completions; empty: the task's own reward"
    )


class PipelineSettings(Section):
    """What every pipeline has."""

    pipeline: str = Field(description="its name, as `whet pipeline` lists it")
    seed: int = Field(0, ge=0, le=MOST_SEED, description="of everything random in the pipeline")
    folder: str = Field("", description="of the pipeline; empty: the next free one under runs/")
    model: ModelSection = Field(ModelSection(), description="the policy to begin with")
    data: DataSection = DataSection()
    sampling: SamplingSection = Field(SamplingSection(), description="how completions are drawn")
    eval: PipelineEval = PipelineEval()
    sandbox: SandboxSection = Field(SandboxSection(), description="of every stage whose reward runs code")
    report: PipelineReport = PipelineReport()

    def idle(self) -> dict[str, str]:
        """Paths that cannot change this pipeline, with the reason."""
        return idle_data_keys(self.data)

    # defaults for the built-in model, which wants other numbers than one of a billion weights
    small_run: ClassVar[Mapping[str, Any]] = {}


@dataclass(frozen=True)
class Pipeline:
    """`stages(settings)` refuses settings that cannot work, before anything is done."""

    name: str
    about: str  # one line for the list
    settings: type[PipelineSettings]
    stages: Callable[[Any], list[Stage]]


def resolve_settings(pipeline: Pipeline, *layers: Mapping[str, Any]) -> PipelineSettings:
    """The settings from nested layers, later ones winning; unknown keys and bad values are one-line errors."""
    given: dict[str, Any] = {}
    for layer in layers:
        given = merged(given, layer)
    for old, new in RENAMED_KEYS.items():
        section, _, key = old.partition(".")
        inner = given.get(section)
        if section in given and (not key or (isinstance(inner, Mapping) and key in inner)):
            raise WhetError(f"{old} is called {new} since 0.2; rename it")
    if given.get("pipeline", pipeline.name) != pipeline.name:
        raise WhetError(f"the config is for pipeline {given['pipeline']!r}, not {pipeline.name!r}; run that one")
    model = given.get("model")
    name = str(model.get("name") or ModelSection().name) if isinstance(model, Mapping) else ModelSection().name
    base = dict(pipeline.settings.small_run) if origin_of(name) == ModelSection().name else {}
    settings = validated(pipeline.settings, merged(merged(base, given), {"pipeline": pipeline.name}))
    for path, reason in settings.idle().items():
        section, _, key = path.partition(".")
        if section in given and (not key or key in given[section]):
            raise WhetError(f"{path} {reason}")
    return settings


def settings_toml(settings: PipelineSettings) -> str:
    """The settings as they can be read back: every key that matters here, and no other."""
    values = settings.model_dump(mode="json")
    for name in type(settings).model_fields:
        section = getattr(settings, name)
        if isinstance(section, RewardSection):  # of a reward only what was given
            values[name] = section.model_dump(mode="json", exclude_defaults=True)
    values["eval"]["reward"] = settings.eval.reward.model_dump(mode="json", exclude_defaults=True)
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
