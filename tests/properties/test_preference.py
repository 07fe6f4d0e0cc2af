"""The contract of every preference method: cutting, padding, order and ranks never change a gradient.

Gradients are those of logp and of rival_logp. Numbers of the whole step come in as totals and anchor.
"""

from dataclasses import astuple, replace

import pytest
import torch

from tests.support.for_every import for_every
from tests.support.preference_batches import random_rows
from whet.objective.axes import with_changes
from whet.objective.preference.batch import PairBatch, PairExtras, pair_totals
from whet.objective.preference.reward_model_losses import (
    AllPairs,
    LabelBatch,
    LabelLoss,
    PlackettLuce,
    RankBatch,
    RankLoss,
    reward_totals,
)
from whet.objective.presets.preference import PAIR_PRESETS

CLOSE = 1e-12
METHODS = {name: preset.objective for name, preset in PAIR_PRESETS.items()}
SINGLE = [name for name in METHODS if "pairs" not in METHODS[name].needs()]
TOKENWISE = [name for name in METHODS if METHODS[name].needs() & {"token_logp", "rival_logp"}]
CASES = [*((name, True) for name in METHODS), *((name, False) for name in SINGLE)]
CUTS = ([[0], [1], [2], [3], [4], [5], [6], [7]], [[6, 0, 3], [7, 5, 1, 4, 2]])


def close(mine, expected):
    """Equal to the promised 1e-14, relative to the largest number: processors add in other orders."""
    return mine.shape == expected.shape and bool((mine - expected).abs().max() <= 1e-14 * expected.abs().max())


def example(name, paired, seed=1):
    """A step of eight rows, one with an empty completion and a weight each, and its totals with the method's anchor."""
    batch, logp, extras = random_rows(seed, num_rows=8, paired=paired, empty=True)
    batch = replace(batch, weight=torch.linspace(0.5, 2.0, 8, dtype=torch.float64))
    logp = logp + 0.2  # so that the anchors are not 0
    totals, _ = METHODS[name].anchored(pair_totals(batch), METHODS[name].anchor_sums(batch, logp), {})
    return batch, logp, extras, totals


def found(name, batch, logp, extras, totals):
    logp, rival = logp.clone().requires_grad_(), extras.rival_logp.clone().requires_grad_()
    loss = METHODS[name].loss(batch, logp, totals, PairExtras(extras.log_square, rival))
    loss.value.backward()
    return loss, logp.grad, torch.zeros_like(rival) if rival.grad is None else rival.grad


def part(extras, rows):
    return PairExtras(extras.log_square[rows], extras.rival_logp[rows])


def relative(one, two):
    return float((one - two).norm() / two.norm()) if two.norm() else float(one.norm())


@for_every(CASES, CUTS)
def test_cuts_and_order_do_not_matter(name, paired, cut):
    batch, logp, extras, totals = example(name, paired)
    whole, expected, expected_rival = found(name, batch, logp, extras, totals)
    gradient, rival, sums, counts = torch.zeros_like(logp), torch.zeros_like(logp), {}, []
    for rows in cut:
        counts.append(astuple(pair_totals(batch.select(rows))))
        loss, grad, other = found(name, batch.select(rows), logp[rows], part(extras, rows), totals)
        gradient[rows] += grad
        rival[rows] += other
        for key, number in loss.metrics.items():
            sums[key] = sums.get(key, 0.0) + number
    assert [sum(column) for column in zip(*counts, strict=True)] == list(astuple(replace(totals, anchor=0.0)))
    assert expected.norm() > 1e-4
    assert relative(gradient, expected) < CLOSE and relative(rival, expected_rival) < CLOSE
    assert sums == pytest.approx(whole.metrics, rel=1e-11, abs=1e-13)
    assert abs(whole.metrics["loss"]) > 1e-4


@for_every(CASES)
def test_the_anchor_does_not_depend_on_the_cut(name, paired):
    objective = METHODS[name]
    batch, logp, _, totals = example(name, paired)
    parts = [objective.anchor_sums(batch.select(rows), logp[rows]) for rows in CUTS[1]]
    again, _ = objective.anchored(pair_totals(batch), parts[0] + parts[1], {})
    assert again.anchor == pytest.approx(totals.anchor, rel=1e-12)
    assert (totals.anchor != 0) == (objective.anchor.name != "zero")


