"""Settings of other trainers and what each is in whet. Errors, `whet.from_trl` and `whet migrate` read this table.

Each line names one setting as TRL, PEFT, verl and OpenRLHF write it; the first name stands for all of them where a
conversion asks for the value. Bare names are TRL's, PEFT's and OpenRLHF's older ones, the others have their whole path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from whet.settings import conversions
from whet.settings.conversions import Conversion, ForeignRun, Settings, Unmapped, number, plain, text

# One key for every kind of run, or one for each: "policy", "preference", "reward_model", "sft". A key may be two:
# "objective.clip.low and objective.clip.high".
Key = str | Mapping[str, str]


@dataclass(frozen=True)
class ForeignName:
    """What another trainer's setting is in whet."""

    key: Key = ""  # empty: there is none, and the note says why
    note: str = ""  # what to know about the value, or what whet does instead
    convert: Conversion | None = None
    choices: Mapping[str, Settings] | None = None  # by the value as text; any other has no counterpart
    is_part: bool = False  # the value enters the conversion of another setting
    by_hand: bool = False  # the key is of another shape: nothing is converted
    name: str = ""  # the first of its line

    def key_for(self, kind: str) -> str:
        """The key in a run of this kind; where that has none, the key of another kind."""
        return self.key if isinstance(self.key, str) else self.key.get(kind) or next(iter(self.key.values()))

    def is_below(self, section: str) -> bool:
        """Whether one of its keys stands in this section."""
        keys = (self.key,) if isinstance(self.key, str) else self.key.values()
        return any(key.startswith(f"{section}.") for key in keys)

    def settings(self, value: Any, run: ForeignRun) -> Settings:
        """The value as whet's settings; raises `Unmapped` where whet has no counterpart."""
        if self.is_part or (value is None and self.choices is None):
            return {}
        if not isinstance(self.key, str) and run.kind not in self.key:
            raise Unmapped(self.note or f"it is whet's {self.key_for(run.kind)}, which this kind of run does not have")
        if self.by_hand:
            raise Unmapped(f"{self.key_for(run.kind)}: {self.note}")
        if self.convert is not None:
            return self.convert(value, run)
        if self.choices is not None:
            if text(value) not in self.choices:
                raise Unmapped(self.note or f"choose {self.key_for(run.kind)}")
            return dict(self.choices[text(value)])
        if not self.key:
            raise Unmapped(self.note)
        return {self.key_for(run.kind): plain(value)}


def _switch(key: str, value: Any = True) -> dict[str, Settings]:
    """The choices of a setting that is on or off."""
    on: Settings = {key: value}
    off: Settings = {}
    return {**dict.fromkeys(("true", "1"), on), **dict.fromkeys(("false", "0", "none"), off)}


def _of(policy: str = "", others: str = "", **kinds: str) -> dict[str, str]:
    """Keys by kind of run."""
    keys = {"policy": policy, **dict.fromkeys(("preference", "reward_model", "sft"), others), **kinds}
    return {kind: key for kind, key in keys.items() if key}


_ACTOR, _ROLLOUT, _MODEL = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.model."
_ROWS = _of("batch.prompts_per_step", "batch.rows_per_step")
_DEVICES = "start several processes with torchrun, or give scale.workers; scale.offload keeps shards in CPU memory"
_CONTEXT = "nothing is cut; data.unusable=drop leaves out rows that exceed the model's context"
_CRITIC = "for methods with a critic, such as ppo"
_WITH_POLICY = "the critic has the policy's batches and optimizer settings, and critic.learning_rate"
_GREEDY = "evaluations in a run are greedy; `whet eval RUN --samples 8` draws completions"
_AGENTS = "--env, --tool or --agent, in docs/agents.md"
_NAMED = "folder names the run; trackers take report.tracker_settings"
_N = ForeignName

