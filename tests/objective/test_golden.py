"""Every piece of a row on numbers that fit on a napkin, and the axes by their names."""

import math
from dataclasses import replace

import pytest
import torch

from whet.objective import (
    AXES,
    PRESETS,
    Objective,
    check_setting,
    description,
    differences,
    preset_named,
    step_totals,
    title,
    with_changes,
)
from whet.objective.advantage import (
    GroupMean,
    GroupMeanScale,
    GroupStd,
    LeaveOneOut,
    LengthWeightedMean,
    NoScale,
    RunningMean,
    group_moments,
)
from whet.objective.aggregate import FixedLength, SequenceMean, SequenceSum, TokenMean
from whet.objective.clip import Cap, DualClip, GeometricMean, OnPolicy, PPOClip, SoftGate
from whet.objective.kl import K2, K3, K1Reward, NoKL
from whet.objective.ratio import SequenceProduct, SequenceRatio, TokenRatio
from whet.objective.table import explanation, markdown_page, markdown_table, rows
from whet.types import TokenBatch, Totals, WhetError

ACTION = torch.tensor([[False, True, True], [False, True, False]])
TOTALS = Totals(tokens=3, sequences=2, max_new_tokens=4)
GRPO = PRESETS["grpo"].objective


def near(table):
    return [pytest.approx(line, rel=1e-6, abs=1e-12) for line in table]


def batch_of(*rewards, groups=None, action=None):
    count = len(rewards)
    action = torch.ones(count, 3, dtype=torch.bool) if action is None else action
    group = torch.zeros(count, dtype=torch.long) if groups is None else torch.tensor(groups)
    return TokenBatch(torch.zeros_like(action).long(), action, group, torch.tensor(rewards, dtype=torch.float64))


# baselines and scales


def test_group_mean():
    batch = batch_of(1.0, 0.0, 5.0, 2.0, groups=[7, 7, 3, 3])
    assert GroupMean()(batch, {}).tolist() == [0.5, 0.5, 3.5, 3.5]
    assert GroupMean().remembered(batch, {"other": 1.0}) == {"other": 1.0}


def test_group_moments_leave_the_unscorable_out():
    moments = group_moments(torch.tensor([1.0, math.nan, 4.0, math.nan]).double(), torch.tensor([0, 0, 0, 1]))
    assert moments.count.tolist() == [2, 2, 2, 0]
    assert moments.mean[:3].tolist() == [2.5] * 3
    assert moments.std[0] == pytest.approx(math.sqrt(4.5))
    assert moments.constant.tolist() == [False, False, False, True]


def test_group_std_is_bessels_with_a_floor():
    batch = batch_of(1.0, 0.0, 0.0, 3.0)
    centred = batch.reward - GroupMean()(batch, {})
    assert centred.tolist() == [0.0, -1.0, -1.0, 2.0]
    spread = math.sqrt((0 + 1 + 1 + 4) / 3) + 1e-6
    assert GroupStd()(centred, batch).tolist() == pytest.approx([0.0, -1 / spread, -1 / spread, 2 / spread], rel=1e-15)
    assert NoScale()(centred, batch).tolist() == centred.tolist()


def test_running_mean_remembers_over_two_steps():
    baseline = RunningMean(decay=0.9)
    first, second = batch_of(1.0, 0.0, math.nan), batch_of(1.0, 1.0, 0.5)
    assert baseline(first, {}).tolist() == [0.0] * 3
    memory = baseline.remembered(first, {})
    assert memory == pytest.approx({"running_sum": 0.1 * 0.5, "running_mass": 0.1})
    assert baseline(second, memory).tolist() == pytest.approx([0.5] * 3)
    memory = baseline.remembered(second, memory)
    # 0.9 * 0.05 + 0.1 * 5/6 over 0.9 * 0.1 + 0.1
    assert baseline(first, memory).tolist() == pytest.approx([(0.045 + 0.5 / 6) / 0.19] * 3, rel=1e-14)


def test_running_mean_forgets_everything_with_decay_zero_and_learns_nothing_from_the_unscorable():
    memory = RunningMean(decay=0.0).remembered(batch_of(2.0, 4.0), {"running_sum": 9.0, "running_mass": 1.0})
    assert RunningMean(decay=0.0)(batch_of(0.0), memory).tolist() == [3.0]
    assert RunningMean().remembered(batch_of(math.nan), memory) is memory


def test_the_advantage_lies_on_the_action_tokens_only():
    batch = batch_of(1.0, 0.0, action=ACTION)
    found, _ = replace(GRPO, scale=NoScale()).advantage(batch, {})
    assert found.advantage.tolist() == [[0.0, 0.5, 0.5], [0.0, -0.5, 0.0]]


