"""What a method carries from step to step: controllers, moving means, trackers and the learned share, by hand."""

import math
from dataclasses import replace

import pytest
import torch

from tests.support.for_every import for_every
from tests.support.napkin import batch_of
from tests.support.oracle_batches import asked_for, random_batch, random_extras
from whet.objective import PRESETS, step_totals, with_changes
from whet.objective.advantage import BatchRunningMean, PromptTracker, RunningRoleMean
from whet.objective.control import Doubling, EndUpdates, FixedCoefficient, KLBudget, Proportional
from whet.objective.kl import K3, K3Old
from whet.objective.terms import Bonus, BonusToTarget, NoBonus

GRPO = PRESETS["grpo"].objective


# moving means


def test_running_mean_remembers_over_two_steps():
    baseline = BatchRunningMean(decay=0.9)
    first, second = batch_of(1.0, 0.0, math.nan), batch_of(1.0, 1.0, 0.5)
    assert baseline(first, {}).tolist() == [0.0] * 3
    memory = baseline.remembered(first, {})
    assert memory == pytest.approx({"running_sum": 0.1 * 0.5, "running_mass": 0.1})
    assert baseline(second, memory).tolist() == pytest.approx([0.5] * 3)
    memory = baseline.remembered(second, memory)
    # 0.9 * 0.05 + 0.1 * 5/6 over 0.9 * 0.1 + 0.1
    assert baseline(first, memory).tolist() == pytest.approx([(0.045 + 0.5 / 6) / 0.19] * 3, rel=1e-14)


def test_running_mean_forgets_everything_with_decay_zero_and_learns_nothing_from_the_unscorable():
    memory = BatchRunningMean(decay=0.0).remembered(batch_of(2.0, 4.0), {"running_sum": 9.0, "running_mass": 1.0})
    assert BatchRunningMean(decay=0.0)(batch_of(0.0), memory).tolist() == [3.0]
    assert BatchRunningMean().remembered(batch_of(math.nan), memory) is memory


def test_a_sample_is_never_in_its_own_running_mean():
    objective = PRESETS["reinforce"].objective
    batch, memory = objective.advantage(batch_of(1.0, 1.0), {})
    assert batch.advantage.abs().max() == 1 and memory["running_mass"] == pytest.approx(0.1)
    batch, _ = objective.advantage(batch_of(1.0, 1.0), memory)
    assert batch.advantage.abs().max() == 0


def test_prompt_tracker_over_two_visits():
    """Starts at 1/2, 1/2. First visit 1, 0: 0.9 * 0.5 + 1 on both sides. Second visit 1: (1.305 + 1, 1.305)."""
    tracker = PromptTracker(0.9)
    visit = batch_of(1.0, 0.0, math.nan, prompt=torch.tensor([4, 4, 8]))
    memory = tracker.remembered(visit, {})
    assert memory == pytest.approx({"prompt/4/w": 1.45, "prompt/4/l": 1.45})
    memory = tracker.remembered(batch_of(1.0, prompt=torch.tensor([4])), memory)
    assert memory == pytest.approx({"prompt/4/w": 2.305, "prompt/4/l": 1.305})
    assert tracker(visit, memory).tolist() == pytest.approx([2.305 / 3.61, 2.305 / 3.61, 0.5])


def test_the_roles_of_a_prompt_are_tracked_apart():
    tracker, both = PromptTracker(0.9), {"prompt": torch.tensor([4, 4]), "role": torch.tensor([7, 8])}
    memory = tracker.remembered(batch_of(1.0, 0.0, **both), {})
    assert tracker(batch_of(0.0, 0.0, **both), memory).tolist() == pytest.approx([1.45 / 1.9, 0.45 / 1.9])


def test_a_running_mean_of_each_role():
    """b <- 0.8^n b + (1 - 0.8^n) mean R of the role's n episodes; an episode counts once, whatever its branches."""
    baseline = RunningRoleMean(0.8)
    roles = torch.tensor([7, 8, 7, 7, 9])
    first = batch_of(1.0, -1.0, 0.0, math.nan, math.nan, role=roles)
    assert baseline(first, {}).tolist() == [0.0] * 5
    memory = baseline.remembered(first, {"other": 3.0})
    assert memory == pytest.approx({"other": 3.0, "role/7": (1 - 0.8**2) * 0.5, "role/8": -0.2})
    branched = batch_of(1.0, 0.5, 4.0, 1.0, 0.0, role=roles, episode=torch.tensor([1, 2, 1, 3, 4]))
    assert baseline(branched, memory).tolist() == pytest.approx([0.18, -0.2, 0.18, 0.18, 0.0])
    memory = baseline.remembered(branched, memory)
    # role 7 has two episodes: one of the branches 1 and 4, one of 1
    assert memory["role/7"] == pytest.approx(0.8**2 * 0.18 + (1 - 0.8**2) * (2.5 + 1) / 2)
    assert memory["role/8"] == pytest.approx(0.8 * -0.2 + 0.2 * 0.5) and memory["role/9"] == 0.0
    many = batch_of(*[1.0] * 32, role=torch.zeros(32, dtype=torch.long))
    one_by_one = RunningRoleMean(0.95).remembered(many, {})["role/0"]
    assert one_by_one == pytest.approx(1 - 0.95**32)  # 81%, as the authors' 32 updates give
    with pytest.raises(ValueError, match=r"give a share in \[0, 1\)"):
        RunningRoleMean(1.0)


