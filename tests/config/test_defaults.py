"""Defaults that depend on the model and the method, and values that are impossible together."""

from __future__ import annotations

import pytest

from whet.config.config import resolved
from whet.types import WhetError


def test_the_built_in_model_has_numbers_of_its_own():
    small, large = resolved("grpo"), resolved("grpo", {"model": {"name": "smollm2"}})
    assert (small.steps, small.optimizer.learning_rate) == (40, 1e-4)
    assert (large.steps, large.optimizer.learning_rate) == (100, 1e-6)
    assert resolved("dpo").optimizer.learning_rate == 1e-4
    assert resolved("dpo", {"model": {"name": "smollm2"}}).optimizer.learning_rate == 1e-6
    assert resolved("ppo").batch.updates_per_step == 4


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
    "grpo": ("prompts_per_step", "group_size", "updates_per_step", "epochs_per_batch", "micro_batch_tokens"),
    "sft": ("rows_per_step", "micro_batch_tokens"),
}


@pytest.mark.parametrize(("method", "name"), [(method, name) for method, names in SIZES.items() for name in names])
def test_a_batch_may_be_as_small_as_one(method, name):
    assert getattr(resolved(method, {"batch": {name: 1}}).batch, name) == 1
    with pytest.raises(WhetError, match=rf"batch\.{name}"):
        resolved(method, {"batch": {name: 0}})
