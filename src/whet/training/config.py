"""A run as a frozen, typed value: TOML in and out, unknown keys refused with the nearest name.

Layers, later ones win: the field's default, the built-in model's own defaults, the environment's, a TOML file, the
command line.
The resolved value is written into the run folder before anything else happens.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tomli_w
from pydantic import AfterValidator, Field

from whet.data.sections import DataSection, DemonstrationSection, PromptSection
from whet.data.source import read_rows
from whet.envs.sections import EnvSection, env_defaults, evaluated_env
from whet.model.run_models import run_of
from whet.model.sections import ModelSection
from whet.objective import catalogue
from whet.objective.catalogue import MethodKind
from whet.record.sections import HealthSection, ReportSection
from whet.registry import import_sources
from whet.reward.sections import RewardSection, SandboxSection
from whet.rollout.sections import SamplingSection
from whet.settings.bounds import MOST_EPOCHS, MOST_HOURS, MOST_ROWS, MOST_SEED, MOST_STEPS
from whet.settings.hostile import shown
from whet.settings.layers import flattened, merged, read_toml, validated
from whet.settings.sections import Listed, ObjectiveChanges, Section
from whet.training.rates import CRITIC, DefaultChoice, adapter_rate, default_rate, default_warmup, published_rate
from whet.training.sections import (
    BatchSection,
    CriticSection,
    EvalSection,
    OptimizerSection,
    PreferenceSection,
    RerankSection,
    RewardModelSection,
    RowsSection,
    ScaleSection,
    TeacherSection,
)
from whet.types import WhetError

SUPERVISED = "sft"
RATE, CRITIC_RATE, WARMUP = "optimizer.learning_rate", "critic.learning_rate", "optimizer.warmup_steps"
EVERY = "eval.every"
OF_TEACHER = frozenset(("teacher_logp", "teacher_divergence"))  # needs of a method that a teacher answers
EVALUATED_SHARE = 0.05  # of the completions that a run trains on, those it is evaluated with
FEWEST_LOOKS, FEWEST_BETWEEN = 4, 10  # evaluations of a run that is not short, and steps between two of them
FROM_PYTHON = "python:"  # opens the name of a reward that only the calling program has
_NOTHING_SAMPLED = "has no effect: without eval prompts nothing is sampled or scored; drop it"


def _found_from_anywhere(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(os.path.abspath(os.path.expanduser(name)) if name.endswith(".py") else name for name in names)


Imports = Annotated[Listed, AfterValidator(_found_from_anywhere)]


class RunConfig(Section):
    """What every run has. Each way of training adds its sections, and says what is different about it."""

    # defaults for the built-in model: half a million weights want other numbers than a billion
    small_run: ClassVar[Mapping[str, Any]] = {}
    small_run_replaces: ClassVar[bool] = False  # what the preset wants of a run, instead of standing below it
    kind: ClassVar[MethodKind]

    method: str = Field(description="a method that `whet algorithms` lists")
    seed: int = Field(0, ge=0, le=MOST_SEED, description="random seed")
    imports: Imports = Field((), description="Python files or modules imported first: what they register has a name")
    steps: int = Field(100, ge=1, le=MOST_STEPS, description="training steps")
    epochs: float = Field(
        0.0, ge=0, le=MOST_EPOCHS, description="instead of steps: passes over the training rows; becomes steps"
    )
    hours: float = Field(
        0.0,
        ge=0,
        le=MOST_HOURS,
        description="wall-clock hours, start-up included, after which the run ends evaluated, saved and finished, "
        "whatever is left of its steps; 0: no limit",
    )
    folder: str = Field("", description="run folder; empty: the next free one under runs/")
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    sampling: SamplingSection = SamplingSection()
    env: EnvSection = EnvSection()
    reward: RewardSection = RewardSection()
    sandbox: SandboxSection = SandboxSection()
    optimizer: OptimizerSection = OptimizerSection()
    scale: ScaleSection = ScaleSection()
    eval: EvalSection = EvalSection()
    report: ReportSection = ReportSection()
    health: HealthSection = HealthSection()

    @classmethod
    def axes(cls) -> Mapping[str, Any]:
        """The keys below `objective`; none where the method has no components to choose."""
        return catalogue.axes(cls.kind) if "objective" in cls.model_fields else {}

    def draws_completions(self) -> bool:
        """True where training itself needs prompts and completions to them."""
        return False

    def scores_eval_prompts(self) -> bool:
        """True where an evaluation draws completions to eval prompts."""
        return False

    def samples(self) -> bool:
        """True where the run writes completions, in training or in evaluation."""
        return self.draws_completions() or self.scores_eval_prompts()

    def rows_per_step(self) -> int:
        """Prompts, demonstrations, pairs or rankings that a step takes from the data."""
        raise NotImplementedError

    def completions_per_step(self) -> int:
        """Completions, demonstrations, pairs or rankings that a step trains on."""
        return self.rows_per_step()

    def idle(self) -> dict[str, str]:
        """Paths that cannot change this run, with the reason."""
        idle = idle_data_keys(self.data)
        if self.kind != "policy":
            idle |= dict.fromkeys(
                ("scale.max_staleness", "scale.window"),
                f"has no effect: {self.method} draws no completions that could be behind; drop it",
            )
        if self.model.lora.rank:
            idle["model.weights"] = "has no effect with model.lora: the weights are frozen; give model.lora.base"
        if self.kind not in ("policy", "preference") and self.model.reference_model:
            idle["model.reference_model"] = f"has no effect: {self.method} uses no reference; drop it"
        if not self.samples():
            idle |= dict.fromkeys(("sampling", "env", "reward", "sandbox"), _NOTHING_SAMPLED)
            idle |= dict.fromkeys(("scale.engines", "scale.reward_workers"), _NOTHING_SAMPLED)
        has_rows = self.data.parsed_source.is_generated or self.eval.source
        if not self.eval.every or not self.eval.prompts or not has_rows:
            idle["eval.stop_after"] = (
                "has no effect: nothing is evaluated during training; give eval.every, eval.prompts and, for a file, "
                "eval.source, or drop it"
            )
        if not self.eval.prompts and self.eval.every not in (0, FEWEST_BETWEEN):  # those every run without has
            idle[EVERY] = (
                "has no effect with eval.prompts=0, which switches evaluation off; drop it, or give eval.every=0"
            )
        if not self.scale.reward_workers:
            idle["scale.reward_memory"] = "has no effect without scale.reward_workers; give some, or drop it"
        if not self.scale.uses_ray:
            idle["scale.address"] = (
                "has no effect: nothing is started there; give scale.engines, scale.reward_workers or scale.workers, "
                "or drop it"
            )
        return idle

    def check(self) -> None:
        """Refuse values that are fine one by one and impossible together."""


class PolicyConfig(RunConfig):
    """Reinforcement learning by one of the methods of `whet algorithms`."""

    kind: ClassVar[MethodKind] = "policy"
    small_run: ClassVar[Mapping[str, Any]] = {
        "steps": 40,
        "data": {"count": 1024},
        "sampling": {"max_new_tokens": 64},
        "batch": {"prompts_per_step": 16, "group_size": 8},
        "optimizer": {"learning_rate": 1e-4},
    }

    data: PromptSection = PromptSection()
    batch: BatchSection = BatchSection()
    critic: CriticSection = CriticSection()
    teacher: TeacherSection = TeacherSection()
    objective: ObjectiveChanges = Field({}, description="changes to the method's preset: clip.high, kl, kl.beta, ...")

    def draws_completions(self) -> bool:
        return True

    def scores_eval_prompts(self) -> bool:
        return True

    def rows_per_step(self) -> int:
        return self.batch.prompts_per_step

    def completions_per_step(self) -> int:
        return self.batch.prompts_per_step * self.batch.group_size

    def trains_critic(self) -> bool:
        """Whether the method learns a value function."""
        return "value" in self.objective or "value" in catalogue.method(self.method).needs

    def has_teacher(self) -> bool:
        """True where the method learns from a teacher, or was changed to."""
        chosen = (change.get("kind") if isinstance(change, Mapping) else change for change in self.objective.values())
        asks = any(isinstance(choice, str) and choice.endswith("teacher_gap") for choice in chosen)
        return asks or "teacher" in self.objective or bool(OF_TEACHER & set(catalogue.method(self.method).needs))

    def idle(self) -> dict[str, str]:
        idle = super().idle()
        if not self.has_teacher():
            idle["teacher"] = f"has no effect: {self.method} has no teacher; drop it"
        elif "teacher" not in self.objective and "teacher_divergence" not in catalogue.method(self.method).needs:
            reason = (
                f"has no effect: {self.method} asks for the sampled tokens alone; drop it, or give objective.teacher"
            )
            idle |= dict.fromkeys(("teacher.top_k", "teacher.top_of"), reason)
        elif not self.teacher.top_k:
            idle["teacher.top_of"] = "has no effect without teacher.top_k; give a number of tokens, or drop it"
        if not self.trains_critic():
            idle["critic"] = f"has no effect: {self.method} trains no critic; drop it"
        if self.scale.max_staleness < 2:
            idle["scale.window"] = (
                f"has no effect with scale.max_staleness={self.scale.max_staleness}: no group may be passed; give "
                "scale.max_staleness=2 or more, or drop it"
            )
        return idle

    def check(self) -> None:
        if self.sampling.temperature == 0:
            raise WhetError(
                "sampling.temperature is 0: greedy completions of a group are all equal and teach nothing; give 1.0"
            )
        rows, updates = self.batch.prompts_per_step * self.batch.group_size, self.batch.updates_per_step
        if updates > rows:
            raise WhetError(f"batch.updates_per_step is {updates} but a step has {rows} samples; lower it")
        _refuse_crowd("batch.prompts_per_step x batch.group_size", rows)
        if self.batch.routing_replay == "trainer" and updates * self.batch.epochs_per_batch == 1:
            raise WhetError(
                "batch.routing_replay=trainer has no effect on a single update: it repeats the experts that the policy "
                "chooses by itself; give batch.updates_per_step=2 or more, batch.routing_replay=sampler, or drop it"
            )
        if self.scale.max_staleness:
            self._check_async_rollout()

    def _check_async_rollout(self) -> None:
        """Refuse what does not go with completions that are written while the trainer trains."""
        scale = self.scale
        if self.batch.staleness:
            raise WhetError(
                f"batch.staleness={self.batch.staleness} makes every step that far behind, and "
                f"scale.max_staleness={scale.max_staleness} at most that far; give one of the two"
            )
        if not self.env.is_single and (scale.engines or self.sampling.engine != "torch"):
            raise WhetError(
                "scale.max_staleness: episodes are played ahead of the trainer by a thread of its own process, on a "
                "copy of the policy; give scale.engines=0 and sampling.engine=torch, or scale.max_staleness=0"
            )
        if self.batch.routing_replay == "sampler":
            raise WhetError(
                "scale.max_staleness: a completion that goes on under newer weights was routed by several policies, "
                "and the experts of its first part are not kept; give batch.routing_replay=none or "
                "scale.max_staleness=0"
            )
        if scale.workers > 1:
            raise WhetError(
                f"scale.max_staleness: each of {scale.workers} ranks would take the groups that were finished first "
                "for itself, and they must train on the same ones; give scale.workers=1, or scale.max_staleness=0"
            )


def _refuse_crowd(product: str, samples: int) -> None:
    if samples > MOST_ROWS:
        raise WhetError(f"{product} is {samples} completions in every step; give at most {MOST_ROWS}")


class SFTConfig(RunConfig):
    """Imitation of demonstrations."""

    kind: ClassVar[MethodKind] = "sft"
    small_run: ClassVar[Mapping[str, Any]] = {
        "steps": 200,
        "sampling": {"max_new_tokens": 64},
        "batch": {"rows_per_step": 128},
        "optimizer": {"learning_rate": 1e-3, "schedule": "cosine"},
    }

    data: DemonstrationSection = DemonstrationSection()
    batch: RowsSection = RowsSection()

    def scores_eval_prompts(self) -> bool:
        return self.data.parsed_source.is_generated or bool(self.eval.source)

    def rows_per_step(self) -> int:
        return self.batch.rows_per_step


class PreferenceConfig(RunConfig):
    """A policy learns from pairs of completions, or from completions with labels."""

    kind: ClassVar[MethodKind] = "preference"
    small_run: ClassVar[Mapping[str, Any]] = {
        "steps": 40,
        "data": {"count": 2048},
        "sampling": {"max_new_tokens": 64},
        "batch": {"rows_per_step": 64},
        "optimizer": {"learning_rate": 1e-4},
    }
    small_run_replaces: ClassVar[bool] = True  # papers' rates are for billions of weights

    batch: RowsSection = RowsSection()
    preference: PreferenceSection = PreferenceSection()
    objective: ObjectiveChanges = Field({}, description="changes to the method's preset: curve.beta, reference, ...")

    def draws_completions(self) -> bool:
        return self.preference.online > 0

    def rows_per_step(self) -> int:
        return self.batch.rows_per_step

    def completions_per_step(self) -> int:
        return self.batch.rows_per_step * max(1, self.preference.online)

    def scores_eval_prompts(self) -> bool:
        return self.data.parsed_source.is_task

    def check(self) -> None:
        _refuse_crowd("batch.rows_per_step x preference.online", self.completions_per_step())


class RewardModelConfig(RunConfig):
    """A model learns to score completions, or their steps."""

    kind: ClassVar[MethodKind] = "reward_model"
    small_run: ClassVar[Mapping[str, Any]] = {
        "steps": 100,
        "data": {"count": 4096},
        "batch": {"rows_per_step": 64},
        "optimizer": {"learning_rate": 1e-3},
    }

    batch: RowsSection = RowsSection()
    reward_model: RewardModelSection = RewardModelSection()

    def rows_per_step(self) -> int:
        return self.batch.rows_per_step

    def idle(self) -> dict[str, str]:
        idle = super().idle()
        if self.reward_model.heads == 1:
            idle["reward_model.bootstrap"] = "has no effect on a single head; give reward_model.heads=4, or drop it"
        if catalogue.method(self.method).learns != "outcomes":
            idle["reward_model.outcome_at"] = f"has no effect: {self.method} learns from no outcomes; drop it"
        return idle


class EvaluationConfig(Section):
    """Completions of a model to eval prompts, and their scores."""

    seed: int = Field(0, ge=0, le=MOST_SEED, description="random seed")
    imports: Imports = Field((), description="Python files or modules imported first: what they register has a name")
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    sampling: SamplingSection = SamplingSection()
    env: EnvSection = EnvSection()
    reward: RewardSection = RewardSection()
    sandbox: SandboxSection = SandboxSection()
    eval: EvalSection = EvalSection()
    report: ReportSection = ReportSection()
    rerank: RerankSection = RerankSection()


Config = PolicyConfig | SFTConfig | PreferenceConfig | RewardModelConfig
CONFIG_CLASSES: Mapping[str, type[Config]] = {
    form.kind: form for form in (PolicyConfig, SFTConfig, PreferenceConfig, RewardModelConfig)
}


def config_class(method: str) -> type[Config]:
    """The class of a method's config; an unknown method is an error with the nearest name."""
    return CONFIG_CLASSES[catalogue.method(method).kind]


