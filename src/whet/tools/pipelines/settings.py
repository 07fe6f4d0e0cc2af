"""What a pipeline is, and the settings that every pipeline has; each one adds its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import tomli_w
from pydantic import BeforeValidator, Field

from whet.data.sections import DataSection
from whet.data.source import parse_source
from whet.model.sections import ModelSection
from whet.reward.sections import RewardPartSection, RewardSection, SandboxSection
from whet.rollout.sections import SamplingSection
from whet.settings.layers import merged, validated
from whet.settings.sections import Section, Temperature
from whet.tools.pipelines import amounts
from whet.training.config import EvaluationConfig, idle_data_keys, origin_of
from whet.training.sections import EvalSection
from whet.types import WhetError

TRAIN_KEYS = "any key of `whet config METHOD` that the pipeline does not set itself"
MACHINE_KEYS = frozenset({"device", "threads"})  # of the model: where it runs, not what comes out


def _listed(value: Any) -> Any:
    return tuple(item.strip() for item in value.split(",") if item.strip()) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]  # also as text: --set compare=ppo,dpo


class PipelineReport(Section):
    """How often a training inside a pipeline saves."""

    save_every: amounts.StepsOrNone = Field(
        0, description="training steps between checkpoints; 0: by their cost, as in a run"
    )


class PipelineEval(Section):
    """How every policy of a pipeline is measured."""

    source: str = Field("", description="file or hub id of eval prompts; a task brings its own held-out split")
    prompts: amounts.CountOrNone = Field(200, description="held-out prompts that the policy is evaluated on; 0 is off")
    reward: RewardSection = Field(
        RewardSection(), description="what scores the held-out completions; empty: the task's own reward"
    )
    by: str = Field("", description="column of the eval rows; each of its values is an eval set of its own")
    samples: amounts.Samples = Field(
        1, description="completions drawn per prompt for pass@k and the majority vote; 1: none"
    )
    temperature: Temperature = Field(1.0, description="sampling temperature of those samples")
    sampled_prompts: amounts.CountOrNone = Field(
        0, description="prompts of each eval set that samples are drawn for; 0: all"
    )


class PipelineSettings(Section):
    """What every pipeline has."""

    pipeline: str = Field(description="its name, as `whet pipeline` lists it")
    seed: amounts.Seed = Field(0, description="random seed of the pipeline")
    folder: str = Field("", description="folder of the pipeline; empty: the next free one under runs/")
    model: ModelSection = Field(ModelSection(), description="the policy to begin with")
    data: DataSection = DataSection()
    sampling: SamplingSection = Field(SamplingSection(), description="how completions are drawn")
    eval: PipelineEval = PipelineEval()
    sandbox: SandboxSection = Field(SandboxSection(), description="sandbox of every stage whose reward runs code")
    report: PipelineReport = PipelineReport()
    reward: RewardSection = Field(
        RewardSection(), description="what scores completions, as in `whet train`; empty: the task's own"
    )
    allow_contamination: bool = Field(False, description="train although eval prompts stand in the training data")

    def idle(self) -> dict[str, str]:
        """Paths that cannot change this pipeline, with the reason."""
        return idle_data_keys(self.data)

    # defaults for the built-in model, which wants other numbers than one of a billion weights
    small_run: ClassVar[Mapping[str, Any]] = {}


@dataclass(frozen=True)
class Pipeline:
    """What `whet pipeline NAME` runs."""

    name: str
    about: str  # one line for the list
    settings: type[PipelineSettings]
    stages: Callable[[Any], Sequence[Any]]  # settings -> StageEntry or Stage each; refuses settings that cannot work


def no_effect(why: str, *paths: str) -> dict[str, str]:
    """Idle keys that have one reason."""
    return dict.fromkeys(paths, f"has no effect: {why}; drop it")


def without_reward(settings: PipelineSettings) -> dict[str, str]:
    """The idle keys of a pipeline in which no stage learns from a reward of the user's; an eval of a file has one."""
    why = "nothing here learns from it, and the task scores its own prompts"
    return {} if settings.eval.source else no_effect(why, "reward")


