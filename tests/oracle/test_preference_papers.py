"""Every preference method: loss and gradient equal those of its paper's formula, on ragged batches in float64."""

from dataclasses import replace

import pytest
import torch

from tests.oracle import preference_papers as papers
from tests.support.for_every import for_every
from tests.support.preference_batches import random_rows
from whet.objective.axes import PAIR_AXES, with_changes
from whet.objective.preference.batch import PairExtras, mismatched_rows, pair_totals
from whet.objective.presets.preference import PAIR_PRESETS

SEEDS = range(6)
CLOSE = 1e-12


def relative(one, two):
    return float((one - two).norm() / two.norm()) if two.norm() else float(one.norm())


def objective_of(name, changes=None):
    return with_changes(PAIR_PRESETS[name].objective, changes or {})


def ours(objective, batch, logp, extras, totals=None):
    """Loss and the gradients in logp and rival_logp."""
    logp, rival = logp.clone().requires_grad_(), extras.rival_logp.clone().requires_grad_()
    found = objective.loss(batch, logp, totals or pair_totals(batch), PairExtras(extras.log_square, rival))
    found.value.backward()
    return found.value.detach(), logp.grad, torch.zeros_like(rival) if rival.grad is None else rival.grad


def theirs(batch, logp, extras, step):
    """`step` makes the loss of a step from its rows of completions."""
    logp, rival = logp.clone().requires_grad_(), extras.rival_logp.clone().requires_grad_()
    value = step(papers.completions(batch, logp, PairExtras(extras.log_square, rival)))
    value.backward()
    return value.detach(), logp.grad, torch.zeros_like(rival) if rival.grad is None else rival.grad


def mean_of(paper):
    def step(rows):
        costs = [paper(*row) for row in rows]
        return sum(costs) / len(costs)

    return step


def assert_equal(found, expected):
    assert expected[1].norm() > 1e-4
    for one, two in zip(found, expected, strict=True):
        assert relative(one, two) < CLOSE


def test_every_method_has_a_paper():
    assert {*papers.PAPERS, *papers.STEPWISE} == set(PAIR_PRESETS)


@for_every(papers.PAPERS, SEEDS)
def test_loss_and_gradient_equal_the_papers(name, seed):
    batch, logp, extras = random_rows(seed, empty=seed % 2 == 1)
    assert_equal(
        ours(objective_of(name), batch, logp, extras), theirs(batch, logp, extras, mean_of(papers.PAPERS[name]))
    )


def far_apart(batch, logp):
    """Differences of tens of nats, where every curve bends."""
    return replace(batch, ref_logp=logp + 12 * (batch.ref_logp - logp))


VARIATIONS = {
    "smoothing": ("dpo", {"curve.smoothing": 0.2}, lambda w, r: papers.cdpo(w, r, 0.1, 0.2)),
    "gamma": ("dpo", {"curve.gamma": 0.7}, lambda w, r: -papers.log_sigma(0.1 * (w.d - r.d) - 0.7)),
    "shift": ("dpo_shift", {"contrast.factor": 0.5}, lambda w, r: papers.dpo_shift(w, r, f=0.5)),
    "alpha_is_mean": ("alphapo", {"score.alpha": 0}, lambda w, r: papers.simpo(w, r, 2.5, 0.1)),
    "alpha_negative": ("alphapo", {"score.alpha": -0.5}, lambda w, r: papers.alphapo(w, r, -0.5)),
    "alpha_forward": ("fdpo_alpha", {"score.alpha": 0}, papers.f_forward),
    "alpha_reverse": ("fdpo_alpha", {"score.alpha": 1}, papers.dpo),
    "no_tail": ("ld_dpo", {"score.tail": 0}, lambda w, r: papers.ld_dpo(w, r, 0.0)),
    "whole_tail": ("ld_dpo", {"score.tail": 1}, papers.dpo),
    "weighed_entropy": ("simpo", {"score": "weighed_entropy"}, lambda w, r: papers.power(w, r, g=1.0)),
    "gate": (
        "pairwise_cringe",
        {"weigh.bias": 0.5, "weigh.temperature": 3.0, "curve.coefficient": 0.2},
        lambda w, r: papers.pairwise_cringe(w, r, 0.2, 0.5, 3.0),
    ),
    "protected": ("dpop", {"contrast.penalty": 2, "curve.beta": 0.1}, lambda w, r: papers.dpop(w, r, 0.1, 2.0)),
}