# ratio and clip


def test_token_ratio():
    log_ratio = torch.tensor([[9.0, math.log(2), -math.log(4)], [9.0, 0.0, math.nan]])
    assert TokenRatio()(log_ratio, ACTION).tolist() == near([[1, 2, 0.25], [1, 1, 1]])


def test_ppo_clip_for_a_good_token():
    """Only too far up stops it; exactly on the edge it still learns."""
    ratio = torch.tensor([0.1, 0.75, 1.0, 1.25, 1.2501, 9.0])
    weight = PPOClip(0.25, 0.25)(ratio, torch.ones(6), torch.ones(6, dtype=torch.bool))
    assert weight.tolist() == [*ratio[:4].tolist(), 0.0, 0.0]


def test_ppo_clip_for_a_bad_token():
    ratio = torch.tensor([0.1, 0.7499, 0.75, 1.0, 1.25, 9.0])
    weight = PPOClip(0.25, 0.25)(ratio, -torch.ones(6), torch.ones(6, dtype=torch.bool))
    assert weight.tolist() == [0.0, 0.0, *ratio[2:].tolist()]


def test_the_two_edges_of_ppo_clip_are_its_own():
    ratio, good = torch.tensor([0.6, 1.6]), torch.ones(2)
    everything = torch.ones(2, dtype=torch.bool)
    assert PPOClip(0.5, 0.1)(ratio, good, everything).tolist() == [pytest.approx(0.6), 0.0]
    assert PPOClip(0.1, 0.75)(ratio, -good, everything).tolist() == [0.0, pytest.approx(1.6)]


def test_the_surrogate_of_ppo_clip_is_the_lower_of_two():
    ratio = torch.tensor([0.5, 0.5, 2.0, 2.0])
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0])
    assert PPOClip(0.25, 0.25).surrogate(ratio, advantage, advantage != 0).tolist() == [0.5, -0.75, 1.25, -2.0]


def test_on_policy_weighs_everything_with_one():
    ratio, advantage = torch.tensor([0.3, 7.0]), torch.tensor([2.0, -2.0])
    assert OnPolicy()(ratio, advantage, advantage > 0).tolist() == [1.0, 1.0]
    assert OnPolicy().surrogate(ratio, advantage, advantage != 0).tolist() == [2.0, -2.0]


# shares


def test_shares():
    found = {kind.name: kind()(ACTION, TOTALS).tolist() for kind in AXES["aggregate"].values()}
    assert found["token_mean"] == near([[0, 1 / 3, 1 / 3], [0, 1 / 3, 0]])
    assert found["sequence_mean"] == [[0, 0.25, 0.25], [0, 0.5, 0]]
    assert found["fixed_length"] == [[0, 0.125, 0.125], [0, 0.125, 0]]
    assert found["sequence_sum"] == [[0, 0.5, 0.5], [0, 0.5, 0]]
    assert len(found) == 4


@pytest.mark.parametrize(
    ("kind", "total"), [(TokenMean, 1.0), (SequenceMean, 1.0), (FixedLength, 3 / (2 * 4)), (SequenceSum, 3 / 2)]
)
def test_what_the_shares_of_a_step_sum_to(kind, total):
    assert float(kind()(ACTION, TOTALS).sum()) == pytest.approx(total, rel=1e-15)


@pytest.mark.parametrize("kind", AXES["aggregate"].values())
def test_the_shares_of_half_a_step_are_those_of_the_whole(kind):
    whole = kind()(ACTION, TOTALS)
    assert torch.equal(torch.cat([kind()(ACTION[:1], TOTALS), kind()(ACTION[1:], TOTALS)]), whole)


def test_step_totals_count_what_is_trained():
    silent = torch.cat([ACTION, torch.zeros(1, 3, dtype=torch.bool)])
    assert step_totals(batch_of(1.0, 0.0, 1.0, action=silent), 4) == TOTALS
    assert Totals(6, 4, 4) == TOTALS + TOTALS
    with pytest.raises(ValueError, match="max_new_tokens"):
        TOTALS + Totals(1, 1, 5)


# kl


