"""The config of a run of TRL, verl or OpenRLHF as one of whet's. `whet.settings.foreign` has what each setting is."""

from __future__ import annotations

import dataclasses
import importlib
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from whet.settings.conversions import OWN_METHODS, ForeignRun, Settings, Unmapped, reuses_batches, text
from whet.settings.foreign import FOREIGN, ForeignName, foreign_entry
from whet.settings.layers import flattened
from whet.settings.user_files import readable_file
from whet.types import WhetError

KINDS = {"sft": "sft", "rm": "reward_model", **dict.fromkeys(("dpo", "kto", "orpo", "cpo"), "preference")}

# Losses of TRL's DPO, which are methods in whet; docs/differences.md has what was compared.
PREFERENCES = {
    **{"sigmoid": "dpo", "ipo": "ipo_mean", "robust": "robust_dpo", "sppo_hard": "sppo", "nca_pair": "nca"},
    **{"bco_pair": "bco", "simpo": "simpo", "kto": "kto"},
    **{name: name for name in ("hinge", "apo_zero", "apo_down", "discopop", "sigmoid_norm")},
}
ESTIMATORS = {  # of verl's and OpenRLHF's advantages
    **{"gae": "ppo", "group_norm": "grpo", "reinforce": "reinforce_pp", "reinforce_baseline": "reinforce_pp_baseline"},
    **{"reinforce_plus_plus": "reinforce_pp", "reinforce_plus_plus_baseline": "reinforce_pp_baseline"},
    **{name: name for name in ("grpo", "rloo", "remax", "opo", "gdpo", "dr_grpo")},
}
LOSS_MODES = {"geo_mean": "gmpo", **{name: name for name in ("gspo", "clip_cov", "kl_cov", "cispo", "sapo")}}

# What a trainer takes where its command line says nothing, and whet would take otherwise; by their first names.
_TRL = {"per_device_train_batch_size": 8, "lr_scheduler_type": "linear", "num_train_epochs": 3}
_TRL_RL = {**_TRL, "num_generations": 8, "max_completion_length": 512, "learning_rate": 1e-6, "temperature": 1.0}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "trl grpo": {**_TRL_RL, "beta": 0.0, "loss_type": "dapo", "use_bias_correction_kl": True},
    "trl rloo": {**_TRL_RL, "num_generations": 2, "beta": 0.05},
    "trl dpo": {**_TRL, "learning_rate": 1e-6, "beta": 0.1},
    "trl kto": {**_TRL, "learning_rate": 1e-6, "beta": 0.1},
    "trl sft": {**_TRL, "learning_rate": 2e-5},
    "trl rm": {**_TRL, "learning_rate": 1e-4},
    "verl rl": {
        **{"rollout_batch_size": 1024, "ppo_mini_batch_size": 256, "num_generations": 1, "max_completion_length": 512},
        **{"learning_rate": 1e-6, "weight_decay": 0.01, "loss_type": "token-mean", "use_kl_loss": False},
        **{"clip_ratio": 0.2, "delta": 3.0, "adv_estimator": "gae", "lam": 1.0, "critic_lr": 1e-5},
        "num_train_epochs": 30,
    },
    "verl sft": {
        "rollout_batch_size": 256,
        "learning_rate": 1e-5,
        "lr_scheduler_type": "cosine",
        "num_train_epochs": 4,
    },
    "openrlhf rl": {
        **{"rollout_batch_size": 1024, "train_batch_size": 128, "num_generations": 1, "learning_rate": 1e-6},
        **{"lr_scheduler_type": "cosine", "warmup_ratio": 0.03, "init_kl_coef": 0.01, "adv_estimator": "gae"},
        **{"epsilon": 0.2, "loss_type": "token-mean", "lam": 1.0, "critic_lr": 9e-6, "num_train_epochs": 1},
    },
    "openrlhf sft": {
        "train_batch_size": 128,
        "learning_rate": 5e-6,
        "lr_scheduler_type": "cosine",
        "warmup_ratio": 0.03,
    },
    "openrlhf dpo": {"train_batch_size": 128, "learning_rate": 1e-5, "lr_scheduler_type": "cosine", "beta": 0.1},
    "openrlhf rm": {"train_batch_size": 128, "learning_rate": 9e-6, "lr_scheduler_type": "cosine"},
}
PROGRAMS = {  # how a command line names what it starts; the first that is found
    **{
        "verl.trainer.main_ppo": "verl rl",
        "main_ppo": "verl rl",
        "verl.trainer": "verl sft",
        "sft_trainer": "verl sft",
    },
    **{"openrlhf.cli.train_ppo": "openrlhf rl", "openrlhf.cli.train_sft": "openrlhf sft"},
    **{"openrlhf.cli.train_dpo": "openrlhf dpo", "openrlhf.cli.train_rm": "openrlhf rm"},
}
TRAINERS = {"reward": "rm", **{name: name for name in ("grpo", "rloo", "dpo", "kto", "sft")}}  # of TRL


