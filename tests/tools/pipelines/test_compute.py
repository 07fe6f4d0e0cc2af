"""One unit for what every way to train spends: its parts add up, and equal budgets give equal costs."""

import pytest

from whet.tools.pipelines.library.trainings import SELECTION, Passes, choices_within, passes_of, steps_within
from whet.training.config import resolved


def test_a_forward_pass_is_one_and_training_three():
    assert Passes(sampled=1, scored=2, trained=1).cost == 6
    assert str(Passes(1, 2, 1)) == "1 sampled + 2 scored + 3 trained"


def test_a_critic_of_its_own_reads_and_learns_too():
    plain = passes_of(resolved("grpo", {"batch": {"updates_per_step": 1}}))
    assert plain == Passes(sampled=1, scored=2, trained=1) and plain.cost == 6
    actor_critic = passes_of(resolved("ppo", {"batch": {"updates_per_step": 4}}))
    # reference, reward model, critic, and the policy again before the first of several updates
    assert (actor_critic.scored, actor_critic.trained, actor_critic.cost) == (4, 2, 11)
    shared = passes_of(resolved("ppo", {"batch": {"updates_per_step": 4}, "critic": {"trunk": "shared"}}))
    assert (shared.scored, shared.trained) == (3, 1)
    alone = {"objective": {"kl": "none"}, "batch": {"updates_per_step": 1, "epochs_per_batch": 3}}
    assert passes_of(resolved("grpo", alone)) == Passes(sampled=1, scored=2, trained=3)


def test_pairs_are_read_and_learnt_and_never_sampled():
    assert passes_of(resolved("dpo", {})) == Passes(scored=1, trained=1)
    assert passes_of(resolved("simpo", {})).cost == 3 and SELECTION.cost == 2


@pytest.mark.parametrize("cost", [7.0, 130.0, 999.0])
def test_equal_budgets_give_costs_that_are_equal_to_half_a_step(cost):
    budget = 10_000.0
    assert abs(steps_within(budget, cost) * cost - budget) <= cost / 2
    assert steps_within(1.0, cost) == 1


def test_n_spends_the_budget_on_the_prompts_and_no_more():
    n = choices_within(10_000, prompts=10, tokens=50.0, most=64)
    assert n == 10 and n * 10 * 50 * SELECTION.cost <= 10_000
    assert choices_within(1e9, 10, 50.0, 64) == 64 and choices_within(1.0, 10, 50.0, 64) == 1
