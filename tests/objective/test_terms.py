"""Corrections, choices of tokens, shapes, filters and the terms beside the policy's: numbers that fit on a napkin."""

import math
from dataclasses import replace

import pytest
import torch

from tests.support.for_every import for_every
from tests.support.napkin import ACTION, TOTALS, batch_of, double, near
from whet.model.token_logp import with_rest
from whet.objective import PRESETS, with_changes
from whet.objective.keep import Balanced, Everything, Fresh, MixedOutcome
from whet.objective.mismatch import MaskSequences, MaskStale, MaskTokens, NoMismatch, Truncate, TruncateSequence
from whet.objective.reference import Frozen, MovingAverage, Reset
from whet.objective.select import ClipCovariance, Finished, TieCovariance, TopEntropy, covariance, lottery
from whet.objective.shape import AsScored, ClipReward, LengthCost, SoftOverlong
from whet.objective.teacher import JensenShannonToTeacher, TeacherForwardKL, TeacherReverseKL
from whet.objective.terms import (
    Bonus,
    BonusToTarget,
    ClippedError,
    ImitateDemonstrations,
    ImitateRight,
    ImitateUnsure,
    NoCritic,
    SquaredError,
    TopK,
)
from whet.types import Extras, Totals

TEACHER_TERMS = {"forward_kl": TeacherForwardKL(), "reverse_kl": TeacherReverseKL(), "jsd": JensenShannonToTeacher()}
# the sampler is not the trainer; rho = 4, 0.5 for the first completion, 1.5 for the second
LOG_RHO = double([9.0, math.log(4), math.log(0.5)], [9.0, math.log(1.5), 9.0])
BAD = double([0, -1, -1], [0, -1, 0])


def factor(rule, log_rho=LOG_RHO, staleness=LOG_RHO, advantage=BAD):
    return rule(log_rho, staleness, advantage, ACTION)[ACTION].tolist()


def test_mismatch_rules_by_hand():
    assert factor(NoMismatch()) == [1.0, 1.0, 1.0]
    assert factor(Truncate(2.0)) == pytest.approx([2.0, 0.5, 1.5])
    assert factor(TruncateSequence(1.8)) == pytest.approx([1.8, 1.8, 1.5])
    assert factor(TruncateSequence(5.0)) == pytest.approx([2.0, 2.0, 1.5])
    assert factor(MaskTokens(0.6, 3.0)) == pytest.approx([0.0, 0.0, 1.5])
    assert factor(MaskTokens(0.5, 4.0)) == pytest.approx([4.0, 0.5, 1.5])  # the edges are in
    # geometric means sqrt(2) and 1.5
    assert factor(MaskSequences(0.9, 1.45)) == pytest.approx([4.0, 0.5, 0.0])


def test_stale_mask_drops_bad_completions_the_policy_has_left():
    """mean log(mu / pi) is -log(2)/2 for the first and -log(1.5) for the second; turned round they are positive."""
    assert factor(MaskStale(0.38), staleness=-LOG_RHO) == [1.0, 1.0, 0.0]
    assert factor(MaskStale(0.3), staleness=-LOG_RHO) == [0.0, 0.0, 0.0]
    assert factor(MaskStale(0.3), staleness=-LOG_RHO, advantage=-BAD) == [1.0, 1.0, 1.0]
    assert factor(MaskStale(0.3)) == [1.0, 1.0, 1.0]


def test_a_mismatch_factor_multiplies_the_policys_term_and_not_the_kl():
    objective = with_changes(
        PRESETS["grpo"].objective, {"mismatch": "truncate", "kl": "k2", "kl.beta": 0.5, "scale": "none"}
    )
    logp = torch.zeros(2, 3).double().requires_grad_()
    batch = batch_of(
        *(1.0, 0.0),
        action=ACTION,
        old_logp=torch.zeros(2, 3).double(),
        behavior_logp=-LOG_RHO,
        ref_logp=torch.full((2, 3), -2.0).double(),
    )
    batch, _ = objective.advantage(batch, {})
    loss = objective.loss(batch, logp, TOTALS)
    loss.value.backward()
    by_hand = [[0, 0.25 * (2 * 0.5 - 1), 0.25 * (0.5 * 0.5 - 1)], [0, 0.5 * (1.5 * -0.5 - 1), 0]]
    assert (-logp.grad).tolist() == near(by_hand)
    assert loss.metrics["mismatch_dropped"] == 0


# which tokens