def learns_steps(method: str) -> bool:
    """True for a reward model that scores the steps of a solution."""
    return catalogue.method(method).learns == "steps"


def resolved(method: str, *layers: Mapping[str, Any], width: int | None = None, rows: int | None = None) -> Config:
    """The run's config from nested layers, later ones winning; unknown keys and bad values are one-line errors.

    `width` is that of a model given as an object, which has no name to find it by; `rows` counts rows in memory.
    """
    settings = _given(layers)
    _import_own(settings)
    form = config_class(method)
    if settings.get("method", method) != method:
        raise WhetError(
            f"the config is for method {settings['method']!r}, not {method!r}; drop its `method`, or train that"
        )
    if isinstance(settings.get("objective"), Mapping):
        settings["objective"] = _objective_changes(method, settings["objective"])
    section = settings.get("model")
    name = section.get("name") if isinstance(section, Mapping) else None
    preset = catalogue.method(method)
    base = _small_run(method) if is_small(str(name or ModelSection().name)) else dict(preset.run)
    base = merged(base, env_defaults(settings))
    config: Config = validated(form, merged(merged(base, settings), {"method": method}))
    if config.epochs:
        if "steps" in settings:
            raise WhetError("steps and epochs both say how long to train; give one of them")
        config = config.model_copy(update={"steps": _steps_of(config, rows), "epochs": 0.0})
    for path, choice in {**default_rates(config, width), EVERY: default_every(config)}.items():
        part, key = path.split(".")
        if key not in settings.get(part, {}):
            changed = getattr(config, part).model_copy(update={key: choice.value})
            config = config.model_copy(update={part: changed})
    _refuse_idle(config, settings)
    config.check()
    return config


