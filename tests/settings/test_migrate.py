"""Commands and configs of other trainers as runs of whet's: sizes, objectives, and what has no counterpart."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from typing import Any

import pytest
from typer.testing import CliRunner

import whet
from tests.support.for_every import for_every
from whet.cli import app
from whet.settings.foreign import FOREIGN
from whet.settings.layers import flattened
from whet.settings.migrate import DEFAULTS, PROGRAMS, from_command, translate
from whet.training.assembly.rl import build_objective
from whet.training.config import PolicyConfig, resolved
from whet.types import WhetError

VERL = """PYTHONUNBUFFERED=1 python3 -m verl.trainer.main_ppo \\
    data.train_files=/data/gsm8k/train.parquet \\
    data.val_files=/data/gsm8k/test.parquet \\
    data.train_batch_size=256 \\
    data.max_prompt_length=512 \\
    data.max_response_length=1024 \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct \\
    actor_rollout_ref.actor.optim.lr=2e-6 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.n=8 \\
    algorithm.adv_estimator=grpo \\
    algorithm.kl_ctrl.kl_coef=0.001 \\
    custom_reward_function.path=rewards.py \\
    +trainer.logger='["console","wandb"]' \\
    trainer.n_gpus_per_node=1 \\
    trainer.total_epochs=15 2>&1 | tee verl_demo.log"""


@dataclass
class GRPOConfig:
    """What `whet.from_trl` reads of TRL's class of that name: fields with their defaults, and `world_size`."""

    output_dir: str | None = None
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    num_generations: int | None = 8
    generation_batch_size: int | None = None
    steps_per_generation: int | None = None
    num_iterations: int = 1
    max_completion_length: int = 16
    max_steps: int = -1
    num_train_epochs: float = 3.0
    beta: float = 0.0
    epsilon: float = 0.2
    epsilon_high: float | None = None
    loss_type: str = "dapo"
    use_bias_correction_kl: bool = True
    reward_weights: list[float] | None = None
    save_steps: int = 500
    push_to_hub: bool = False
    some_new_switch: bool = False
    sync_ref_model: bool = False
    ref_model_mixup_alpha: float = 0.6
    ref_model_sync_steps: int = 512
    world_size: int = field(default=1)


def flat(command: str) -> tuple[str, dict[str, Any], dict[str, str]]:
    translation = translate(*from_command(command))
    config = resolved(translation.method, translation.settings, rows=1000)
    if isinstance(config, PolicyConfig):
        build_objective(config)  # what a run refuses before its first step
    return translation.method, translation.flat, dict(translation.unmapped)


def test_a_command_of_verl():
    method, settings, unmapped = flat(VERL)
    assert method == "grpo"
    assert settings == {
        "data.source": "/data/gsm8k/train.parquet",
        "eval.source": "/data/gsm8k/test.parquet",
        "batch.prompts_per_step": 256,
        "batch.updates_per_step": 4,
        "batch.group_size": 8,
        "sampling.max_new_tokens": 1024,
        "sampling.engine": "vllm",
        "model.name": "Qwen/Qwen2.5-0.5B-Instruct",
        "optimizer.learning_rate": 2e-6,
        "optimizer.weight_decay": 0.01,
        "objective.aggregate": "token_mean",
        "objective.kl": "none",  # verl reads kl_coef only with use_kl_in_reward
        "objective.clip.kind": "dual_clip",
        "objective.clip.low": 0.2,
        "objective.clip.high": 0.2,
        "objective.clip.ceiling": 3.0,
        "reward.parts": [{"reward": "rewards.py:compute_score"}],
        "report.trackers": ["wandb"],
        "epochs": 15,
    }
    assert set(unmapped) == {"data.max_prompt_length=512"}


VERL_RUN = "python -m verl.trainer.main_ppo data.train_files=a.parquet "
OPENRLHF = "python3 -m openrlhf.cli.train_ppo_ray --data.prompt_dataset a.jsonl "


