"""A run as a frozen, typed value: TOML in and out, unknown keys refused with the nearest name.

Layers, later ones win: the field's default, the built-in model's own defaults, a TOML file, the command line.
The resolved value is written into the run folder before anything else happens.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from whet.objective.presets import PRESETS
from whet.types import WhetError, did_you_mean, nearest

SUPERVISED = "sft"
FROM_PYTHON = "python:"  # opens the name of a reward that only the calling program has
Validated = TypeVar("Validated", bound=BaseModel)


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSection(Section):
    name: str = Field("whetstone", description="built-in name, local folder, .gguf file, smollm2 or hub id")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")
    precision: Literal["auto", "fp32", "bf16"] = Field("auto", description="of the matrix products; weights are fp32")
    recompute: Literal["auto", "none", "wide", "layers"] = Field(
        "auto", description="computed again in the backward pass instead of kept: the MLP's wide rows, whole layers"
    )
    threads: int = Field(0, ge=0, description="of the CPU; 0 takes every usable core, or one for a tiny model")
    reference: Literal["memory", "reload"] = Field(
        "memory", description="a second copy, or read from its source at every step"
    )


class DataSection(Section):
    source: str = Field("task:arithmetic", description="task:NAME (or NAME+NAME), gym:NAME, a file, or hub:owner/name")
    held_out: str = Field("", description="file or hub id to evaluate on; a task brings its own held-out split")
    difficulty: Annotated[tuple[int, ...], BeforeValidator(_listed)] = Field((3,), description="of a task")
    count: int = Field(4096, ge=1, description="questions a task writes for training")
    settings: dict[str, Any] = Field({}, description="of a gym dataset: its own, and level")
    limit: int = Field(0, ge=0, description="use only the first rows of a file; 0 is all")
    columns: dict[str, str] = Field({}, description="rename columns: your name = ours")
    as_chat: bool = Field(False, description="send a plain text prompt as a user message")


class PromptSection(DataSection):
    order: Literal["shuffled", "by_difficulty"] = Field(
        "shuffled", description="by_difficulty visits prompts whose replies all agreed less often"
    )


class DemonstrationSection(DataSection):
    share_worked: float = Field(1.0, ge=0, le=1, description="of a task's demonstrations that show their working")
    every_reply: bool = Field(False, description="learn earlier assistant turns of a conversation too")


class SamplingSection(Section):
    max_new_tokens: int = Field(256, ge=1, description="the generation budget of a reply")
    temperature: float = Field(1.0, ge=0, description="0 is greedy: for evaluation only")
    top_p: float = Field(1.0, gt=0, le=1, description="1 is off")
    top_k: int = Field(0, ge=0, description="0 is off")
    min_p: float = Field(0.0, ge=0, lt=1, description="0 is off")
    stop: tuple[str, ...] = Field((), description="texts that end a reply")


class RewardPart(Section):
    reward: str = Field(description="built-in name, module:function or file.py:function")
    weight: float | tuple[tuple[float, float], ...] = Field(
        1.0, description="in the sum; or points [position, weight] it moves between over training"
    )
    over: Literal["share", "steps"] = Field("share", description="positions: shares of the training, or steps")
    settings: dict[str, Any] = Field({}, description="of the reward itself, by name")
    gate: str = Field("", description="counts only where the part of this name passes")
    gate_least: float = Field(1.0, description="the score that passes the gate")
    gate_otherwise: float = Field(0.0, description="what counts where the gate is shut")
    cap: tuple[float, ...] = Field((), description="least and most the part may count")
    normalise: Literal["off", "group", "batch"] = Field("off", description="on its own, before the weight")
    penalty: bool = Field(False, description="a negative weight is meant")


class RewardSection(Section):
    parts: tuple[RewardPart, ...] = Field((), description="named rewards and their weights; empty: the task's own")
    template: str = Field("", description="ready parts instead: math, code, retrieval or agent")
    format_first: float = Field(
        0.0, ge=0, le=1, description="of a template: the format counts more until this share of the training"
    )
    defences: tuple[str, ...] = Field((), description="against hacking, by name: `whet reward list`")
    defence_weight: float = Field(0.5, gt=0, description="of each defence, a penalty")
    defences_as_gates: bool = Field(False, description="a guilty reply's first part counts nothing, instead")
    timeout: float = Field(10.0, gt=0, description="seconds a call may take")
    on_error: Literal["tolerate", "stop", "exclude"] = Field(
        "tolerate",
        description="a failing reward drops the sample, and stops the run: where it fails often, always, never",
    )
    most_failures: float = Field(
        0.05, gt=0, le=1, description="tolerated share of failures among the last 200 samples, 50 at least"
    )
    ledger: str = Field("", description="file that remembers reward changes; empty: rewards.jsonl beside the run")


class BatchSection(Section):
    prompts_per_step: int = Field(8, ge=1, description="prompts a step")
    group_size: int = Field(8, ge=1, description="replies a prompt")
    updates_per_step: int = Field(1, ge=1, description="optimizer updates a pass over the collected batch")
    passes_per_step: int = Field(1, ge=1, description="passes over the collected batch")
    lag: int = Field(0, ge=0, description="policy versions that replies are behind, as with an asynchronous sampler")
    tokens_per_pass: int = Field(16384, ge=1, description="memory only: never changes the gradient")


class RowsSection(Section):
    rows_per_step: int = Field(32, ge=1, description="demonstrations an optimizer step")
    tokens_per_pass: int = Field(16384, ge=1, description="memory only: never changes the gradient")
    packed: bool = Field(True, description="rows behind one another where the model can keep them apart, else padded")


class OptimizerSection(Section):
    learning_rate: float = Field(1e-6, gt=0, description="at the top of the schedule")
    schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="after the warm-up")
    warmup_steps: int = Field(0, ge=0, description="steps of linear rise")
    weight_decay: float = Field(0.0, ge=0, description="on matrices only")
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the mean gradient")
    beta2: float = Field(0.999, ge=0, lt=1, description="decay of the mean squared gradient")
    epsilon: float = Field(1e-8, gt=0, description="floor of the divisor")
    max_gradient_norm: float = Field(1.0, gt=0, description="longer gradients are shortened to it")


class CriticSection(Section):
    trunk: Literal["own", "shared"] = Field("own", description="a trunk of its own, or a head on the policy's")
    start: str = Field("", description="folder of a reward model (one label) to start from; empty: the policy")
    learning_rate: float = Field(0.0, ge=0, description="0: the policy's")


class ReportSection(Section):
    evaluate_every: int = Field(10, ge=0, description="steps; 0: only before and after")
    evaluate_prompts: int = Field(200, ge=0, description="held-out prompts; 0 switches evaluation off")
    save_every: int = Field(10, ge=1, description="steps between checkpoints")
    keep_checkpoints: int = Field(2, ge=1, description="older ones are removed")
    samples_per_step: int = Field(1, ge=0, description="groups of each step written to samples.jsonl")
    review_every: int = Field(100, ge=0, description="steps between two samplings for review; 0 is off")
    review_count: int = Field(20, ge=1, description="of the best and of the worst replies, each time")


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


class SupervisedConfig(RunConfig):
    """Imitation of demonstrations."""

    data: DemonstrationSection = DemonstrationSection()
    batch: RowsSection = RowsSection()


class EvaluationConfig(Section):
    """Replies of a model to held-out prompts, and their marks."""

    seed: int = 0
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    sampling: SamplingSection = SamplingSection()
    reward: RewardSection = RewardSection()
    report: ReportSection = ReportSection()


Config = PolicyConfig | SupervisedConfig

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
        SupervisedConfig: {
            "steps": 200,
            "sampling": {"max_new_tokens": 64},
            "batch": {"rows_per_step": 128},
            "optimizer": {"learning_rate": 1e-3, "schedule": "cosine"},
        },
    }
}


def config_kind(method: str) -> type[PolicyConfig] | type[SupervisedConfig]:
    if method == SUPERVISED:
        return SupervisedConfig
    if method in PRESETS:
        return PolicyConfig
    hint = did_you_mean(method, [*PRESETS, SUPERVISED], cutoff=0.4)
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
    base = MODEL_DEFAULTS.get(str(name or ModelSection().name), {}).get(kind, {})
    if method in PRESETS:
        base = merged(base, PRESETS[method].run)
        base = merged(base, PRESETS[method].small_run if name in (None, ModelSection().name) else {})
    config: Config = _validated(kind, merged(merged(base, given), {"method": method}))
    _refuse_idle(config, given)
    _refuse_impossible(config)
    return config


def resolved_evaluation(run: Mapping[str, Any], *layers: Mapping[str, Any]) -> EvaluationConfig:
    """Like `resolved`, for a model that is only asked; of a run's own values only those that matter here are taken."""
    shared = {key: value for key, value in run.items() if key in EvaluationConfig.model_fields}
    if "data" in shared:
        shared["data"] = {key: value for key, value in shared["data"].items() if key in DataSection.model_fields}
    given = _given((shared, *layers))
    defaults = MODEL_DEFAULTS.get(str(given.get("model", {}).get("name")), {}).get(PolicyConfig, {})
    return _validated(EvaluationConfig, merged({"sampling": defaults.get("sampling", {})}, given))


