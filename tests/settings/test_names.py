"""Names of 0.1 and of other trainers are refused with the key to write instead."""

from __future__ import annotations

import pytest

import whet
from tests.support.for_every import for_every
from whet.objective import catalogue
from whet.settings.foreign import FOREIGN
from whet.settings.layers import OLD_COMPONENTS, OLD_KEYS, from_settings, has_key, translated
from whet.tools.pipelines.registry import PIPELINES
from whet.tools.pipelines.settings import resolve_settings
from whet.training.config import CONFIG_CLASSES, resolved
from whet.types import WhetError

METHODS = {"policy": "grpo", "preference": "dpo", "reward_model": "rm", "sft": "sft"}


@for_every(FOREIGN)
def test_every_key_of_a_foreign_name_exists(name):
    entry = FOREIGN[name]
    assert entry.key or entry.note, "neither a key nor a reason"
    keys = dict.fromkeys(CONFIG_CLASSES, entry.key) if isinstance(entry.key, str) else entry.key
    assert set(keys) <= set(CONFIG_CLASSES)
    reached = 0
    for kind, path in ((kind, path) for kind, several in keys.items() for path in several.split(" and ") if path):
        if isinstance(entry.key, str) and not has_key(CONFIG_CLASSES[kind], path):
            continue
        reached += 1
        assert has_key(CONFIG_CLASSES[kind], path), (kind, path)
        section, axis, *number = [*path.split("."), ""]
        if section == "objective" and number[0]:
            numbers = [component.numbers for component in catalogue.axes(kind)[axis].components.values()]
            assert any(number[0] in each for each in numbers), path
    assert reached or not entry.key


CLIP = "in whet it is objective.clip.low and objective.clip.high"

