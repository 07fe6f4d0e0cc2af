"""From another trainer's values to whet's settings: the arithmetic behind the table of `whet.settings.foreign`.

A conversion takes the value and the whole run it stands in, and returns settings by whet's dotted keys: none where the
value asks for what whet does anyway.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Settings = dict[str, Any]
FILES = (".jsonl", ".json", ".parquet", ".csv", ".gz")


class Unmapped(Exception):
    """A value that whet has no counterpart of; the message says why, or what to do instead."""


@dataclass(frozen=True)
class ForeignRun:
    """The config of another trainer while it is converted; its values are found by the first name of their line."""

    kind: str
    values: Mapping[str, Any]
    rows: int | None = None  # of the training data, where that is known
    devices: int = 1

    def number(self, name: str, default: float = 0.0) -> float:
        """The value as a number."""
        value = self.values.get(name)
        return default if value is None else number(value)

    def is_on(self, name: str) -> bool:
        """Whether the value is true, or a number that is not 0."""
        return text(self.values.get(name)) not in ("none", "false", "0", "0.0", "null", "")


Conversion = Callable[[Any, ForeignRun], Settings]


def text(value: Any) -> str:
    """A value as a command line has it; an enum by its value, a list of one by what it holds."""
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    return str(getattr(value, "value", value)).strip().lower()


def number(value: Any) -> float:
    """A number, also from the text of a command line."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise Unmapped(f"{value!r} is no number") from None


def plain(value: Any) -> Any:
    """A value as TOML has it: the text of a number as the number, a set as a sorted list."""
    if isinstance(value, str):
        for read in (int, float):
            try:
                return read(value)
            except ValueError:
                continue
    return sorted(value) if isinstance(value, set | frozenset) else list(value) if isinstance(value, tuple) else value


def listed(value: Any) -> list[str]:
    """The texts of a list, also from a command line: `a`, `a,b`, `['a','b']`."""
    parts = value.strip("[]()").split(",") if isinstance(value, str) else list(value)
    return [str(part).strip().strip("'\"") for part in parts]


def _whole(value: float, what: str) -> int:
    if value < 1 or value != int(value):
        raise Unmapped(f"{what} would be {value:g}, no whole number; choose one")
    return int(value)


def _updates(run: ForeignRun) -> int:
    """Optimizer updates that one pass over a batch of completions makes."""
    if run.kind != "policy":
        return 1
    prompts = run.values.get("rollout_batch_size")
    if prompts is None:  # TRL: passes of every device that share a call to the sampler, over those of an update
        return max(1, _whole(_passes(run) / min(_passes(run), run.number("gradient_accumulation_steps", 1)), "updates"))
    if (size := run.number("ppo_mini_batch_size")) > 0:  # verl: in prompts
        return _whole(number(prompts) / size, "updates")
    completions = number(prompts) * run.number("num_generations", 1)  # OpenRLHF: in completions
    return _whole(completions / run.number("train_batch_size", completions), "updates")


def _passes(run: ForeignRun) -> float:
    """TRL: passes of every device that one call to the sampler serves."""
    if (size := run.number("generation_batch_size")) > 0:
        return size / (run.number("per_device_train_batch_size", 8) * run.devices)
    return run.number("steps_per_generation") or run.number("gradient_accumulation_steps", 1)


def _size(run: ForeignRun) -> int:
    """Prompts, or rows, of a whet step."""
    if run.kind == "policy" and run.values.get("rollout_batch_size") is not None:
        return _whole(run.number("rollout_batch_size"), "prompts per step")
    if (size := run.number("train_batch_size") or run.number("rollout_batch_size")) > 0:
        return _whole(size, "rows per step")
    # TRL counts the completions of one device and pass; whet the prompts, or rows, of all of them
    passes = run.number("gradient_accumulation_steps", 1)
    passes = passes if run.kind != "policy" else max(passes, _passes(run))
    count = run.number("per_device_train_batch_size", 8) * run.devices * passes
    return _whole(count / (run.number("num_generations", 8) if run.kind == "policy" else 1), "prompts per step")


def batch(value: Any, run: ForeignRun) -> Settings:
    """The prompts or rows of an optimizer step, and how many updates share them."""
    key = "batch.prompts_per_step" if run.kind == "policy" else "batch.rows_per_step"
    updates = _updates(run)
    return {key: _size(run), **({"batch.updates_per_step": updates} if updates > 1 else {})}


def update_size(value: Any, run: ForeignRun) -> Settings:
    """The batch size, where rows are trained on; in RL it only divides the batch, which other settings size."""
    return {} if run.kind == "policy" else batch(value, run)


