"""A run as a frozen, typed value: TOML in and out, unknown keys refused with the nearest name.

Layers, later ones win: the field's default, the built-in model's own defaults, a TOML file, the command line.
The resolved value is written into the run folder before anything else happens.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from pydantic import BaseModel, Field, ValidationError

from whet.config.sections import (
    BatchSection,
    CriticSection,
    DataSection,
    DemonstrationSection,
    ModelSection,
    OptimizerSection,
    PreferenceSection,
    PromptSection,
    ReportSection,
    RerankSection,
    RewardModelSection,
    RewardSection,
    RowsSection,
    SamplingSection,
    Section,
)
from whet.objective.presets import PRESETS
from whet.objective.presets.preference import LEFT_OUT, PAIR_PRESETS
from whet.objective.presets.reward_model import REWARD_MODELS
from whet.types import WhetError, did_you_mean, nearest

SUPERVISED = "sft"
STEP_SCORERS = {name for name, preset in REWARD_MODELS.items() if preset.objective.learns == "steps"}
FROM_PYTHON = "python:"  # opens the name of a reward that only the calling program has
Validated = TypeVar("Validated", bound=BaseModel)


class RunConfig(Section):
    """What every run has."""

    method: str = Field(description="a row of `whet algorithms`, or sft")
    seed: int = Field(0, description="of everything random in the run")
    steps: int = Field(100, ge=1, description="optimization steps")
    folder: str = Field("", description="of the run; empty: the next free one under runs/")
    model: ModelSection = ModelSection()
    sampling: SamplingSection = SamplingSection()
    reward: RewardSection = RewardSection()
    optimizer: OptimizerSection = OptimizerSection()
    report: ReportSection = ReportSection()


class PolicyConfig(RunConfig):
    """Reinforcement learning by one of the rows of `whet algorithms`."""

    data: PromptSection = PromptSection()
    batch: BatchSection = BatchSection()
    critic: CriticSection = CriticSection()
    objective: dict[str, Any] = Field({}, description="changes to the method's row: clip.high, kl, kl.beta, ...")


class SFTConfig(RunConfig):
    """Imitation of demonstrations."""

    data: DemonstrationSection = DemonstrationSection()
    batch: RowsSection = RowsSection()


class PreferenceConfig(RunConfig):
    """A policy learns from pairs of completions, or from completions with labels."""

    data: DataSection = DataSection()
    batch: RowsSection = RowsSection()
    preference: PreferenceSection = PreferenceSection()
    objective: dict[str, Any] = Field({}, description="changes to the method's row: curve.beta, reference, ...")


class RewardModelConfig(RunConfig):
    """A model learns to score completions, or their steps."""

    data: DataSection = DataSection()
    batch: RowsSection = RowsSection()
    scorer: RewardModelSection = RewardModelSection()


class EvaluationConfig(Section):
    """Completions of a model to held-out prompts, and their marks."""

    seed: int = 0
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    sampling: SamplingSection = SamplingSection()
    reward: RewardSection = RewardSection()
    report: ReportSection = ReportSection()
    rerank: RerankSection = RerankSection()


Config = PolicyConfig | SFTConfig | PreferenceConfig | RewardModelConfig

# A model of half a million weights wants other numbers than one of a billion.
MODEL_DEFAULTS: dict[str, dict[type, dict[str, Any]]] = {
    "whetstone": {
        PolicyConfig: {
            "steps": 40,
            "data": {"count": 1024},
            "sampling": {"max_new_tokens": 64},
            "batch": {"prompts_per_step": 16, "group_size": 8},
            "optimizer": {"learning_rate": 1e-4},
        },
        SFTConfig: {
            "steps": 200,
            "sampling": {"max_new_tokens": 64},
            "batch": {"rows_per_step": 128},
            "optimizer": {"learning_rate": 1e-3, "schedule": "cosine"},
        },
        PreferenceConfig: {
            "steps": 40,
            "data": {"count": 2048},
            "sampling": {"max_new_tokens": 64},
            "batch": {"rows_per_step": 64},
        },
        RewardModelConfig: {
            "steps": 100,
            "data": {"count": 4096},
            "batch": {"rows_per_step": 64},
            "optimizer": {"learning_rate": 1e-3},
        },
    }
}
# times the rate of full training (Schulman et al. 2025, LoRA Without Regret); above the second a tiny model learns less
ADAPTER_RATE, MOST_ADAPTER_RATE = 10, 5e-3
SMALL_RATE = 1e-4  # of a preference method on the built-in model: papers' rates are for billions of weights


def config_kind(method: str) -> type[Config]:
    kinds: dict[str, type[Config]] = {
        SUPERVISED: SFTConfig,
        **dict.fromkeys(PRESETS, PolicyConfig),
        **dict.fromkeys(PAIR_PRESETS, PreferenceConfig),
        **dict.fromkeys(REWARD_MODELS, RewardModelConfig),
    }
    if method in kinds:
        return kinds[method]
    if method in LEFT_OUT:
        raise WhetError(f"{method!r} is not built: {LEFT_OUT[method]}; `whet algorithms` lists what is")
    hint = did_you_mean(method, list(kinds), cutoff=0.4)
    raise WhetError(f"no method is called {method!r}{hint}; `whet algorithms` lists them, and there is {SUPERVISED!r}")


def resolved(method: str, *layers: Mapping[str, Any]) -> Config:
    """The run's config from nested layers, later ones winning; unknown keys and bad values are one-line errors."""
    kind = config_kind(method)
    given = _given(layers)
    if given.get("method", method) != method:
        raise WhetError(
            f"the config is for method {given['method']!r}, not {method!r}; drop its `method`, or train that"
        )
    name = given["model"].get("name") if isinstance(given.get("model"), dict) else None
    name = None if name is None else origin_of(str(name))
    base = MODEL_DEFAULTS.get(str(name or ModelSection().name), {}).get(kind, {})
    if method in PRESETS:
        base = merged(base, PRESETS[method].run)
        base = merged(base, PRESETS[method].small_run if name in (None, ModelSection().name) else {})
    if method in PAIR_PRESETS:
        small = name in (None, ModelSection().name)
        base = merged(base, {"optimizer": {"learning_rate": SMALL_RATE}} if small else PAIR_PRESETS[method].run)
    config: Config = validated(kind, merged(merged(base, given), {"method": method}))
    if config.model.lora.rank and "learning_rate" not in given.get("optimizer", {}):
        rate = min(float(f"{ADAPTER_RATE * config.optimizer.learning_rate:.6g}"), MOST_ADAPTER_RATE)
        config = config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"learning_rate": rate})})
    _refuse_idle(config, given)
    _refuse_impossible(config)
    return config