# Names that people from TRL, verl and OpenRLHF type: what the error must say, and what it must not.
TYPED = [
    ("grpo", "num_generations=8", "config: no key is called 'num_generations'; in whet it is batch.group_size", ""),
    ("grpo", "batch.num_generations=8", "'batch.num_generations'; in whet it is batch.group_size", ""),
    ("grpo", "beta=0.1", "in whet it is objective.kl.beta", ""),
    ("dpo", "beta=0.1", "in whet it is objective.curve.beta", ""),
    ("grpo", "objective.kl_coef=0.1", "'objective.kl_coef'; in whet it is objective.kl.beta", ""),
    ("grpo", "objective.epsilon_high=0.28", "in whet it is objective.clip.high", ""),
    *(
        ("grpo", f"{name}=0.2", CLIP, "did you mean")
        for name in ("epsilon", "objective.epsilon", "clip_range", "cliprange", "clip_eps", "clip_ratio", "eps_clip")
    ),
    ("dpo", "epsilon=0.2", "which this kind of run does not have", "optimizer.epsilon"),
    ("sft", "clip_range=0.2", "objective.clip.high, which this kind of run does not have", ""),
    ("ppo", "optimizer.eps=0.2", "in whet it is optimizer.epsilon", ""),
    *(
        (method, f"{name}=3", "in whet it is epochs", "")
        for name in ("num_train_epochs", "total_epochs", "trainer.total_epochs")
        for method in ("grpo", "sft")
    ),
    ("grpo", "max_steps=3", "in whet it is steps: TRL's are optimizer updates", ""),
    (
        "grpo",
        "per_device_train_batch_size=4",
        "batch.prompts_per_step: TRL counts per device, and in RL completions",
        "",
    ),
    ("sft", "per_device_train_batch_size=4", "in whet it is batch.rows_per_step: TRL counts per device", ""),
    ("grpo", "gradient_accumulation_steps=4", "whet's batch is that of the whole optimizer step", "in whet it is"),
    ("grpo", "generation_batch_size=64", "batch.prompts_per_step: TRL counts completions", ""),
    ("grpo", "steps_per_generation=4", "batch.updates_per_step: steps_per_generation / gradient", ""),
    ("grpo", "ppo_mini_batch_size=64", "batch.updates_per_step: a count, not a size", ""),
    ("grpo", "train_batch_size=64", "verl's train_batch_size counts prompts; OpenRLHF's", ""),
    ("grpo", "ref_model=other", "in whet it is model.reference_model", ""),
    ("dpo", "ref_model=other", "in whet it is model.reference_model", ""),
    ("grpo", "loss_type=dapo", "objective.aggregate: dapo, bnpo and token-mean are token_mean", ""),
    ("grpo", "lam=0.95", "in whet it is objective.baseline.lam: for methods with a critic", ""),
    ("grpo", "deepspeed=zero3.json", "torchrun, or give scale.workers", "did you mean"),
    ("grpo", "optimizer.name=adamw", "whet trains with AdamW; optimizer.states=int8", "model.name"),
    ("grpo", "optim=paged_adamw_8bit", "optimizer.states=int8", "did you mean"),
    ("grpo", "use_vllm=true", "in whet it is sampling.engine: vllm", ""),
    ("grpo", "report_to=wandb", "in whet it is report.trackers", "callback"),
    ("grpo", "logging_steps=1", "every step is recorded", ""),
    ("sft", "max_prompt_length=512", "data.unusable=drop", ""),
    ("grpo", "save_only_model=true", "in whet it is report.save: weights", ""),
    ("grpo", "load_best_model_at_end=true", "the best model by evaluation is always kept", ""),
    ("grpo", "save_strategy=epoch", "in whet it is report.save_every: in steps", ""),
    ("grpo", "push_to_hub=true", "whet uploads nothing", ""),
    ("grpo", "sync_ref_model=true", "in whet it is objective.reference: ema", ""),
    ("grpo", "log_completions=true", "in whet it is report.samples_per_step", ""),
    ("grpo", "repetition_penalty=1.1", "completions are drawn from the policy as it is", "did you mean"),
    ("sft", "lr=0.1", "in whet it is optimizer.learning_rate", ""),
    ("grpo", "learning_rate=0.1", "in whet it is optimizer.learning_rate", ""),
    ("sft", "model.target_modules=q_proj", "in whet it is model.lora.target_modules", ""),
    ("sft", "num_generations=4", "it is whet's batch.group_size, which this kind of run does not have", ""),
    ("grpo", "batch.groupsize=4", "did you mean 'batch.group_size'?", ""),
    ("grpo", "sampling.group_size=4", "did you mean 'batch.group_size'?", ""),
    ("grpo", "objective.clipp=1", "did you mean 'objective.clip'?", ""),
    ("grpo", "actor_rollout_ref.rollout.n=8", "'actor_rollout_ref.rollout.n'; in whet it is batch.group_size", ""),
    ("grpo", "actor_rollout_ref.actor.optim.lr=1e-6", "in whet it is optimizer.learning_rate", ""),
    ("grpo", "actor_rollout_ref.actor.clip_ratio=0.2", CLIP, ""),
    ("ppo", "critic.optim.lr=1e-5", "in whet it is critic.learning_rate", ""),
    ("grpo", "algorithm.adv_estimator=grpo", "it is the method", ""),
    ("grpo", "algorithm.kl_ctrl.kl_coef=0.1", "only with use_kl_in_reward=true", ""),
    ("grpo", "trainer.logger=wandb", "in whet it is report.trackers", ""),
    ("grpo", "data.train_batch_size=64", "in whet it is batch.prompts_per_step", ""),
    ("grpo", "actor_rollout_ref.rollout.val_kwargs.temperature=1", "evaluations in a run are greedy", "sampling.temp"),
    ("grpo", "eval.temperature=1", "evaluations in a run are greedy", "sampling.temperature"),
    ("grpo", "eval.top_p=1", "known in eval: source, every", "sampling.top_p"),
    ("ppo", "critic.optim.weight_decay=0.1", "the critic has the policy's batches", "in whet it is"),
    ("ppo", "critic.strategy=fsdp", "torchrun, or give scale.workers", "critic.start"),
    ("ppo", "critic.gamma=1", "known in critic: trunk, start", "objective.baseline"),
    ("ppo", "trainer.critic_warmup=10", "in whet it is objective.value.warmup", ""),
    # other words, however alike
    *(
        ("grpo", f"{name}=1", expected, "did you mean")
        for name, expected in (
            ("temp", "in whet it is sampling.temperature"),
            ("wandb", "in whet it is report.trackers"),
            ("use_cache", "whet needs no such setting"),
            ("whiten_rewards", "in whet it is objective.scale"),
            ("reward_model", "the run of a reward model"),
            ("optim_args", "whet trains with AdamW"),
            ("prompt_template", "in whet it is model.chat_template"),
            ("steps_per_epoch", "known here: "),
            ("verbose", "known here: "),
            ("replay_buffer", "known here: "),
        )
    ),
    ("grpo", "total_steps=3", "in whet it is steps", ""),
    ("grpo", "total_episodes=3", "it counts completions", ""),
    ("grpo", "name=x", "did you mean one of model.name, env.name, teacher.name?", ""),
    ("grpo", "algorithm.kl_ctrl.target_kl=0.1", "in whet it is objective.control.target: of proportional", ""),
    ("grpo", "reward_model.overlong_buffer.len=100", "in whet it is objective.shape: soft_overlong", ""),
    ("grpo", "actor_rollout_ref.actor.fsdp_config.param_offload=true", "scale.offload keeps shards", ""),
    ("grpo", "actor_rollout_ref.rollout.multi_turn.enable=true", "--env, --tool or --agent", ""),
    ("grpo", "custom_reward_function.reward_kwargs.scale=2", "settings of the part", ""),
    ("dpo", "simpo_gamma=0.5", "in whet it is objective.curve.gamma", ""),
    ("grpo", "simpo_gamma=0.5", "which this kind of run does not have", ""),
    ("grpo", "trainer.device=cuda", "whet has no counterpart", "did you mean"),
]