# fmt: off
_TABLE: Mapping[str, ForeignName] = {
    # batches
    "num_generations n_samples_per_prompt rollout_n num_samples n_samples num_return_sequences "
    f"{_ROLLOUT}n rollout.n_samples_per_prompt": _N("batch.group_size"),
    "per_device_train_batch_size":
        _N(_ROWS, "TRL counts per device, and in RL completions: per_device_train_batch_size x devices x "
           "gradient_accumulation_steps, in RL / num_generations", conversions.batch),
    "gradient_accumulation_steps accumulate_grad_batches":
        _N("", "whet's batch is that of the whole optimizer step (batch.prompts_per_step, batch.rows_per_step); "
           "batch.micro_batch_tokens bounds memory, in tokens", is_part=True),
    "generation_batch_size":
        _N(_of("batch.prompts_per_step"), "TRL counts completions: it / num_generations", is_part=True),
    "steps_per_generation num_mini_batches":
        _N(_of("batch.updates_per_step"), "steps_per_generation / gradient_accumulation_steps", is_part=True),
    "rollout_batch_size rollout.batch_size data.train_batch_size": _N(_ROWS, "both count prompts", conversions.batch),
    f"ppo_mini_batch_size {_ACTOR}ppo_mini_batch_size":
        _N(_of("batch.updates_per_step"), "a count, not a size: train_batch_size / ppo_mini_batch_size", is_part=True),
    "train_batch_size train.batch_size":
        _N(_ROWS, "verl's train_batch_size counts prompts; OpenRLHF's counts the completions of an update: there "
           "batch.updates_per_step = rollout_batch_size x n_samples_per_prompt / train_batch_size",
           conversions.update_size),
    "batch_size": _N(_ROWS, "counts the whole optimizer step"),
    f"num_iterations ppo_epochs num_ppo_epochs {_ACTOR}ppo_epochs":
        _N(_of("batch.epochs_per_batch"), convert=conversions.positive("batch.epochs_per_batch")),
    f"micro_batch_size micro_train_batch_size micro_rollout_batch_size ppo_micro_batch_size train.micro_batch_size "
    f"rollout.micro_batch_size {_ACTOR}ppo_micro_batch_size {_ACTOR}ppo_micro_batch_size_per_gpu "
    f"{_ROLLOUT}log_prob_micro_batch_size_per_gpu actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu "
    f"{_ROLLOUT}log_prob_micro_batch_size actor_rollout_ref.ref.log_prob_micro_batch_size "
    f"{_ACTOR}use_dynamic_bsz {_ROLLOUT}log_prob_use_dynamic_bsz actor_rollout_ref.ref.log_prob_use_dynamic_bsz "
    f"{_ROLLOUT}log_prob_max_token_len_per_gpu actor_rollout_ref.ref.log_prob_max_token_len_per_gpu "
    "critic.ppo_micro_batch_size critic.forward_micro_batch_size critic.forward_micro_batch_size_per_gpu "
    "critic.ppo_max_token_len_per_gpu critic.forward_max_token_len_per_gpu critic.use_dynamic_bsz "
    "reward_model.micro_batch_size_per_gpu auto_find_batch_size precompute_ref_batch_size eval_batch_size "
    "critic.ppo_micro_batch_size_per_gpu data.micro_batch_size_per_gpu per_device_eval_batch_size":
        _N("", "batch.micro_batch_tokens bounds memory, in tokens, and never changes the gradient"),
    f"ppo_max_token_len_per_gpu {_ACTOR}ppo_max_token_len_per_gpu train.max_tokens_per_gpu":
        _N("batch.micro_batch_tokens"),
    # how long
    "max_steps total_training_steps trainer.total_training_steps":
        _N("steps", "TRL's are optimizer updates, whet's are batches", conversions.steps),
    "total_steps num_steps train_steps": _N("steps"),
    "total_episodes total_timesteps":
        _N("steps", "it counts completions: / (batch.prompts_per_step x batch.group_size)", by_hand=True),
    "num_train_epochs total_epochs num_epochs train_epochs num_episodes trainer.total_epochs train.num_episodes":
        _N("epochs", convert=conversions.epochs),
    "max_epochs train.max_epochs":
        _N(_of("batch.epochs_per_batch", "epochs"), "in RL of one batch, else of the data",
           lambda value, run: {"batch.epochs_per_batch": int(number(value))} if run.kind == "policy"
           else conversions.epochs(value, run)),
    # the optimizer
    f"learning_rate lr actor_learning_rate optim.lr adam.lr actor.adam.lr {_ACTOR}optim.lr":
        _N("optimizer.learning_rate"),
    f"lr_scheduler_type lr_scheduler scheduler optim.lr_scheduler actor.lr_scheduler {_ACTOR}optim.lr_scheduler_type "
    f"{_ACTOR}optim.warmup_style":
        _N("optimizer.schedule", "one of constant, linear, cosine", choices={
            **{name: {"optimizer.schedule": name} for name in ("constant", "linear", "cosine")},
            "constant_with_warmup": {"optimizer.schedule": "constant"},
            "cosine_with_min_lr": {"optimizer.schedule": "cosine"}}),
    f"warmup_steps lr_warmup_steps num_warmup_steps warmup {_ACTOR}optim.lr_warmup_steps":
        _N("optimizer.warmup_steps", convert=conversions.in_steps("optimizer.warmup_steps")),
    "warmup_ratio lr_warmup_ratio actor.lr_warmup_ratio optim.lr_warmup_steps_ratio "
    f"{_ACTOR}optim.lr_warmup_steps_ratio":
        _N("optimizer.warmup_steps", "in steps: the ratio x steps", conversions.in_steps("optimizer.warmup_steps")),
    f"weight_decay l2 optim.weight_decay adam.weight_decay actor.adam.weight_decay {_ACTOR}optim.weight_decay":
        _N("optimizer.weight_decay"),
    "lr_scheduler_kwargs min_lr min_lr_ratio actor.min_lr_ratio "
    f"{_ACTOR}optim.min_lr_ratio": _N("", "optimizer.schedule has no floor: linear and cosine end at 0", choices={
        "0": {}, "0.0": {}, "none": {}}),
    "max_grad_norm max_norm grad_clip clip_grad gradient_clipping gradient_clip gradient_clip_val actor.max_norm "
    "optim.clip_grad "
    f"{_ACTOR}grad_clip {_ACTOR}optim.clip_grad":
        _N("optimizer.max_gradient_norm"),
    "adam_beta1": _N("optimizer.beta1"),
    "adam_beta2": _N("optimizer.beta2"),
    f"adam_betas optim.betas adam.betas actor.adam.betas {_ACTOR}optim.betas":
        _N("optimizer.beta1 and optimizer.beta2", convert=conversions.betas),
    "adam_epsilon adam_eps adam.eps actor.adam.eps optimizer.eps": _N("optimizer.epsilon"),
    "optim_args optim_target_modules":
        _N("", "whet trains with AdamW: optimizer.beta1, beta2, epsilon and weight_decay are its numbers"),
    f"optim optimizer.name optimizer.type actor.optim {_ACTOR}optim.optimizer":
        _N("", "whet trains with AdamW; optimizer.states=int8 keeps its moments in 8 bits", conversions.optimizer),
    "critic_lr critic_learning_rate critic.optim.lr critic.adam.lr":
        _N(_of("critic.learning_rate"), _CRITIC, conversions.of_critic("critic.learning_rate")),
    "critic.ppo_mini_batch_size critic.ppo_epochs critic.grad_clip critic.optim.weight_decay critic.optim.betas "
    "critic.optim.lr_warmup_steps critic.optim.lr_warmup_steps_ratio critic.shuffle critic.loss_agg_mode":
        _N("", _WITH_POLICY),
    "trainer.critic_warmup":
        _N(_of("objective.value.warmup"), _CRITIC, conversions.of_critic("objective.value.warmup")),
    # the model
    f"model_name_or_path model_name model_path pretrain actor.model_name_or_path model.model_name_or_path "
    f"model.partial_pretrain {_MODEL}path": _N("model.name"),
    "critic.model.path critic_pretrain critic.model_name_or_path":
        _N("", "the critic starts from the policy; critic.start takes a reward model"),
    "reward_pretrain reward.model_name_or_path reward_model.model.path reward_model_path reward_model":
        _N("", "reward.parts takes the run of a reward model that whet trained; wrap any other in a reward function"),
    "teacher_model teacher_model_name_or_path": _N(_of("teacher.name")),
    "ref_model reference_model ref.model_name_or_path": _N("model.reference_model"),
    "bf16 mixed_precision torch_dtype dtype param_dtype ds.param_dtype":
        _N("model.precision", "bf16 or fp32; model.weights says how weights are kept", choices={
            **_switch("model.precision", "bf16"), "bf16": {"model.precision": "bf16"},
            "bfloat16": {"model.precision": "bf16"}, "float32": {"model.precision": "fp32"}, "auto": {}, "no": {}}),
    "fp16": _N("", "whet computes in bf16 or fp32: model.precision", choices={"false": {}, "none": {}}),
    "gradient_checkpointing enable_gradient_checkpointing actor.gradient_checkpointing_enable "
    f"model.gradient_checkpointing_enable model.enable_gradient_checkpointing {_MODEL}enable_gradient_checkpointing":
        _N("model.recompute", "auto recomputes where memory asks for it, none never",
           choices={"true": {}, "false": {"model.recompute": "none"}}),
    f"r lora_r lora_rank ds.lora.rank model.lora_rank {_MODEL}lora_rank":
        _N("model.lora.rank", convert=conversions.positive("model.lora.rank")),
    f"lora_alpha ds.lora.alpha model.lora_alpha {_MODEL}lora_alpha":
        _N("model.lora.alpha", convert=conversions.lora_alpha),
    "target_modules lora_target_modules lora_modules ds.lora.target_modules model.target_modules "
    f"{_MODEL}target_modules":
        _N("model.lora.target_modules", "empty: all linear layers", conversions.target_modules),
    "peft_config use_peft": _N("model.lora.rank", convert=conversions.adapters),
    "load_in_4bit ds.load_in_4bit":
        _N("model.lora.base", "4bit, with model.lora.rank", choices=_switch("model.lora.base", "4bit")),
    "load_in_8bit": _N("", "model.lora.base=4bit, with model.lora.rank, is what whet has", choices={"false": {}}),
    "lora_dropout ds.lora.dropout": _N("", "adapters have no dropout", choices={"0": {}, "0.0": {}}),
    # data
    "dataset_config dataset_config_name dataset_train_split dataset_split train_split":
        _N("data.source", "hub:owner/name/config:split", by_hand=True),
    "dataset_test_split eval_split": _N("eval.source", "hub:owner/name/config:split", by_hand=True),
    "val_split test_size eval_size": _N("eval.source", "`whet data split` makes held-out rows", by_hand=True),
    "train_dataset dataset dataset_name train_files prompt_data data.train_files data.prompt_dataset data.dataset":
        _N("data.source", "a file, or hub:owner/name", conversions.source("data.source")),
    "eval_dataset val_files eval_data validation_data val_dataset data.val_files eval.dataset":
        _N("eval.source", "a file, or hub:owner/name", conversions.source("eval.source")),
    "max_samples data.max_samples data.train_max_samples": _N("data.limit", convert=conversions.positive("data.limit")),
    "prompt_key input_key data.prompt_key data.input_key":
        _N("data.columns", "data.columns.YOURS=prompt", conversions.column("prompt")),
    "label_key data.label_key": _N("data.columns", "data.columns.YOURS=answer", conversions.column("answer")),
    "output_key response_key data.output_key data.response_key":
        _N("data.columns", "data.columns.YOURS=completion", conversions.column("completion")),
    "data.reward_fn_key": _N("", "a reward takes any column of the rows by its name"),
    "data.custom_cls.path data.custom_cls.name": _N("", "whet.train(data=rows) takes rows from Python"),
    "data.gen_batch_size": _N("", "objective.keep draws as many prompts as it needs"),
    "chat_template_path": _N("model.chat_template", "a Jinja file, or its text", by_hand=True),
    "prompt_template input_template data.input_template template data.apply_chat_template_kwargs.*":
        _N("model.chat_template", "a Jinja file, or its text; data.as_chat=false sends prompts as they are",
           by_hand=True),
    "dataset_text_field": _N("data.columns", "data.columns.YOURS=text", conversions.column("text")),
    "apply_chat_template data.apply_chat_template": _N("data.as_chat", choices=_switch("data.as_chat")),
    "max_prompt_length prompt_max_len max_length max_seq_length max_len truncation_mode data.max_prompt_length "
    f"{_ROLLOUT}prompt_length {_ROLLOUT}max_model_len "
    "data.max_length data.max_len data.truncation data.filter_overlong_prompts": _N("", _CONTEXT),
    "assistant_only_loss":
        _N(_of(sft="data.every_completion"), "prompts are never learned", choices=_switch("data.every_completion")),
    "completion_only_loss":
        _N("", "prompts are never learned; data.every_completion adds the earlier assistant turns",
           choices={"true": {}, "none": {}}),
    "packing": _N(_of("", "batch.packed"), "nothing is padded in RL", choices=_switch("batch.packed")),
    "padding_free packing_samples ds.packing_samples":
        _N(_of("", "batch.packed"), "nothing is padded in RL", choices=_switch("batch.packed")),
    # sampling
    "max_completion_length response_length max_response_length generate_max_len max_gen_len max_tokens max_new_tokens "
    f"data.max_response_length rollout.max_new_tokens {_ROLLOUT}response_length": _N("sampling.max_new_tokens"),
    f"temperature temp rollout.temperature {_ROLLOUT}temperature": _N("sampling.temperature"),
    f"top_p rollout.top_p {_ROLLOUT}top_p": _N("sampling.top_p"),
    f"top_k {_ROLLOUT}top_k": _N("sampling.top_k", "0 is off", conversions.positive("sampling.top_k")),
    "min_p": _N("sampling.min_p", convert=conversions.positive("sampling.min_p")),
    "repetition_penalty generation_kwargs":
        _N("", "completions are drawn from the policy as it is; the section sampling has all there is",
           choices={"1.0": {}, "none": {}}),
    f"use_vllm vllm vllm_num_engines vllm.num_engines {_ROLLOUT}name":
        _N("sampling.engine", "vllm, or torch, which shares the trainer's weights", conversions.engine),
    "vllm_mode vllm_server_host vllm_server_port vllm_server_base_url vllm_server_timeout":
        _N("sampling.engine", "vllm runs in the trainer's process, or behind scale.engines", by_hand=True),
    f"gpu_memory_utilization {_ROLLOUT}gpu_memory_utilization vllm_gpu_memory_utilization vllm.gpu_memory_utilization "
    f"vllm_max_model_length vllm_tensor_parallel_size vllm.tensor_parallel_size {_ROLLOUT}tensor_model_parallel_size "
    f"vllm_enable_sleep_mode vllm.enable_sleep {_ROLLOUT}free_cache_engine {_ROLLOUT}enforce_eager "
    f"{_ROLLOUT}max_num_batched_tokens {_ROLLOUT}max_num_seqs {_ROLLOUT}enable_chunked_prefill":
        _N("sampling.engine_settings", "by name, in docs/engines.md", by_hand=True),
    f"{_ROLLOUT}multi_turn.max_assistant_turns": _N("env.max_turns", _AGENTS, by_hand=True),
    f"{_ROLLOUT}multi_turn.* {_ROLLOUT}agent.*": _N("", _AGENTS),
    # the objective
    "beta model.beta":
        _N(_of("objective.kl.beta", preference="objective.curve.beta"), "0 in RL: objective.kl=none", conversions.beta),
    "kl_coef kl_beta kl_coeff kl_coefficient kl_weight": _N(_of("objective.kl.beta")),
    "init_kl_coef algo.kl.init_coef":
        _N(_of("objective.kl.beta"), "for objective.kl=k1_reward, or k2 or k3 in the loss", conversions.openrlhf_kl),
    f"use_kl_loss algo.kl.use_loss {_ACTOR}use_kl_loss":
        _N(_of("objective.kl"), "k3, k2 or abs in the loss; none", conversions.verl_kl),
    "use_kl_in_reward algorithm.use_kl_in_reward":
        _N(_of("objective.kl"), "k1_reward and others in the reward; none", is_part=True),
    f"kl_loss_coef {_ACTOR}kl_loss_coef":
        _N(_of("objective.kl.beta"), "verl reads it only with use_kl_loss=true", is_part=True),
    "algorithm.kl_ctrl.kl_coef":
        _N(_of("objective.kl.beta"), "verl reads it only with use_kl_in_reward=true", is_part=True),
    f"kl_loss_type {_ACTOR}kl_loss_type": _N(_of("objective.kl"), "low_var_kl is k3, mse is k2", is_part=True),
    "kl_penalty algorithm.kl_penalty": _N(_of("objective.kl"), "kl is k1_reward, low_var_kl k3_reward", is_part=True),
    "kl_estimator algo.kl.estimator": _N(_of("objective.kl"), "in the reward: k1_reward and so on", is_part=True),
    "algorithm.kl_ctrl.type":
        _N(_of("objective.control"), "proportional, for verl's adaptive; or fixed", conversions.kl_control),
    "algorithm.kl_ctrl.target_kl": _N(_of("objective.control.target"), "of proportional", is_part=True),
    "algorithm.kl_ctrl.horizon": _N(_of("objective.control.horizon"), "of proportional", is_part=True),
    "kl_target target_kl adaptive_kl kl_horizon algo.kl.target algo.kl.horizon":
        _N(_of("objective.control"), "proportional, with its target and horizon", by_hand=True),
    "epsilon cliprange clip_range clip_epsilon epsilon_clip eps_clip clip_eps actor.eps_clip":
        _N(_of("objective.clip.low and objective.clip.high"), "AdamW's is optimizer.epsilon",
           conversions.clip("low", "high")),
    f"clip_ratio {_ACTOR}clip_ratio":
        _N(_of("objective.clip.low and objective.clip.high"), "objective.clip itself names a rule",
           conversions.clip("low", "high")),
    f"epsilon_low clip_ratio_low {_ACTOR}clip_ratio_low":
        _N(_of("objective.clip.low"), convert=conversions.clip("low")),
    f"epsilon_high clip_ratio_high {_ACTOR}clip_ratio_high":
        _N(_of("objective.clip.high"), convert=conversions.clip("high")),
    f"delta clip_ratio_c actor.dual_clip {_ACTOR}clip_ratio_c":
        _N(_of("objective.clip.ceiling"), "with objective.clip=dual_clip", conversions.clip("kind", "ceiling")),
    f"loss_type loss_agg_mode {_ACTOR}loss_agg_mode":
        _N(_of("objective.aggregate", preference="objective.curve"), "dapo, bnpo and token-mean are token_mean, grpo "
           "is sequence_mean, dr_grpo fixed_length; cispo, sapo and the losses of preferences are methods",
           conversions.loss_type),
    "importance_sampling_level":
        _N(_of("objective.ratio"), "token or sequence, or the methods gspo and gspo_token", conversions.ratio),
    "scale_rewards norm_adv_by_std_in_grpo algorithm.norm_adv_by_std_in_grpo":
        _N(_of("objective.scale"), "group_std or none", choices={
            "group": {}, "true": {}, "none": {"objective.scale": "none"}, "false": {"objective.scale": "none"}}),
    "normalize_advantage norm_adv whiten_advantages whiten_rewards norm_rewards normalize_rewards":
        _N(_of("objective.scale"), "group_std, whiten_completions, whiten_tokens or none", by_hand=True),
    f"entropy_coef entropy_coeff ent_coef entropy_bonus entropy_coefficient actor.entropy_coef {_ACTOR}entropy_coeff":
        _N(_of("objective.entropy.weight"), "with objective.entropy=bonus", conversions.entropy),
    "mask_truncated_completions":
        _N(_of("objective.select"), "finished", choices=_switch("objective.select", "finished")),
    "top_entropy_quantile": _N(_of("objective.select"), "top_entropy", conversions.top_entropy),
    "sync_ref_model":
        _N(_of("objective.reference", preference="objective.reference"), "ema, or reset where nothing is mixed",
           conversions.reference),
    "ref_model_mixup_alpha":
        _N(_of("objective.reference.decay", preference="objective.reference.decay"), "1 - alpha, of ema", is_part=True),
    "ref_model_sync_steps":
        _N(_of("objective.reference.every", preference="objective.reference.every"), "for ema or reset", is_part=True),
    "vllm_importance_sampling_correction":
        _N(_of("objective.mismatch"), "truncate or truncate_sequence", conversions.mismatch),
    "vllm_importance_sampling_mode": _N(_of("objective.mismatch"), "truncate or truncate_sequence", is_part=True),
    "vllm_importance_sampling_clip_max": _N(_of("objective.mismatch.ceiling"), is_part=True),
    "vllm_importance_sampling_clip_min": _N(_of("objective.mismatch.low"), "for mask and sequence_mask", is_part=True),
    f"{_ACTOR}tis_imp_ratio_cap algorithm.rollout_is algorithm.rollout_is_threshold algorithm.rollout_correction.*":
        _N(_of("objective.mismatch"), "truncate, truncate_sequence, mask or sequence_mask", by_hand=True),
    "use_bias_correction_kl": _N(_of("objective.kl"), "k3_corrected, or k3", is_part=True),
    "off_policy_mask_threshold":
        _N(_of("objective.mismatch.limit"), "with objective.mismatch=stale_mask", lambda value, run: {
            "objective.mismatch.kind": "stale_mask", "objective.mismatch.limit": number(value)}),
    "sapo_temperature_pos": _N(_of("objective.clip.tau_positive"), "for sapo", conversions.of_sapo("tau_positive")),
    "sapo_temperature_neg": _N(_of("objective.clip.tau_negative"), "for sapo", conversions.of_sapo("tau_negative")),
    "rpo_alpha cpo_alpha": _N(_of(preference="objective.imitate.coefficient"), "for rpo and cpo"),
    "simpo_gamma": _N(_of(preference="objective.curve.gamma"), "for simpo"),
    "loss_weights": _N(_of(preference="objective.imitate.coefficient"), "weight of the SFT term", is_part=True),
    "adv_estimator advantage_estimator algorithm.adv_estimator algo.advantage.estimator":
        _N("", "it is the method: ppo for gae, grpo, rloo, remax, reinforce_pp, ...", is_part=True),
    f"loss_mode {_ACTOR}policy_loss.loss_mode actor.policy_loss_type":
        _N("", "it is the method: gspo, clip_cov, kl_cov, cispo, sapo, gmpo for geo_mean", is_part=True),
    "lam lambd gae_lambda algorithm.lam algo.advantage.lambd":
        _N(_of("objective.baseline.lam"), _CRITIC, conversions.of_critic("objective.baseline.lam")),
    "gamma gae_gamma discount discount_factor algorithm.gamma algo.advantage.gamma":
        _N(_of("objective.baseline.gamma"), _CRITIC, conversions.of_critic("objective.baseline.gamma")),
    "vf_coef": _N(_of("objective.value.coefficient"), _CRITIC),
    "cliprange_value value_clip vf_clip critic.cliprange_value critic.value_clip":
        _N(_of("objective.value"), "clipped_error with its width", by_hand=True),
    "dynamic_filtering algo.dynamic_filtering_enable algorithm.filter_groups.enable":
        _N(_of("objective.keep"), "mixed_outcome, as in dapo", choices=_switch("objective.keep", "mixed_outcome")),
    "algorithm.filter_groups.max_num_gen_batches":
        _N(_of("objective.keep.rounds"), "for mixed_outcome", conversions.keep_rounds),
    "algorithm.filter_groups.metric": _N(_of("objective.keep"), "mixed_outcome looks at outcomes", is_part=True),
    "reward_model.overlong_buffer.* reward.reward_kwargs.overlong_buffer_cfg.* "
    "reward_model.reward_kwargs.overlong_buffer_cfg.*":
        _N(_of("objective.shape"), "soft_overlong; its tail is a share of sampling.max_new_tokens", by_hand=True),
    "label_smoothing model.label_smoothing":
        _N(_of(preference="objective.curve.smoothing"), "as in cdpo",
           conversions.positive("objective.curve.smoothing")),
    "desirable_weight": _N(_of(preference="objective.curve.desirable"), "for kto"),
    "undesirable_weight": _N(_of(preference="objective.curve.undesirable"), "for kto"),
    "precompute_ref_log_probs":
        _N(_of(preference="preference.reference_logp"), "stored",
           choices=_switch("preference.reference_logp", "stored")),
    "center_rewards_coefficient": _N(_of(reward_model="reward_model.centre")),
    # rewards
    "reward_funcs reward_function":
        _N("reward.parts", "in Python reward={name: (reward, weight)}", lambda value, run: {
            "reward.parts": [{"reward": name} for name in conversions.listed(value)]}),
    "reward_weights": _N("reward.parts", "each part has its weight", is_part=True),
    "custom_reward_function remote_rm_url custom_reward_function.path reward.custom_reward_function.path "
    "reward.remote_url": _N("reward.parts", "file.py:compute_score or file.py:reward_func", conversions.reward_file),
    "custom_reward_function.name reward.custom_reward_function.name":
        _N("reward.parts", "file.py:NAME", is_part=True),
    "custom_reward_function.reward_kwargs.* reward.custom_reward_function.reward_kwargs.*":
        _N("reward.parts", "settings of the part, by name", by_hand=True),
    "reward_manager reward_model.launch_reward_fn_async reward_model.strategy reward_model.reward_manager "
    "reward_model.enable": _N("", "rewards are reward.parts"),
    # evaluation, saving, reports
    "eval_steps test_freq trainer.test_freq eval.steps": _N("eval.every", convert=conversions.in_steps("eval.every")),
    "eval_strategy": _N("eval.every", "in steps", choices={"no": {}, "steps": {}}),
    "early_stopping_patience patience": _N("eval.stop_after"),
    "early_stopping": _N("eval.stop_after", "how many evaluations without a new best", by_hand=True),
    f"{_ROLLOUT}val_kwargs.* eval.temperature eval.n_samples_per_prompt eval_temperature num_generations_eval "
    "eval_n_samples_per_prompt": _N("", _GREEDY),
    "eval_on_start": _N("", "a run is evaluated before its first step"),
    "val_only trainer.val_only": _N("", "`whet eval RUN` evaluates without training"),
    "save_steps save_freq trainer.save_freq ckpt.save_steps":
        _N("report.save_every", convert=conversions.in_steps("report.save_every")),
    "save_strategy":
        _N("report.save_every", "in steps; 0: as often as 1% of the time pays for", choices={"steps": {}, "best": {}}),
    "trainer.max_critic_ckpt_to_keep trainer.remove_previous_ckpt_in_save":
        _N("report.keep_checkpoints", "a checkpoint holds the critic too", by_hand=True),
    "ckpt.save_hf": _N("", "RUN/final and RUN/best are folders that transformers loads"),
    "save_total_limit max_ckpt_num ckpt.max_num trainer.max_actor_ckpt_to_keep trainer.max_ckpt_to_keep":
        _N("report.keep_checkpoints", convert=conversions.positive("report.keep_checkpoints")),
    "save_only_model": _N("report.save", "weights", choices=_switch("report.save", "weights")),
    "load_best_model_at_end metric_for_best_model greater_is_better ckpt.best_metric_key":
        _N("", "the best model by evaluation is always kept: run.best, RUN/best"),
    "resume_from_checkpoint resume load_checkpoint trainer.resume_mode trainer.resume_from_path":
        _N("", "`whet resume RUN` or whet.resume(folder) continues a run"),
    "output_dir save_path save_dir out_dir checkpoint_dir default_local_dir trainer.default_local_dir "
    "ckpt.output_dir": _N("folder"),
    "push_to_hub hub_private_repo hub_model_id hub_strategy hub_token":
        _N("", "whet uploads nothing; run.model is a folder that the hub's own tools upload"),
    "report_to logger trainer.logger":
        _N("report.trackers", "trackio, tensorboard, wandb, mlflow, or a registered one", conversions.trackers),
    "wandb use_wandb logger.wandb.key":
        _N("report.trackers", "wandb", lambda value, run: {"report.trackers": ["wandb"]}),
    "logging_steps logging_strategy logging_first_step logger.logging_steps":
        _N("", "every step is recorded in the run folder"),
    "log_completions num_completions_to_print trainer.log_val_generations trainer.rollout_data_dir "
    "trainer.validation_data_dir":
        _N("report.samples_per_step", "groups of a step whose completions are recorded", by_hand=True),
    "run_name experiment_name project wandb_project trainer.project_name trainer.experiment_name logger.wandb.project "
    "logger.wandb.run_name logger.tensorboard_dir logging_dir": _N("", _NAMED),
    "seed random_seed trainer.seed train.seed": _N("seed"),
    # devices, and what whet does by itself
    "n_gpus_per_node trainer.n_gpus_per_node actor_num_gpus_per_node actor.num_gpus_per_node":
        _N("scale.workers", "counts all machines; or start with torchrun", conversions.workers),
    "trainer.nnodes actor_num_nodes actor.num_nodes": _N("scale.workers", "x GPUs of each", is_part=True),
    "gpus num_gpus devices world_size num_processes nproc nproc_per_node":
        _N("scale.workers", "counts all machines; or start with torchrun", by_hand=True),
    "ddp_timeout": _N("scale.timeout", "in seconds"),
    "use_cpu": _N("model.device", "cpu", choices=_switch("model.device", "cpu")),
    "deepspeed fsdp fsdp_config zero_stage ds.zero_stage ds.adam_offload tensor_parallel_size sequence_parallel_size "
    f"parallelism_config ds3_gather_for_generation {_ACTOR}strategy {_ACTOR}fsdp_config.* {_ACTOR}megatron.* "
    f"{_ACTOR}ulysses_sequence_parallel_size actor_rollout_ref.ref.fsdp_config.* actor_rollout_ref.ref.megatron.* "
    "critic.strategy critic.model.fsdp_config.* critic.ulysses_sequence_parallel_size ref.num_nodes "
    "critic.num_nodes reward.num_nodes": _N("", _DEVICES),
    "remove_unused_columns disable_dropout dataloader_num_workers dataset_num_proc use_liger_kernel tf32 torch_compile "
    "attn_implementation use_remove_padding trust_remote_code shuffle_dataset data.shuffle trainer.val_before_train "
    "use_cache use_liger_loss save_safetensors dataloader_drop_last group_by_length length_column_name shuffle "
    "ignore_data_skip padding_side pad_token eos_token cache_implementation log_unique_prompts eval_accumulation_steps "
    "data.val_batch_size data.dataloader_num_workers data.return_raw_chat data.filter_overlong_prompts_workers "
    f"data.tokenizer actor_rollout_ref.hybrid_engine {_ROLLOUT}load_format {_ROLLOUT}layered_summon "
    f"{_ROLLOUT}do_sample {_ROLLOUT}mode "
    f"{_MODEL}use_shm {_ACTOR}use_torch_compile {_ACTOR}shuffle critic.enable "
    f"{_MODEL}use_fused_kernels {_ROLLOUT}calculate_log_probs critic.model.use_remove_padding "
    "critic.model.enable_gradient_checkpointing actor_rollout_ref.ref.use_torch_compile data.trust_remote_code "
    f"trainer.balance_batch {_MODEL}use_remove_padding {_MODEL}trust_remote_code": _N("", "whet needs no such setting"),
}
# fmt: on

