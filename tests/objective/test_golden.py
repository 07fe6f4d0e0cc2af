"""Baselines, scales, ratios, clip rules, shares and KL terms on numbers that fit on a napkin."""

import math
from dataclasses import replace

import pytest
import torch

from tests.support.for_every import for_every
from tests.support.napkin import ACTION, TOTALS, batch_of, double, near
from whet.objective import AXES, PRESETS, Objective, step_totals
from whet.objective.advantage import (
    BatchRunningMean,
    DrawnMean,
    Greedy,
    GroupLabels,
    GroupMean,
    LeaveOneOut,
    LengthWeightedMean,
    MixedMean,
    PartwiseGroup,
    PromptTracker,
    PromptValue,
    RevisitedGroup,
    ShiftedMean,
    on_actions,
)
from whet.objective.aggregate import FixedLength, InverseLength, LearnedLength, SequenceMean, SequenceSum, TokenMean
from whet.objective.clip import (
    BalancedBand,
    Cap,
    DivergenceMask,
    DualClip,
    FutureDrift,
    GammaGate,
    GeometricMean,
    GroupSoftmax,
    InverseRatio,
    KeptEdges,
    MomentMask,
    OnPolicy,
    PPOClip,
    ProbabilityBand,
    SoftGate,
    Tapered,
    Unclipped,
    VariationMask,
)
from whet.objective.clip.band import fading_sum
from whet.objective.credit import discounted_sum
from whet.objective.kl import (
    K2,
    K3,
    Absolute,
    AbsoluteOld,
    AbsoluteReward,
    Full,
    K1Immediate,
    K1Reward,
    K2Completion,
    K2Old,
    K2OldCompletion,
    K2Reward,
    K2Sampler,
    K3Corrected,
    K3Old,
    K3Reward,
    NoKL,
)
from whet.objective.pass_at_k import EntropicGroup
from whet.objective.ratio import (
    SamplerProduct,
    SamplerTokenRatio,
    SegmentRatio,
    SequenceProduct,
    SequenceRatio,
    TokenRatio,
)
from whet.objective.scale import (
    DrawnStd,
    GroupMeanScale,
    GroupStd,
    NoScale,
    TokenStd,
    WhitenCompletions,
    WhitenTokens,
)
from whet.objective.statistics import STD_FLOOR, group_index, group_moments, spread
from whet.types import Totals, WhetError

GRPO = PRESETS["grpo"].objective

# baselines


def test_group_mean():
    batch = batch_of(1.0, 0.0, 5.0, 2.0, groups=[7, 7, 3, 3])
    assert GroupMean()(batch, {}).tolist() == [0.5, 0.5, 3.5, 3.5]
    assert GroupMean().remembered(batch, {"other": 1.0}) == {"other": 1.0}


def test_shifted_mean_stays_below_the_group():
    batch = batch_of(1.0, 0.0, 0.5, 0.5, groups=[0, 0, 1, 1])
    centred = batch.reward - ShiftedMean(-0.25)(batch, {})
    assert centred.tolist() == pytest.approx([0.75, -0.25, 0.25, 0.25])
    with pytest.raises(ValueError, match="baseline=group_mean"):
        ShiftedMean(0.0)


def test_group_moments_leave_the_unscorable_out():
    moments = group_moments(torch.tensor([1.0, math.nan, 4.0, math.nan]).double(), torch.tensor([0, 0, 0, 1]))
    assert moments.count.tolist() == [2, 2, 2, 0]
    assert moments.mean[:3].tolist() == [2.5] * 3
    assert moments.std[0] == pytest.approx(math.sqrt(4.5))
    assert moments.constant.tolist() == [False, False, False, True]


def test_spread_of_a_flat_tensor():
    assert [float(each) for each in spread(double(1.0, 3.0))] == pytest.approx([2.0, math.sqrt(2)])
    assert [float(each) for each in spread(double(5.0, 5.0 + 1e-7))] == pytest.approx([5.0, 0.0])
    assert float(spread(double(5.0, 5.0 + 1e-7))[1]) == 0.0
    assert [float(each) for each in spread(double(4.0))] == [4.0, 0.0]
    assert [float(each) for each in spread(torch.zeros(0))] == [0.0, 0.0]
    # twice 1, once 4: a mean of 2, and (2 * 1 + 4) / (3 - 1)
    weighed = spread(double(1.0, 4.0, 9.0), double(2.0, 1.0, 0.0))
    assert [float(each) for each in weighed] == pytest.approx([2.0, math.sqrt(3)])


def test_leave_one_out_and_length_weighted_mean_by_hand():
    batch = batch_of(1.0, 0.0, 0.0, 2.0)
    assert LeaveOneOut()(batch, {}).tolist() == pytest.approx([2 / 3, 1.0, 1.0, 1 / 3])
    action = torch.tensor([[True, True, True], [True, False, False]])
    assert LengthWeightedMean()(batch_of(1.0, 0.0, action=action), {}).tolist() == pytest.approx([0.75, 0.75])


def test_mixed_mean_is_the_group_and_the_past():
    """0.75 of the others' mean and 0.25 of a running mean of 0.8; the group alone before there is a past."""
    batch, baseline = batch_of(1.0, 0.0), MixedMean(0.25, 0.9)
    memory = {"running_sum": 0.4, "running_mass": 0.5}
    assert baseline(batch, memory).tolist() == pytest.approx([0.75 * 0 + 0.25 * 0.8, 0.75 * 1 + 0.25 * 0.8])
    assert baseline(batch, {}).tolist() == [0.0, 1.0]
    # a group that failed as a whole is pushed down by its share of the past
    failed = batch_of(0.0, 0.0)
    assert baseline.centred(failed, memory)[:, 0].tolist() == pytest.approx([-0.2, -0.2])
    assert baseline.remembered(batch, memory)["running_sum"] == pytest.approx(0.9 * 0.4 + 0.1 * 0.5)