@for_every(TYPED)
def test_a_foreign_name_is_answered_with_ours(method, setting, expected, never):
    with pytest.raises(WhetError) as error:
        resolved(method, from_settings([setting]))
    assert expected in str(error.value), error.value
    assert not never or never not in str(error.value), error.value


def test_all_unknown_keys_are_named_at_once():
    given = [
        "num_generations=8",
        "batch.groupsize=2",
        "objective.epsilon=0.2",
        "trainer.nnodes=1",
        "batch.lag=1",
        "zzz=1",
    ]
    with pytest.raises(WhetError) as error:
        resolved("grpo", from_settings([*given, "batch.group_size=four"]))
    assert str(error.value).startswith("config: 6 unknown keys: ")
    for key in ("num_generations", "batch.groupsize", "objective.epsilon", "trainer.nnodes", "zzz"):
        assert f"'{key}'" in str(error.value)
    assert "batch.lag is called batch.staleness since 0.2" in str(error.value)


def test_a_foreign_name_in_python(tmp_path):
    with pytest.raises(WhetError, match=r"'max_completion_length'; in whet it is sampling\.max_new_tokens"):
        whet.train("grpo", max_completion_length=99, folder=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@for_every(OLD_KEYS)
def test_a_key_of_0_1_is_refused_with_its_new_name(old):
    new = OLD_KEYS[old]
    assert any(has_key(kind, new) for kind in CONFIG_CLASSES.values())
    setting = f"{old}=1" if "." in old else f"{old}.heads=2"
    method = "rm" if old.startswith("scorer") else "sft" if "every" in old else "grpo"
    with pytest.raises(WhetError) as error:
        resolved(method, from_settings([setting]))
    path, _, _ = setting.partition("=")
    whole = path.startswith("scorer")  # a section that is gone is refused as a whole
    expected = "scorer is called reward_model" if whole else f"{path} is called {new}"
    assert str(error.value) == f"config: {expected} since 0.2"


def test_an_old_name_comes_before_other_mistakes():
    with pytest.raises(WhetError, match=r"batch\.lag is called batch\.staleness since 0\.2$"):
        resolved("grpo", from_settings(["batch.group_size=x", "batch.lag=1"]))


def test_old_components_and_numbers_are_refused_with_the_new_name():
    known = [
        name for kind in ("policy", "preference") for axis in catalogue.axes(kind).values() for name in axis.components
    ]
    assert set(OLD_COMPONENTS.values()) <= set(known)
    with pytest.raises(WhetError, match=r"objective.mismatch=truncate_reply is called truncate_sequence since 0.2"):
        resolved("grpo", from_settings(["objective.mismatch=truncate_reply"]))
    with pytest.raises(WhetError, match=r"objective\.keep\.max_lag is called objective\.keep\.max_staleness since"):
        resolved("grpo", from_settings(["objective.keep=fresh", "objective.keep.max_lag=2"]))


def test_a_pipeline_refuses_old_keys_too():
    recipe = next(iter(PIPELINES.values()))
    with pytest.raises(WhetError, match=r"data\.held_out is called eval\.source since 0\.2"):
        resolve_settings(recipe, from_settings(["data.held_out=test.jsonl"]))
    with pytest.raises(WhetError, match=r"report\.evaluate_prompts is called eval\.prompts since 0\.2"):
        resolve_settings(recipe, from_settings(["report.evaluate_prompts=3"]))


def test_the_config_of_an_old_run_folder_is_translated():
    old = {
        "method": "rm",
        "batch": {"lag": 1, "group_size": 4},
        "data": {"held_out": "test.jsonl", "columns": {"held_out": "prompt"}},
        "report": {"evaluate_every": 5, "save_every": 2},
        "scorer": {"even_replies": True, "heads": 2},
        "model": {"lora": {"rank": 2, "matrices": ["q_proj"]}},
        "objective": {"keep": {"kind": "fresh", "max_lag": 2}, "mismatch": "truncate_reply"},
    }
    assert translated(old) == {
        "method": "rm",
        "batch": {"staleness": 1, "group_size": 4},
        "data": {"columns": {"held_out": "prompt"}},
        "eval": {"source": "test.jsonl", "every": 5},
        "report": {"save_every": 2},
        "reward_model": {"even_completions": True, "heads": 2},
        "model": {"lora": {"rank": 2, "target_modules": ["q_proj"]}},
        "objective": {"keep": {"kind": "fresh", "max_staleness": 2}, "mismatch": "truncate_sequence"},
    }
    assert translated(translated(old)) == translated(old)