@for_every(VARIATIONS, SEEDS[:3])
def test_variations_equal_theirs(name, seed):
    preset, changes, paper = VARIATIONS[name]
    batch, logp, extras = random_rows(seed)
    batch = batch if name in ("alpha_forward", "gate") else far_apart(batch, logp)
    assert_equal(ours(objective_of(preset, changes), batch, logp, extras), theirs(batch, logp, extras, mean_of(paper)))


@for_every([True, False], SEEDS[:3])
def test_prospects_equal_the_papers_with_z_of_mismatched_completions(paired, seed):
    changes = {"curve.desirable": 1.3, "curve.undesirable": 0.7}
    objective = objective_of("kto", changes)
    batch, logp, extras = random_rows(seed, num_rows=8, paired=paired)
    other, other_logp, other_extras = random_rows(seed + 100, num_rows=8, paired=False)
    other_logp = other_logp + 0.3  # else the mean is often negative and z is 0
    z = max(0.0, sum(float(row[0].d) for row in papers.completions(other, other_logp, other_extras)) / 8)
    assert z > 0.1
    parts = [objective.anchor_sums(other.select(rows), other_logp[rows]) for rows in ([0, 5], [1, 2, 3, 4, 6, 7])]
    totals, _ = objective.anchored(pair_totals(batch), sum(parts), {})
    assert totals.anchor == pytest.approx(z, rel=1e-12)

    def step(rows):
        costs = [papers.kto(completion, z, 0.1, 1.3, 0.7) for row in rows for completion in row]
        return sum(costs) / len(costs)

    assert_equal(ours(objective, batch, logp, extras, totals), theirs(batch, logp, extras, step))


def test_z_is_never_below_zero():
    objective = objective_of("kto")
    batch, logp, _ = random_rows(3, paired=False)
    assert objective.anchored(pair_totals(batch), objective.anchor_sums(batch, logp - 5), {})[0].anchor == 0


@for_every([True, False])
def test_the_running_mean_shifts_rewards(paired):
    objective, memory = objective_of("bco"), {}
    means = []
    for seed in SEEDS[:3]:
        batch, logp, extras = random_rows(seed, num_rows=8, paired=paired)
        logp = logp + 0.2
        totals, memory = objective.anchored(pair_totals(batch), objective.anchor_sums(batch, logp), memory)
        rows = papers.completions(batch, logp, extras)
        each = {good: [float(r.d) for row in rows for r in row if r.good == good] for good in (True, False)}
        means.append(sum(sum(values) / len(values) for values in each.values()) / 2)
        delta = 0.1 * sum(means) / len(means)
        assert 0.1 * totals.anchor == pytest.approx(delta, rel=1e-12)

    def step(rows):
        if paired:
            return mean_of(lambda w, r: papers.bco(w, r, delta))(rows)
        good = [-papers.log_sigma(0.1 * r.d - delta) for (r,) in rows if r.good]
        bad = [-papers.log_sigma(-(0.1 * r.d - delta)) for (r,) in rows if not r.good]
        return sum(good) / len(good) + sum(bad) / len(bad)

    assert_equal(ours(objective, batch, logp, extras, totals), theirs(batch, logp, extras, step))