def test_greedy_compares_with_the_greedy_completion():
    batch = batch_of(1.0, 0.0, 0.5, groups=[0, 0, 1], greedy_reward=double(0.25, 0.25, math.nan))
    assert Greedy().centred(batch, {})[:, 0].tolist() == [0.75, -0.25, 0.0]


def test_prompt_value_lies_between_the_mean_and_the_best_of_the_reference():
    rewards = double([1.0, 0.0, math.nan], [1.0, 0.0, math.nan], [0.5, 0.5, 0.5])
    batch = batch_of(1.0, 0.0, 0.5, groups=[0, 0, 1], reference_rewards=rewards)
    value = 0.5 * math.log((math.exp(2) + 1) / 2)
    assert PromptValue(0.5).centred(batch, {})[:, 0].tolist() == pytest.approx([1 - value, -value, 0.0])
    assert PromptValue(1000.0)(batch, {})[:2].tolist() == pytest.approx([0.5, 0.5], abs=1e-3)
    assert PromptValue(1e-6)(batch, {})[:2].tolist() == pytest.approx([1.0, 1.0], abs=1e-5)
    assert PromptValue()(batch, {})[2] == 0.5  # nothing is rounded where they agree
    with pytest.raises(ValueError, match="above 0"):
        PromptValue(0.0)


def test_drawn_moments_are_those_of_every_draw():
    """A prompt drawn once has nothing to compare with."""
    drawn = double([4, 0.25, 0.5], [4, 0.25, 0.5], [1, 1.0, 0.0])
    batch = batch_of(1.0, 0.0, 1.0, groups=[0, 0, 1], drawn=drawn)
    centred = DrawnMean().centred(batch, {})
    assert centred[:, 0].tolist() == [0.75, -0.25, 0.0]
    assert DrawnStd()(centred, batch)[:, 0].tolist() == pytest.approx([1.5, -0.5, 0.0], rel=1e-5)


def test_prompt_tracker_starts_even_and_follows_its_memory():
    batch = batch_of(1.0, 0.0, prompt=torch.tensor([4, 9]))
    assert PromptTracker()(batch, {}).tolist() == [0.5, 0.5]
    assert PromptTracker()(batch, {"prompt/9/w": 3.0, "prompt/9/l": 1.0}).tolist() == [0.5, 0.75]


def test_partwise_puts_every_part_on_its_own_scale():
    """Parts 0, 1 and 0, 100 with weights 1 and 0.5: each is +-1/sqrt(2) whatever its unit; a constant part adds 0."""
    parts = double([1, 0, 7], [0, 100, 7])
    batch = batch_of(1.0, 50.0, parts=parts, part_weight=double([1, 0.5, 9], [1, 0.5, 9]))
    side = 1 / math.sqrt(2)
    assert PartwiseGroup().centred(batch, {})[:, 0].tolist() == pytest.approx(
        [side - 0.5 * side, -side + 0.5 * side], rel=1e-5
    )


def test_the_advantage_lies_on_the_action_tokens_only():
    found, _ = replace(GRPO, scale=NoScale()).advantage(batch_of(1.0, 0.0, action=ACTION), {})
    assert found.advantage.tolist() == [[0.0, 0.5, 0.5], [0.0, -0.5, 0.0]]


# scales


def test_group_std_is_bessels_with_a_floor():
    batch = batch_of(1.0, 0.0, 0.0, 3.0)
    centred = GroupMean().centred(batch, {})
    assert centred[:, 0].tolist() == [0.0, -1.0, -1.0, 2.0]
    unit = math.sqrt((0 + 1 + 1 + 4) / 3) + STD_FLOOR
    expected = [0.0, -1 / unit, -1 / unit, 2 / unit]
    assert GroupStd()(centred, batch)[:, 2].tolist() == pytest.approx(expected, rel=1e-15)
    assert torch.equal(NoScale()(centred, batch), centred)


def test_without_a_spread_nothing_is_left():
    batch = batch_of(1.0, 1.0)
    difference = torch.full_like(batch.action, 0.5, dtype=torch.float64)
    for scale in (GroupStd(), TokenStd(), WhitenTokens(), WhitenCompletions()):
        assert scale(difference, batch).abs().max() == 0, scale.name


def test_group_mean_scale_by_hand():
    batch = batch_of(1.0, 0.0, 0.0, 0.0, groups=[0, 0, 1, 1])
    centred = on_actions(batch.reward - 0.5, batch)
    assert GroupMeanScale()(centred, batch)[:, 0].tolist() == [1.0, -1.0, 0.0, 0.0]
    with pytest.raises(WhetError, match="0 or 1"):
        GroupMeanScale()(centred, batch_of(1.0, 0.5, 0.0, 0.0, groups=[0, 0, 1, 1]))


def test_scales_over_tokens_weigh_long_completions():
    """Differences 1, 1 (two tokens) and -2 (one token): mean 0, variance (1 + 1 + 4) / 2; over completions mean
    -0.5."""
    batch = batch_of(9.0, 0.0, action=ACTION)
    centred = double([0, 1, 1], [0, -2, 0])
    root = math.sqrt(3) + STD_FLOOR
    assert TokenStd()(centred, batch).tolist() == near([[0, 1 / root, 1 / root], [0, -2 / root, 0]])
    assert WhitenTokens()(centred, batch).tolist() == near([[0, 1 / root, 1 / root], [0, -2 / root, 0]])
    side = 1.5 / (math.sqrt(4.5) + STD_FLOOR)
    assert WhitenCompletions()(centred, batch).tolist() == near([[0, side, side], [0, -side, 0]])