def resolve_settings(pipeline: Pipeline, *layers: Mapping[str, Any]) -> PipelineSettings:
    """The settings from nested layers, later ones winning; unknown keys and bad values are one-line errors."""
    layered: dict[str, Any] = {}
    for layer in layers:
        layered = merged(layered, layer)
    if layered.get("pipeline", pipeline.name) != pipeline.name:
        raise WhetError(f"the config is for pipeline {layered['pipeline']!r}, not {pipeline.name!r}; run that one")
    model = layered.get("model")
    name = str(model.get("name") or ModelSection().name) if isinstance(model, Mapping) else ModelSection().name
    base = dict(pipeline.settings.small_run) if origin_of(name) == ModelSection().name else {}
    settings = validated(pipeline.settings, merged(merged(base, layered), {"pipeline": pipeline.name}))
    for path, reason in settings.idle().items():
        section, _, key = path.partition(".")
        if section in layered and (not key or key in layered[section]):
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


def shared_values(settings: PipelineSettings, names: Sequence[str]) -> dict[str, Any]:
    """What the outcome of a stage depends on of the shared settings; where the model runs is no part of it."""
    values = settings.model_dump(mode="json", include=set(names))
    if "model" in values:  # which model it is, the stage's inputs say
        values["model"] = {
            key: value for key, value in values["model"].items() if key != "name" and key not in MACHINE_KEYS
        }
    return values


def answer_reward(settings: PipelineSettings) -> RewardSection:
    """What says whether a held-out completion is right: eval.reward, else the first part of the reward, else what a
    benchmark's file is judged by."""
    if is_scored(settings.eval.reward):
        return settings.eval.reward
    first = settings.reward.parts[:1]
    if not first or settings.data.parsed_source.is_generated:
        return benchmark_reward(settings.eval.source)
    return RewardSection(parts=(RewardPartSection(reward=first[0].reward, settings=first[0].settings),))


def benchmark_reward(source: str) -> RewardSection:
    """The reward that a benchmark's file comes with; of other sources none."""
    form = parse_source(source).benchmark if source else None
    return RewardSection(parts=(RewardPartSection(reward=form.reward, settings=form.settings),) if form else ())


def task_reward(settings: PipelineSettings) -> tuple[RewardPartSection, ...]:
    """The parts that say which completions are right: of the eval, else the one reward that all tasks share."""
    parts, source = answer_reward(settings).parts, settings.data.parsed_source
    if parts or not source.is_task:
        return parts
    names = {task.reward for task in source.tasks()}
    return (RewardPartSection(reward=names.pop()),) if len(names) == 1 else ()


def is_scored(reward: RewardSection) -> bool:
    """True where a reward section names a reward."""
    return bool(reward.parts or reward.template)


def can_evaluate(settings: PipelineSettings) -> bool:
    """True where there are held-out prompts and something that says which completions are right."""
    is_known = is_scored(answer_reward(settings)) if settings.eval.source else settings.data.parsed_source.is_generated
    return bool(settings.eval.prompts and is_known)


def own_data(settings: PipelineSettings) -> dict[str, Any]:
    """The pipeline's prompts as a training's config takes them: what was given, and has an effect."""
    values = settings.data.model_dump(exclude_defaults=True)
    idle = idle_data_keys(settings.data)
    return {key: value for key, value in values.items() if f"data.{key}" not in idle}


def sampling_config(
    settings: PipelineSettings,
    model: str,
    data: Mapping[str, Any] | None = None,
    reward: RewardSection | None = None,
    sampling: SamplingSection | None = None,
) -> EvaluationConfig:
    """How a model is sampled and scored: on the pipeline's prompts or on `data`, by what says that one is right."""
    values = settings.data.model_dump() if data is None else data
    return EvaluationConfig(
        seed=settings.seed,
        model=settings.model.model_copy(update={"name": model or settings.model.name}),
        data=DataSection(**{key: value for key, value in values.items() if key in DataSection.model_fields}),
        sampling=sampling or settings.sampling,
        reward=answer_reward(settings) if reward is None else reward,
        sandbox=settings.sandbox,
        eval=EvalSection(source=settings.eval.source, prompts=settings.eval.prompts, by=settings.eval.by),
    )