def test_finished_leaves_the_cut_off_out_of_everything_but_the_statistics():
    objective = with_changes(PRESETS["dr_grpo"].objective, {"select": "finished"})
    batch = batch_of(1.0, 0.0, action=ACTION, finished=torch.tensor([True, False]))
    found, _ = objective.advantage(batch, {})
    assert found.action.tolist() == [ACTION[0].tolist(), [False] * 3]
    assert found.advantage[0].tolist() == [0.0, 0.5, 0.5]
    assert Finished()(batch).action.sum() == 2


def test_top_entropy_takes_the_largest_share_of_all_tokens():
    batch = batch_of(1.0, 0.0, action=ACTION, entropy=double([9, 0.5, 0.2], [9, 0.9, 9]))
    assert TopEntropy(0.4).__call__(batch).learns.tolist() == [[False] * 3, [False, True, False]]
    assert TopEntropy(0.7)(batch).learns.tolist() == [[False, True, False], [False, True, False]]
    assert TopEntropy(1.0)(batch).learns.tolist() == ACTION.tolist()


def covariance_batch():
    """A = 1, 1, -2 and log pi = -1, -3, -2: means 0 and -2, so the products are 1, -1 and 0."""
    return batch_of(
        *(1.0, 0.0), action=ACTION, old_logp=double([7, -1, -3], [7, -2, 7]), advantage=double([0, 1, 1], [0, -2, 0])
    )


def test_covariance_by_hand():
    assert covariance(covariance_batch()).tolist() == near([[0, 1, -1], [0, 0, 0]])
    sampler = replace(covariance_batch(), old_logp=None, behavior_logp=covariance_batch().old_logp)
    assert covariance(sampler).tolist() == near([[0, 1, -1], [0, 0, 0]])


def test_choices_by_covariance_by_hand():
    batch = covariance_batch()
    assert ClipCovariance(0.5, 0.5, 2.0)(batch).learns.tolist() == [[False, False, True], [False, True, False]]
    assert ClipCovariance(0.5, 1.0, 2.0)(batch).learns.tolist() == ACTION.tolist()  # the edges are out
    assert ClipCovariance(1.0, -0.5, 2.0)(batch).learns.tolist() == [[False, False, True], [False, False, False]]
    assert TieCovariance(0.1)(batch).tied.tolist() == [[False, True, False], [False] * 3]
    assert TieCovariance(0.7)(batch).tied.tolist() == [[False, True, False], [False, True, False]]


def test_a_lottery_of_small_numbers_has_no_ties():
    """Completions that share tokens, sums of tokens or a prefix still get numbers of their own."""
    tokens = torch.cartesian_prod(*[torch.arange(6)] * 4)
    action = torch.tensor([[False, True, True, True]]).expand_as(tokens)
    batch = replace(batch_of(*[0.0] * len(tokens), action=action), tokens=tokens)
    completions = batch.select(range(6**3))  # those behind the first prompt token
    lots = lottery(completions)[completions.action]
    assert len(set(lots.tolist())) == lots.numel() == 3 * 6**3
    assert abs(float((lots.double() / 2**63).mean()) - 0.5) < 0.05


# the reward's shape


def test_soft_overlong_by_hand():
    """Budget 10, tail 0.4: free up to 6, then a ramp to -1 at 10."""
    action = torch.arange(10)[None] < torch.tensor([[5], [6], [8], [10]])
    batch = batch_of(1.0, 1.0, 1.0, 1.0, action=action, max_new_tokens=10)
    assert SoftOverlong(0.4)(batch).tolist() == pytest.approx([1.0, 1.0, 0.5, 0.0])
    assert SoftOverlong(0.4, 3.0)(batch).tolist() == pytest.approx([1.0, 1.0, -0.5, -2.0])
    assert LengthCost(0.5)(batch).tolist() == pytest.approx([0.75, 0.7, 0.6, 0.5])
    assert ClipReward(-1.0, 0.3)(batch).tolist() == pytest.approx([0.3] * 4)
    assert AsScored()(batch) is batch.reward


def test_a_shaped_reward_is_compared_and_the_scored_one_is_kept():
    objective = with_changes(PRESETS["dr_grpo"].objective, {"shape": "clip", "shape.low": 0.0, "shape.high": 0.5})
    found, _ = objective.advantage(batch_of(1.0, 0.0, action=ACTION), {})
    assert found.advantage[:, 1].tolist() == [0.25, -0.25] and found.reward.tolist() == [1.0, 0.0]