FOREIGN: Mapping[str, ForeignName] = {
    name: replace(entry, name=names.split()[0]) for names, entry in _TABLE.items() for name in names.split()
}

# Sections of verl and OpenRLHF that whet has none of: below them only whole paths count.
ROOTS = frozenset(("actor_rollout_ref", "algorithm", "trainer", "custom_reward_function", "reward_manager"))
ROOTS |= {"global_profiler", "ray_kwargs", "actor", "algo", "ckpt", "ds", "logger", "vllm", "train", "rollout", "ref"}
# Sections of whet's that say what a key is about: `eval.temperature` is not the temperature of the training.
OWN_MEANING = frozenset(("eval", "critic", "reward", "reward_model", "teacher", "env", "health", "preference"))


def foreign_entry(path: str) -> ForeignName | None:
    """The line of the table that has this path, or a star instead of its last parts."""
    parts = path.split(".")
    stars = (".".join([*parts[:count], "*"]) for count in range(len(parts) - 1, 0, -1))
    return next((FOREIGN[name] for name in (path, *stars) if name in FOREIGN), None)


def foreign_name(path: str) -> ForeignName | None:
    """What a key of another trainer is: found by its whole path, else, below a section of whet's, by its last part."""
    section, _, name = path.rpartition(".")
    entry = foreign_entry(path)
    if entry is not None or section.partition(".")[0] in ROOTS or path in ROOTS:
        return entry
    entry = FOREIGN.get(name)
    is_other = section in OWN_MEANING and entry is not None and not entry.is_below(section)
    return None if is_other else entry