def test_whitening_takes_the_mean_off_and_the_unscorable_out():
    batch = batch_of(9.0, 0.0, math.nan, action=torch.cat([ACTION, ACTION[:1]]))
    centred = double([0, 3, 3], [0, 0, 0], [0, 50, 50])
    root = math.sqrt((1 + 1 + 4) / 2) + STD_FLOOR
    assert WhitenTokens()(centred, batch).tolist() == near([[0, 1 / root, 1 / root], [0, -2 / root, 0], [0, 0, 0]])


# ratios


def test_token_ratio():
    log_ratio = torch.tensor([[9.0, math.log(2), -math.log(4)], [9.0, 0.0, math.nan]])
    batch = batch_of(1.0, 0.0, action=ACTION)
    assert TokenRatio()(log_ratio, batch).tolist() == near([[1, 2, 0.25], [1, 1, 1]])


def test_sequence_ratios_by_hand():
    log_ratio = double([9.0, 0.1, 0.3], [9.0, 0.5, 9.0])
    batch = batch_of(1.0, 0.0, action=ACTION)
    assert SequenceRatio()(log_ratio, batch).tolist() == near(
        [[1, math.exp(0.2), math.exp(0.2)], [1, math.exp(0.5), 1]]
    )
    assert SequenceProduct()(log_ratio, batch).tolist() == near(
        [[1, math.exp(0.4), math.exp(0.4)], [1, math.exp(0.5), 1]]
    )


def test_segment_ratio_is_the_geometric_mean_of_a_sentence():
    action = torch.tensor([[False, True, True, True], [True, True, False, True]])
    segment = torch.tensor([[-1, 0, 0, 1], [0, 1, -1, 1]])
    log_ratio = double([9.0, 0.1, 0.3, 0.7], [0.5, 0.2, 9.0, 0.4])
    found = SegmentRatio()(log_ratio, batch_of(1.0, 0.0, action=action, segment=segment))
    two, seven, five, three = (math.exp(each) for each in (0.2, 0.7, 0.5, 0.3))
    assert found.tolist() == near([[1, two, two, seven], [five, three, 1, three]])


def test_no_ratio_of_a_completion_overflows():
    """Logs are held at 10."""
    batch = batch_of(1.0, 0.0, action=ACTION, segment=torch.zeros(2, 3, dtype=torch.long))
    for kind in (SequenceRatio, SequenceProduct, SegmentRatio, SamplerProduct):
        found = kind()(torch.full((2, 3), 500.0), batch)
        assert found[ACTION].tolist() == pytest.approx([math.exp(10)] * 3)


def test_ratios_to_the_sampler_differ_in_what_they_are_measured_against():
    assert (SamplerTokenRatio.against, SamplerProduct.against) == ("behavior_logp", "behavior_logp")
    assert {TokenRatio.against, SequenceRatio.against, SegmentRatio.against} == {"old_logp"}
    objective = replace(PRESETS["dppo_tv"].objective, clip=Unclipped())
    batch = batch_of(
        1.0, 0.0, action=ACTION, old_logp=torch.zeros(2, 3).double(), behavior_logp=-torch.ones(2, 3).double()
    )
    batch, _ = objective.advantage(batch, {})
    found = objective.loss(batch, torch.zeros(2, 3).double(), TOTALS).metrics
    assert found["ratio"] == pytest.approx(math.e) and found["kl_old"] == 0


# clip rules

EVERY = {"action": torch.ones(1, dtype=torch.bool), "logp": torch.zeros(1)}


def test_ppo_clip_for_a_good_token():
    """Only too far up stops it; exactly on the edge it still learns."""
    ratio = torch.tensor([0.1, 0.75, 1.0, 1.25, 1.2501, 9.0])
    weight = PPOClip(0.25, 0.25)(ratio, torch.ones(6), **EVERY)
    assert weight.tolist() == [*ratio[:4].tolist(), 0.0, 0.0]


def test_ppo_clip_for_a_bad_token():
    ratio = torch.tensor([0.1, 0.7499, 0.75, 1.0, 1.25, 9.0])
    weight = PPOClip(0.25, 0.25)(ratio, -torch.ones(6), **EVERY)
    assert weight.tolist() == [0.0, 0.0, *ratio[2:].tolist()]


def test_the_two_edges_of_ppo_clip_are_its_own():
    ratio, good = torch.tensor([0.6, 1.6]), torch.ones(2)
    assert PPOClip(0.5, 0.1)(ratio, good, **EVERY).tolist() == [pytest.approx(0.6), 0.0]
    assert PPOClip(0.1, 0.75)(ratio, -good, **EVERY).tolist() == [0.0, pytest.approx(1.6)]


def test_the_surrogate_of_ppo_clip_is_the_lower_of_two():
    ratio = torch.tensor([0.5, 0.5, 2.0, 2.0])
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0])
    assert PPOClip(0.25, 0.25).surrogate(ratio, advantage, **EVERY).tolist() == [0.5, -0.75, 1.25, -2.0]


def test_on_policy_weighs_everything_with_one_and_unclipped_with_the_ratio():
    ratio, advantage = torch.tensor([0.3, 7.0]), torch.tensor([2.0, -2.0])
    assert OnPolicy()(ratio, advantage, **EVERY).tolist() == [1.0, 1.0]
    assert OnPolicy().surrogate(ratio, advantage, **EVERY).tolist() == [2.0, -2.0]
    assert Unclipped()(ratio, advantage, **EVERY).tolist() == ratio.tolist()
    assert Unclipped().surrogate(ratio, advantage, **EVERY).tolist() == near([[0.6, -14.0]])[0]


def test_dual_clip_drops_bad_tokens_that_became_likely():
    ratio = torch.tensor([[2.9, 3.1, 3.1, 0.5]])
    advantage = torch.tensor([[-1.0, -1.0, 1.0, -1.0]])
    rule = DualClip(0.2, 0.2, 3.0)
    assert rule(ratio, advantage, **EVERY).tolist() == near([[2.9, 0.0, 0.0, 0.0]])
    assert rule.surrogate(ratio, advantage, **EVERY).tolist() == near([[-2.9, -3.0, 1.2, -0.8]])