# which groups


def test_which_groups_are_kept():
    assert Everything()([1.0, 1.0], 9)
    for kind in (MixedOutcome(), Balanced()):
        assert kind([1.0, 0.0], 0)
        assert not kind([1.0, 1.0], 0) and not kind([1.0], 0) and not kind([], 0)
        assert not kind([0.1, 0.1 + 1e-9], 0)
    assert Fresh(2)([1.0, 1.0], 2) and not Fresh(2)([1.0, 0.0], 3)
    assert (MixedOutcome(7).most_rounds, Balanced(3).most_rounds, Everything().most_rounds) == (7, 3, 1)
    assert MixedOutcome.refills and Balanced.grows and not (Everything.refills or Fresh.refills or Fresh.grows)


def test_when_the_reference_moves():
    assert [Frozen().kept_after(step) for step in (1, 400)] == [1.0, 1.0]
    assert [Reset(3).kept_after(step) for step in (1, 2, 3, 4, 6)] == [1.0, 1.0, 0.0, 1.0, 0.0]
    assert [MovingAverage(0.9, 2).kept_after(step) for step in (1, 2, 3, 4)] == [1.0, 0.9, 1.0, 0.9]


# terms of their own


def test_imitation_of_right_completions_by_hand():
    """0.1 over 8 right tokens of the whole step, on the right completion of this pass; an unscorable one is not
    right."""
    batch = batch_of(1.0, 0.0, action=ACTION, parts=double([1, 5], [0, 5]))
    assert ImitateRight(0.1)(batch, Totals(20, 5, 4, 8)).tolist() == near([[0, 0.0125, 0.0125], [0, 0, 0]])
    unscorable = replace(batch, reward=double(math.nan, 0.0))
    assert ImitateRight(0.1)(unscorable, Totals(20, 5, 4, 8)).abs().max() == 0


def test_imitation_of_demonstrations_by_hand():
    """0.2 over 8 tokens of the whole step; p (1 - p) in front where the policy's doubt counts."""
    shown = torch.tensor([[False, False, False], [False, True, True]])
    batch = batch_of(1.0, math.nan, action=ACTION, demonstrated=shown)
    totals = Totals(20, 5, 4, demonstrated_tokens=8)
    for component in (ImitateDemonstrations(0.2), ImitateUnsure(0.2)):
        assert component(batch, totals).tolist() == near([[0, 0, 0], [0, 0.025, 0.025]])
        assert component.rest == 0.8
    assert ImitateDemonstrations(0.2).doubt(double(0.0)) is None
    assert ImitateUnsure(0.2).doubt(double(0.5, 0.9, 1.0).log()).tolist() == pytest.approx([0.25, 0.09, 0.0])


def test_the_weight_of_demonstrations_goes_up_and_down():
    """Two steps up to 0.8, four down a cosine to 0.2, where it stays; the memory counts the steps."""
    component, memory, found = ImitateDemonstrations(0.8, 0.2, warmup=2, decay=4), {}, []
    for _ in range(8):
        found.append(component.tuned(memory).weight)
        memory = component.adjusted(memory)
    down = 0.3 / math.sqrt(2)
    assert found == pytest.approx([0.4, 0.8, 0.5 + down, 0.5, 0.5 - down, 0.2, 0.2, 0.2])
    assert ImitateDemonstrations(0.8).tuned({"imitated_steps": 50.0}).weight == 0.8
    assert ImitateDemonstrations(0.8).adjusted({}) == {}


def test_the_critics_error_by_hand():
    batch = batch_of(1.0, 0.0, action=ACTION, target=double([9, 1, 2], [9, 0, 9]), value=double([9, 0, 0], [9, 0.1, 9]))
    value = double([9, 0.5, 2], [9, 0.4, 9])
    assert SquaredError().error(value, batch)[ACTION].tolist() == pytest.approx([0.125, 0.0, 0.08])
    # held to 0.2, 0.2 and 0.3: errors 0.8^2/2, 1.8^2/2 and the larger 0.4^2/2
    assert ClippedError(width=0.2).error(value, batch)[ACTION].tolist() == pytest.approx([0.32, 1.62, 0.08])
    objective = PRESETS["ppo"].objective
    loss = objective.critic_loss(batch, value, TOTALS)
    assert float(loss.value) == pytest.approx(0.1 * 0.205 / 3) and loss.metrics["value_error"] == pytest.approx(
        0.205 / 3
    )
    assert NoCritic().error(value, batch).abs().max() == 0