@for_every(
    [
        ("apo_zero", lambda d: 1 - papers.sigma(0.1 * d), lambda d: papers.sigma(0.1 * d)),
        ("sppo", lambda d: (d - 500) ** 2, lambda d: (d + 500) ** 2),
        (
            "nca",
            lambda d: -papers.log_sigma(0.01 * d) - 0.5 * papers.log_sigma(-0.01 * d),
            lambda d: -0.5 * papers.log_sigma(-0.01 * d),
        ),
    ]
)
def test_single_completions_are_averaged_class_by_class(name, good, bad):
    batch, logp, extras = random_rows(2, num_rows=8, paired=False)

    def step(rows):
        costs = {each: [(good if each else bad)(r.d) for (r,) in rows if r.good == each] for each in (True, False)}
        return sum(sum(values) / len(values) for values in costs.values())

    assert_equal(ours(objective_of(name), batch, logp, extras), theirs(batch, logp, extras, step))


def test_stated_preferences_and_margins_enter():
    batch, logp, extras = random_rows(4)
    p = torch.linspace(0.55, 0.95, batch.num_rows, dtype=torch.float64)
    margin = torch.linspace(0.0, 1.5, batch.num_rows, dtype=torch.float64)

    def logistic(rows):
        costs = [papers.smoothed(0.1 * (w.d - r.d) - margin[i], 1 - p[i]) for i, (w, r) in enumerate(rows)]
        return sum(costs) / len(costs)

    given = replace(batch, preference=p, margin=margin)
    assert_equal(ours(objective_of("dpo"), given, logp, extras), theirs(batch, logp, extras, logistic))

    def targets(rows):
        costs = [papers.sppo(w, r, 1e-3, p[i]) for i, (w, r) in enumerate(rows)]
        return sum(costs) / len(costs)

    given = replace(batch, preference=p)
    assert_equal(ours(objective_of("sppo"), given, logp, extras), theirs(batch, logp, extras, targets))

    def margins(rows):
        costs = [max(torch.zeros_like(w.d), 1 + margin[i] - 0.1 * (w.d - r.d)) for i, (w, r) in enumerate(rows)]
        return sum(costs) / len(costs)

    given = replace(batch, margin=margin)
    assert_equal(ours(objective_of("hinge"), given, logp, extras), theirs(batch, logp, extras, margins))


def test_row_weights_and_the_mean_over_tokens_enter():
    batch, logp, extras = random_rows(5)
    weight = torch.linspace(0.1, 2.0, batch.num_rows, dtype=torch.float64)

    def step(rows):
        tokens = sum(w.n for w, _ in rows)
        costs = [
            weight[i] * (-papers.log_sigma(0.1 * (w.logp - r.logp)) / len(rows) - w.logp / tokens)
            for i, (w, r) in enumerate(rows)
        ]
        return sum(costs)

    given, objective = replace(batch, weight=weight), objective_of("cpo", {"imitate": "per_token"})
    assert_equal(ours(objective, given, logp, extras), theirs(batch, logp, extras, step))


def test_every_component_that_shapes_a_gradient_has_a_paper():
    objectives = [
        *(preset.objective for preset in PAIR_PRESETS.values()),
        objective_of("cpo", {"imitate": "per_token"}),
    ]
    objectives += [objective_of(preset, changes) for preset, changes, _ in VARIATIONS.values()]
    used = {(axis, getattr(objective, axis).name) for objective in objectives for axis in PAIR_AXES}
    assert {(axis, name) for axis in PAIR_AXES for name in PAIR_AXES[axis]} == used


def test_mismatched_completions_are_of_another_prompt():
    group = torch.tensor([4, 4, 1, 7, 7, 7, 4])
    found = mismatched_rows(group).tolist()
    for row, other in enumerate(found):
        after = [(row + step) % 7 for step in range(1, 7)]
        assert other == next(each for each in after if group[each] != group[row])
    assert mismatched_rows(torch.tensor([2, 2, 2])).tolist() == [-1, -1, -1]