@for_every(
    [
        (VERL_RUN, "ppo", {"objective.baseline.lam": 1.0, "critic.learning_rate": 1e-5, "batch.group_size": 1}),
        (
            VERL_RUN + "algorithm.adv_estimator=grpo actor_rollout_ref.actor.use_kl_loss=True "
            "actor_rollout_ref.actor.kl_loss_coef=0.01 actor_rollout_ref.rollout.n=2 "
            "trainer.n_gpus_per_node=8 trainer.nnodes=2",
            "grpo",
            {"objective.kl.kind": "k3", "objective.kl.beta": 0.01, "scale.workers": 16},
        ),
        (
            VERL_RUN + "algorithm.use_kl_in_reward=True algorithm.kl_ctrl.kl_coef=0.02",
            "ppo",
            {"objective.kl.kind": "k1_reward", "objective.kl.beta": 0.02},
        ),
        (
            VERL_RUN + "algorithm.use_kl_in_reward=True algorithm.kl_ctrl.type=adaptive",
            "ppo",
            {"objective.control.kind": "proportional", "objective.control.target": 0.1},
        ),
        (
            VERL_RUN + "algorithm.use_kl_in_reward=True algorithm.kl_ctrl.type=adaptive "
            "algorithm.kl_ctrl.target_kl=0.2 algorithm.filter_groups.enable=True "
            "algorithm.filter_groups.max_num_gen_batches=10 "
            "algorithm.filter_groups.metric=acc algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8",
            "grpo",
            {
                **{"objective.control.kind": "proportional", "objective.control.target": 0.2},
                **{"objective.control.horizon": 10000, "objective.keep.kind": "mixed_outcome"},
                "objective.keep.rounds": 10,
            },
        ),
        (
            VERL_RUN + "actor_rollout_ref.actor.policy_loss.loss_mode=gspo actor_rollout_ref.rollout.n=2",
            "gspo",
            {"objective.clip.low": 0.2},
        ),
        (VERL_RUN + "trainer.total_training_steps=70 data.train_batch_size=64 "
         "actor_rollout_ref.actor.ppo_mini_batch_size=64", "ppo", {"steps": 70, "batch.prompts_per_step": 64}),
        (
            OPENRLHF + "--train.batch_size 128 --rollout.batch_size 64 --rollout.n_samples_per_prompt 8 "
            "--algo.advantage.estimator group_norm --algo.kl.use_loss --algo.kl.estimator k3 --actor.adam.lr 5e-7",
            "grpo",
            {
                **{"batch.prompts_per_step": 64, "batch.group_size": 8, "batch.updates_per_step": 4},
                **{"objective.kl.kind": "k3", "objective.kl.beta": 0.01, "optimizer.learning_rate": 5e-7},
            },
        ),
        (
            "ray job submit -- python3 -m openrlhf.cli.train_ppo_ray --prompt_data a.jsonl --pretrain M "
            "--init_kl_coef 0 --rollout_batch_size 32 --n_samples_per_prompt 4 --train_batch_size 128 "
            "--remote_rm_url=r.py",
            "ppo",
            {"model.name": "M", "objective.kl": "none", "batch.prompts_per_step": 32,
             "reward.parts": [{"reward": "r.py:reward_func"}]},
        ),
        (
            "openrlhf.cli.train_dpo --data.dataset a.jsonl --model.beta 0.2 --train.batch_size 64",
            "dpo",
            {"objective.curve.beta": 0.2, "batch.rows_per_step": 64},
        ),
        (
            "trl dpo --dataset_name trl-lib/x --per_device_train_batch_size 2 --gradient_accumulation_steps 8 "
            "--max_steps 100 --use_peft --lora_r 32 --warmup_ratio 0.1 --loss_type ipo",
            "ipo_mean",
            {
                **{"batch.rows_per_step": 16, "steps": 100, "optimizer.warmup_steps": 10, "model.lora.rank": 32},
                **{"data.source": "hub:trl-lib/x", "optimizer.schedule": "linear", "objective.curve.beta": 0.1},
            },
        ),
        (
            "accelerate launch --num_processes 4 examples/scripts/sft.py --dataset_name a.jsonl --packing --optim "
            "adamw_8bit --report_to none",
            "sft",
            {"batch.packed": True, "optimizer.states": "int8", "batch.rows_per_step": 32},
        ),
        (
            "torchrun --nnodes=2 --nproc-per-node 4 sft.py --dataset_name a.jsonl --per_device_train_batch_size 2",
            "sft",
            {"batch.rows_per_step": 16},
        ),
        # with one update per batch a ratio is 1, and what would change it is refused
        ("trl rloo --dataset_name a.jsonl", "rloo", {"objective.ratio": None, "objective.clip.kind": None}),
        ("trl rloo --dataset_name a.jsonl --num_iterations 2", "rloo", {"objective.ratio": "sequence_product"}),
        ("trl grpo --dataset_name a.jsonl --importance_sampling_level sequence", "grpo", {"objective.ratio": None}),
        (
            "trl grpo --dataset_name a.jsonl --importance_sampling_level sequence --num_iterations 2 --loss_type grpo",
            "grpo",
            {"objective.ratio": "sequence"},
        ),
        ("trl reward --dataset_name a.jsonl --center_rewards_coefficient 0.01", "rm", {"reward_model.centre": 0.01}),
    ]
)  # fmt: skip
def test_commands(command, method, expected):
    found, settings, _ = flat(command)
    assert found == method
    assert {key: settings.get(key) for key in expected} == expected