def _given(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for layer in layers:
        given = merged(given, layer)
    return given


def _validated(kind: type[Validated], values: Mapping[str, Any]) -> Validated:
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
        raise WhetError(f"{path}: not valid TOML ({error}); mend that line") from error


def toml_text(config: Config) -> str:
    """The config as it can be read back: every key that matters to this run, and no other."""
    values = config.model_dump(mode="json")
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
    is_task, is_gym = data.source.startswith("task:"), data.source.startswith("gym:")
    of_files = ("limit", "columns", "as_chat", "held_out")
    if is_task:
        foreign = {**dict.fromkeys(of_files, "files"), "settings": "gym datasets"}
    elif is_gym:
        foreign = {**dict.fromkeys(of_files, "files"), **dict.fromkeys(("difficulty", "share_worked"), "tasks")}
    else:
        foreign = {**dict.fromkeys(("difficulty", "count", "share_worked"), "tasks"), "settings": "gym datasets"}
    idle = {
        f"data.{key}": f"has no effect on data.source={data.source}: it is for {other}; drop it"
        for key, other in foreign.items()
        if key in type(data).model_fields
    }
    trains_critic = not isinstance(config, PolicyConfig) or "value" in config.objective
    if not trains_critic and not PRESETS[config.method].objective.value.needs:
        idle["critic"] = f"has no effect: {config.method} trains no critic; drop it"
    if isinstance(config, SupervisedConfig) and not (is_task or is_gym or data.held_out):
        for section in ("sampling", "reward"):
            idle[section] = "has no effect: without held-out prompts nothing is sampled or scored; drop it"
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
            "sampling.temperature is 0: greedy replies of a group are all equal and teach nothing; give 1.0"
        )
    rows, updates = config.batch.prompts_per_step * config.batch.group_size, config.batch.updates_per_step
    if updates > rows:
        raise WhetError(f"batch.updates_per_step is {updates} but a step has {rows} samples; lower it")