@for_every(CASES)
def test_padding_and_what_is_not_trained_do_not_matter(name, paired):
    batch, logp, extras, totals = example(name, paired)
    _, expected, expected_rival = found(name, batch, logp, extras, totals)
    assert (expected[~batch.action] == 0).all() and (expected_rival[~batch.action] == 0).all()

    def wider(values, fill):
        return torch.cat([values, values.new_full((*values.shape[:2], 5), fill)], -1)

    garbage = torch.where(batch.action, logp, float("nan"))
    ref = torch.where(batch.action, batch.ref_logp, float("inf"))
    wide = replace(batch, action=wider(batch.action, False), ref_logp=wider(ref, float("nan")))
    more = PairExtras(wider(extras.log_square, float("nan")), wider(extras.rival_logp, float("nan")))
    _, gradient, rival = found(name, wide, wider(garbage, float("nan")), more, totals)
    width = logp.shape[-1]
    assert close(gradient[..., :width], expected) and (gradient[..., width:] == 0).all()
    assert close(rival[..., :width], expected_rival)


@for_every([case for case in CASES if case[0] not in TOKENWISE])
def test_sums_give_the_same_as_tokens(name, paired):
    batch, logp, extras, totals = example(name, paired)
    whole, expected, _ = found(name, batch, logp, extras, totals)

    def total(values):
        return torch.where(batch.action, values, 0.0).sum(-1)

    bare = PairBatch(batch.lengths, total(batch.ref_logp), batch.label, weight=batch.weight)
    leaf = total(logp).requires_grad_()
    loss = METHODS[name].loss(bare, leaf, totals, PairExtras(total(extras.log_square)))
    loss.value.backward()
    assert loss.metrics == pytest.approx(whole.metrics, rel=1e-11)
    assert relative(torch.where(batch.action, leaf.grad[..., None], 0.0), expected) < CLOSE


@for_every(CASES)
def test_a_row_with_an_empty_completion_counts_nowhere(name, paired):
    batch, logp, extras, totals = example(name, paired)
    _, expected, _ = found(name, batch, logp, extras, totals)
    kept = [row for row in range(8) if row != 1]
    assert not batch.counted[1] and (expected[1] == 0).all()
    smaller = batch.select(kept)
    assert pair_totals(smaller) == replace(totals, anchor=0.0)
    _, gradient, _ = found(name, smaller, logp[kept], part(extras, kept), totals)
    assert relative(gradient, expected[kept]) < CLOSE


@for_every(CASES)
def test_the_grad_is_the_gradient(name, paired):
    batch, logp, extras, totals = example(name, paired)
    if "rival_logp" in METHODS[name].needs():
        with pytest.raises(ValueError, match="rival_logp"):
            METHODS[name].grad(batch, logp, totals, extras)
        return
    loss, expected, _ = found(name, batch, logp, extras, totals)
    grad, same = METHODS[name].grad(batch, logp, totals, extras)
    assert close(grad, expected) and not same.value.requires_grad
    assert same.metrics == pytest.approx(loss.metrics, rel=1e-14)


