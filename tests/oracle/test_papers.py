"""Every row's gradient equals the gradient of its paper's formula, on ragged random batches in float64."""

import sys
from pathlib import Path

import pytest

from whet.objective import PRESETS, step_totals

sys.path.insert(0, str(Path(__file__).parent))
from batches import BUDGET, ragged, random_batch
from papers import PAPERS

SEEDS = range(20)
BINARY = [name for name in PRESETS if PRESETS[name].objective.scale.name == "group_mean"]  # rewards of 0 or 1 only
CLIPPED = [name for name in PRESETS if PRESETS[name].objective.clip.name != "on_policy"]


def whet_gradient(name, batch, logp, memory):
    objective = PRESETS[name].objective
    batch, _ = objective.advantage(batch, memory)
    leaf = logp.clone().requires_grad_()
    objective.loss(batch, leaf, step_totals(batch, BUDGET)).value.backward()
    return -leaf.grad


def paper_gradient(name, batch, logp, **settings):
    leaf = logp.clone().requires_grad_()
    columns = [ragged(values, batch.action) for values in (leaf, batch.old_logp, batch.ref_logp)]
    PAPERS[name](*columns, batch.reward.tolist(), batch.group.tolist(), **settings).backward()
    return leaf.grad


def test_every_row_has_a_paper():
    assert set(PAPERS) == set(PRESETS)


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.parametrize("seed", SEEDS)
def test_gradient_equals_the_papers(name, seed):
    binary = name in BINARY
    batch, logp = random_batch(seed, num_groups=3 + seed % 3, group_size=2 + seed % 5, binary=binary)
    memory, settings = {}, {}
    if name == "reinforce":
        memory, settings = {"running_sum": 0.3, "running_mass": 0.5}, {"baseline": 0.6}
    ours, theirs = whet_gradient(name, batch, logp, memory), paper_gradient(name, batch, logp, **settings)
    assert theirs.norm() > 1e-3
    assert (ours - theirs).norm() / theirs.norm() < 1e-12


@pytest.mark.parametrize("name", CLIPPED)
def test_the_clip_binds_in_these_batches(name):
    """Otherwise the agreement above would say nothing about clipping."""
    batch, logp = random_batch(0, binary=name in BINARY, drift=1.0 if name == "cispo" else 0.4)
    objective = PRESETS[name].objective
    batch, _ = objective.advantage(batch, {})
    loss = objective.loss(batch, logp.clone().requires_grad_(), step_totals(batch, BUDGET))
    assert loss.metrics["reweighted"] > 0.005


@pytest.mark.parametrize("name", [name for name in CLIPPED if name != "cispo"])
def test_the_reported_surrogate_is_the_papers_value(name):
    """A stopped ratio in front of log pi (cispo) has no surrogate of its own: there the value reported is weight A."""
    batch, logp = random_batch(5, binary=name in BINARY)
    objective = PRESETS[name].objective
    batch, _ = objective.advantage(batch, {})
    loss = objective.loss(batch, logp, step_totals(batch, BUDGET))
    columns = [ragged(values, batch.action) for values in (logp, batch.old_logp, batch.ref_logp)]
    settings = {"beta": 0.0} if name == "grpo" else {}
    value = PAPERS[name](*columns, batch.reward.tolist(), batch.group.tolist(), **settings)
    assert loss.metrics["surrogate"] == pytest.approx(float(value), rel=1e-12)