@pytest.mark.parametrize("kind", [K2, K3, NoKL])
def test_the_kl_weight_is_the_derivative_of_its_value(kind):
    piece = kind() if kind is NoKL else kind(0.3)
    beta = 0.0 if kind is NoKL else 0.3
    u = torch.tensor([-1.5, -1e-4, 0.0, 0.2, 3.0], dtype=torch.float64, requires_grad=True)
    if kind is NoKL:
        assert piece.weight(u).tolist() == piece.value(u).tolist() == [0.0] * 5
        return
    (slope,) = torch.autograd.grad(piece.value(u).sum(), u)
    assert slope.abs().max() > 0.1
    torch.testing.assert_close(piece.weight(u.detach()), beta * slope, rtol=1e-12, atol=0)


def test_kl_values():
    u = torch.tensor([0.0, math.log(2), -math.log(2)], dtype=torch.float64)
    half = math.log(2) ** 2 / 2
    assert K2().value(u).tolist() == pytest.approx([0.0, half, half])
    assert K3().value(u).tolist() == pytest.approx([0.0, 0.5 - 1 + math.log(2), 2 - 1 - math.log(2)])
    assert K3(0.1).weight(u).tolist() == pytest.approx([0.0, 0.05, -0.1])


@pytest.mark.parametrize(
    ("piece", "number", "mend"),
    [
        (K3, {"beta": 0.0}, "objective.kl=none"),
        (K2, {"beta": math.nan}, "above 0"),
        (PPOClip, {"low": -0.1}, "0 or more"),
        pytest.param(PPOClip, {"high": math.nan}, "0 or more"),
        (RunningMean, {"decay": 1.0}, r"\[0, 1\)"),
    ],
)
def test_numbers_that_make_no_sense(piece, number, mend):
    with pytest.raises(ValueError, match=mend):
        piece(**number)


# the loss itself


def test_the_loss_by_hand():
    """A good token at ratio 2 (stopped), a good one at 1, a bad one at ratio 2 (not stopped), and a k2 term."""
    objective = Objective("grpo", GroupMean(), NoScale(), TokenRatio(), PPOClip(0.2, 0.2), SequenceMean(), K2(0.1))
    logp = torch.tensor([[0.0, -1.0, -2.0], [0.0, -3.0, 0.0]], dtype=torch.float64, requires_grad=True)
    two = math.log(2)
    batch = replace(
        batch_of(1.0, 0.0, action=ACTION),
        old_logp=torch.tensor([[0, -1 - two, -2], [0, -3 - two, 0]], dtype=torch.float64),
        ref_logp=torch.tensor([[5, -1, -3], [5, -1, 5]], dtype=torch.float64),
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
    assert loss.metrics["surrogate"] == pytest.approx(0.25 * 0.6 + 0.25 * 0.5 + 0.5 * -1.0)


# rows by name


def test_a_piece_is_exchanged_before_its_number_is_set():
    changed = with_changes(GRPO, {"kl.beta": 0.5, "kl": "k2", "clip.high": 0.28})
    assert (changed.kl, changed.clip) == (K2(0.5), PPOClip(0.2, 0.28))
    assert replace(changed, kl=GRPO.kl, clip=GRPO.clip) == GRPO


def test_differences_and_the_star():
    assert differences(GRPO) == {} and title(GRPO) == "GRPO"
    changed = with_changes(GRPO, {"kl": "none", "clip.high": 0.28})
    assert differences(changed) == {"clip.high": "0.2 -> 0.28", "kl": "k3 -> none"}
    assert title(changed) == "GRPO*"
    assert title(with_changes(GRPO, {"clip.high": 0.2, "scale": "group_std"})) == "GRPO"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clp": "ppo_clip"}, "objective.clp: no axis is called 'clp' (did you mean 'clip'?)"),
        (
            {"clip": "ppo_clp"},
            "objective.clip is 'ppo_clp' (did you mean 'ppo_clip'?); give one of on_policy, ppo_clip",
        ),
        ({"clip.hi": 0.3}, "objective.clip.hi: ppo_clip has no such number"),
        ({"clip.hihg": 0.3}, "(did you mean 'high'?); it has low, high"),
        ({"kl": "none", "kl.beta": 0.1}, "objective.kl.beta: none has no such number; it has nothing"),
        ({"clip.high": "wide"}, "objective.clip.high is 'wide'; give a number"),
        ({"clip.high": True}, "objective.clip.high is True; give a number"),
        ({"kl.beta": 0}, "objective.kl.beta is 0.0: it would have no effect"),
        ({"clip.low": -1}, "objective.clip.low = -1.0"),
        pytest.param({"kl": ["k2"]}, "objective.kl is ['k2']; give one of none, k2, k3"),
    ],
)
def test_changes_that_cannot_be(changes, message):
    with pytest.raises(WhetError) as error:
        with_changes(GRPO, changes)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_an_unknown_method_names_the_nearest():
    with pytest.raises(WhetError, match=r"'grop' \(did you mean 'grpo'\?\); `whet algorithms`"):
        preset_named("grop")
    with pytest.raises(WhetError, match="no method is called 'xyzzy'; `whet algorithms`"):
        preset_named("xyzzy")
    assert preset_named("dr_grpo").title == "Dr. GRPO"