def steps(value: Any, run: ForeignRun) -> Settings:
    """TRL counts optimizer updates, verl and whet batches."""
    updates = _updates(run) * run.number("num_iterations", 1) if "rollout_batch_size" not in run.values else 1
    return {"steps": math.ceil(number(value) / updates)} if number(value) > 0 else {}


def epochs(value: Any, run: ForeignRun) -> Settings:
    """The number of epochs, where the other package does not count steps."""
    if run.number("max_steps", -1) > 0:
        return {}
    if run.rows is None:
        return {"epochs": plain(f"{number(value):g}")}
    # RL leaves out the last prompts of an epoch that fill no batch
    batches = run.rows // _size(run) if run.kind == "policy" else math.ceil(run.rows / _size(run))
    return {"steps": max(1, math.ceil(number(value) * batches))}


def in_steps(key: str) -> Conversion:
    """A number of steps; below 1 a share of them."""

    def convert(value: Any, run: ForeignRun) -> Settings:
        count = number(value)
        if 0 < count < 1:
            total = steps(run.values.get("max_steps", -1), run)
            if not total and run.rows:
                total = epochs(run.values.get("num_train_epochs", 1), run)
            if "steps" not in total:
                raise Unmapped(f"give {key} = {count:g} x steps")
            count = math.ceil(count * total["steps"])
        strategy = {"eval.every": "eval_strategy", "report.save_every": "save_strategy"}.get(key, "")
        is_off = (
            count < 0
            or (count == 0 and (strategy or run.number("warmup_ratio") > 0))
            or text(run.values.get(strategy, "steps")) != "steps"
        )
        return {} if is_off else {key: int(count)}

    return convert


def positive(key: str) -> Conversion:
    """A conversion that sets `key` to positive numbers and drops others."""
    return lambda value, run: {key: plain(value)} if number(value) > 0 else {}


def optimizer(value: Any, run: ForeignRun) -> Settings:
    """8-bit variants of Adam become int8 states; plain Adam needs no setting; others have no counterpart."""
    if "8bit" in text(value):
        return {"optimizer.states": "int8"}
    if not text(value).startswith("adam"):
        raise Unmapped("whet trains with AdamW")
    return {}


def betas(value: Any, run: ForeignRun) -> Settings:
    """Both betas of AdamW, from one list."""
    return dict(zip(("optimizer.beta1", "optimizer.beta2"), map(number, listed(value)), strict=True))


def target_modules(value: Any, run: ForeignRun) -> Settings:
    """The names of the layers that get adapters; "all-linear" is the default."""
    return {} if value == "all-linear" else {"model.lora.target_modules": sorted(listed(value))}


def adapters(value: Any, run: ForeignRun) -> Settings:
    """LoRA with rank 16 where TRL switches it on, unless `lora_r` says otherwise."""
    return {"model.lora.rank": 16} if run.is_on("peft_config") and "r" not in run.values else {}


def lora_alpha(value: Any, run: ForeignRun) -> Settings:
    """LoRA's alpha, where the other settings switch LoRA on."""
    return {"model.lora.alpha": number(value)} if run.is_on("r") else {}


def engine(value: Any, run: ForeignRun) -> Settings:
    """The engine that generates; servers and colocation have no setting of their own here."""
    if text(value) in ("vllm", "true") or (text(value).isdigit() and number(value) > 0):
        return {"sampling.engine": "vllm"}
    if text(value) not in ("false", "hf", "0", "server", "colocate"):
        raise Unmapped("whet's engines are torch, which shares the trainer's weights, vllm, openai and registered ones")
    return {}


def trackers(value: Any, run: ForeignRun) -> Settings:
    """The trackers a run reports to; consoles and "none" drop out."""
    names = [name for name in listed(value) if name not in ("none", "console", "")]
    if unknown := [name for name in names if name not in ("trackio", "tensorboard", "wandb", "mlflow")]:
        raise Unmapped(f"{unknown[0]!r} is no tracker of whet's; register one, or give callbacks")
    return {"report.trackers": names} if names else {}


def workers(value: Any, run: ForeignRun) -> Settings:
    """How many processes train: GPUs per node times nodes."""
    count = _whole(number(value) * run.number("trainer.nnodes", 1), "GPUs")
    return {"scale.workers": count} if count > 1 else {}


def source(key: str) -> Conversion:
    """A file by its path, a dataset of the hub by whet's name for one."""

    def convert(value: Any, run: ForeignRun) -> Settings:
        names = listed(value)
        if len(names) > 1:
            raise Unmapped(f"{len(names)} sources; give one to {key}")
        name = os.path.expanduser(os.path.expandvars(names[0]))
        is_file = name.startswith((".", "/", "$", "hub:")) or name.endswith(FILES)
        return {key: name if is_file else f"hub:{name}"}

    return convert


