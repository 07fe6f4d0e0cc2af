"""Every refusal of a method in a run it cannot work in, each with its fix; and the settings that are let through."""

from dataclasses import replace

import pytest

from tests.support.for_every import for_every
from whet.objective import PRESETS, RunSetting, check_setting, with_changes
from whet.types import WhetError

GROUP = {"group_size": 8}
UPDATES = {"group_size": 8, "updates": 4}
OLD = {"group_size": 8, "staleness": 2}
DRAWN = {"baseline": "drawn_mean", "scale": "drawn_std"}

REFUSED = [
    # cannot work
    ("grpo", {}, {"group_size": 1}, "give group_size >= 2, or objective.baseline=running_mean"),
    ("pass_at_k", {}, {"group_size": 3}, "give group_size >= 4, or objective.baseline=running_mean"),
    ("grpo", {"baseline": "running_mean"}, {"group_size": 1}, "give objective.scale=none"),
    ("reinforce", {"baseline": "gae"}, GROUP, "objective.value=none trains none; give objective.value=squared_error"),
    ("grpo", {"value": "squared_error"}, GROUP, "never asks; give objective.baseline=gae, or objective.value=none"),
    ("grpo_process", {}, GROUP, "scores the steps of a completion; give one, such as working_steps"),
    ("gdpo", {}, GROUP, "give two rewards or more"),
    ("grpo", {"keep": "balanced"}, GROUP, "give keep=balanced with baseline=drawn_mean"),
    ("grpo", DRAWN, GROUP, "give keep=balanced with baseline=drawn_mean"),
    ("grpo", {"mismatch": "stale_mask"}, GROUP, "set objective.mismatch.limit, such as 0.5"),
    ("ppo", {"value.warmup": 20}, {**UPDATES, "steps": 20}, "the run has 20 steps: the policy would never learn"),
    # would have no point
    ("reinforce", {}, {"group_size": 1, "updates": 2}, "give updates_per_step=1, or objective.clip=ppo_clip"),
    ("gspo", {"aggregate": "token_mean"}, UPDATES, "give objective.aggregate=sequence_mean"),
    ("grpo", {"kl": "none", "control": "proportional"}, GROUP, "give objective.kl=k3, or objective.control=fixed"),
    ("dr_grpo", {"reference": "reset"}, GROUP, "give a KL such as objective.kl=k3, or objective.reference=frozen"),
    ("dr_grpo", {"reference": "ema"}, GROUP, "objective.reference=ema replaces a reference that nothing looks at"),
    ("ppo_penalty", {}, GROUP, "objective.kl=k3_old holds to the policy that wrote the batch"),
    ("pmd_mean", {}, GROUP, "objective.kl=k2_old_completion holds to the policy that wrote the batch"),
    ("dro", {"kl": "none"}, UPDATES, "give updates_per_step=1, or objective.clip=ppo_clip"),
    ("dro", {}, {**UPDATES, "staleness": 1}, "give objective.mismatch=truncate"),
    ("rewards_as_labels", {"ratio": "token"}, UPDATES, "give objective.ratio=sequence"),
    ("kl_cov", {}, GROUP, "set batch.updates_per_step above 1"),
    ("grpo", {"control": "doubling"}, GROUP, "objective.control=doubling holds to the policy that wrote the batch"),
    ("grpo", {"control": "end_updates"}, GROUP, "objective.control=end_updates holds to the policy"),
    ("kl_cov", {"kl": "none"}, UPDATES, "give kl=abs_old"),
    (
        "vtrace",
        {},
        {"group_size": 8, "staleness": 5},
        "nothing would be left; lower batch.staleness or raise keep.max_staleness",
    ),
    ("grpo", {}, OLD, "give objective.mismatch=truncate"),
    # is about episodes
    ("echo", {}, GROUP, "this run writes single completions; give env, tools or an agent, or objective.imitate=none"),
    ("echo", {}, {**GROUP, "has_steps": True}, "objective.imitate=observed is about episodes"),
    ("rae", {}, {**GROUP, "has_steps": True}, "or objective.baseline=running_mean"),
    ("rloo_turns", {}, GROUP, "objective.baseline=turn_return is about episodes"),
    ("grpo", {"select": "finished_turns"}, GROUP, "or objective.select=finished"),
    ("rloo_turns", {}, {"group_size": 1, "has_turns": True}, "give group_size >= 2"),
    ("gigpo", {}, {"group_size": 1, "has_turns": True}, "give group_size >= 2"),
    ("rloo_tree", {}, {**GROUP, "has_turns": True}, "give env.branching=turns, or objective.baseline=leave_one_out"),
    ("tree_grpo", {}, {**GROUP, "has_turns": True}, "objective.baseline=group_and_tree compares what was drawn from"),
    # has no effect
    ("grpo", {"clip.high": 0.28}, GROUP, "objective.clip.high has no effect with updates_per_step=1"),
    ("grpo", {"ratio": "sequence"}, GROUP, "objective.ratio has no effect with updates_per_step=1"),
    ("grpo", {"clip": "cap"}, GROUP, "objective.clip has no effect with updates_per_step=1"),
]