@pytest.mark.parametrize(
    ("name", "changes", "setting", "message"),
    [
        ("grpo", {}, (1, 1), "give group_size >= 2, or objective.baseline=running_mean"),
        ("grpo", {"baseline": "running_mean"}, (1, 1), "give objective.scale=none"),
        ("reinforce", {}, (1, 2), "give updates_per_step=1, or objective.clip=ppo_clip"),
        ("grpo", {"clip.high": 0.28}, (8, 1), "objective.clip.high has no effect with updates_per_step=1"),
        ("gspo", {"aggregate": "token_mean"}, (8, 2), "give objective.aggregate=sequence_mean"),
        ("grpo", {"ratio": "sequence"}, (8, 1), "objective.ratio has no effect with updates_per_step=1"),
        ("grpo", {"clip": "cap"}, (8, 1), "objective.clip has no effect with updates_per_step=1"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_their_mend(name, changes, setting, message):
    objective = with_changes(PRESETS[name].objective, changes)
    with pytest.raises(WhetError) as error:
        check_setting(objective, group_size=setting[0], updates_per_step=setting[1], changed=changes)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "changes", "setting"),
    [
        ("grpo", {}, (2, 1)),
        ("grpo", {"clip.high": 0.28}, (8, 2)),
        ("grpo", {"kl.beta": 0.1}, (8, 1)),
        ("reinforce", {}, (1, 1)),
        ("reinforce", {"clip": "ppo_clip"}, (1, 4)),
        ("grpo", {"baseline": "running_mean", "scale": "none"}, (1, 1)),
    ],
)
def test_settings_that_work_are_let_through(name, changes, setting):
    objective = with_changes(PRESETS[name].objective, changes)
    check_setting(objective, group_size=setting[0], updates_per_step=setting[1], changed=changes)


def test_the_description_is_what_is_maximised():
    lines = description(with_changes(GRPO, {"clip.high": 0.28, "kl": "none"}), updates_per_step=4)
    assert lines == [
        "GRPO*  (Shao et al. 2024, DeepSeekMath, arXiv 2402.03300)",
        "  changed: clip.high 0.2 -> 0.28",
        "  changed: kl k3 -> none",
        "  A = (R - mean_g(R)) / (std_g(R) + 1e-06)",
        "  J = 1/N SUM_i 1/n_i SUM_t [ min(r A, clip(r, 0.8, 1.28) A) ]",
        "  r = pi(a_t) / pi_old(a_t)",
        "  - compare each reply with the mean of its group",
        "  - divide the difference by the spread of the group",
        "  - measure the policy's move token by token",
        "  - stop learning from a token once its ratio left [0.8, 1.28] the way A pushes it",
        "  - every reply counts the same, whatever its length",
        "  - no tie to a reference",
    ]


def test_the_description_says_when_the_ratio_is_always_one():
    assert any("always 1 here" in line for line in description(GRPO, updates_per_step=1))
    assert not any("always 1 here" in line for line in description(GRPO, updates_per_step=2))
    assert not any("pi_old" in line for line in description(PRESETS["reinforce"].objective))


def test_the_table_has_every_row_with_its_numbers():
    found = {row["name"]: row for row in rows()}
    assert list(found) == list(PRESETS)
    assert found["grpo"]["clip"] == "ppo_clip(low=0.2, high=0.2)" and found["grpo"]["kl"] == "k3(beta=0.04)"
    assert found["grpo"]["needs"] == ["old_logp", "ref_logp"] and found["reinforce"]["needs"] == []
    assert found["reinforce"]["baseline"] == "running_mean(decay=0.9)" and found["reinforce"]["kl"] == "none"
    lines = markdown_table().splitlines()
    assert len(lines) == len(PRESETS) + 2 and len({len(line) for line in lines}) == 1


@pytest.mark.parametrize("name", PRESETS)
def test_the_explanation_tells_all_there_is_to_tell(name):
    preset, text = PRESETS[name], explanation(name)
    for said in (preset.title, preset.paper, preset.formula, preset.fixes, preset.breaks, *preset.deviations):
        assert said in text
    for axis in AXES:
        assert getattr(preset.objective, axis).name in text
    assert f"whet train {name}" in text and text in markdown_page()


def test_the_explanation_of_an_unknown_method_names_the_nearest():
    with pytest.raises(WhetError, match="did you mean 'reinforce'"):
        explanation("reinforced")


def test_dual_clip_drops_bad_tokens_that_became_likely():
    ratio = torch.tensor([[2.9, 3.1, 3.1, 0.5]])
    advantage = torch.tensor([[-1.0, -1.0, 1.0, -1.0]])
    rule = DualClip(0.2, 0.2, 3.0)
    assert rule(ratio, advantage, advantage != 0).tolist() == near([[2.9, 0.0, 0.0, 0.0]])
    assert rule.surrogate(ratio, advantage, advantage != 0).tolist() == near([[-2.9, -3.0, 1.2, -0.8]])


def test_cap_holds_the_weight_and_drops_nothing():
    ratio = torch.tensor([[0.1, 1.0, 9.0]])
    assert Cap(5.0)(ratio, -ratio, ratio > 0).tolist() == near([[0.1, 1.0, 5.0]])


def test_soft_gate_by_hand():
    """sigmoid(1) = 0.7310586: 4 p (1 - p) r at r = 2, tau 1; and tau 1.05 where A < 0."""
    ratio = torch.tensor([[1.0, 2.0, 2.0]], dtype=torch.float64)
    advantage = torch.tensor([[1.0, 1.0, -1.0]], dtype=torch.float64)
    share = 1 / (1 + math.exp(-1.05))
    expected = [[1.0, 4 * 0.7310585786 * 0.2689414214 * 2, 4 * share * (1 - share) * 2]]
    assert SoftGate()(ratio, advantage, ratio > 0).tolist() == near(expected)


def test_geometric_mean_by_hand():
    """Two trained tokens with log-ratios 0.2 and 1.0 (held at 0.4): both count in the mean, only the first learns."""
    ratio = torch.tensor([[5.0, math.exp(0.2), math.exp(1.0)]], dtype=torch.float64)
    advantage = torch.tensor([[0.0, 2.0, 2.0]], dtype=torch.float64)
    weight = GeometricMean(0.4)(ratio, advantage, torch.tensor([[False, True, True]]))
    assert weight[:, 1:].tolist() == near([[math.exp(0.3), 0.0]])


def test_sequence_ratios_by_hand():
    log_ratio = torch.tensor([[9.0, 0.1, 0.3], [9.0, 0.5, 9.0]], dtype=torch.float64)
    action = ACTION
    assert SequenceRatio()(log_ratio, action)[action].tolist() == near([[math.exp(0.2)] * 2 + [math.exp(0.5)]])[0]
    assert SequenceProduct()(log_ratio, action)[action].tolist() == near([[math.exp(0.4)] * 2 + [math.exp(0.5)]])[0]


def test_leave_one_out_and_length_weighted_mean_by_hand():
    batch = batch_of(1.0, 0.0, 0.0, 2.0)
    assert LeaveOneOut()(batch, {}).tolist() == pytest.approx([2 / 3, 1.0, 1.0, 1 / 3])
    action = torch.tensor([[True, True, True], [True, False, False]])
    assert LengthWeightedMean()(batch_of(1.0, 0.0, action=action), {}).tolist() == pytest.approx([0.75, 0.75])


def test_group_mean_scale_by_hand():
    batch = batch_of(1.0, 0.0, 0.0, 0.0, groups=[0, 0, 1, 1])
    assert GroupMeanScale()(batch.reward - 0.5, batch).tolist() == [1.0, -1.0, 0.0, 0.0]


def test_k1_in_the_reward_by_hand():
    batch = replace(
        batch_of(1.0, 0.0, action=ACTION),
        behavior_logp=torch.tensor([[5.0, -1.0, -2.0], [5.0, -1.0, 5.0]]),
        ref_logp=torch.tensor([[0.0, -2.0, -4.0], [0.0, -0.5, 0.0]]),
    )
    assert K1Reward(0.1).cost(batch).tolist() == pytest.approx([0.3, -0.05])


@pytest.mark.parametrize(
    ("piece", "numbers"),
    [
        (Cap, {"ceiling": 0.2}),
        (DualClip, {"ceiling": 1.0}),
        (SoftGate, {"tau_positive": 0.0}),
        (GeometricMean, {"width": 0.0}),
        (K1Reward, {"beta": 0.0}),
    ],
)
def test_numbers_that_make_no_sense_are_refused(piece, numbers):
    with pytest.raises(ValueError, match="give"):
        piece(**numbers)