def test_the_tracker_is_used_before_it_is_changed():
    objective = with_changes(PRESETS["spo"].objective, {"scale": "none"})
    batch, memory = objective.advantage(batch_of(1.0, 0.0, prompt=torch.tensor([1, 2])), {"other": 3.0})
    assert batch.advantage[:, 0].tolist() == [0.5, -0.5]
    assert memory["other"] == 3.0 and memory["prompt/1/w"] == pytest.approx(1.45)


# controllers of the KL


def test_fixed_changes_nothing_and_ends_nothing():
    memory = {"other": 1.0}
    assert FixedCoefficient().adjusted(memory, 0.1, {}, 8) is memory
    assert (
        not FixedCoefficient().ends_updates({"kl_old": 99.0})
        and FixedCoefficient().ends_run({"kl_sum": 99.0, "kl_mass": 1.0}) is None
    )


@pytest.mark.parametrize(
    ("kl", "factor"), [(6.0, 1.0), (6.6, 1 + 0.1 * 0.05), (60.0, 1 + 0.2 * 0.05), (3.0, 1 - 0.2 * 0.05)]
)
def test_proportional_control(kl, factor):
    """beta *= 1 + clip(KL / 6 - 1, -0.2, 0.2) * 500 / 10000."""
    control = Proportional(6.0, 10000.0)
    assert control.adjusted({}, 0.4, {"kl_completion": kl}, 500) == pytest.approx({"beta": 0.4 * factor})
    assert control.adjusted({"beta": 2.0, "x": 1.0}, 0.4, {"kl_completion": kl}, 500) == pytest.approx(
        {"beta": 2.0 * factor, "x": 1.0}
    )


@pytest.mark.parametrize(("moved", "factor"), [(0.0066, 0.5), (0.0067, 1.0), (0.0149, 1.0), (0.0151, 2.0)])
def test_doubling_control(moved, factor):
    """Within a factor 1.5 of 0.01 nothing changes."""
    assert Doubling(0.01).adjusted({}, 3.0, {"kl_old": moved}, 8) == {"beta": 3.0 * factor}
    assert Doubling(0.01).adjusted({"beta": 1.0}, 3.0, {"kl_old": moved}, 8) == {"beta": factor}


def test_doubling_never_runs_away():
    assert Doubling(0.01).adjusted({"beta": 1e6}, 1.0, {"kl_old": 1.0}, 8) == {"beta": 1e6}
    assert Doubling(0.01).adjusted({"beta": 1e-6}, 1.0, {"kl_old": 0.0}, 8) == {"beta": 1e-6}


def test_budget_ends_the_run_when_the_moving_mean_passes_it():
    """Decay 0.5: after 10 the mean is 10; after 30 it is (0.25 * 10 + 0.5 * 30) / 0.75 = 23.3."""
    control = KLBudget(20.0, 0.5)
    assert control.ends_run({}) is None
    memory = control.adjusted({}, 0.0, {"kl_completion": 10.0}, 8)
    assert memory == pytest.approx({"kl_mass": 0.5, "kl_sum": 5.0}) and control.ends_run(memory) is None
    memory = control.adjusted(memory, 0.0, {"kl_completion": 30.0}, 8)
    assert memory == pytest.approx({"kl_mass": 0.75, "kl_sum": 17.5})
    assert "23.3 nats" in control.ends_run(memory) and "20 are allowed" in control.ends_run(memory)


def test_end_updates_looks_at_the_move_of_the_batch():
    assert EndUpdates(0.015).ends_updates({"kl_old": 0.016}) and not EndUpdates(0.015).ends_updates({"kl_old": 0.015})