@dataclass(frozen=True)
class Translation:
    """A method, its settings by dotted keys, and every setting that has no counterpart, with the reason."""

    method: str
    flat: Settings
    unmapped: Mapping[str, str]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings as nested tables, which `whet.train` takes as `config`."""
        nested: dict[str, Any] = {}
        for path, value in self.flat.items():
            *sections, key = path.split(".")
            table = nested
            for section in sections:
                table = table.setdefault(section, {})
            table[key] = value
        return nested

    def __str__(self) -> str:
        import tomli_w

        by_reason: dict[str, list[str]] = {}
        for name, reason in self.unmapped.items():
            by_reason.setdefault(reason, []).append(name)
        lines = [f"#   {', '.join(names)}: {reason}" for reason, names in by_reason.items()]
        listed = "\n".join(["# without a counterpart:", *lines, "", ""]) if lines else ""
        return listed + tomli_w.dumps({"method": self.method, **self.settings})


NO_ENTRY = ForeignName(note="no counterpart")


def translate(
    trainer: str,
    given: Mapping[str, Any],
    devices: int = 1,
    *,
    changed: Sequence[str] | None = None,
    rows: int | None = None,
) -> Translation:
    """The run of a trainer (a key of `DEFAULTS`) that was given these values, by its own names.

    `changed` are the names that somebody chose; of others only what decides the training is taken over, and what has
    no counterpart is not listed.
    """
    chosen = set(given if changed is None else changed)
    known = {FOREIGN[name].name: value for name, value in given.items() if name in FOREIGN}
    values = {**DEFAULTS[trainer], **known}
    unmapped: dict[str, str] = {}
    run = ForeignRun(KINDS.get(trainer.partition(" ")[2], "policy"), values, rows, devices)
    method, flat = _method(trainer, run, unmapped)
    left = {name: value for name, value in DEFAULTS[trainer].items() if name not in known}
    for name, value in {**left, **given}.items():
        entry = foreign_entry(name) or NO_ENTRY
        try:
            if isinstance(value, str) and "$" in os.path.expandvars(value):
                raise Unmapped("a variable of the shell; put its value in")
            settings = entry.settings(value, run)
        except Unmapped as reason:
            if name in chosen or name in left or entry.key == "steps":
                shown = f"{name}={getattr(value, 'value', value)}"
                unmapped[shown if isinstance(value, int | float | str) else name] = str(reason)
            continue
        # of what nobody chose only what decides the training
        flat |= {
            path: setting
            for path, setting in settings.items()
            if name in chosen or not path.startswith(("eval.", "report.", "folder", "model."))
        }
    return Translation(method, _without_doubles(flat), unmapped)


def _without_doubles(flat: Settings) -> Settings:
    """`objective.kl=none` has no strength; and a component whose numbers are set is a table."""
    for axis in [path for path in flat if path.count(".") == 1 and path.startswith("objective.")]:
        numbers = [path for path in flat if path.startswith(f"{axis}.")]
        if numbers and flat[axis] != "none":
            flat[f"{axis}.kind"] = flat.pop(axis)
        elif numbers:
            for path in numbers:
                del flat[path]
    return flat


def _method(trainer: str, run: ForeignRun, unmapped: dict[str, str]) -> tuple[str, Settings]:
    """whet's method, and what of it the other trainer does otherwise."""
    values = run.values
    program, _, name = trainer.partition(" ")
    if program == "trl" and name == "grpo":
        loss = text(values.get("loss_type"))
        return (loss if loss in OWN_METHODS else "grpo"), {}
    if name == "rloo":  # TRL's clips the ratio of the whole completion
        own: Settings = {"objective.ratio": "sequence_product", "objective.clip.kind": "ppo_clip"}
        return "rloo", own if reuses_batches(run) else {}
    if name == "dpo":
        return _preference_method(values, unmapped)
    if name != "rl":
        return name, {}
    estimator, mode = text(values.get("adv_estimator")), text(values.get("loss_mode", "vanilla"))
    if estimator not in ESTIMATORS:
        unmapped[f"adv_estimator={estimator}"] = "choose a method that `whet algorithms` lists"
    if mode not in ("vanilla", "ppo", *LOSS_MODES):
        unmapped[f"loss_mode={mode}"] = "choose a method that `whet algorithms` lists"
    if mode in LOSS_MODES and estimator != "grpo":
        unmapped[f"adv_estimator={estimator}"] = f"{LOSS_MODES[mode]} compares with its group; see objective.baseline"
    return LOSS_MODES.get(mode) or ESTIMATORS.get(estimator, "grpo"), {}