def test_smoothing_by_hand():
    """Entropies 1, 2, 3, 4: the 0.5 quantile is 2.5, so the last two fork. The second completion is wrong."""
    action = torch.ones(2, 4, dtype=torch.bool)
    batch = batch_of(1.0, 0.0, action=action, parts=double([1], [0]))
    extras = Extras(
        entropy=double([1, 2, 3, 4], [4, 1, 2, 3]),
        chose_top=torch.tensor([[True] * 4, [True, True, True, False]]),
    )
    component = TopK(share=0.25, top=2, quantile=0.5, push=2.0)
    assert component.forking(batch, extras).tolist() == [[False, False, True, True], [True, False, False, True]]
    assert component.spread(batch, extras).tolist() == [[0, 0, 0.25, 0.25], [0, 0, 0, 0]]
    advantage = double([1, 1, 1, 1], [-1, -1, -1, -1])
    assert component.pushed(advantage, batch, extras).tolist() == [[1] * 4, [-2, -1, -1, -1]]
    alone = batch_of(1.0, action=torch.ones(1, 1, dtype=torch.bool), parts=double([1]))
    assert not component.forking(alone, Extras(entropy=double([3.0]))).any()  # nothing is above itself


def test_the_pull_on_the_sampled_and_the_top_tokens_sums_to_the_usual_one():
    objective = with_changes(
        PRESETS["simko"].objective, {"scale": "none", "smooth.share": 0.25, "smooth.quantile": 0.0}
    )
    action = torch.ones(2, 2, dtype=torch.bool)
    batch, _ = objective.advantage(batch_of(1.0, 0.0, action=action, parts=double([1], [0])), {})
    logp = torch.zeros(2, 2).double().requires_grad_()
    top = torch.zeros(2, 2, 3).double().requires_grad_()
    extras = Extras(entropy=double([1, 2], [1, 2]), top_logp=top, chose_top=torch.zeros(2, 2, dtype=torch.bool))
    objective.loss(batch, logp, Totals(4, 2, 4), extras).value.backward()
    assert (-logp.grad).tolist() == near([[0.125, 0.75 * 0.125], [-0.125, -0.125]])
    assert (-top.grad)[0, 1].tolist() == pytest.approx([0.25 * 0.125 / 3] * 3)
    assert top.grad[1].abs().max() == 0


def test_the_entropy_bonus_has_the_rows_shares():
    objective = with_changes(PRESETS["dr_grpo"].objective, {"entropy": "bonus", "entropy.weight": 0.5})
    batch, _ = objective.advantage(batch_of(1.0, 0.0, action=ACTION), {})
    entropy = torch.ones(2, 3).double().requires_grad_()
    objective.loss(batch, torch.zeros(2, 3).double(), TOTALS, Extras(entropy=entropy)).value.backward()
    assert (-entropy.grad).tolist() == near([[0, 0.5 / 8, 0.5 / 8], [0, 0.5 / 8, 0]])


@for_every(
    [
        (Truncate, {"ceiling": 0.5}),
        (TruncateSequence, {"ceiling": 0.5}),
        (MaskTokens, {"low": 1.5}),
        (MaskSequences, {"high": 0.9}),
        (MaskStale, {"limit": -1.0}),
        (TopEntropy, {"share": 0.0}),
        (ClipCovariance, {"low": 5.0}),
        (TieCovariance, {"share": 1.5}),
        (SoftOverlong, {"tail": 0.0}),
        (SoftOverlong, {"penalty": 0.0}),
        (LengthCost, {"cost": 0.0}),
        (ClipReward, {"low": 2.0}),
        (MixedOutcome, {"rounds": 0}),
        (Balanced, {"rounds": 0}),
        (Fresh, {"max_staleness": -1}),
        (Reset, {"every": 0}),
        (MovingAverage, {"decay": 1.0}),
        (MovingAverage, {"every": 0}),
        (Bonus, {"weight": 0.0}),
        (ImitateRight, {"weight": 0.0}),
        (ImitateDemonstrations, {"weight": 1.0}),
        (ImitateDemonstrations, {"last": 0.0}),
        (ImitateUnsure, {"decay": -1.0}),
        (SquaredError, {"coefficient": 0.0}),
        (SquaredError, {"warmup": -1.0}),
        (ClippedError, {"width": 0.0}),
        (TopK, {"share": 1.0}),
        (TopK, {"top": 0}),
    ]
)
def test_numbers_that_make_no_sense(component, numbers):
    with pytest.raises(ValueError, match="give"):
        component(**numbers)