@for_every(
    [
        (Proportional, {"target": 0.0}),
        (Proportional, {"horizon": -1.0}),
        (Doubling, {"target": math.nan}),
        (KLBudget, {"nats": 0.0}),
        (KLBudget, {"decay": 1.0}),
        (EndUpdates, {"limit": 0.0}),
    ]
)
def test_numbers_that_make_no_sense(component, numbers):
    with pytest.raises(ValueError, match="give"):
        component(**numbers)


# tuned and learned


def test_a_method_is_tuned_by_its_memory_only_where_it_has_a_controller():
    objective = with_changes(GRPO, {"control": "proportional"})
    assert objective.tuned({}).kl == K3(0.04) and objective.tuned({"beta": 0.7}).kl == K3(0.7)
    assert GRPO.tuned({"beta": 0.7}).kl == K3(0.04)
    assert PRESETS["ppo_penalty"].objective.tuned({"beta": 0.25}).kl == K3Old(0.25)


def test_a_tuned_beta_is_the_one_rewards_pay():
    objective = with_changes(PRESETS["rloo"].objective, {"control": "proportional"})
    batch, _ = random_batch(0)
    before, after = (objective.advantage(batch, memory)[0].token_reward for memory in ({}, {"beta": 0.06}))
    torch.testing.assert_close(after, 2 * before)


def test_learned_writes_what_each_part_of_a_method_learns():
    objective = with_changes(
        PRESETS["lambda_grpo"].objective, {"kl": "k3", "control": "doubling", "entropy": "bonus_to_target"}
    )
    metrics = {"kl_old": 1.0, "kl_completion": 3.0, "entropy": 0.1, "share_grad": 0.5}
    memory = objective.learned({"running_sum": 1.0}, metrics, 8)
    assert memory == pytest.approx(
        {"running_sum": 1.0, "beta": 0.08, "entropy_weight": 0.005, "entropy_low": 1.0, "length_power": 0.05}
    )
    assert GRPO.learned({"x": 1.0}, metrics, 8) == {"x": 1.0}


def test_the_bonus_to_a_target_by_hand():
    """Too sure: the weight climbs by 0.005 a step and acts; sure no longer: it falls, and does not act meanwhile."""
    component, memory, weights = BonusToTarget(target=0.2, step=0.005, most=0.01), {}, []
    assert component.coefficient(memory) == 0.0
    for entropy in (0.1, 0.2, 0.1, 0.3, 0.3, 0.3, 0.1):
        memory = component.adjusted(memory, {"entropy": entropy})
        weights.append(component.coefficient(memory))
    assert weights == pytest.approx([0.005, 0.01, 0.01, 0.0, 0.0, 0.0, 0.005])


def test_a_bonus_acts_only_in_the_tuned_method():
    objective = with_changes(GRPO, {"entropy": "bonus_to_target"})
    assert objective.tuned({}).entropy == NoBonus()
    assert objective.tuned({"entropy_weight": 0.03, "entropy_low": 1.0}).entropy == Bonus(0.03)
    assert objective.tuned({"entropy_weight": 0.03, "entropy_low": 0.0}).entropy == NoBonus()
    assert with_changes(GRPO, {"entropy": "bonus"}).tuned({}).entropy == Bonus(0.01)


@for_every([-1.3, 0.0, 0.8], [{}, {"mismatch": "truncate"}, {"select": "top_entropy"}])
def test_the_grad_of_the_learned_share_is_the_derivative_of_the_objective(power, changes):
    """Moved by a little, the power changes J by its grad; J is what the policy's loss is the gradient of."""
    objective = with_changes(PRESETS["lambda_grpo"].objective, changes)
    batch, logp = random_batch(3, group_size=4)
    batch, extras = asked_for(batch, objective), random_extras(3, batch)

    def metrics(at):
        known, _ = objective.advantage(batch, {"length_power": at})
        return objective.loss(known, logp, step_totals(known, 16), extras).metrics

    small = 1e-5
    grad = (metrics(power + small)["surrogate"] - metrics(power - small)["surrogate"]) / (2 * small)
    assert abs(grad) > 1e-4
    assert metrics(power)["share_grad"] == pytest.approx(grad, rel=1e-6)


def test_the_learned_share_climbs_its_grad():
    objective = PRESETS["lambda_grpo"].objective
    assert objective.learned({}, {"share_grad": 2.0}, 4) == pytest.approx({"length_power": 0.2})
    assert objective.learned({"length_power": -1.0}, {"share_grad": -2.0}, 4) == pytest.approx({"length_power": -1.2})
    started = replace(objective, aggregate=replace(objective.aggregate, start=0.5, rate=1.0))
    assert started.learned({}, {"share_grad": 0.25}, 4) == pytest.approx({"length_power": 0.75})