def _preference_method(values: Mapping[str, Any], unmapped: dict[str, str]) -> tuple[str, Settings]:
    losses = values.get("loss_type") or ["sigmoid"]
    names = [losses] if isinstance(losses, str) else list(losses)
    weights = list(values.get("loss_weights") or [1.0] * len(names))
    changes: Settings = {}
    if names[1:] == ["sft"]:
        changes = {"objective.imitate.kind": "per_token", "objective.imitate.coefficient": weights[1] / weights[0]}
    if names[0] not in PREFERENCES or (names[1:] and not changes):
        unmapped[f"loss_type={names}"] = "choose a method that `whet algorithms` lists"
    if names[0] == "bco_pair":  # TRL's has no running mean
        changes["objective.anchor"] = "zero"
    return PREFERENCES.get(names[0], "dpo"), changes


def from_object(config: Any) -> tuple[str, dict[str, Any], list[str]]:
    """(trainer, its values, the names that were chosen) of a config object of TRL's, which is not imported."""
    trainer = type(config).__name__.removesuffix("Config").lower()
    if trainer not in TRAINERS or not dataclasses.is_dataclass(config):
        known = ", ".join(f"{name.upper() if name != 'reward' else 'Reward'}Config" for name in TRAINERS)
        raise WhetError(f"{type(config).__name__} is no config that whet.from_trl knows; give one of {known}")
    fields = {field.name: field for field in dataclasses.fields(config)}
    values = {name: getattr(config, name, None) for name in fields}
    chosen = [
        name
        for name, field in fields.items()
        if name not in SET_BY_TRL and values[name] not in (_default(field), [], "")
    ]
    return f"trl {TRAINERS[trainer]}", values, chosen


SET_BY_TRL = frozenset(
    (
        "accelerator_config",
        "debug",
        "disable_tqdm",
        "do_eval",
        "dataloader_pin_memory",
        "pad_to_multiple_of",
        "logging_dir",
    )
)


def _default(field: dataclasses.Field[Any]) -> Any:
    make: Callable[[], Any] | Any = field.default_factory
    return make() if make is not dataclasses.MISSING else field.default