@for_every(REFUSED)
def test_settings_that_cannot_work_are_refused_with_their_fix(name, changes, setting, message):
    objective = with_changes(PRESETS[name].objective, changes)
    with pytest.raises(WhetError) as error:
        check_setting(objective, RunSetting(**setting), changes)
    assert message in str(error.value) and "\n" not in str(error.value)


@for_every(
    [
        ("grpo", {}, {"group_size": 2}),
        ("pass_at_k", {}, {"group_size": 4}),
        ("grpo", {"clip.high": 0.28}, UPDATES),
        ("grpo", {"clip.high": 0.28, "mismatch": "truncate"}, OLD),
        ("grpo", {"kl.beta": 0.1}, GROUP),
        ("reinforce", {}, {"group_size": 1}),
        ("reinforce", {"clip": "ppo_clip"}, {"group_size": 1, "updates": 4}),
        ("reinforce", {"mismatch": "truncate"}, {"group_size": 1, "updates": 4}),
        ("grpo", {"baseline": "running_mean", "scale": "none"}, {"group_size": 1}),
        ("gspo", {}, UPDATES),
        ("vespo", {}, GROUP),
        ("dppo_tv", {"clip.low": 0.1}, GROUP),
        ("dppo_tv", {}, OLD),
        ("pmd_mean", {}, UPDATES),
        ("dro", {}, UPDATES),
        ("prime_rl", {}, OLD),
        ("topr", {}, {**OLD, **UPDATES}),
        ("asym_re", {}, {**OLD, **UPDATES}),
        ("ppo", {"value.warmup": 19}, {**UPDATES, "steps": 20}),
        ("ppo_penalty", {}, UPDATES),
        ("kl_cov", {}, UPDATES),
        ("vtrace", {}, {"group_size": 1, "staleness": 4}),
        ("grpo_process", {}, {"group_size": 8, "has_steps": True}),
        ("gdpo", {}, {"group_size": 8, "num_parts": 2}),
        ("grpo", {**DRAWN, "keep": "balanced"}, GROUP),
        ("grpo", {"mismatch": "stale_mask", "mismatch.limit": 0.5}, GROUP),
        ("grpo", {"reference": "reset", "control": "proportional"}, GROUP),
        ("rloo_turns", {}, {**GROUP, "has_steps": True}),  # its sentences are scored
        ("rloo_turns", {}, {"group_size": 2, "has_turns": True}),
        ("gigpo", {}, {"group_size": 2}),
        ("grpo_process", {}, {**GROUP, "has_turns": True}),
        ("rae", {}, {"group_size": 1, "has_turns": True}),
        ("rloo_tree", {}, {"group_size": 2, "has_turns": True, "has_trees": True}),
        ("grpo", {"select": "finished_turns", "imitate": "observed"}, {**GROUP, "has_turns": True}),
    ]
)
def test_settings_that_work_are_let_through(name, changes, setting):
    check_setting(with_changes(PRESETS[name].objective, changes), RunSetting(**setting), changes)


@for_every(PRESETS)
def test_every_method_works_in_some_run(name):
    """With updates where it needs them, or none where it ignores the ratio."""
    objective = PRESETS[name].objective
    updates = 4 if objective.clip.uses_ratio or objective.kl.to_old else 1
    setting = RunSetting(8, updates, num_parts=2, has_steps=True, steps=1000, has_turns=PRESETS[name].episodes)
    check_setting(objective, replace(setting, has_trees=PRESETS[name].episodes), {})
