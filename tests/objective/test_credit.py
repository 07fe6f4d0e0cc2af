"""Credit for tokens, steps and turns, and the chance of one right completion in k: numbers that fit on a napkin."""

import math
from dataclasses import replace

import pytest
import torch

from tests.support.for_every import for_every
from tests.support.napkin import batch_of, double, near
from whet.objective import PRESETS
from whet.objective.advantage import LeaveOneOut
from whet.objective.credit import (
    GAE,
    DecoupledGAE,
    GroupMeanToGo,
    ReturnToGo,
    VTrace,
    discounted_sum,
    last_action,
    next_value,
    paid,
)
from whet.objective.pass_at_k import BestMinusSecond, PassAtK, PassAtKMarginal
from whet.objective.scale import NoScale
from whet.objective.siblings import GroupAndTree, Siblings
from whet.objective.statistics import episode_weight
from whet.objective.step_credit import AnchoredSteps, StepDelta, StepMean, StepSum, TurnIndexRewards, TurnReturn
from whet.types import WhetError

NAN = math.nan
# a prompt token, two actions, a tool's output, an action
HOLES = torch.tensor([[False, True, True, False, True]])


def test_credit_passes_over_tool_output():
    values = double([9.0, 1.0, 2.0, 9.0, 4.0])
    assert discounted_sum(values, 0.5, HOLES).tolist() == [[0.0, 1 + 0.5 * (2 + 0.5 * 4), 2 + 0.5 * 4, 0.0, 4.0]]
    assert next_value(values, HOLES).tolist() == [[0.0, 2.0, 4.0, 0.0, 0.0]]
    assert last_action(HOLES).tolist() == [[False, False, False, False, True]]
    assert not last_action(torch.zeros(1, 3, dtype=torch.bool)).any()


def test_a_completion_is_paid_on_its_last_action():
    batch = batch_of(2.0, action=HOLES, token_reward=double([7.0, -0.1, -0.2, 7.0, -0.3]))
    assert paid(batch).tolist() == near([[0, -0.1, -0.2, 0, 1.7]])
    assert paid(batch, double(5.0)).tolist() == near([[0, -0.1, -0.2, 0, 4.7]])
    assert paid(replace(batch, reward=double(NAN))).tolist() == [[0.0] * 5]


def test_return_to_go():
    batch = batch_of(2.0, action=HOLES, token_reward=double([0, -0.1, -0.2, 0, -0.3]))
    assert ReturnToGo().centred(batch, {}).tolist() == near([[0, 1.4, 1.5, 0, 1.7]])
    assert ReturnToGo(0.5).centred(batch, {}).tolist() == near([[0, -0.1 + 0.5 * 0.65, 0.65, 0, 1.7]])


def test_group_mean_to_go_takes_the_mean_off_the_outcome_alone():
    action = torch.ones(2, 2, dtype=torch.bool)
    batch = batch_of(1.0, 0.0, action=action, token_reward=double([-0.1, -0.2], [0.0, 0.4]))
    assert GroupMeanToGo().centred(batch, {}).tolist() == near([[0.5 - 0.3, 0.5 - 0.2], [-0.5 + 0.4, -0.5 + 0.4]])


def test_gae_by_hand():
    """V = 0.5, 0.25, 1 and reward 2 at the end, gamma 0.5, lam 0.5: d = -0.375, 0.25, 1."""
    batch = batch_of(2.0, action=HOLES, value=double([8, 0.5, 0.25, 8, 1.0]))
    component = GAE(0.5, 0.5)
    last, middle = 1.0, 0.0 + 0.5 * 1 - 0.25
    first = 0.5 * 0.25 - 0.5
    expected = [[0, first + 0.25 * (middle + 0.25 * last), middle + 0.25 * last, 0, last]]
    assert component.centred(batch, {}).tolist() == near(expected)
    assert component.target(batch).tolist() == near([[0, expected[0][1] + 0.5, expected[0][2] + 0.25, 0, 2.0]])


def test_gae_at_lam_one_is_the_return_less_the_value():
    batch = batch_of(2.0, action=HOLES, value=double([8, 0.5, 0.25, 8, 1.0]))
    assert GAE(1.0, 1.0).centred(batch, {}).tolist() == near([[0, 1.5, 1.75, 0, 1.0]])
    assert GAE(1.0, 0.0).centred(batch, {}).tolist() == near([[0, -0.25, 0.75, 0, 1.0]])