@for_every(
    [
        # passes of a device, devices, accumulation, completions per prompt -> prompts, updates, steps of 240 updates
        ({"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}, 4, 1, 240),
        ({"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4, "world_size": 2}, 8, 1, 240),
        ({"per_device_train_batch_size": 4, "steps_per_generation": 8, "gradient_accumulation_steps": 2}, 4, 4, 60),
        ({"per_device_train_batch_size": 4, "generation_batch_size": 64, "gradient_accumulation_steps": 4}, 8, 4, 60),
        ({"steps_per_generation": 1, "gradient_accumulation_steps": 4, "num_iterations": 2}, 4, 1, 120),
    ]
)
def test_the_batch_arithmetic_of_trl(given, prompts, updates, steps):
    settings = flattened(whet.from_trl(GRPOConfig(max_steps=240, **given)).config)
    assert settings["batch.prompts_per_step"] == prompts
    assert settings.get("batch.updates_per_step", 1) == updates
    assert settings["steps"] == steps


def test_from_trl_takes_objects_and_lists_the_rest(tmp_path):
    def exact(completions, answer, **_):
        return [float(gold in text) for text, gold in zip(completions, answer, strict=True)]

    rows = [{"prompt": f"Left to right mod 10: {a}+4-3", "answer": str((a + 1) % 10)} for a in range(10)]
    config = GRPOConfig(
        output_dir=str(tmp_path / "run"),
        reward_weights=[0.5],
        push_to_hub=True,
        some_new_switch=True,
        num_generations=4,
        sync_ref_model=True,
        beta=0.1,
        epsilon_high=0.3,
    )
    migrated = whet.from_trl(config, reward_funcs=exact, train_dataset=rows, callbacks=[object()], rollout_func=print)
    assert migrated.method == "grpo" and migrated.arguments["reward"] == {"exact": (exact, 0.5)}
    assert set(migrated.unmapped) == {"push_to_hub=True", "some_new_switch=True", "callbacks", "rollout_func"}
    settings = flattened(migrated.config)
    assert settings["steps"] == 15, "three epochs of ten prompts, two at a time"
    assert settings["objective.kl"] == "k3_corrected" and settings["objective.reference.decay"] == 0.4
    assert not any(key.startswith("objective.clip") for key in settings), "one update per batch: nothing to clip"
    assert "report.save_every" not in settings, "nobody chose it"
    assert tomllib.loads(str(migrated)) == {"method": "grpo", **migrated.config}
    run = migrated.train(steps=1, console=False)
    assert run.folder == tmp_path / "run" and run.steps == 1
    assert run.config["batch"]["prompts_per_step"] == 2


def test_what_cannot_be_read_is_refused():
    for command, expected in (
        ("python train.py --lr 3", "starts no trainer that whet knows"),
        ("'", "cannot be read"),
        ("missing.yaml", "missing.yaml"),
    ):
        with pytest.raises(WhetError, match=expected):
            from_command(command)
    with pytest.raises(WhetError, match=r"no config that whet\.from_trl knows"):
        whet.from_trl({"beta": 1})


SCRIPT = """# Tested successfully on an image of theirs
set -x
export HYDRA_FULL_ERROR=1
responses=1024

python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files=train.parquet \\
    data.max_response_length=${responses} \\
    actor_rollout_ref.rollout.n=$N_RESPONSES_OF_NOBODY \\
    actor_rollout_ref.actor.fsdp_config.param_offload=False $@
"""


def test_a_shell_script_is_read_with_its_variables(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(SCRIPT)
    translation = translate(*from_command(str(script)))
    assert translation.flat["sampling.max_new_tokens"] == 1024
    assert translation.flat["data.source"] == "train.parquet"
    unmapped = {name.partition("=")[0]: reason for name, reason in translation.unmapped.items()}
    assert unmapped.keys() == {"actor_rollout_ref.rollout.n", "actor_rollout_ref.actor.fsdp_config.param_offload"}
    assert unmapped["actor_rollout_ref.rollout.n"] == "a variable of the shell; put its value in"


def test_the_command_writes_toml_that_trains(tmp_path):
    source = tmp_path / "verl.yaml"
    source.write_text(
        "defaults: [x]\nactor_rollout_ref:\n  actor: {optim: {lr: 1e-5}, ppo_mini_batch_size: 4}\n  rollout: {n: 4, "
        "name: '${oc.select:x}'}\nalgorithm: {adv_estimator: rloo}\ndata: {train_batch_size: 4}\n"
    )
    target = tmp_path / "run.toml"
    done = CliRunner().invoke(app, ["migrate", str(source), "-o", str(target)])
    assert done.exit_code == 0 and f"whet train rloo --config {target}" in done.output
    values = tomllib.loads(target.read_text())
    assert values["method"] == "rloo" and values["batch"] == {"prompts_per_step": 4, "group_size": 4}
    assert values["optimizer"]["learning_rate"] == 1e-5
    assert values["epochs"] == 30, "verl's own, where the file says nothing"


@for_every(DEFAULTS)
def test_defaults_are_known_by_their_first_names(trainer):
    assert all(FOREIGN[name].name == name for name in DEFAULTS[trainer])
    assert trainer.startswith("trl") or trainer in PROGRAMS.values()
