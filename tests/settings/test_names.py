"""Names of 0.1 and of other trainers are refused with the key to write instead."""

from __future__ import annotations

import pytest

import whet
from tests.support.for_every import for_every
from whet.objective import catalogue
from whet.settings.layers import from_settings, has_key
from whet.settings.names import FOREIGN, OLD_COMPONENTS, OLD_KEYS, translated
from whet.tools.pipelines.registry import PIPELINES
from whet.tools.pipelines.settings import resolve_settings
from whet.training.config import CONFIG_CLASSES, resolved
from whet.types import WhetError

METHODS = {"policy": "grpo", "preference": "dpo", "reward_model": "rm", "sft": "sft"}


@for_every(FOREIGN)
def test_every_target_of_a_foreign_name_exists(name):
    target = FOREIGN[name]
    if isinstance(target, str):
        assert any(has_key(kind, target) for kind in CONFIG_CLASSES.values())
        return
    assert target and set(target) <= set(CONFIG_CLASSES)
    paths = [(kind, path) for kind, several in target.items() for path in several.split(" and ")]
    for kind, path in paths:
        assert has_key(CONFIG_CLASSES[kind], path), (kind, path)
        section, axis, *number = path.split(".")
        if section == "objective" and number:
            numbers = catalogue.method(METHODS[kind]).components[axis].numbers
            assert number[0] in numbers


@for_every(
    [
        ("grpo", "num_generations=8", "config: no key is called 'num_generations'; in whet it is batch.group_size"),
        ("grpo", "batch.num_generations=8", "no key is called 'batch.num_generations'; in whet it is batch.group_size"),
        ("grpo", "beta=0.1", "in whet it is objective.kl.beta"),
        ("dpo", "beta=0.1", "in whet it is objective.curve.beta"),
        ("grpo", "objective.kl_coef=0.1", "no key is called 'objective.kl_coef'; in whet it is objective.kl.beta"),
        ("grpo", "objective.epsilon_high=0.28", "in whet it is objective.clip.high"),
        *(
            ("grpo", f"{name}=0.2", "in whet it is objective.clip.low and objective.clip.high")
            for name in ("epsilon", "objective.epsilon", "clip_range", "cliprange", "clip_eps", "clip_ratio")
        ),
        ("dpo", "epsilon=0.2", "did you mean 'optimizer.epsilon'?"),
        ("sft", "clip_range=0.2", "objective.clip.high, which this kind of run does not have"),
        ("ppo", "optimizer.eps=0.2", "did you mean 'optimizer.epsilon'?"),
        ("sft", "lr=0.1", "in whet it is optimizer.learning_rate"),
        ("sft", "per_device_train_batch_size=4", "in whet it is batch.rows_per_step"),
        ("grpo", "per_device_train_batch_size=4", "in whet it is batch.prompts_per_step"),
        ("sft", "model.target_modules=q_proj", "in whet it is model.lora.target_modules"),
        ("sft", "num_generations=4", "it is whet's batch.group_size, which this kind of run does not have"),
        ("grpo", "use_vllm=true", "chosen with sampling.engine"),
        ("grpo", "learning_rate=0.1", "did you mean 'optimizer.learning_rate'?"),
        ("grpo", "batch.groupsize=4", "did you mean 'batch.group_size'?"),
        ("grpo", "objective.clipp=1", "did you mean 'clip'"),
    ]
)
def test_a_foreign_name_is_answered_with_ours(method, setting, expected):
    with pytest.raises(WhetError) as error:
        resolved(method, from_settings([setting]))
    assert expected in str(error.value)


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
    with pytest.raises(WhetError, match=r"batch\.lag is called batch\.staleness since 0\.2 \(and 1 more\)"):
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