def test_cap_holds_the_weight_and_drops_nothing():
    ratio = torch.tensor([[0.1, 1.0, 9.0]])
    assert Cap(5.0)(ratio, -ratio, **EVERY).tolist() == near([[0.1, 1.0, 5.0]])
    assert Cap(5.0).surrogate(ratio, torch.full_like(ratio, 2.0), **EVERY).tolist() == near([[0.2, 2.0, 10.0]])


def test_tapered_imitates_the_good_and_lets_go_of_the_bad():
    ratio, advantage = double([0.1, 9.0, 0.1, 9.0]), double([2.0, 2.0, -2.0, -2.0])
    assert Tapered()(ratio, advantage, **EVERY).tolist() == near([[1.0, 1.0, 0.1, 1.0]])
    assert Tapered().surrogate(ratio, advantage, **EVERY).tolist() == near([[2.0, 2.0, -0.2, -2.0]])


def test_soft_gate_by_hand():
    """sigmoid(1) = 0.7310586: 4 p (1 - p) r at r = 2, tau 1; and tau 1.05 where A < 0."""
    ratio, advantage = double([1.0, 2.0, 2.0]), double([1.0, 1.0, -1.0])
    share = 1 / (1 + math.exp(-1.05))
    expected = [[1.0, 4 * 0.7310585786 * 0.2689414214 * 2, 4 * share * (1 - share) * 2]]
    assert SoftGate()(ratio, advantage, **EVERY).tolist() == near(expected)
    assert SoftGate().surrogate(ratio, advantage, **EVERY).tolist() == near(
        [[2.0, 4 * 0.7310585786, -4 / 1.05 * share]]
    )


def test_geometric_mean_by_hand():
    """Two trained tokens with log-ratios 0.2 and 1.0 (held at 0.4): both count in the mean, only the first learns."""
    ratio, advantage = double([5.0, math.exp(0.2), math.exp(1.0)]), double([0.0, 2.0, 2.0])
    weight = GeometricMean(0.4)(ratio, advantage, torch.tensor([[False, True, True]]), ratio)
    assert weight[:, 1:].tolist() == near([[math.exp(0.3), 0.0]])


@for_every(["k_positive", "lam_positive", "k_negative", "lam_negative"])
def test_a_gamma_gate_may_be_as_wide_as_one_likes(name):
    assert getattr(GammaGate(**{name: 0.01}), name) == 0.01
    with pytest.raises(ValueError, match=f"{name} is 0; give a number above 0"):
        GammaGate(**{name: 0.0})


def test_gamma_gate_by_hand():
    """r^2 exp(3 (1 - r)) for a good completion, r^3 exp(2 (1 - r)) for a bad one; far away nothing is left."""
    ratio, advantage = double([1.0, 2.0, 2.0, 1e-30, 20000.0]), double([1.0, 1.0, -1.0, 1.0, -1.0])
    found = GammaGate()(ratio, advantage, **EVERY)
    assert found.tolist() == near([[1.0, 4 * math.exp(-3), 8 * math.exp(-2), 0.0, 0.0]])
    assert GammaGate().surrogate(ratio, advantage, **EVERY)[0, 2] == -found[0, 2]


def test_kept_edges_hold_the_weight_where_a_clip_would_drop_it():
    ratio, advantage = double([0.5, 2.0, 0.5, 2.0]), double([1.0, 1.0, -1.0, -1.0])
    assert KeptEdges(0.2, 0.25, 0.5, 2.0)(ratio, advantage, **EVERY).tolist() == near([[0.5, 2.5, 0.4, 2.0]])
    with pytest.raises(ValueError, match="clip=ppo_clip"):
        KeptEdges(share_low=0.0, share_high=0.0)


def test_the_probability_band_is_wider_for_rare_tokens():
    """high 0.2: for q = 0.8 r <= (1 + sqrt 2) / 2 = 1.207, for q = 0.01 (1 + 9) / 2 = 5; low 0.2, q = 0.8: r >= 1/2."""
    rule, old = ProbabilityBand(0.2, 0.2, 10.0), double([0.8, 0.8, 0.01, 0.01, 0.8, 0.8])
    ratio, advantage = double([1.2, 1.21, 4.9, 5.1, 0.51, 0.49]), double([1.0, 1.0, 1.0, 1.0, -1.0, -1.0])
    found = rule(ratio, advantage, EVERY["action"], (ratio * old).log())
    assert found.tolist() == near([[1.2, 0.0, 4.9, 0.0, 0.51, 0.0]])