def test_nothing_surprises_outside_the_actions_and_where_nothing_was_scored():
    action = HOLES.expand(2, -1)
    batch = batch_of(2.0, NAN, action=action, value=double([8, 0.5, 0.25, 8, 1.0], [8, 0.5, 0.25, 8, 1.0]))
    assert GAE().surprise(batch, 0.5).tolist() == near([[0, -0.375, 0.25, 0, 1.0], [0.0] * 5])
    assert GAE().centred(batch, {})[1].tolist() == [0.0] * 5


def test_decoupled_gae_looks_further_in_longer_completions():
    """alpha 0.5: lam = 1 - 1/(0.5 n) is 0 for one and two tokens, 1/3 for three; the critic's target is the return."""
    action = torch.tensor([[True, True, True], [True, True, False]])
    batch = batch_of(2.0, 2.0, action=action, value=double([0.5, 0.25, 1.0], [0.5, 0.25, 9.0]))
    third = 1 / 3
    by_hand = [[-0.25 + third * (0.75 + third * 1.0), 0.75 + third * 1.0, 1.0], [-0.25, 1.75, 0]]
    assert DecoupledGAE(0.5).centred(batch, {}).tolist() == near(by_hand)
    assert DecoupledGAE(0.5).target(batch).tolist() == near([[2, 2, 2], [2, 2, 0]])
    assert DecoupledGAE(0.05).centred(batch, {}).tolist() == near([[-0.25, 0.75, 1.0], [-0.25, 1.75, 0]])


def test_vtrace_by_hand():
    """Ratios 2 (held at 1) and 0.5; V = 1, 3; reward 4: d = 2, 1."""
    action = torch.ones(1, 2, dtype=torch.bool)
    batch = batch_of(*(4.0,), action=action, value=double([1.0, 3.0]), old_logp=double([math.log(2), math.log(0.5)]))
    batch = replace(batch, behavior_logp=torch.zeros(1, 2).double())
    # the second v is 3 plus half its surprise, the first 1 + 2 and what the second adds
    assert VTrace().target(batch).tolist() == near([[3.5, 3.5]])
    # rho_1 (0 + v_2 - 1), rho_2 (4 - 3)
    assert VTrace().centred(batch, {}).tolist() == near([[2.5, 0.5]])
    assert VTrace(rho_bar=2.0).centred(batch, {}).tolist() == near([[5.0, 0.5]])


def test_vtrace_on_policy_is_gae_at_lam_one():
    batch = batch_of(2.0, action=HOLES, value=double([8, 0.5, 0.25, 8, 1.0]), behavior_logp=torch.zeros(1, 5).double())
    batch = replace(batch, old_logp=batch.behavior_logp)
    assert VTrace().centred(batch, {}).tolist() == near(GAE(1.0, 1.0).centred(batch, {}).tolist())
    assert VTrace(lam=0.5).target(batch).tolist() == near(GAE(1.0, 0.5).target(batch).tolist())
    assert VTrace().centred(replace(batch, old_logp=None), {}).tolist() == near([[0, 1.5, 1.75, 0, 1.0]])


# process rewards

STEPS = double([NAN, 1.0, NAN, 0.0], [NAN, NAN, NAN, 0.5])  # steps end on the 2nd and 4th token, and on the 4th
STEP_BATCH = batch_of(9.0, 9.0, action=torch.ones(2, 4, dtype=torch.bool), step_reward=STEPS)