def column(meaning: str) -> Conversion:
    """A conversion for the name of the column that holds `meaning`."""
    return lambda value, run: {} if value == meaning else {f"data.columns.{value}": meaning}


def reward_file(value: Any, run: ForeignRun) -> Settings:
    """verl's `compute_score`, OpenRLHF's `reward_func` (its remote_url may be a file)."""
    if not text(value).endswith(".py"):
        raise Unmapped("a reward behind a server: write a reward function that asks it")
    named = run.values.get("custom_reward_function.name")
    function = named or ("reward_func" if "init_kl_coef" in run.values else "compute_score")
    return {"reward.parts": [{"reward": f"{value}:{function}"}]}


def reuses_batches(run: ForeignRun) -> bool:
    """Whether completions are learned from more than once; a single update has ratios of exactly 1."""
    try:
        return run.kind == "policy" and _updates(run) * run.number("num_iterations", 1) > 1
    except Unmapped:  # the batch sizes do not fit, which is told of them
        return True


def ratio(value: Any, run: ForeignRun) -> Settings:
    """TRL's level of the ratio: a token's, or that of the whole completion as in GSPO."""
    if text(value) not in ("token", "sequence", "none"):
        raise Unmapped("choose objective.ratio, or the methods gspo and gspo_token")
    if text(value) != "sequence" or not reuses_batches(run):
        return {}
    if _COUNTED.get(text(run.values.get("loss_type"))) == "token_mean":
        raise Unmapped("a ratio of whole completions wants objective.aggregate=sequence_mean; the method gspo has both")
    return {"objective.ratio": "sequence"}


def clip(*ends: str) -> Conversion:
    """Ends of the clip; a single update has nothing to clip."""

    def convert(value: Any, run: ForeignRun) -> Settings:
        if not reuses_batches(run):
            return {}
        if text(run.values.get("loss_type")) == "cispo":  # TRL: epsilon_high is the cap itself
            return {"objective.clip.ceiling": number(value)} if ends == ("high",) else {}
        mode = text(run.values.get("loss_mode", "vanilla"))
        if text(run.values.get("loss_type")) in OWN_METHODS or (mode != "vanilla" and "kind" in ends):
            return {}
        if mode not in ("vanilla", "ppo", "gspo"):
            raise Unmapped(f"the loss {mode} has numbers of its own: objective.clip, objective.select")
        return {f"objective.clip.{end}": "dual_clip" if end == "kind" else number(value) for end in ends}

    return convert


def of_sapo(name: str) -> Conversion:
    """A number of the loss `sapo`, which other losses do not read."""

    def convert(value: Any, run: ForeignRun) -> Settings:
        return {f"objective.clip.{name}": number(value)} if text(run.values.get("loss_type")) == "sapo" else {}

    return convert


def beta(value: Any, run: ForeignRun) -> Settings:
    """TRL multiplies its KL by the ratio unless told otherwise, which changes the gradient at ratio 1 too."""
    if run.kind == "preference":
        return {"objective.curve.beta": number(value)}
    if number(value) == 0:
        return {"objective.kl": "none"}
    kind = "k3_corrected" if run.is_on("use_bias_correction_kl") else "k3"
    return {"objective.kl.kind": kind, "objective.kl.beta": number(value)}


_IN_LOSS = {"low_var_kl": "k3", "k3": "k3", "k3+": "k2", "mse": "k2", "k2": "k2", "abs": "abs"}
_IN_REWARD = {"kl": "k1_reward", "k1": "k1_reward", "mse": "k2_reward", "k2": "k2_reward"}
_IN_REWARD |= {"low_var_kl": "k3_reward", "k3": "k3_reward", "abs": "abs_reward"}


def verl_kl(value: Any, run: ForeignRun) -> Settings:
    """verl switches the KL on by one setting and reads its kind and strength from others."""
    if "init_kl_coef" in run.values:  # OpenRLHF's: the strength is the switch
        return {}
    if run.is_on("use_kl_loss"):
        kind, beta = _estimator(_IN_LOSS, run, "kl_loss_type", "low_var_kl"), run.number("kl_loss_coef", 0.001)
    elif run.is_on("use_kl_in_reward"):
        kind = _estimator(_IN_REWARD, run, "kl_penalty", "kl")
        beta = run.number("algorithm.kl_ctrl.kl_coef", 0.001)
    else:
        return {"objective.kl": "none"}
    return {"objective.kl.kind": kind, "objective.kl.beta": beta}


def kl_control(value: Any, run: ForeignRun) -> Settings:
    """verl's adaptive controller is Ziegler's, as `proportional` is; it turns the KL of the reward."""
    if text(value) != "adaptive" or not run.is_on("use_kl_in_reward"):
        return {}
    target, horizon = "algorithm.kl_ctrl.target_kl", "algorithm.kl_ctrl.horizon"
    numbers = {"target": run.number(target, 0.1), "horizon": run.number(horizon, 10000)}
    return {
        "objective.control.kind": "proportional",
        **{f"objective.control.{name}": n for name, n in numbers.items()},
    }


