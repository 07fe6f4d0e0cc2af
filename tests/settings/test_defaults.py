"""Defaults that depend on the model and the method, and values that are impossible together."""

from __future__ import annotations

import json
import tomllib

import pytest

from tests.support.for_every import for_every
from whet.model.width import model_width
from whet.training.annotated_config import annotated_toml
from whet.training.config import rate_reasons, resolved, resolved_evaluation, toml_text
from whet.types import WhetError


def folder_of(place, **config):
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config))
    return str(place)


def rate(method, model, lora=0):
    return resolved(method, {"model": {"name": model, "lora": lora}}).optimizer.learning_rate


def test_the_built_in_model_has_numbers_of_its_own():
    small, large = resolved("grpo"), resolved("grpo", {"model": {"name": "smollm2"}})
    assert (small.steps, small.optimizer.learning_rate) == (40, 1e-4)
    assert large.steps == 100
    assert resolved("dpo").optimizer.learning_rate == 1e-4
    assert resolved("ppo").batch.updates_per_step == 4
    assert (resolved("ppo").critic.learning_rate, resolved("grpo").critic.learning_rate) == (1e-3, 0.0)
    assert [resolved(method).optimizer.learning_rate for method in ("opd", "opd_full", "gkd")] == [1e-3] * 3


@pytest.mark.parametrize(
    ("method", "published"),
    [
        ("grpo", 1e-6),
        ("opd_full", 1e-5),
        ("sdpo", 1e-5),
        ("sft", 2e-5),
        ("dpo", 1e-6),
        ("orpo", 5e-6),  # its paper's own
        ("apo_zero", 2e-7),
        ("rm", 1e-5),
        ("orm", 1e-5),
        ("prm", 1e-5),
    ],
)
def test_a_rate_depends_on_the_kind_of_training_and_on_lora(method, published, tmp_path):
    wide, half_billion = folder_of(tmp_path / "wide", hidden_size=8192), folder_of(tmp_path / "half", hidden_size=896)
    assert [rate(method, model) for model in (wide, half_billion, "smollm2", "someone/unknown")] == [published] * 4
    assert rate(method, "smollm2", lora=16) == pytest.approx(10 * published)
    toy = folder_of(tmp_path / "toy", hidden_size=64)  # narrower than the built-in model
    assert rate(method, toy) == float(f"{published * 64:.0e}")
    assert (
        "docs/defaults.md" in rate_reasons(resolved(method, {"model": {"name": "smollm2"}}))["optimizer.learning_rate"]
    )


def test_a_policy_warms_up_on_a_real_model():
    def warmup(method="grpo", model="smollm2", **changes):
        return resolved(method, {"model": {"name": model}, **changes}).optimizer.warmup_steps

    assert warmup() == 10 and warmup(steps=1000) == 10
    assert warmup(steps=30) == 3 and warmup(steps=2) == 0  # a tenth of a short run
    assert warmup(optimizer={"warmup_steps": 0}) == 0 and warmup(optimizer={"warmup_steps": 7}) == 7
    assert warmup(model="whetstone") == warmup("sft") == warmup("dpo") == warmup("rm") == 0
    text = " ".join(annotated_toml(resolved("grpo", {"model": {"name": "smollm2"}})).replace("\n# ", " ").split())
    assert "warmup_steps = 10" in text and "AdamW's running mean" in text


def test_a_critic_learns_faster_than_its_policy():
    def rates(**changes):
        config = resolved("ppo", {"model": {"name": "smollm2"}, **changes})
        return config.optimizer.learning_rate, config.critic.learning_rate

    assert rates() == (1e-6, 1e-5)
    assert rates(model={"name": "smollm2", "lora": 8}) == (1e-5, 1e-4)
    assert rates(optimizer={"learning_rate": 2e-6}) == (2e-6, 1e-5)
    assert rates(critic={"learning_rate": 0}) == (1e-6, 0)  # the policy's
    assert resolved("grpo", {"model": {"name": "smollm2"}}).critic.learning_rate == 0


def test_the_width_is_found_by_whatever_name_the_model_has(tmp_path):
    for place, config in enumerate(
        ({"hidden_size": 512}, {"n_embd": 512}, {"d_model": 512}, {"text_config": {"hidden_size": 512}})
    ):
        assert model_width(folder_of(tmp_path / str(place), **config)) == 512
    assert model_width(folder_of(tmp_path / "other", vocab_size=512)) is None
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    assert model_width(str(tmp_path / "broken")) is None and model_width(str(tmp_path / "absent")) is None


def test_the_width_of_a_gguf_stands_in_its_header(tmp_path):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(str(tmp_path / "model.gguf"), "llama")
    writer.add_array("tokenizer.ggml.tokens", ["a", "bcd"])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_bool("flag", True)
    writer.add_embedding_length(320)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert model_width(str(tmp_path / "model.gguf")) == 320
    (tmp_path / "other.gguf").write_bytes(b"GGUF and no more")
    assert model_width(str(tmp_path / "other.gguf")) is None