def test_step_sum_and_mean_by_hand():
    """Pool 1, 0, 0.5: mean 0.5 and std 0.5, so the scores are 1, -1 and 0."""
    assert StepSum().centred(STEP_BATCH, {}).tolist() == [pytest.approx([0, 0, -1, -1], abs=1e-5), [0.0] * 4]
    assert StepMean().centred(STEP_BATCH, {}).tolist() == [pytest.approx([0, 0, -1, -1], abs=1e-5), [0.0] * 4]
    three = replace(STEP_BATCH, step_reward=double([NAN, 1.0, NAN, 1.0], [NAN, NAN, NAN, 0.25]))
    unit = math.sqrt(0.1875)  # pool 1, 1, 0.25: mean 0.75, variance (2 * 0.0625 + 0.25) / 2
    high, low = 0.25 / unit, -0.5 / unit
    assert StepSum().centred(three, {}).tolist() == [
        pytest.approx([2 * high, 2 * high, high, high], rel=1e-5),
        pytest.approx([low] * 4, rel=1e-5),
    ]
    assert StepMean().centred(three, {}).tolist() == [
        pytest.approx([high] * 4, rel=1e-5),
        pytest.approx([low] * 4, rel=1e-5),
    ]


def test_step_delta_credits_what_a_step_changed():
    """Changes 1, -1 and 0.5: mean 1/6; tokens behind the last step get nothing."""
    found = StepDelta().centred(STEP_BATCH, {})
    unit = math.sqrt(((1 - 1 / 6) ** 2 + (-1 - 1 / 6) ** 2 + (0.5 - 1 / 6) ** 2) / 2)
    up, down, half = (1 - 1 / 6) / unit, (-1 - 1 / 6) / unit, (0.5 - 1 / 6) / unit
    assert found.tolist() == [pytest.approx([up, up, down, down], rel=1e-5), pytest.approx([half] * 4, rel=1e-5)]
    short = replace(STEP_BATCH, step_reward=double([1.0, NAN, NAN, NAN], [0.0, NAN, NAN, NAN]))
    assert StepDelta().centred(short, {})[:, 1:].tolist() == [[0.0] * 3] * 2


def test_process_rewards_are_earned_only_where_tokens_are_credited():
    """A method that judges completions does not see them; one that credits tokens adds them to the outcome."""
    objective = replace(PRESETS["reinforce_pp"].objective, scale=NoScale(), kl=PRESETS["dr_grpo"].objective.kl)
    found, _ = objective.advantage(STEP_BATCH, {})
    assert found.advantage.tolist() == near([[10, 10, 9, 9], [9.5] * 4])
    plain = replace(PRESETS["dr_grpo"].objective)
    assert (plain.advantage(STEP_BATCH, {})[0].advantage == 0).all()


TURNS = torch.tensor([[0, 0, 1, -1], [0, 1, 1, 2]])


def turn_batch(*rewards, **more):
    action = torch.tensor([[True, True, True, False], [True, True, True, True]])
    return batch_of(*rewards, action=action, segment=TURNS, **more)


def test_normalising_by_turn_index_by_hand():
    """Outcomes 4 on a second turn and 2 on a third: the second turns earned 4 and 0, and nobody else has a third."""
    found = TurnIndexRewards(0.5).centred(turn_batch(4.0, 2.0), {}).tolist()
    assert found == near([[1, 1, 2, 0], [-1, -2, -2, 0]])
    alone = TurnIndexRewards(1.0).centred(turn_batch(4.0, math.nan), {}).tolist()
    assert alone == near([[0, 0, 0, 0], [0, 0, 0, 0]])


@pytest.mark.parametrize("kind", [TurnReturn, TurnIndexRewards])
@pytest.mark.parametrize("gamma", [-0.1, 1.1])
def test_a_discount_is_a_share(kind, gamma):
    for refused in (kind, AnchoredSteps):
        with pytest.raises(ValueError, match=r"give a share in \[0, 1\]"):
            refused(gamma=gamma)
    assert kind().gamma == 1.0 and AnchoredSteps() == PRESETS["gigpo"].objective.baseline


def test_turn_return_by_hand():
    """Outcomes 4 and 2 on the last turns; gamma 0.5: 2, 4 against 0.5, 1, 2; behind its end the first has its 4."""
    assert TurnReturn(0.5).centred(turn_batch(4.0, 2.0), {}).tolist() == near([[1.5, 1.5, 3, 0], [-1.5, -3, -3, -2]])