def from_command(command: str) -> tuple[str, dict[str, Any], int]:
    """(trainer, its values, its processes) of a command line, a shell script with one, or a YAML file."""
    if command.strip().endswith(".sh") and len(command.split()) == 1:
        file = readable_file(command.strip(), "a shell script", "give the path of a script, or a command in quotes")
        command = file.read_text(encoding="utf-8")
    if command.strip().endswith((".yaml", ".yml")) and len(command.split()) == 1:
        values = _read_yaml(command.strip())
        if "actor_rollout_ref.actor" not in ".".join(values):
            raise WhetError(f"{command}: not verl's; say whose it is, as in whet migrate 'trl grpo --config {command}'")
        return "verl rl", values, 1
    try:
        words = shlex.split(command.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise WhetError(f"the command cannot be read ({error}); give it in one pair of quotes") from None
    trainer, start = _program(words)
    ends = [number for number, word in enumerate(words) if word in ("|", ">", ">>", "2>&1", "&", "&&", ";")]
    words = words[: min((number for number in ends if number > start), default=len(words))]
    variables = {name: value for name, equals, value in (word.partition("=") for word in words[:start]) if equals}
    words = [Template(word).safe_substitute(variables) for word in words]
    values = _overrides(words[start:]) if trainer.startswith("verl") else _flags(words[start:])
    file = values.pop("config", None)
    return trainer, {**(_read_yaml(file) if isinstance(file, str) else {}), **values}, _processes(words[:start])


def _processes(launcher: Sequence[str]) -> int:
    """How many processes accelerate (which counts those of all machines) or torchrun starts; 1 where neither says."""
    given = {key.replace("-", "_"): value for key, value in _flags(launcher).items()}

    def count(name: str) -> int:
        value = given.get(name)
        value = value[0] if isinstance(value, list) else value  # what follows is the script
        return int(value) if isinstance(value, str) and value.isdigit() else 1

    return count("num_processes") * count("nproc_per_node") * count("nnodes")


def _program(words: Sequence[str]) -> tuple[str, int]:
    for number, word in enumerate(words):
        for name, trainer in PROGRAMS.items():
            if name in word and "=" not in word:
                return trainer, number + 1
        script = word.rpartition("/")[2].removesuffix(".py").removesuffix("_modeling")
        if script in TRAINERS and (word.endswith(".py") or words[number - 1].endswith("trl")):
            return f"trl {TRAINERS[script]}", number + 1
    raise WhetError(
        "the command starts no trainer that whet knows; give one with verl.trainer.main_ppo, openrlhf.cli.train_..., "
        "trl grpo (or sft, dpo, kto, reward, rloo), or a YAML file of verl's"
    )


def _overrides(words: Sequence[str]) -> dict[str, Any]:
    """`key=value` as Hydra reads it."""
    pairs = [word.lstrip("+").partition("=") for word in words if "=" in word and not word.startswith(("-", "~"))]
    return {key: None if value in ("null", "None", "") else value for key, _, value in pairs}


def _flags(words: Sequence[str]) -> dict[str, Any]:
    """`--key value`, `--key=value`, `--key` alone, and `--key` with several values."""
    values: dict[str, Any] = {}
    key = ""
    for word in words:
        if word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            values[key] = value if equals else True
        elif key:
            before = values[key]
            values[key] = word if before is True else [*(before if isinstance(before, list) else [before]), word]
    return values


def _read_yaml(path: str) -> dict[str, Any]:
    """A YAML file by dotted paths; references to other keys are left out, as Hydra fills them."""
    file: Path = readable_file(path, "a YAML config", "give the path of a YAML config")
    yaml = importlib.import_module("yaml")  # comes with transformers
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise WhetError(f"{path}: not valid YAML ({' '.join(str(error).split())[:200]}); fix that line") from None
    if not isinstance(content, Mapping):
        raise WhetError(f"{path}: no table of settings; give a YAML config")
    content = {key: value for key, value in content.items() if key not in ("defaults", "hydra")}
    flat = flattened(content)
    return {key: value for key, value in flat.items() if not (isinstance(value, str) and value.startswith("${"))}