def _import_own(settings: Mapping[str, Any]) -> None:
    """Import what the config names, before any other name is looked up."""
    names = settings.get("imports")
    names = [names] if isinstance(names, str) else names
    if isinstance(names, list | tuple):  # what else it may be is refused with the other settings
        import_sources([str(name) for name in names])


def _steps_of(config: Config, rows: int | None) -> int:
    """The steps that take `epochs` times as many rows as there are."""
    data = config.data
    if rows is None and data.parsed_source.is_generated:
        rows = data.count
    elif rows is None:
        rows = len(read_rows(data.source, data.limit or None, faulty=True))
    rows = min(rows, data.limit) if data.limit else rows
    steps = max(1, math.ceil(config.epochs * rows / config.rows_per_step()))
    if steps > MOST_STEPS:
        raise WhetError(f"epochs={config.epochs:g} are {steps:,} steps; give at most {MOST_STEPS:,}")
    return steps


def is_small(model: str) -> bool:
    """True for the built-in model, and for what was trained from it."""
    return origin_of(model) == ModelSection().name


def _small_run(method: str) -> dict[str, Any]:
    """The defaults of a run of the built-in model."""
    form, preset = config_class(method), catalogue.method(method)
    return merged(merged(form.small_run, {} if form.small_run_replaces else preset.run), preset.small_run)