def test_a_hub_model_that_cannot_be_reached_is_taken_for_a_wide_one(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    config = resolved("sft", {"model": {"name": "nobody/nothing-at-all"}})
    assert config.optimizer.learning_rate == 2e-5


def test_a_run_goes_on_at_the_rate_that_it_has():
    config = resolved("ppo", {"model": {"name": "smollm2", "lora": 8}})
    assert resolved("ppo", tomllib.loads(toml_text(config))) == config


def test_the_reason_stands_beside_the_rate():
    text = " ".join(annotated_toml(resolved("sft", {"model": {"name": "smollm2"}})).replace("\n# ", " ").split())
    assert "2e-05 (Touvron et al. 2023; Tunstall et al. 2023), docs/defaults.md learning_rate = 2e-05" in text
    mine = resolved("sft", {"model": {"name": "smollm2"}, "optimizer": {"learning_rate": 3e-4}})
    assert rate_reasons(mine)["optimizer.learning_rate"] == "as given"


def test_a_run_is_evaluated_four_times_or_more_and_for_a_twentieth_of_its_completions():
    def every(method="grpo", steps=100, prompts_per_step=8, **changes):
        batch = {"prompts_per_step": prompts_per_step} if method == "grpo" else {}
        values = {"model": {"name": "smollm2"}, "steps": steps, "batch": batch, **changes}
        return resolved(method, values).eval.every

    assert every() == 25 and every(steps=1000) == 63  # 200 / (0.05 x 64 completions)
    assert every(steps=1000, prompts_per_step=64) == 10 == every(steps=20)  # never closer
    assert every(steps=1000, eval={"prompts": 400}) == 125 and every(eval={"every": 3}) == 3
    assert every("sft", 1000) == every("rm", 1000) == 125 and every("dpo", 1000) == 63
    config = resolved("grpo", {"model": {"name": "smollm2"}, "steps": 1000})
    assert resolved("grpo", {**tomllib.loads(toml_text(config)), "steps": 2000}).eval.every == 63  # as it was begun
    assert "4 evaluations of 1000 steps" in rate_reasons(config)["eval.every"]


def test_adapters_learn_ten_times_as_fast():
    assert resolved("grpo", {"model": {"lora": 8}}).optimizer.learning_rate == pytest.approx(1e-3)


def test_more_updates_than_samples_are_refused():
    batch = {"prompts_per_step": 3, "group_size": 2}
    assert resolved("grpo", {"batch": {**batch, "updates_per_step": 6}}).batch.updates_per_step == 6
    with pytest.raises(WhetError, match="updates_per_step is 7 but a step has 6 samples"):
        resolved("grpo", {"batch": {**batch, "updates_per_step": 7}})


def test_online_preferences_sample():
    data = {"source": "rows.jsonl"}
    assert resolved("dpo", {"data": data, "preference": {"online": 2}, "sampling": {"top_k": 3}}).sampling.top_k == 3
    with pytest.raises(WhetError, match="sampling has no effect"):
        resolved("dpo", {"data": data, "sampling": {"top_k": 3}})


SIZES = {
    "grpo": ("prompts_per_step", "group_size", "updates_per_step", "epochs_per_batch"),
    "sft": ("rows_per_step",),
}


@for_every([(method, name) for method, names in SIZES.items() for name in names])
def test_a_batch_may_be_as_small_as_one(method, name):
    assert getattr(resolved(method, {"batch": {name: 1}}).batch, name) == 1
    with pytest.raises(WhetError, match=rf"batch\.{name}"):
        resolved(method, {"batch": {name: 0}})


def test_an_evaluation_of_a_run_of_the_built_in_model_has_its_budget_of_tokens(tmp_path):
    (tmp_path / "config.toml").write_text('[model]\nname = "whetstone"\n')
    budgets = [
        resolved_evaluation({}, {"model": {"name": name}}).sampling.max_new_tokens
        for name in ("whetstone", str(tmp_path), "smollm2")
    ]
    assert budgets[0] == budgets[1] == 64 < budgets[2]


def test_a_reference_model_needs_a_method_with_a_reference():
    with pytest.raises(WhetError, match=r"model\.reference_model has no effect: sft uses no reference"):
        resolved("sft", {"model": {"reference_model": "whetstone"}})
    assert resolved("grpo", {"model": {"reference_model": "whetstone"}}).model.reference_model == "whetstone"


def test_memory_of_reward_workers_needs_reward_workers():
    with pytest.raises(WhetError, match=r"scale\.reward_memory has no effect without scale\.reward_workers"):
        resolved("grpo", {"scale": {"reward_memory": 1.5}})
    assert resolved("grpo", {"scale": {"reward_memory": 1.5, "reward_workers": 1}}).scale.reward_memory == 1.5
