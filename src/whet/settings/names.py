"""Names that are not whet's own: those of version 0.1 and of other trainers. Errors say what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SINCE = "0.2"

# of whet 0.1, whole sections last: the first that fits is the answer
OLD_KEYS: Mapping[str, str] = {
    "batch.lag": "batch.staleness",
    "batch.tokens_per_pass": "batch.micro_batch_tokens",
    "batch.passes_per_step": "batch.epochs_per_batch",
    "data.every_reply": "data.every_completion",
    "data.held_out": "eval.source",
    "report.evaluate_every": "eval.every",
    "report.evaluate_prompts": "eval.prompts",
    "model.lora.matrices": "model.lora.target_modules",
    "scorer.even_replies": "reward_model.even_completions",
    "scorer": "reward_model",
}
OLD_COMPONENTS: Mapping[str, str] = {
    "right_replies": "right_completions",
    "truncate_reply": "truncate_sequence",
    "whiten_replies": "whiten_completions",
    "per_reply": "per_completion",
}
OLD_NUMBERS: Mapping[str, str] = {"max_lag": "max_staleness"}

# One target for every kind of run, or one for each: "policy", "preference", "reward_model", "sft". A target may be
# several keys: "objective.clip.low and objective.clip.high".
Target = str | Mapping[str, str]
_BATCH: Target = {
    "policy": "batch.prompts_per_step",
    **dict.fromkeys(("preference", "reward_model", "sft"), "batch.rows_per_step"),
}
_KL: Target = {"policy": "objective.kl.beta", "preference": "objective.curve.beta"}
_CLIP: Target = {"policy": "objective.clip.low and objective.clip.high"}
_LOW: Target = {"policy": "objective.clip.low"}
_CREDIT: Target = {"policy": "objective.baseline"}
_ENTROPY: Target = {"policy": "objective.entropy"}
_EVERY_TURN: Target = {"sft": "data.every_completion"}
_HIGH: Target = {"policy": "objective.clip.high"}

# TRL's, PEFT's, verl's and OpenRLHF's names
FOREIGN: Mapping[str, Target] = {
    **dict.fromkeys(("num_generations", "rollout_n", "n_samples_per_prompt", "num_samples"), "batch.group_size"),
    **dict.fromkeys(("beta", "kl_coef", "kl_beta", "init_kl_coef", "kl_loss_coef", "kl_penalty"), _KL),
    **dict.fromkeys(("epsilon_low", "clip_ratio_low"), _LOW),
    **dict.fromkeys(("epsilon_high", "clip_ratio_high"), _HIGH),
    **dict.fromkeys(("epsilon", "cliprange", "clip_ratio", "clip_range", "eps_clip", "clip_eps"), _CLIP),
    **dict.fromkeys(("lr", "actor_learning_rate"), "optimizer.learning_rate"),
    **dict.fromkeys(("lr_scheduler_type", "lr_scheduler", "scheduler"), "optimizer.schedule"),
    **dict.fromkeys(("warmup_ratio", "lr_warmup_steps", "num_warmup_steps"), "optimizer.warmup_steps"),
    **dict.fromkeys(("max_grad_norm", "max_norm", "grad_clip", "clip_grad"), "optimizer.max_gradient_norm"),
    **{"adam_beta1": "optimizer.beta1", "adam_beta2": "optimizer.beta2", "adam_epsilon": "optimizer.epsilon"},
    **{"critic_lr": {"policy": "critic.learning_rate"}, "critic_learning_rate": {"policy": "critic.learning_rate"}},
    **dict.fromkeys(("target_modules", "lora_target_modules"), "model.lora.target_modules"),
    **dict.fromkeys(("lora_r", "lora_rank", "r"), "model.lora.rank"),
    **{"lora_alpha": "model.lora.alpha", "peft_config": "model.lora", "use_peft": "model.lora.rank"},
    **dict.fromkeys(("per_device_train_batch_size", "train_batch_size", "rollout_batch_size", "batch_size"), _BATCH),
    **dict.fromkeys(
        ("gradient_accumulation_steps", "micro_batch_size", "micro_train_batch_size", "ppo_micro_batch_size"),
        "batch.micro_batch_tokens",
    ),
    **dict.fromkeys(("ppo_mini_batch_size", "num_mini_batches", "steps_per_generation"), "batch.updates_per_step"),
    **dict.fromkeys(("num_iterations", "ppo_epochs", "num_ppo_epochs"), "batch.epochs_per_batch"),
    **dict.fromkeys(
        ("max_completion_length", "response_length", "max_response_length", "generate_max_len", "max_tokens"),
        "sampling.max_new_tokens",
    ),
    **dict.fromkeys(
        ("num_train_epochs", "total_epochs", "num_epochs", "epochs", "max_steps", "total_training_steps"), "steps"
    ),
    **dict.fromkeys(("bf16", "fp16", "torch_dtype", "dtype", "mixed_precision"), "model.precision"),
    **dict.fromkeys(("gradient_checkpointing", "enable_gradient_checkpointing"), "model.recompute"),
    **dict.fromkeys(("model_name_or_path", "model_name", "model_path", "pretrain"), "model.name"),
    **dict.fromkeys(("ref_model", "reference_model"), "model.reference"),
    **dict.fromkeys(("dataset", "dataset_name", "train_dataset", "train_files", "prompt_data"), "data.source"),
    **dict.fromkeys(("eval_dataset", "val_files", "eval_data"), "eval.source"),
    **dict.fromkeys(("eval_steps", "eval_strategy", "test_freq"), "eval.every"),
    **{"early_stopping_patience": "eval.stop_after"},
    **dict.fromkeys(("save_steps", "save_freq"), "report.save_every"),
    **dict.fromkeys(("save_total_limit", "max_ckpt_num"), "report.keep_checkpoints"),
    **dict.fromkeys(("output_dir", "default_local_dir", "save_path"), "folder"),
    **dict.fromkeys(("reward_funcs", "reward_function", "reward_weights", "custom_reward_function"), "reward.parts"),
    **dict.fromkeys(("adv_estimator", "advantage_estimator"), _CREDIT),
    **{"loss_type": {"policy": "objective.aggregate", "preference": "objective.curve"}},
    **{"loss_agg_mode": {"policy": "objective.aggregate"}, "scale_rewards": {"policy": "objective.scale"}},
    **{"label_smoothing": {"preference": "objective.curve.smoothing"}},
    **dict.fromkeys(("entropy_coeff", "ent_coef", "entropy_coef"), _ENTROPY),
    **{"vf_coef": {"policy": "objective.value"}, "lam": {"policy": "objective.baseline"}},
    **{"mask_truncated_completions": {"policy": "objective.select"}},
    **{"importance_sampling_level": {"policy": "objective.ratio"}},
    **{"precompute_ref_log_probs": {"preference": "preference.reference_logp"}},
    **{"center_rewards_coefficient": {"reward_model": "reward_model.centre"}},
    **{"packing": dict.fromkeys(("preference", "reward_model", "sft"), "batch.packed")},
    **dict.fromkeys(("completion_only_loss", "assistant_only_loss"), _EVERY_TURN),
    **{"random_seed": "seed"},
}
# names of things that whet does by itself
NOT_A_KEY: Mapping[str, str] = {
    **dict.fromkeys(
        ("vllm", "use_vllm", "vllm_mode"),
        "whet samples with the weights it trains; an engine of your own is chosen with sampling.engine",
    ),
    **dict.fromkeys(("report_to", "logging_steps"), "every step is recorded in the run folder; give callbacks=[...]"),
}


def old_name(path: str) -> str | None:
    """The name since 0.2 of a key of 0.1; None for any other."""
    for old, new in OLD_KEYS.items():
        if path == old or path.startswith(f"{old}."):
            return new + path[len(old) :]
    return None


def foreign_target(name: str, kind: str) -> str | None:
    """The key of whet for another trainer's name, as a run of this kind has it; None where the name is unknown."""
    target = FOREIGN.get(name)
    if target is None or isinstance(target, str):
        return target
    return target.get(kind) or next(iter(target.values()))


def translated(values: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a run folder that 0.1 wrote, in the keys of today; one of today comes back as it is."""
    renamed: dict[str, Any] = {}

    def place(path: str, value: Any) -> None:
        *sections, key = path.split(".")
        here = renamed
        for section in sections:
            here = here.setdefault(section, {})
        if isinstance(value, Mapping) and isinstance(here.get(key), dict):
            value = {**here[key], **value}
        here[key] = value

    def walk(table: Mapping[str, Any], prefix: str) -> None:
        for key, value in table.items():
            path = f"{prefix}{key}"
            if isinstance(value, Mapping) and path not in ("objective", "data.settings", "data.columns"):
                place(old_name(path) or path, {})
                walk(value, f"{path}.")
            elif path == "objective":
                place(path, _translated_objective(value))
            else:
                place(old_name(path) or path, value)

    walk(values, "")
    return renamed


def _translated_objective(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {OLD_NUMBERS.get(key, key): _translated_objective(inner) for key, inner in value.items()}
    return OLD_COMPONENTS.get(value, value) if isinstance(value, str) else value