def default_rates(config: Config, width: int | None = None) -> dict[str, DefaultChoice]:
    """The learning rates and the warm-up that this run has unless others are given, by their keys."""
    adapters, model = config.model.lora.rank > 0, config.model.name
    has_critic = isinstance(config, PolicyConfig) and config.trains_critic()
    if is_small(model):
        small, why = _small_run(config.method), "found by trial for the built-in model"
        rate = DefaultChoice(small["optimizer"]["learning_rate"], why)
        rates = {RATE: adapter_rate(rate.value, rate.why) if adapters else rate}
        of_critic = small.get("critic", {}).get("learning_rate")
        return {**rates, CRITIC_RATE: DefaultChoice(of_critic, why)} if has_critic and of_critic else rates
    origin = origin_of(model)
    rates = {RATE: default_rate(published_rate(catalogue.method(config.method)), origin, adapters, width)}
    if isinstance(config, PolicyConfig):
        rates[WARMUP] = default_warmup(config.steps)
    return {**rates, CRITIC_RATE: default_rate(CRITIC, origin, adapters, width)} if has_critic else rates


def default_every(config: Config) -> DefaultChoice:
    """The steps between two evaluations that this run has unless others are given.

    By steps and not by the clock: equal runs are evaluated at equal steps, also after a kill.
    """
    rows = config.completions_per_step()
    cheap = math.ceil(config.eval.prompts / (EVALUATED_SHARE * rows))
    every = max(FEWEST_BETWEEN, min(cheap, config.steps // FEWEST_LOOKS))
    why = (
        f"{config.eval.prompts} prompts after so many steps of {rows} are at most {EVALUATED_SHARE:.0%} of what is "
        f"trained on, or {FEWEST_LOOKS} evaluations of {config.steps} steps; never fewer than {FEWEST_BETWEEN} steps"
    )
    return DefaultChoice(every, why)


def rate_reasons(config: Config) -> dict[str, str]:
    """Why the run's learning rates, its warm-up and its evaluations are what they are, by their keys."""
    reasons = {}
    for path, choice in {**default_rates(config), EVERY: default_every(config)}.items():
        part, key = path.split(".")
        reasons[path] = choice.why if getattr(getattr(config, part), key) == choice.value else "as given"
    return reasons


def origin_of(name: str) -> str:
    """The model that a run, or a checkpoint of one, began with: a trained built-in model is still as small."""
    for _ in range(20):  # runs on runs on runs
        folder = Path(name)
        files = (parent / "config.toml" for parent in (folder, run_of(folder)))
        configs = [file for file in files if os.path.isfile(file)]  # False for a name that is too long, too
        model = read_toml(configs[0]).get("model") if configs else None
        before = model.get("name") if isinstance(model, Mapping) else None
        if not isinstance(before, str) or before == name:
            return name
        name = before
    return name


def resolved_evaluation(run: Mapping[str, Any], *layers: Mapping[str, Any]) -> EvaluationConfig:
    """Like `resolved`, for a model that is not trained: a run's own values are used only where they matter here."""
    shared = {key: value for key, value in run.items() if key in EvaluationConfig.model_fields}
    if isinstance(shared.get("data"), Mapping):
        shared["data"] = {key: value for key, value in shared["data"].items() if key in DataSection.model_fields}
    wanted = _given(layers)
    _import_own({**shared, **wanted})
    if isinstance(wanted.get("env"), Mapping):
        shared["env"], wanted["env"] = evaluated_env(shared.get("env"), wanted["env"])
    settings = _given((shared, wanted))
    model = settings.get("model")
    named = model.get("name") if isinstance(model, Mapping) else None
    sampling = PolicyConfig.small_run["sampling"] if is_small(str(named or ModelSection().name)) else {}
    return validated(EvaluationConfig, merged(merged({"sampling": sampling}, env_defaults(settings)), settings))


def _objective_changes(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from the method's preset: `whet config` writes the whole of it, and that is no change."""
    preset, axes = catalogue.method(method), catalogue.axes(catalogue.method(method).kind)
    changes: dict[str, Any] = {}
    for axis, value in settings.items():
        if axis not in axes:  # refused with all other unknown keys
            changes[axis] = value
            continue
        table = dict(value) if isinstance(value, Mapping) else {"kind": value}
        own = preset.components.get(axis)
        name: Any = table.get("kind", own.name if own else "")
        if not isinstance(name, str):
            raise WhetError(f"config: objective.{axis} is {shown(name)}; give the name of a component, in text")
        if own is not None and name == own.name:
            usual: dict[str, Any] = {"kind": own.name, **own.numbers}
        else:
            usual = dict(axes[axis].components[name].numbers) if name in axes[axis].components else {}
        table = {key: setting for key, setting in table.items() if key not in usual or usual[key] != setting}
        if table:
            changes[axis] = table["kind"] if list(table) == ["kind"] else table
    return changes


def _given(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for layer in layers:
        settings = merged(settings, layer)
    return settings


def toml_text(config: Config) -> str:
    """The config as it can be read back: every key that matters to this run, and no other."""
    return tomli_w.dumps(config_values(config))


def config_values(config: Config) -> dict[str, Any]:
    """Every key that matters to this run, as plain nested values."""
    values = config.model_dump(mode="json")
    # of a part only what was given: it has ten settings, and one or two are used
    values["reward"]["parts"] = [
        {"reward": part.reward, "weight": part.weight, **part.model_dump(mode="json", exclude_defaults=True)}
        for part in config.reward.parts
    ]
    if not config.model.lora.rank:
        values["model"]["lora"] = {"rank": 0}
    for path in config.idle():
        section, _, key = path.partition(".")
        if key:
            values[section].pop(key)
        else:
            values.pop(section)
    return values


def differing_keys(first: Config, second: Config) -> list[str]:
    """Paths whose values differ, the folder apart."""
    one, two = flattened(first.model_dump(mode="json")), flattened(second.model_dump(mode="json"))
    return sorted(path for path in one.keys() | two.keys() if path != "folder" and one.get(path) != two.get(path))


def idle_data_keys(data: DataSection) -> dict[str, str]:
    """Keys of the data that this kind of source does not read, and `eval.source` where it brings its own."""
    source = data.parsed_source
    unused = {f"data.{key}": other for key, other in source.unused_keys().items() if key in type(data).model_fields}
    if source.is_generated:
        unused["eval.source"] = "files"
    return {
        path: f"has no effect on data.source={data.source}: it is for {other}; drop it"
        for path, other in unused.items()
    }


def _refuse_idle(config: Config, values: Mapping[str, Any]) -> None:
    """A setting that cannot change the run is an error: the user believes in it."""
    for path, reason in config.idle().items():
        section, _, key = path.partition(".")
        if section in values and (not key or key in values[section]):
            raise WhetError(f"{path} {reason}")