@for_every([name for name in METHODS if "ref_logp" in METHODS[name].needs()])
def test_only_log_ratios_matter_where_there_is_a_reference(name):
    """Moving policy and reference of a token together changes nothing, imitation and own words apart."""
    batch, logp, extras, totals = example(name, True)
    objective = METHODS[name]
    if objective.imitate.name != "none" or objective.weigh.name != "alike":
        objective = with_changes(objective, {"imitate": "none", "weigh": "alike"})
    moved = torch.randn(logp.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected, _ = objective.grad(batch, logp, totals, extras)
    shifted, _ = objective.grad(replace(batch, ref_logp=batch.ref_logp + moved), logp + moved, totals, extras)
    assert expected.norm() > 1e-4 and relative(shifted, expected) < 1e-9


SYMMETRIC = [
    name for name in METHODS if METHODS[name].curve.name in ("logistic", "unflipped", "squared", "blend", "hinge")
]


@for_every([n for n in SYMMETRIC if METHODS[n].imitate.name == "none" and METHODS[n].contrast.name == "difference"])
def test_an_identical_pair_pulls_its_two_sides_apart_alike(name):
    """Margin 0, not grad 0: what one side gains the other loses, so shared tokens cancel in the weights."""
    batch, logp, extras, _ = example(name, True)
    twin = batch.select([0])
    twin = PairBatch(
        *(values[:, :1].repeat(1, 2, *[1] * (values.dim() - 2)) for values in (twin.lengths, twin.ref_logp)),
        action=twin.action[:, :1].repeat(1, 2, 1),
    )
    same, square = (values[:1, :1].repeat(1, 2, 1) for values in (logp, extras.log_square))
    grad, loss = METHODS[name].grad(twin, same, pair_totals(twin), PairExtras(square))
    assert loss.metrics["margin"] == 0 and loss.metrics["accuracy"] == 0.5
    assert grad.norm() > 1e-6 and torch.allclose(grad[:, 0], -grad[:, 1], rtol=0, atol=1e-15)


@for_every(METHODS, [torch.float32, torch.bfloat16])
def test_completions_far_from_the_reference_stay_finite(name, dtype):
    """A policy that has strayed by hundreds of nats, and one that is sure of every token."""
    batch, logp, extras, totals = example(name, True)
    ref = batch.ref_logp.float()
    for values in (logp * 300, torch.zeros_like(logp), logp / 1e9):
        leaf, rival = values.to(dtype).requires_grad_(), extras.rival_logp.float().requires_grad_()
        loss = METHODS[name].loss(
            replace(batch, ref_logp=ref), leaf, totals, PairExtras(extras.log_square.float() * 0, rival)
        )
        loss.value.backward()
        assert loss.value.isfinite() and leaf.grad.isfinite().all()
        assert all(number.isfinite() for number in loss.sums.values())


@for_every([name for name in METHODS if METHODS[name].weigh.name == "alike"])
def test_a_step_that_follows_the_grad_lowers_the_loss(name):
    """Rows whose weights move with the policy are left out: those have no gradient."""
    batch, logp, extras, totals = example(name, True)
    grad, before = METHODS[name].grad(batch, logp, totals, extras)
    after = METHODS[name].loss(batch, logp - 1e-4 * grad / grad.norm(), totals, extras)
    assert float(after.value) < float(before.value)


def rank_example(seed=0):
    draw = torch.Generator().manual_seed(seed)
    score = torch.randn(6, 4, generator=draw, dtype=torch.float64)
    rank = torch.tensor([[0, 1, 2, 3], [2, 0, 1, -1], [1, 0, -1, -1], [0, 0, 1, 2], [1, 1, 1, 1], [3, 2, 1, 0]])
    return RankBatch(rank, weight=torch.linspace(0.5, 2, 6, dtype=torch.float64)), score


@for_every([0.0, 0.01], [AllPairs(), PlackettLuce()])
def test_reward_models_do_not_feel_cuts_order_or_missing_answers(centre, cost):
    batch, score = rank_example()
    loss, totals = RankLoss(cost, centre), reward_totals(batch)
    assert totals.rows == 5 and totals.pairs == 6 + 3 + 1 + 5 + 6
    leaf = score.clone().requires_grad_()
    whole = loss.loss(batch, leaf, totals)
    whole.value.backward()
    gradient, sums = torch.zeros_like(score), {}
    for rows in ([5, 1], [0, 2, 4, 3]):
        component = torch.where(batch.rank[rows] >= 0, score[rows], float("nan")).requires_grad_()
        found = loss.loss(RankBatch(batch.rank[rows], weight=batch.weight[rows]), component, totals)
        found.value.backward()
        gradient[rows] += component.grad
        sums = {name: sums.get(name, 0.0) + number for name, number in found.metrics.items()}
    assert whole.value.item() > 0.1 and leaf.grad.norm() > 0.1
    assert (leaf.grad[4] == 0).all() and (leaf.grad[batch.rank < 0] == 0).all()
    assert relative(gradient, leaf.grad) < CLOSE
    assert sums == pytest.approx(whole.metrics, rel=1e-12)


@for_every([True, False])
def test_classifiers_do_not_feel_cuts_order_or_padding(even):
    draw = torch.Generator().manual_seed(3)
    logit = torch.randn(6, 5, generator=draw, dtype=torch.float64)
    label = torch.rand(6, 5, generator=draw, dtype=torch.float64)
    judged = torch.rand(6, 5, generator=draw) < 0.6
    judged[2] = False
    batch, loss = LabelBatch(label, judged), LabelLoss(even_completions=even)
    totals = reward_totals(batch)
    leaf = logit.clone().requires_grad_()
    whole = loss.loss(batch, leaf, totals)
    whole.value.backward()
    gradient, sums = torch.zeros_like(logit), {}
    for rows in ([4, 0], [2], [5, 3, 1]):
        component = torch.where(judged[rows], logit[rows], float("nan")).requires_grad_()
        found = loss.loss(LabelBatch(label[rows], judged[rows]), component, totals)
        found.value.backward()
        gradient[rows] += component.grad
        sums = {name: sums.get(name, 0.0) + number for name, number in found.metrics.items()}
    assert leaf.grad.norm() > 0.05 and (leaf.grad[~judged] == 0).all()
    assert relative(gradient, leaf.grad) < CLOSE
    assert sums == pytest.approx(whole.metrics, rel=1e-12)