def keep_rounds(value: Any, run: ForeignRun) -> Settings:
    """The most draws of the filter that is switched on; verl's 0 means no limit."""
    is_used = run.is_on("dynamic_filtering") and number(value) > 0
    return {"objective.keep.rounds": int(number(value))} if is_used else {}


def openrlhf_kl(value: Any, run: ForeignRun) -> Settings:
    """OpenRLHF's KL coefficient, with the estimator that its other settings choose."""
    if number(value) == 0:
        return {"objective.kl": "none"}
    kind = _estimator(_IN_LOSS if run.is_on("use_kl_loss") else _IN_REWARD, run, "kl_estimator", "k1")
    return {"objective.kl.kind": kind, "objective.kl.beta": number(value)}


def _estimator(kinds: Mapping[str, str], run: ForeignRun, name: str, default: str) -> str:
    value = text(run.values.get(name, default))
    if value not in kinds:
        raise Unmapped(f"{name}={value}: choose objective.kl, one of {', '.join(dict.fromkeys(kinds.values()))}")
    return kinds[value]


OWN_METHODS = ("cispo", "sapo", "luspo", "vespo")  # losses of TRL's GRPO that are methods in whet


def loss_type(value: Any, run: ForeignRun) -> Settings:
    """How tokens are counted, in RL; names of losses that are methods are read by `whet.settings.migrate`."""
    own_counting = text(run.values.get("loss_mode")) in ("gspo", "sapo")  # verl ignores loss_agg_mode there
    if run.kind != "policy" or text(value) in OWN_METHODS or own_counting:
        return {}
    if text(value) not in _COUNTED:
        raise Unmapped(f"{value!r}: choose objective.aggregate, or a method that `whet algorithms` lists")
    return {"objective.aggregate": _COUNTED[text(value)]}


_COUNTED = {
    **{"grpo": "sequence_mean", "dapo": "token_mean", "bnpo": "token_mean", "dr_grpo": "fixed_length"},
    **{"token-mean": "token_mean", "seq-mean-token-mean": "sequence_mean", "seq-mean-token-sum": "sequence_sum"},
    "seq-mean-token-sum-norm": "fixed_length",
}


def entropy(value: Any, run: ForeignRun) -> Settings:
    """The weight of the entropy bonus; 0 sets none."""
    return {"objective.entropy.kind": "bonus", "objective.entropy.weight": number(value)} if number(value) else {}


def top_entropy(value: Any, run: ForeignRun) -> Settings:
    """The share of tokens of highest entropy that are trained on."""
    share = number(value)
    return {} if share >= 1 else {"objective.select.kind": "top_entropy", "objective.select.share": share}


def reference(value: Any, run: ForeignRun) -> Settings:
    """TRL: reference <- alpha policy + (1 - alpha) reference, every so many steps."""
    if not run.is_on("sync_ref_model"):
        return {}
    alpha, every = run.number("ref_model_mixup_alpha", 0.6), int(run.number("ref_model_sync_steps", 512))
    kind = {"objective.reference.kind": "ema", "objective.reference.decay": round(1 - alpha, 12)}
    return {**(kind if alpha < 1 else {"objective.reference.kind": "reset"}), "objective.reference.every": every}


def mismatch(value: Any, run: ForeignRun) -> Settings:
    """The rule for log-probabilities of vLLM that differ from the trainer's, where TRL corrects them."""
    if not (run.is_on("vllm_importance_sampling_correction") and run.is_on("use_vllm")):
        return {}
    mode, low = text(run.values.get("vllm_importance_sampling_mode")), "vllm_importance_sampling_clip_min"
    kinds = {"token_truncate": "truncate", "sequence_truncate": "truncate_sequence"}
    if mode not in kinds or run.values.get(low) is not None:
        raise Unmapped(f"vllm_importance_sampling_mode={mode}: choose objective.mismatch")
    ceiling = run.number("vllm_importance_sampling_clip_max")
    return {"objective.mismatch.kind": kinds[mode], "objective.mismatch.ceiling": ceiling}


def of_critic(key: str) -> Conversion:
    """A conversion of a critic's number: only GAE under a plain PPO loss has a critic."""

    def convert(value: Any, run: ForeignRun) -> Settings:
        plain_loss = text(run.values.get("loss_mode", "vanilla")) in ("vanilla", "ppo")
        return {key: number(value)} if plain_loss and text(run.values.get("adv_estimator")) == "gae" else {}

    return convert