def test_a_target_of_nothing_is_refused():
    with pytest.raises(ValueError, match="above 0"):
        BonusToTarget(target=0.0)


@pytest.mark.parametrize("name", ["forward_kl", "reverse_kl", "jsd"])
def test_a_token_that_the_teacher_rules_out_gives_no_nan(name):
    """Masked logits are -inf, in the teacher or in both; the other tokens keep their gradient."""
    term = TEACHER_TERMS[name]
    logits = torch.tensor([[0.3, -1.0, 0.8, 0.1]], dtype=torch.float64)
    theirs = torch.tensor([[0.5, 0.2, -0.4, float("-inf")]], dtype=torch.float64).log_softmax(-1)
    for own in (logits, logits.masked_fill(torch.tensor([False, False, False, True]), float("-inf"))):
        leaf = own.clone().requires_grad_()
        value = term.divergence(leaf.log_softmax(-1), theirs)
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
        assert value.isfinite().all() and gradient[:, :3].isfinite().all() and gradient[:, :3].abs().min() > 1e-3
    three = own[:, :3].clone().requires_grad_()
    alone = term.divergence(three.log_softmax(-1), theirs[:, :3])
    torch.testing.assert_close(value, alone, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ["forward_kl", "reverse_kl", "jsd"])
def test_the_likeliest_tokens_and_the_rest_are_a_bound_with_another_gradient(name):
    term, generator = TEACHER_TERMS[name], torch.Generator().manual_seed(0)
    logits, theirs = torch.randn(2, 400, 5, generator=generator, dtype=torch.float64)
    theirs = theirs.log_softmax(-1)
    cosines = {}
    for count in (3, 4):
        ids = theirs.topk(count).indices
        both = []
        for part in (lambda logp: logp, lambda logp, ids=ids: with_rest(logp.gather(-1, ids))):
            leaf = logits.clone().requires_grad_()
            value = term.divergence(part(leaf.log_softmax(-1)), part(theirs))
            both.append((value, torch.autograd.grad(value.sum(), leaf)[0]))
        (whole, exact), (bound, found) = both
        assert (bound <= whole + 1e-12).all()
        cosines[count] = torch.cosine_similarity(exact, found, dim=-1).mean()
    assert cosines[4] == pytest.approx(1, abs=1e-9) and 0.8 < cosines[3] < 0.99


@pytest.mark.parametrize("name", ["grpo", "cispo", "ce_gppo", "aspo", "prime_rl", "gspo"])
def test_a_token_that_moved_beyond_what_a_float_can_hold_gives_no_nan(name):
    """exp(100) is infinite in float32, and 0 times that is NaN: a group that agrees has A = 0. verl holds it at 20."""
    objective = PRESETS[name].objective
    far = torch.full((2, 3), -100.0)
    known = {"old_logp": far, "behavior_logp": far, "ref_logp": far + 200}
    for rewards in ((1.0, 1.0), (1.0, 0.0)):
        batch, _ = objective.advantage(batch_of(*rewards, **known), {})
        logp = torch.full((2, 3), -0.5, requires_grad=True)
        loss = objective.loss(batch, logp, Totals(tokens=6, sequences=2, max_new_tokens=3))
        (gradient,) = torch.autograd.grad(loss.value, logp)
        assert gradient.isfinite().all(), rewards
        assert all(math.isfinite(float(value)) for value in loss.metrics.values()), loss.metrics


def test_rounding_between_two_passes_reweights_nothing():
    """A rule that sees the whole step sees it in a pass of its own, packed in another way on every number of ranks."""
    objective = PRESETS["bapo"].objective
    old = double([[-1.0, -2.0, -3.0], [-1.0, -2.0, -3.0]])
    batch, _ = objective.advantage(batch_of(1.0, 0.0, old_logp=old), {})
    logp = old + double([[0.1, 3.0, -0.1], [0.2, -0.1, -2.0]])
    shares = []
    for noise in (0.0, 1e-6, -1e-6):
        surveyed = objective.surveyed(batch, logp + noise)
        loss = objective.loss(surveyed, logp, Totals(tokens=6, sequences=2, max_new_tokens=3))
        shares.append(float(loss.metrics["reweighted"]))
    assert shares == [pytest.approx(2 / 6)] * 3