def test_anchored_steps_compare_steps_from_the_same_state():
    """States 5, 6 and 5, 7, 6: the second turns differ, the last meets the other's second."""
    anchor = torch.tensor([[5, 5, 6, 0], [5, 7, 7, 6]])
    batch = turn_batch(4.0, 2.0, anchor=anchor)
    # returns at gamma 0.5: 2, 4 and 0.5, 1, 2; state 5: mean 1.25, state 6: mean 3, state 7 alone
    found = AnchoredSteps(2.0, 0.5).centred(batch, {})
    assert found.tolist() == near([[1 + 2 * 0.75, 1 + 2 * 0.75, 1 + 2 * 1, 0], [-1 - 1.5, -1, -1, -1 - 2]])


def test_states_of_two_groups_are_never_compared():
    anchor = torch.tensor([[5, 5, 6, 0], [5, 7, 7, 6]])
    batch = turn_batch(4.0, 2.0, anchor=anchor, groups=[0, 1])
    assert AnchoredSteps(2.0, 0.5).centred(batch, {}).abs().max() == 0


# one of k


def tree_batch(rewards, nodes, episodes):
    """A turn a column; nodes of 0 stand for no turn."""
    node = torch.tensor(nodes)
    return batch_of(*rewards, action=node > 0, node=node, episode=torch.tensor(episodes))


# an episode whose first turn is followed by one that ends it and one behind which it branches again; and one alone
TREE = tree_batch((1.0, 0.0, 4.0, 3.0), [[1, 2, 0], [1, 3, 4], [1, 3, 5], [1, 0, 0]], [7, 7, 7, 8])


def test_a_row_counts_by_the_draws_on_its_way():
    assert episode_weight(TREE).tolist() == [0.5, 0.25, 0.25, 1.0]
    assert episode_weight(replace(TREE, node=None)).tolist() == near([1 / 3, 1 / 3, 1 / 3, 1.0])
    # what was not scored is no draw: its sibling takes its place, and a whole subtree may go
    lost = replace(TREE, reward=double(1.0, NAN, 4.0, 3.0))
    assert episode_weight(lost).tolist() == [0.5, 0.0, 0.5, 1.0]
    assert episode_weight(replace(TREE, reward=double(1.0, NAN, NAN, 3.0))).tolist() == [1.0, 0.0, 0.0, 1.0]
    # a row that ends where others go on is one of the ways on
    ended = tree_batch((1.0, 0.0, 4.0), [[1, 0, 0], [1, 3, 4], [1, 3, 5]], [7, 7, 7])
    assert episode_weight(ended).tolist() == [0.5, 0.25, 0.25]
    # two draws with equal numbers in two episodes are two draws, and a row without a turn is a tree of its own
    bare = tree_batch((1.0, 2.0, 3.0), [[1, 2, 0], [1, 2, 0], [0, 0, 0]], [7, 8, 9])
    assert episode_weight(bare).tolist() == [1.0, 1.0, 1.0]


def test_siblings_by_hand():
    found = Siblings().centred(TREE, {})
    # the episodes earn 1/2 + 1/4 * 4 = 1.5 and 3; draws 2 and 3 earn 1 and 2, draws 4 and 5 earn 0 and 4
    assert found.tolist() == near([[-1.5, -1.0, 0.0], [-1.5, 1.0, -4.0], [-1.5, 1.0, 4.0], [1.5, 0.0, 0.0]])
    # a draw without siblings goes with the one before it
    chain = tree_batch((1.0, 5.0, 3.0), [[1, 2, 3], [1, 4, 5], [1, 0, 0]], [7, 7, 8])
    assert Siblings().centred(chain, {}).tolist() == near([[0.0, -4.0, -4.0], [0.0, 4.0, 4.0], [0.0, 0.0, 0.0]])
    # siblings that agree say that the turn made no difference, whatever the others of the group earned
    agree = tree_batch((1.0, 1.0, 3.0), [[1, 2, 0], [1, 4, 0], [1, 0, 0]], [7, 7, 8])
    assert Siblings().centred(agree, {}).tolist() == near([[-2.0, 0.0, 0.0], [-2.0, 0.0, 0.0], [2.0, 0.0, 0.0]])
    # one tree alone learns from its siblings, and has nothing to compare its first turn with
    alone = TREE.select([0, 1, 2])
    assert Siblings().centred(alone, {}).tolist() == near([[0.0, -1.0, 0.0], [0.0, 1.0, -4.0], [0.0, 1.0, 4.0]])
    # rows that are no draws of a tree are compared as they are, branches of one episode too
    for plain in (replace(TREE, node=None, episode=None), replace(TREE, node=None)):
        expected = (plain.reward - LeaveOneOut()(plain, {}))[:, None] * plain.action
        assert Siblings().centred(plain, {}).tolist() == near(expected.tolist())