def test_the_inverse_ratio_turns_the_weight_of_good_tokens_round():
    ratio, advantage = double([0.5, 0.1, 1.3, 0.5, 2.0, 9.0]), double([1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    assert InverseRatio(0.2, 0.2, 3.0)(ratio, advantage, **EVERY).tolist() == near([[2.0, 3.0, 0.0, 0.0, 2.0, 3.0]])


def test_future_drift_looks_at_the_tokens_that_follow():
    """log r = 0.1, 0.2 of the trained tokens, half-life 1: 0.1 + 0.2 / 2 ahead of the first."""
    ratio, advantage = double([5.0, 0.1, 3.0, 0.2]).exp(), double([0.0, 1.0, 0.0, 1.0])
    action = torch.tensor([[False, True, False, True]])
    found = FutureDrift(low=0.9, high=0.9, ceiling=9.0, half_life=1.0, reach=0.21)(ratio, advantage, action, ratio)
    assert found[action].tolist() == near([[math.exp(0.1) * 1.21, math.exp(0.2) * 1.21]])[0]
    found = FutureDrift(low=0.9, high=0.9, ceiling=9.0, half_life=1.0, reach=9.0)(ratio, advantage, action, ratio)
    assert found[action].tolist() == near([[math.exp(0.1 + 0.2), math.exp(0.2 + 0.2)]])[0]


@pytest.mark.parametrize("half_life", [0.01, 0.7, 32.0])
def test_the_sum_of_the_future_is_the_same_in_stretches(half_life):
    stream = torch.Generator().manual_seed(0)
    values = torch.randn(3, 40, generator=stream, dtype=torch.float64)
    action = torch.rand(3, 40, generator=stream) < 0.7
    expected = discounted_sum(torch.where(action, values, 0.0), 2 ** (-1 / half_life), action)
    found = fading_sum(values, action, half_life)
    torch.testing.assert_close(torch.where(action, found, 0.0), expected, rtol=1e-12, atol=1e-13)


def test_the_entropic_advantage_spends_its_nats():
    """Four rewards, the best alone: q = softmax(beta R) with KL(q, uniform) = ln 2."""
    batch = batch_of(3.0, 1.0, 0.0, 0.5, groups=[0, 0, 0, 0])
    found = EntropicGroup().centred(batch, {})[:, -1]
    share = (found + 1) / (found + 4)  # w = 3 q / (1 - q)
    assert float(share.sum()) == pytest.approx(1)
    assert float((share * share.log()).sum()) + math.log(4) == pytest.approx(math.log(2))
    # three of four are the best: no beta spends ln 2, and they alone count
    batch = batch_of(1.0, 1.0, 1.0, 0.0, groups=[0, 0, 0, 0])
    found = EntropicGroup().centred(batch, {})[:, -1].tolist()
    assert found == pytest.approx([0.5, 0.5, 0.5, -1.0])
    # three are enough to have an advantage, two are not; groups are told apart whatever their numbers
    batch = batch_of(1.0, 0.0, 0.0, 1.0, 0.0, groups=[7, 7, 7, 2, 2])
    index, count = group_index(batch.group)
    assert (index.tolist(), count) == ([1, 1, 1, 0, 0], 2) and group_index(batch.group[:0])[1] == 0
    found = EntropicGroup().centred(batch, {})[:, -1].tolist()
    assert found[0] > 0 > max(found[1:3]) and found[3:] == [0.0, 0.0]


def test_a_revisited_group_remembers_its_prompt():
    """First visit: the group alone. Second: mean 0.75, variance (0.25 + 0 + 1/2 (1 - 0.5)^2) / 2."""
    batch = replace(batch_of(1.0, 1.0, groups=[0, 0]), prompt=torch.tensor([5, 5]))
    assert (RevisitedGroup().centred(batch, {}) == 0).all()
    memory = {"visited/5/role/0/visits": 1.0, "visited/5/role/0/mean": 0.5, "visited/5/role/0/std": 0.5}
    spread = math.sqrt((0.25 + 0.0 + 0.5 * 0.25) / 2)
    expected = 0.5 * (1 - 0.75) / (spread + STD_FLOOR)  # half of it is the group's own, which agrees
    assert float(RevisitedGroup().centred(batch, memory)[0, -1]) == pytest.approx(expected)
    seen = RevisitedGroup().remembered(batch, memory)
    assert seen["visited/5/role/0/visits"] == 2 and seen["visited/5/role/0/mean"] == 0.75
    assert seen["visited/5/role/0/std"] == pytest.approx(spread)


def test_the_moment_mask_drops_the_outliers_of_the_whole_step():
    """(log r)^2 = 0.01, 0.04, 0.25 of tokens that moved with A: 0.3 / 3 is too much for 0.03, 0.05 / 2 is not."""
    batch = replace(batch_of(1.0, 0.0), advantage=double([1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]))
    ratio = double([0.1, 0.5, -3.0], [-0.2, 0.0, 3.0]).exp()  # far moves against A are left alone
    found = MomentMask(0.03).over_step(ratio, batch)
    assert found.tolist() == near([[math.exp(0.1), 0.0, math.exp(-3)], [math.exp(-0.2), 1.0, math.exp(3)]])
    assert torch.equal(MomentMask(0.11).over_step(ratio, batch), ratio)
    assert MomentMask(0.03)(ratio, batch.advantage, batch.action, ratio)[0, 1] == 0  # a row alone


def test_the_balanced_band_moves_until_good_and_bad_weigh_the_same():
    """The lower edge first, which changes nothing for r = 1; then the upper: min(1.9, 1.3) reaches 1.25."""
    rule = BalancedBand(low=0.6, low_most=0.8, high=1.2, high_most=2.0, step=0.1, target=1.0)
    one = torch.ones(2, dtype=torch.float64)
    assert rule.edges(double(1.0, 1.0), double(1.0, -0.9), one) == (0.6, 1.2)
    assert rule.edges(double(1.9, 1.0), double(1.0, -1.25), one) == (pytest.approx(0.8), pytest.approx(1.3))
    assert rule.edges(double(1.0, 1.0), double(1.0, -5.0), one) == (pytest.approx(0.8), 2.0)
    batch = replace(batch_of(1.0, 0.0), advantage=double([1.0] * 3, [-1.25] * 3))
    ratio = double([1.25] * 3, [0.7, 1.0, 1.3])
    assert rule.over_step(ratio, batch).tolist() == near([[1.25] * 3, [0.0, 1.0, 1.3]])


def test_the_group_softmax_gives_most_to_what_lags():
    """Two good completions at r = 1 and 1/2, tau 1: e = 1 and 2, 3 e / (1 + 3); the bad one alone: 2 e / (1 + e)."""
    batch = replace(batch_of(1.0, 1.0, 0.0), advantage=double([1.0] * 3, [1.0] * 3, [-2.0] * 3))
    ratio = double([1.0] * 3, [0.5] * 3, [3.0] * 3)
    found = GroupSoftmax(1.0).over_step(ratio, batch)
    assert found[:, 0].tolist() == pytest.approx([0.75, 1.5, 1.5])
    apart = GroupSoftmax(1.0).over_step(ratio, replace(batch, group=torch.tensor([0, 1, 1])))
    assert apart[:, 0].tolist() == pytest.approx([1.0, 4 / 3, 1.5])


def test_group_labels_by_hand():
    """Two of five are good: 5/3 each; three are bad: -5/4 each. Unscorable and agreeing ones: nothing."""
    batch = batch_of(1.0, 0.9, 0.0, 0.0, 0.1, float("nan"), 2.0, 2.0, groups=[0] * 6 + [1, 1])
    found = GroupLabels().centred(batch, {})[:, 0].tolist()
    assert found == pytest.approx([5 / 3, 5 / 3, -5 / 4, -5 / 4, -5 / 4, 0, 0, 0])


def test_variation_mask_looks_at_probabilities():
    """mu 0.5 -> pi 0.7 is 0.2 of probability; 0.01 -> 0.05 is five times but only 0.04."""
    policy, sampler = double([0.7, 0.05, 0.7, 0.3, 0.3]), double([0.5, 0.01, 0.5, 0.5, 0.5])
    advantage = double([1.0, 1.0, -1.0, -1.0, 1.0])
    found = VariationMask(0.15, 0.15)(policy / sampler, advantage, EVERY["action"], policy.log())
    assert found.tolist() == near([[0.0, 5.0, 1.4, 0.0, 0.6]])
    assert VariationMask(ceiling=2.0)(policy / sampler, advantage, EVERY["action"], policy.log())[0, 1] == 2.0


def test_divergence_mask_looks_at_the_binary_kl():
    """KL(0.5, 0.7) = 0.5 log(0.5/0.7) + 0.5 log(0.5/0.3) = 0.0872; KL(0.5, 0.6) = 0.0204. Only with A."""
    policy, sampler = double([0.7, 0.6, 0.7, 0.3]), torch.full((4,), 0.5).double()
    advantage = double([1.0, 1.0, -1.0, -1.0])
    found = DivergenceMask(0.05)(policy / sampler, advantage, EVERY["action"], policy.log())
    assert found.tolist() == near([[0.0, 1.2, 1.4, 0.0]])
    certain = DivergenceMask(0.05)(torch.ones(1), torch.ones(1), EVERY["action"], torch.zeros(1))
    assert certain.tolist() == [1.0]


# shares


def shares():
    batch = batch_of(1.0, 0.0, action=ACTION)
    batch = replace(batch, importance=double([0.5, 0.0], [1.5, 0.0]), segment=torch.tensor([[-1, 0, 1], [-1, 0, -1]]))
    return {name: kind()(batch, TOTALS) for name, kind in AXES["aggregate"].items()}


def test_shares():
    found = {name: share.tolist() for name, share in shares().items()}
    assert found["token_mean"] == near([[0, 1 / 3, 1 / 3], [0, 1 / 3, 0]])
    assert found["sequence_mean"] == [[0, 0.25, 0.25], [0, 0.5, 0]]
    assert found["fixed_length"] == [[0, 0.125, 0.125], [0, 0.125, 0]]
    assert found["sequence_sum"] == [[0, 0.5, 0.5], [0, 0.5, 0]]
    assert found["learned_length"] == near([[0, 0.5 / 3, 0.5 / 3], [0, 1.5 / 3, 0]])
    assert found["turn_mean"] == [[0, 0.25, 0.25], [0, 0.5, 0]]
    assert found["inverse_length"] == near([[0, 0.0625, 0.0625], [0, 0.1875, 0]])
    assert len(found) == 7


def test_inverse_length_by_hand():
    """Completions of 2 and 1 tokens: 1/2 and 1 over their mean 3/4."""
    batch = batch_of(1.0, 0.0, action=ACTION)
    assert InverseLength(1.0).importance(batch, {})[:, 0].tolist() == pytest.approx([2 / 3, 4 / 3])
    root = 2**-0.5
    assert InverseLength(0.5).importance(batch, {})[0, 0] == pytest.approx(root / ((root + 1) / 2))


def test_the_turns_of_an_episode_count_alike_whatever_their_length():
    """Turns of three, one and two tokens, an observed one between them; alone in its step."""
    segment = torch.tensor([[0, 0, 0, -1, 1, 2, 2]])
    batch = replace(batch_of(1.0, action=segment >= 0), segment=segment)
    share = AXES["aggregate"]["turn_mean"]()(batch, step_totals(batch, 8))
    assert share.tolist() == near([[1 / 9, 1 / 9, 1 / 9, 0, 1 / 3, 1 / 6, 1 / 6]])


@pytest.mark.parametrize(
    ("kind", "total"), [(TokenMean, 1.0), (SequenceMean, 1.0), (FixedLength, 3 / (2 * 4)), (SequenceSum, 3 / 2)]
)
def test_what_the_shares_of_a_step_sum_to(kind, total):
    assert float(kind()(batch_of(1.0, 0.0, action=ACTION), TOTALS).sum()) == pytest.approx(total, rel=1e-15)


@for_every(AXES["aggregate"])
def test_the_shares_of_half_a_step_are_those_of_the_whole(name):
    segment = torch.tensor([[-1, 0, 1], [-1, 0, -1]])
    batch = replace(batch_of(1.0, 0.0, action=ACTION), importance=double([0.5, 0.0], [1.5, 0.0]), segment=segment)
    kind = AXES["aggregate"][name]
    halves = [kind()(batch.select([row]), TOTALS) for row in range(2)]
    torch.testing.assert_close(torch.cat(halves), shares()[name], rtol=1e-14, atol=0.0)


def test_learned_length_by_hand():
    """Lengths 1 and 3: z = -+1/sqrt(2), h = 1 + z/9; at power 1 the factors are 2 softmax(h)."""
    action = torch.tensor([[True, False, False], [True, True, True]])
    batch = batch_of(1.0, 0.0, action=action)
    low, high = (math.exp(1 + side / math.sqrt(2) / 9) for side in (-1, 1))
    found = LearnedLength().importance(batch, {"length_power": 1.0})
    assert found[:, 0].tolist() == pytest.approx([2 * low / (low + high), 2 * high / (low + high)], rel=1e-6)
    assert found[:, 1].sum() == pytest.approx(0.0, abs=1e-12) and found[0, 1] < 0 < found[1, 1]
    assert LearnedLength().importance(batch, {})[:, 0].tolist() == pytest.approx([1.0, 1.0])
    assert LearnedLength().importance(batch_of(1.0, 0.0), {"length_power": 3.0})[:, 0].tolist() == [1.0, 1.0]


def test_learned_length_holds_the_height_above_zero():
    """With a spread of 9 a short completion would have a negative height, whose power is no number."""
    action = torch.tensor([[True, False, False], [True, True, True]])
    found = LearnedLength(spread=9.0).importance(batch_of(1.0, 0.0, action=action), {"length_power": 0.5})
    low, high = math.exp(0.01**0.5), math.exp((1 + 9 / math.sqrt(2)) ** 0.5)
    assert found[:, 0].tolist() == pytest.approx([2 * low / (low + high), 2 * high / (low + high)], rel=1e-5)


def test_step_totals_count_what_is_trained():
    silent = torch.cat([ACTION, torch.zeros(1, 3, dtype=torch.bool)])
    batch = batch_of(1.0, 0.0, 1.0, action=silent)
    assert step_totals(batch, 4) == TOTALS
    assert step_totals(replace(batch, parts=double([1], [0], [1])), 4) == replace(TOTALS, correct_tokens=2)
    assert Totals(6, 4, 4) == TOTALS + TOTALS
    assert Totals(1, 1, 4, 5) + Totals(1, 1, 4, 7) == Totals(2, 2, 4, 12)
    with pytest.raises(ValueError, match="max_new_tokens"):
        TOTALS + Totals(1, 1, 5)


# kl


@for_every([K2, K3, K3Corrected, Absolute, K3Old, AbsoluteOld, K2Old, K2Sampler])
def test_the_kl_weight_is_the_derivative_of_its_value(kind):
    logp = double(-1.5, -1e-4, 0.0, 0.2, 3.0).requires_grad_()
    ref, old = double(0.1, 0.2, 0.3, 0.5, 0.2), double(0.2, -0.4, 0.1, -0.3, 2.0)
    u, ratio = logp - ref, (logp - old).exp()
    (grad,) = torch.autograd.grad(kind(0.3).value(u, ratio).sum(), logp)
    assert grad.abs().max() > 0.1
    torch.testing.assert_close(kind(0.3).weight(u.detach(), ratio.detach()), 0.3 * grad, rtol=1e-12, atol=1e-15)


def test_kl_values():
    u, one = double(0.0, math.log(2), -math.log(2)), torch.ones(3).double()
    half = math.log(2) ** 2 / 2
    k3 = [0.0, 0.5 - 1 + math.log(2), 2 - 1 - math.log(2)]
    assert K2().value(u, one).tolist() == pytest.approx([0.0, half, half])
    assert K3().value(u, one).tolist() == pytest.approx(k3)
    assert K3(0.1).weight(u, one).tolist() == pytest.approx([0.0, 0.05, -0.1])
    assert K3Corrected(0.1).value(u, 2 * one).tolist() == pytest.approx([2 * each for each in k3])
    assert K3Corrected(0.1).weight(u, 2 * one).tolist() == pytest.approx([0.0, 0.2 * math.log(2), -0.2 * math.log(2)])
    assert Absolute(0.1).weight(u, one).tolist() == pytest.approx([0.0, 0.1, -0.1])
    assert NoKL().weight(u, one).tolist() == [0.0] * 3
    ratio = double(1.0, 2.0, 0.5)
    assert K3Old(0.1).weight(u, ratio).tolist() == pytest.approx([0.0, 0.1, -0.05])
    assert K3Old().value(u, ratio).tolist() == pytest.approx([0.0, 1 - math.log(2), -0.5 + math.log(2)])
    assert AbsoluteOld(0.1).weight(u, ratio).tolist() == pytest.approx([0.0, 0.1, -0.1])
    assert PRESETS["kl_cov"].objective.kl == AbsoluteOld()  # its beta is the paper's
    assert K2Old(0.1).weight(u, ratio).tolist() == pytest.approx([0.0, 0.1 * math.log(2), -0.1 * math.log(2)])
    whole = double([1.0, 2.0, 4.0], [1.0, 0.5, 2.0])  # log r of the completions: 3 log 2, and 0
    assert K2OldCompletion(0.1).weight(u, whole).tolist() == near([[0.3 * math.log(2)] * 3, [0.0] * 3])
    assert K2OldCompletion().value(u, whole)[0].tolist() == pytest.approx([4.5 * math.log(2) ** 2] * 3)
    assert K2Completion(0.1).weight(whole.log(), u).tolist() == near([[0.3 * math.log(2)] * 3, [0.0] * 3])
    assert K2Completion().value(whole.log(), u)[0].tolist() == pytest.approx([4.5 * math.log(2) ** 2] * 3)


def test_a_term_to_the_sampler_looks_at_the_sampler_alone():
    """v = log(pi / mu) is 1 on every action here, whatever the reference and the policy before the updates say."""
    objective = replace(PRESETS["grpo"].objective, kl=K2Sampler(0.3), aggregate=TokenMean())
    batch = batch_of(
        *(1.0, 1.0),
        action=ACTION,
        old_logp=torch.full((2, 3), -7.0).double(),
        behavior_logp=-torch.ones(2, 3).double(),
        ref_logp=torch.full((2, 3), 9.0).double(),
    )
    logp = torch.zeros(2, 3).double().requires_grad_()
    loss = objective.loss(objective.advantage(batch, {})[0], logp, TOTALS)
    loss.value.backward()
    assert logp.grad[ACTION].tolist() == pytest.approx([0.1] * 3)  # 0.3 v / M
    assert loss.metrics["kl"] == pytest.approx(0.5)


def sampled_batch():
    """u = log(pi/ref) at sampling time: 1 and 2 for the first completion, -0.5 for the second."""
    return batch_of(
        *(1.0, 0.0),
        action=ACTION,
        behavior_logp=torch.tensor([[5.0, -1.0, -2.0], [5.0, -1.0, 5.0]]),
        ref_logp=torch.tensor([[0.0, -2.0, -4.0], [0.0, -0.5, 0.0]]),
    )


@for_every(
    [
        (K1Reward, [[0, 1, 2], [0, -0.5, 0]]),
        (K1Immediate, [[0, 1, 2], [0, -0.5, 0]]),
        (K2Reward, [[0, 0.5, 2], [0, 0.125, 0]]),
        (K3Reward, [[0, math.exp(-1), math.exp(-2) + 1], [0, math.exp(0.5) - 1.5, 0]]),
        (AbsoluteReward, [[0, 1, 2], [0, 0.5, 0]]),
    ]
)
def test_costs_in_the_reward_by_hand(kind, expected):
    assert kind(0.1).cost(sampled_batch()).tolist() == near([[0.1 * each for each in row] for row in expected])
    assert NoKL().cost(sampled_batch()) is None and K3().cost(sampled_batch()) is None


def test_old_log_probabilities_are_those_of_the_sampling_policy_where_given():
    batch = replace(sampled_batch(), old_logp=torch.full((2, 3), -3.0))
    assert K1Reward(0.1).cost(batch).tolist() == near([[0, -0.1, 0.1], [0, -0.25, 0]])


def test_a_cost_goes_into_the_reward_or_straight_into_the_advantage():
    """Rewards 1 and 0 pay 0.3 and -0.05: 0.7 and 0.05, compared with their mean; or each token pays for itself."""
    objective = replace(GRPO, scale=NoScale(), kl=K1Reward(0.1))
    found, _ = objective.advantage(sampled_batch(), {})
    assert found.advantage.tolist() == near([[0, 0.325, 0.325], [0, -0.325, 0]])
    found, _ = replace(objective, kl=K1Immediate(0.1)).advantage(sampled_batch(), {})
    assert found.advantage.tolist() == near([[0, 0.4, 0.3], [0, -0.45, 0]])


@for_every(
    [
        (K3, {"beta": 0.0}, "objective.kl=none"),
        (K2, {"beta": math.nan}, "above 0"),
        (Full, {"beta": -1.0}, "above 0"),
        (K1Reward, {"beta": 0.0}, "above 0"),
        (PPOClip, {"low": -0.1}, "0 or more"),
        (PPOClip, {"high": math.nan}, "0 or more"),
        (Cap, {"ceiling": 0.2}, "1 or more"),
        (DualClip, {"ceiling": 1.0}, r"1 \+ high"),
        (SoftGate, {"tau_positive": 0.0}, "above 0"),
        (GeometricMean, {"width": 0.0}, "above 0"),
        (GammaGate, {"k_negative": 0.0}, "above 0"),
        (VariationMask, {"low": 0.0}, r"\(0, 1\]"),
        (VariationMask, {"ceiling": 0.5}, "1 or more"),
        (DivergenceMask, {"limit": 0.0}, "above 0"),
        (BatchRunningMean, {"decay": 1.0}, r"\[0, 1\)"),
        (MixedMean, {"share": 0.0}, r"\(0, 1\]"),
        (MixedMean, {"decay": 1.0}, r"\[0, 1\)"),
        (PromptTracker, {"keep": 0.0}, r"\(0, 1\]"),
        (LearnedLength, {"spread": 0.0}, "above 0"),
    ]
)
def test_numbers_that_make_no_sense(component, numbers, fix):
    with pytest.raises(ValueError, match=fix):
        component(**numbers)


# the loss itself


def test_the_loss_by_hand():
    """A good token at ratio 2 (stopped), a good one at 1, a bad one at ratio 2 (not stopped), and a k2 term."""
    objective = Objective("grpo", GroupMean(), NoScale(), TokenRatio(), PPOClip(0.2, 0.2), SequenceMean(), K2(0.1))
    logp = double([0.0, -1.0, -2.0], [0.0, -3.0, 0.0]).requires_grad_()
    two = math.log(2)
    batch = batch_of(
        *(1.0, 0.0),
        action=ACTION,
        old_logp=double([0, -1 - two, -2], [0, -3 - two, 0]),
        ref_logp=double([5, -1, -3], [5, -1, 5]),
    )
    batch, _ = objective.advantage(batch, {})
    loss = objective.loss(batch, logp, TOTALS)
    loss.value.backward()
    # share * (weight * A - beta * u)
    by_hand = [[0, 0.25 * (0 - 0.0), 0.25 * (0.5 - 0.1 * 1)], [0, 0.5 * (2 * -0.5 - 0.1 * -2), 0]]
    assert (-logp.grad).tolist() == near(by_hand)
    assert loss.metrics["ratio"] == pytest.approx((2 + 1 + 2) / 3)
    assert loss.metrics["reweighted"] == pytest.approx(1 / 3)
    assert loss.metrics["kl"] == pytest.approx((0 + 0.5 + 2) / 3)
    assert loss.metrics["kl_completion"] == pytest.approx((0 + 1 - 2) / 2)
    assert loss.metrics["kl_old"] == pytest.approx(2 * (1 - two) / 3)
    assert loss.metrics["surrogate"] == pytest.approx(0.25 * 0.6 + 0.25 * 0.5 + 0.5 * -1.0)
