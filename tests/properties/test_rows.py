"""The contract of the loss layer, for every row: cutting, padding, order and ranks never change the gradient."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from whet.data.packing import passes, trimmed
from whet.objective import AXES, PRESETS, step_totals
from whet.types import Totals, WhetError

sys.path.insert(0, str(Path(__file__).parents[1] / "oracle"))
from batches import BUDGET, random_batch

ROWS = list(PRESETS)
GROUP_ROWS = [name for name in ROWS if PRESETS[name].objective.baseline.smallest_group > 1]
BINARY = [name for name in ROWS if PRESETS[name].objective.scale.name == "group_mean"]  # rewards of 0 or 1 only
# a KL in the reward tells equal replies apart, and so it should
SILENT_ROWS = [name for name in GROUP_ROWS if PRESETS[name].objective.kl.name != "k1_reward"]


def advantaged(name, batch):
    return PRESETS[name].objective.advantage(batch, {"running_sum": 0.4, "running_mass": 0.5})[0]


def gradient(name, batch, logp, totals=None):
    leaf = logp.clone().requires_grad_()
    loss = PRESETS[name].objective.loss(batch, leaf, totals or step_totals(batch, BUDGET))
    loss.value.backward()
    return leaf.grad


def relative(one, two):
    return float((one - two).norm() / two.norm())


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("tokens_per_pass", [1, 40, 100, 10_000])
def test_micro_batches_do_not_matter(name, tokens_per_pass):
    batch, logp = random_batch(1, binary=name in BINARY)
    batch = advantaged(name, batch)
    whole = gradient(name, batch, logp)
    totals = step_totals(batch, BUDGET)
    pieces = torch.zeros_like(whole)
    parts = passes(batch, tokens_per_pass)
    assert sorted(row for rows in parts for row in rows) == list(range(batch.num_sequences))
    for rows in parts:
        part = trimmed(batch.select(rows))
        width = part.tokens.shape[1]
        pieces[rows, :width] += gradient(name, part, logp[rows, :width], totals)
    assert relative(pieces, whole) < 1e-14


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_number_of_ranks_does_not_matter(name, ranks):
    """Each rank sees only its rows and the summed totals."""
    batch, logp = random_batch(2, binary=name in BINARY)
    batch = advantaged(name, batch)
    shares = [list(range(rank, batch.num_sequences, ranks)) for rank in range(ranks)]
    totals = sum(
        (step_totals(batch.select(rows), BUDGET) for rows in shares[1:]), step_totals(batch.select(shares[0]), BUDGET)
    )
    found = torch.zeros_like(logp)
    for rows in shares:
        found[rows] += gradient(name, batch.select(rows), logp[rows], totals)
    assert relative(found, gradient(name, batch, logp)) < 1e-14


@pytest.mark.parametrize("name", ROWS)
def test_order_does_not_matter(name):
    batch, logp = random_batch(3, binary=name in BINARY)
    order = torch.randperm(batch.num_sequences, generator=torch.Generator().manual_seed(0))
    shuffled = gradient(name, advantaged(name, batch.select(order)), logp[order])
    assert relative(shuffled, gradient(name, advantaged(name, batch), logp)[order]) < 1e-14


@pytest.mark.parametrize("name", ROWS)
def test_padding_does_not_matter_and_may_hold_anything(name):
    batch, logp = random_batch(4, binary=name in BINARY)
    whole = gradient(name, advantaged(name, batch), logp)

    def wider(values, fill):
        return torch.cat([values, torch.full((len(values), 9), fill, dtype=values.dtype)], dim=1)

    padded = replace(
        batch,
        tokens=wider(batch.tokens, 0),
        action=wider(batch.action, False),
        old_logp=wider(batch.old_logp, float("nan")),
        ref_logp=wider(batch.ref_logp, float("inf")),
    )
    found = gradient(name, advantaged(name, padded), wider(logp, float("-inf")))
    assert relative(found[:, : whole.shape[1]], whole) < 1e-14
    assert (found[:, whole.shape[1] :] == 0).all()


@pytest.mark.parametrize("name", ROWS)
def test_untrained_tokens_get_exactly_no_gradient(name):
    batch, logp = random_batch(5, binary=name in BINARY)
    found = gradient(name, advantaged(name, batch), logp)
    assert (found[~batch.action] == 0).all()
    assert (found[batch.action] != 0).float().mean() > 0.3


@pytest.mark.parametrize("name", ROWS)
def test_a_sequence_without_a_trained_token_leaves_all_denominators(name):
    batch, logp = random_batch(6, binary=name in BINARY)
    batch = advantaged(name, batch)
    silent = batch.action.clone()
    silent[[0, 7]] = False
    quiet = replace(batch, action=silent, advantage=torch.where(silent, batch.advantage, 0.0))
    others = [row for row in range(batch.num_sequences) if row not in (0, 7)]
    found = gradient(name, quiet, logp)
    assert step_totals(quiet, BUDGET) == step_totals(quiet.select(others), BUDGET)
    assert (found[[0, 7]] == 0).all()
    assert relative(found[others], gradient(name, quiet.select(others), logp[others])) < 1e-14


@pytest.mark.parametrize("name", ROWS)
def test_at_ratio_one_the_weight_is_one(name):
    """With old_logp None or equal to logp the policy term is share * A, whatever the clip rule."""
    batch, logp = random_batch(7, binary=name in BINARY)
    objective = replace(PRESETS[name].objective, kl=AXES["kl"]["none"]())
    batch = objective.advantage(batch, {})[0]
    totals = step_totals(batch, BUDGET)
    expected = -objective.aggregate(batch.action, totals) * batch.advantage
    for old in (None, logp):
        leaf = logp.clone().requires_grad_()
        loss = objective.loss(replace(batch, old_logp=old), leaf, totals)
        loss.value.backward()
        torch.testing.assert_close(leaf.grad, expected, rtol=1e-14, atol=0)
        assert loss.metrics["reweighted"] == 0
        assert loss.metrics["ratio"] == pytest.approx(1.0)


@pytest.mark.parametrize("name", ROWS)
def test_a_constant_added_to_a_groups_rewards(name):
    """Group baselines forget it, whatever it is; a running mean does not, and must not."""
    batch, logp = random_batch(8, binary=name in BINARY)
    if name in BINARY:
        with pytest.raises(WhetError, match="0 or 1"):
            advantaged(name, replace(batch, reward=batch.reward + 1))
        return
    shift = torch.tensor([0.0, 3.0, -2.0, 100.0], dtype=torch.float64)[batch.group]
    before = gradient(name, advantaged(name, batch), logp)
    after = gradient(name, advantaged(name, replace(batch, reward=batch.reward + shift)), logp)
    if name in GROUP_ROWS:
        assert relative(after, before) < 1e-12
    else:
        assert relative(after, before) > 0.1


@pytest.mark.parametrize("name", [name for name in SILENT_ROWS if name not in BINARY])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_group_of_equal_rewards_teaches_nothing(name, dtype):
    """Also when float noise makes its spread tiny but not zero."""
    batch, _logp = random_batch(9, binary=name in BINARY)
    reward = torch.full_like(batch.reward, 0.1, dtype=dtype)
    reward[::2] += 1e-9 if dtype == torch.float64 else 1.5e-8
    assert (advantaged(name, replace(batch, reward=reward)).advantage == 0).all()


@pytest.mark.parametrize("name", ROWS)
def test_a_group_of_one_is_finite_and_silent_for_group_baselines(name):
    batch, _logp = random_batch(10, num_groups=6, group_size=1, binary=name in BINARY)
    found = advantaged(name, batch).advantage
    assert found.isfinite().all()
    if name in SILENT_ROWS:
        assert (found == 0).all()


@pytest.mark.parametrize("name", ROWS)
def test_an_unscorable_sample_is_in_no_statistic_and_gets_no_advantage(name):
    batch, _logp = random_batch(11, binary=name in BINARY)
    reward = batch.reward.clone()
    reward[3] = float("nan")
    others = [row for row in range(batch.num_sequences) if row != 3]
    found = advantaged(name, replace(batch, reward=reward)).advantage
    assert (found[3] == 0).all()
    torch.testing.assert_close(found[others], advantaged(name, batch.select(others)).advantage, rtol=1e-13, atol=0)


@pytest.mark.parametrize("name", ROWS)
def test_an_empty_step_is_a_zero_not_a_nan(name):
    batch, logp = random_batch(12, binary=name in BINARY)
    batch = advantaged(name, replace(batch, action=torch.zeros_like(batch.action)))
    assert step_totals(batch, BUDGET) == Totals(0, 0, BUDGET)
    assert (gradient(name, batch, logp) == 0).all()


@pytest.mark.parametrize("name", ROWS)
def test_the_loss_needs_an_advantage_and_what_needs_says(name):
    batch, logp = random_batch(13, binary=name in BINARY)
    objective = PRESETS[name].objective
    with pytest.raises(ValueError, match=r"Objective\.advantage"):
        objective.loss(batch, logp, step_totals(batch, BUDGET))
    batch = advantaged(name, batch)
    if "ref_logp" in objective.needs():
        with pytest.raises(ValueError, match="ref_logp"):
            objective.loss(replace(batch, ref_logp=None), logp, step_totals(batch, BUDGET))
    else:
        with_it = gradient(name, batch, logp)
        assert torch.equal(gradient(name, replace(batch, ref_logp=None), logp), with_it)