def origin_of(name: str) -> str:
    """The model that a run, or a checkpoint of one, began with: a trained built-in model is still as small."""
    for _ in range(20):  # runs on runs on runs
        folder = Path(name)
        known = [each / "config.toml" for each in (folder, folder.parent.parent) if (each / "config.toml").is_file()]
        before = read_toml(known[0]).get("model", {}).get("name") if known else None
        if not isinstance(before, str) or before == name:
            return name
        name = before
    return name


def resolved_evaluation(run: Mapping[str, Any], *layers: Mapping[str, Any]) -> EvaluationConfig:
    """Like `resolved`, for a model that is only asked; of a run's own values only those that matter here are taken."""
    shared = {key: value for key, value in run.items() if key in EvaluationConfig.model_fields}
    if "data" in shared:
        shared["data"] = {key: value for key, value in shared["data"].items() if key in DataSection.model_fields}
    given = _given((shared, *layers))
    defaults = MODEL_DEFAULTS.get(str(given.get("model", {}).get("name")), {}).get(PolicyConfig, {})
    return validated(EvaluationConfig, merged({"sampling": defaults.get("sampling", {})}, given))


def _given(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for layer in layers:
        given = merged(given, layer)
    return given


def validated(kind: type[Validated], values: Mapping[str, Any]) -> Validated:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise WhetError(_complaint(kind, error)) from error


def read_toml(path: Path | str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise WhetError(f"{path}: no such file; give the path of a TOML config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WhetError(f"{path}: not valid TOML ({error}); fix that line") from error


def toml_text(config: Config) -> str:
    """The config as it can be read back: every key that matters to this run, and no other."""
    values = config.model_dump(mode="json")
    # of a part only what was said: it has ten settings, and one or two are used
    values["reward"]["parts"] = [
        {"reward": part.reward, "weight": part.weight, **part.model_dump(mode="json", exclude_defaults=True)}
        for part in config.reward.parts
    ]
    if not config.model.lora.rank:
        values["model"]["lora"] = {"rank": 0}
    for path in idle_keys(config):
        section, _, key = path.partition(".")
        if key:
            values[section].pop(key)
        else:
            values.pop(section)
    return tomli_w.dumps(values)


def from_settings(settings: Sequence[str]) -> dict[str, Any]:
    """`["batch.group_size=16", "objective.clip.high=0.28"]` as nested values; values are read as TOML, else as text."""
    nested: dict[str, Any] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path.strip():
            raise WhetError(f"--set {setting}: expected path=value, such as batch.group_size=16")
        keys = path.strip().split(".")
        place = nested
        for key in keys[:-1]:
            if not isinstance(place.setdefault(key, {}), dict):
                place[key] = {"kind": place[key]}  # objective.kl=k2 and then objective.kl.beta=0.1
            place = place[key]
        value = _value(text.strip())
        before = place.get(keys[-1])
        place[keys[-1]] = {**before, "kind": value} if isinstance(before, dict) else value
    return nested


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted paths; `{"clip": {"kind": "on_policy"}}` and `{"clip": "on_policy"}` mean the same."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(flattened(value, f"{path}."))
        else:
            flat[path.removesuffix(".kind")] = value
    return flat


def differing_keys(first: Config, second: Config) -> list[str]:
    """Paths whose values differ, the folder apart."""
    one, two = flattened(first.model_dump(mode="json")), flattened(second.model_dump(mode="json"))
    return sorted(path for path in one.keys() | two.keys() if path != "folder" and one.get(path) != two.get(path))


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return [_value(part) for part in text.split(",")] if "," in text else text


def merged(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables laid over one another; `high` wins."""
    both = dict(low)
    for key, value in high.items():
        before = both.get(key)
        both[key] = merged(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return both


def _complaint(kind: type[BaseModel], error: ValidationError) -> str:
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        return f"config: no key is called {path!r}{_near_key(kind, first['loc'])}{more}"
    return f"config: {path} is {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}{more}"


def _near_key(kind: type[BaseModel], location: tuple[Any, ...]) -> str:
    section: Any = kind
    for part in location[:-1]:
        section = section.model_fields[part].annotation if part in section.model_fields else None
        if not (isinstance(section, type) and issubclass(section, BaseModel)):
            return ""
    known = list(section.model_fields)
    elsewhere = [
        f"{name}.{location[-1]}"
        for name, field in kind.model_fields.items()
        if isinstance(field.annotation, type)
        and issubclass(field.annotation, BaseModel)
        and location[-1] in field.annotation.model_fields
    ]
    close = nearest(str(location[-1]), known)
    best = elsewhere or ([".".join([*map(str, location[:-1]), close])] if close else [])
    return f"; did you mean {best[0]!r}?" if best else f"; known here: {', '.join(known)}"


def idle_keys(config: Config) -> dict[str, str]:
    """Paths that cannot change this run, with the reason."""
    data = config.data
    is_task, is_gym = data.parsed_source.is_task, data.parsed_source.is_gym
    foreign = {**data.parsed_source.unused_keys(), **({"held_out": "files"} if is_task or is_gym else {})}
    idle = {
        f"data.{key}": f"has no effect on data.source={data.source}: it is for {other}; drop it"
        for key, other in foreign.items()
        if key in type(data).model_fields
    }
    trains_critic = not isinstance(config, PolicyConfig) or "value" in config.objective
    if not trains_critic and not PRESETS[config.method].objective.value.needs:
        idle["critic"] = f"has no effect: {config.method} trains no critic; drop it"
    online = isinstance(config, PreferenceConfig) and config.preference.online > 0
    asks = isinstance(config, PolicyConfig) or is_task or online or (isinstance(config, SFTConfig) and is_gym)
    if isinstance(config, RewardModelConfig) or not (asks or (isinstance(config, SFTConfig) and data.held_out)):
        for section in ("sampling", "reward"):
            idle[section] = "has no effect: without held-out prompts nothing is sampled or scored; drop it"
    if isinstance(config, RewardModelConfig) and config.scorer.heads == 1:
        idle["scorer.bootstrap"] = "has no effect on a single head; give scorer.heads=4, or drop it"
    if isinstance(config, RewardModelConfig) and REWARD_MODELS[config.method].objective.learns != "outcomes":
        idle["scorer.outcome_at"] = f"has no effect: {config.method} learns from no outcomes; drop it"
    return idle


def _refuse_idle(config: Config, given: Mapping[str, Any]) -> None:
    """A setting that cannot change the run is an error: the user believes in it."""
    for path, reason in idle_keys(config).items():
        section, _, key = path.partition(".")
        if section in given and (not key or key in given[section]):
            raise WhetError(f"{path} {reason}")


def _refuse_impossible(config: Config) -> None:
    if not isinstance(config, PolicyConfig):
        return
    if config.sampling.temperature == 0:
        raise WhetError(
            "sampling.temperature is 0: greedy completions of a group are all equal and teach nothing; give 1.0"
        )
    rows, updates = config.batch.prompts_per_step * config.batch.group_size, config.batch.updates_per_step
    if updates > rows:
        raise WhetError(f"batch.updates_per_step is {updates} but a step has {rows} samples; lower it")