def test_group_and_tree_by_hand():
    found = GroupAndTree().centred(TREE, {})[:, 0]
    group = (TREE.reward - 2) / (TREE.reward.std() + 1e-6)
    leaves = TREE.reward[:3]
    tree = torch.cat([(leaves - leaves.mean()) / (leaves.std() + 1e-6), torch.zeros(1)])
    assert found.tolist() == near((group + tree).tolist())


def test_pass_at_k_by_hand():
    """n = 4, c = 1, k = 2: rho = 1/2, sd = 1/2; right 1; wrong (1/2 - C(2,1)/C(3,1)) / (1/2) = -1/3."""
    assert PassAtK(2).members([1.0, 0.0, 0.0, 0.0]) == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])
    assert PassAtK(2).members([1.0, 1.0, 1.0, 0.0]) == [0.0] * 4
    assert PassAtK(2).members([0.0] * 4) == [0.0] * 4


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_pass_at_k_sums_to_zero_over_a_group(k):
    for right in range(7):
        assert sum(PassAtK(k).members([1.0] * right + [0.0] * (6 - right))) == pytest.approx(0.0, abs=1e-12)


def test_pass_at_one_is_the_standardised_reward():
    """With the population's spread."""
    assert PassAtK(1).members([1.0, 0.0, 0.0, 0.0]) == pytest.approx(
        [0.75 / math.sqrt(3 / 16)] + [-0.25 / math.sqrt(3 / 16)] * 3
    )


def test_pass_at_k_marginal_by_hand():
    """n = 4, c = 2, k = 2: a right completion adds 2/3; the others' mean is 2/9 for it and 4/9 for a wrong one."""
    assert PassAtKMarginal(2).members([1.0, 1.0, 0.0, 0.0]) == pytest.approx([4 / 9, 4 / 9, -4 / 9, -4 / 9])


def test_best_minus_second_by_hand():
    batch = batch_of(0.2, 1.0, 0.7, 3.0, groups=[0, 0, 0, 1])
    assert BestMinusSecond().centred(batch, {})[:, 0].tolist() == pytest.approx([0.0, 0.3, 0.0, 0.0])
    assert BestMinusSecond().centred(batch_of(1.0, 1.0, 0.0), {}).abs().max() == 0


def test_right_is_what_the_first_part_says():
    """The weighted reward may be anything; without parts the reward itself must be a verdict."""
    parts = double([1, 0.3], [0, 0.9], [0, 0.1], [0, 0.2])
    batch = batch_of(9.0, 8.0, 7.0, NAN, parts=parts)
    found = PassAtK(2).centred(batch, {})[:, 0]
    # the unscorable one is out: n = 3, c = 1, rho = 2/3, sd = sqrt(2)/3
    assert found.tolist() == pytest.approx(
        [1 / math.sqrt(2), (1 / 3 - 1 / 2) * 3 / math.sqrt(2)] * 1 + [found[1].item(), 0.0]
    )
    with pytest.raises(WhetError, match="right or wrong"):
        PassAtK(2).centred(replace(batch, parts=None), {})
    few = PassAtK(4).centred(batch, {})
    assert few.abs().max() == 0 and PassAtK(4).smallest_group == 4 and PassAtK(1).smallest_group == 2


@for_every(
    [
        (ReturnToGo, {"gamma": 1.5}),
        (GAE, {"lam": -0.1}),
        (GAE, {"gamma": 2.0}),
        (DecoupledGAE, {"alpha": 0.0}),
        (DecoupledGAE, {"critic_lam": 1.1}),
        (VTrace, {"c_bar": 2.0}),
        (VTrace, {"c_bar": 0.0}),
        (VTrace, {"lam": 1.1}),
        (PassAtK, {"k": 0}),
        (PassAtKMarginal, {"k": 2.5}),
    ]
)
def test_numbers_that_make_no_sense(component, numbers):
    with pytest.raises(ValueError, match="give"):
        component(**numbers)
