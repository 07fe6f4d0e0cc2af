"""whet's preference and reward-model losses beside those of TRL's installed trainers: value and gradient."""

from dataclasses import replace

import pytest
import torch

from tests.peers.peer import DATASETS, Package, Peer, PeerMissing
from tests.support.preference_batches import random_rows
from whet.objective.axes import with_changes
from whet.objective.preference.batch import PairExtras, pair_totals
from whet.objective.preference.reward_model_losses import AllPairs, RankBatch, RankLoss, reward_totals
from whet.objective.presets.preference import PAIR_PRESETS

pytestmark = pytest.mark.peers
PACKAGE = Package("trl", "1.16.0", "trl_preference_side.py", DATASETS)
EXACT, SINGLE = 1e-10, 1e-5  # SINGLE: float32 on the peer's side
SEEDS = range(3)


@pytest.fixture(scope="module")
def trainers():
    try:
        peer = Peer(PACKAGE)
    except PeerMissing as reason:
        pytest.skip(str(reason))
    yield peer
    peer.close()


def method(name, changes=None):
    return with_changes(PAIR_PRESETS[name].objective, changes or {})


def assert_same(answer, value, gradient, tolerance):
    assert gradient.norm() > 1e-5, "a gradient of zero agrees with everything"
    assert float((answer["gradient"] - gradient).norm() / gradient.norm()) < tolerance
    assert float(answer["loss"]) == pytest.approx(float(value), rel=tolerance)


# whet's method, its changes, TRL's settings
PAIRS = {
    "dpo": ("dpo", {}, {}),
    "robust": ("robust_dpo", {}, {"loss_type": ["robust"], "label_smoothing": 0.1}),
    "ipo is averaged": ("ipo_mean", {}, {"loss_type": ["ipo"]}),
    "hinge": ("hinge", {}, {"loss_type": ["hinge"]}),
    "sigmoid_norm": ("sigmoid_norm", {}, {"loss_type": ["sigmoid_norm"], "beta": 5.0}),
    "apo_zero": ("apo_zero", {}, {"loss_type": ["apo_zero"]}),
    "apo_down": ("apo_down", {}, {"loss_type": ["apo_down"]}),
    "sppo_hard": ("sppo", {}, {"loss_type": ["sppo_hard"], "beta": 1e-3}),
    "nca_pair": ("nca", {}, {"loss_type": ["nca_pair"], "beta": 0.01}),
    "bco_pair has no running mean": ("bco", {"anchor": "zero"}, {"loss_type": ["bco_pair"]}),
    "discopop": ("discopop", {}, {"loss_type": ["discopop"], "beta": 0.05}),
    "ld_dpo": ("ld_dpo", {}, {"ld_alpha": 0.5}),
    "wpo": ("wpo", {}, {"use_weighting": True, "beta": 0.01}),
    "forward_kl": ("fdpo_forward", {}, {"f_divergence_type": "forward_kl"}),
    "js": ("fdpo_js", {}, {"f_divergence_type": "js_divergence"}),
    "js hinge": ("fdpo_js", {"curve": "hinge"}, {"f_divergence_type": "js_divergence", "loss_type": ["hinge"]}),
    "nll is a mean over tokens": (
        "dpo",
        {"imitate": "per_token", "imitate.coefficient": 0.3},
        {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.3]},
    ),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", PAIRS)
def test_pairs(trainers, name, seed):
    ours, changes, settings = PAIRS[name]
    batch, logp, extras = random_rows(seed)
    answer = trainers(
        "pairs", settings=settings, logp=logp, ref=batch.ref_logp, square=extras.log_square, mask=batch.action
    )
    gradient, loss = method(ours, changes).grad(batch, logp, pair_totals(batch), extras)
    assert_same(answer, loss.value, gradient, EXACT)


def test_alpha_divergence_in_single_precision(trainers):
    batch, logp, extras = random_rows(0)
    answer = trainers(
        "pairs",
        settings={"f_divergence_type": "alpha_divergence"},
        logp=logp.float(),
        ref=batch.ref_logp.float(),
        square=extras.log_square.float(),
        mask=batch.action,
    )
    gradient, loss = method("fdpo_alpha").grad(batch, logp, pair_totals(batch))
    assert_same(answer, loss.value, gradient, SINGLE)


def test_smoothing_is_ignored_by_its_sigmoid(trainers):
    batch, logp, extras = random_rows(0)
    asked = {"logp": logp, "ref": batch.ref_logp, "square": extras.log_square, "mask": batch.action}
    answer = trainers("pairs", settings={"label_smoothing": 0.1}, **asked)
    gradient, loss = method("dpo").grad(batch, logp, pair_totals(batch))
    assert_same(answer, loss.value, gradient, EXACT)
    smoothed, _ = method("cdpo").grad(batch, logp, pair_totals(batch))
    assert float((answer["gradient"] - smoothed).norm() / smoothed.norm()) > 0.1


@pytest.mark.parametrize("seed", SEEDS)
def test_labelled_replies(trainers, seed):
    objective = method("kto", {"curve.desirable": 1.3, "curve.undesirable": 0.7})
    batch, logp, _ = random_rows(seed, num_rows=9, paired=False)
    other, other_logp, _ = random_rows(seed + 50, num_rows=9, paired=False)
    other_logp = other_logp + 0.3
    sums = objective.anchor_sums(other, other_logp)
    totals, _ = objective.anchored(pair_totals(batch), sums, {})
    assert totals.anchor > 0.1

    def total(values):
        return torch.where(other.action, values, 0.0).sum(-1)[:, 0]

    answer = trainers(
        "labelled",
        loss_type="kto",
        beta=0.1,
        weights=(1.3, 0.7),
        logp=logp[:, 0],
        ref=batch.ref_logp[:, 0],
        mask=batch.action[:, 0],
        good=batch.good[:, 0],
        other=total(other_logp),
        other_ref=total(other.ref_logp),
    )
    gradient, loss = objective.grad(batch, logp, totals)
    assert_same({**answer, "gradient": answer["gradient"][:, None]}, loss.value, gradient, EXACT)


WITHOUT = {
    "cpo": ("cpo", {"imitate": "none"}, {"loss_type": "sigmoid", "beta": 0.1}, False),
    "smoothed": ("cpo", {"imitate": "none", "curve.smoothing": 0.2}, {"label_smoothing": 0.2}, False),
    "slic": ("slic", {"imitate": "none"}, {"loss_type": "hinge", "beta": 1.0}, False),
    "simpo": ("simpo", {}, {"loss_type": "simpo", "beta": 2.0, "simpo_gamma": 1.0}, True),
    "alphapo": ("alphapo", {}, {"loss_type": "simpo", "beta": 2.5, "simpo_gamma": 0.1, "alpha": 0.25}, True),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_methods_without_a_reference(trainers, name):
    ours, changes, settings, averaged = WITHOUT[name]
    batch, tokens, _ = random_rows(1)
    logp = torch.where(batch.action, tokens, 0.0).sum(-1)
    batch = replace(batch, ref_logp=None, action=None)
    divided = batch.lengths if averaged else torch.ones_like(batch.lengths)
    known = {"loss_type": "sigmoid", "beta": 0.1, "label_smoothing": 0.0, "alpha": 0.0, **settings}
    chosen, rejected = (logp / divided).unbind(-1)
    answer = trainers("without_reference", settings=known, chosen=chosen, rejected=rejected)
    gradient, loss = method(ours, changes).grad(batch, logp, pair_totals(batch))
    assert_same(answer, loss.value, gradient * divided, EXACT)


def test_odds(trainers):
    batch, tokens, _ = random_rows(1)
    logp = torch.where(batch.action, tokens, 0.0).sum(-1)
    batch = replace(batch, ref_logp=None, action=None)
    chosen, rejected = (logp / batch.lengths).unbind(-1)
    answer = trainers("odds", beta=0.1, chosen=chosen, rejected=rejected)
    gradient, loss = method("orpo", {"imitate": "none"}).grad(batch, logp, pair_totals(batch))
    assert_same(answer, loss.value, gradient * batch.lengths, SINGLE)


@pytest.mark.parametrize("with_margin", [True, False])
@pytest.mark.parametrize("centre", [None, 0.01])
def test_reward_model(trainers, centre, with_margin):
    draw = torch.Generator().manual_seed(0)
    score = torch.randn(7, 2, generator=draw, dtype=torch.float64)
    margin = torch.linspace(0, 1, 7, dtype=torch.float64) if with_margin else None
    answer = trainers("reward", score=score, margin=margin, centre=centre)
    batch = RankBatch(torch.tensor([[0, 1]] * 7), None if margin is None else margin[:, None, None].expand(7, 2, 2))
    leaf = score.clone().requires_grad_()
    loss = RankLoss(AllPairs(), centre or 0.0).loss(batch, leaf, reward_totals(batch))
    loss.value.backward()
    assert_same(answer, loss.value.detach(), leaf.grad, EXACT)


def test_its_cuts_change_the_mean_over_tokens(trainers):
    """Two passes of TRL's mean over tokens, each divided by its own tokens, are not the step's."""
    batch, logp, extras = random_rows(2)
    settings = {"loss_type": ["sft"]}
    cut = [list(range(3)), list(range(3, 7))]
    theirs = torch.zeros_like(logp)
    for rows in cut:
        answer = trainers(
            "pairs",
            settings=settings,
            logp=logp[rows],
            ref=batch.ref_logp[rows],
            square=extras.log_square[rows],
            mask=batch.action[rows],
        )
        theirs[rows] = answer["gradient"] / len(cut)
    whole = trainers(
        "pairs", settings=settings, logp=logp, ref=batch.ref_logp, square=extras.log_square, mask=batch.action
    )["gradient"]
    assert float((theirs - whole).norm() / whole.norm()) > 0.05
    objective = method("dpo", {"imitate": "per_token"})
    ours = torch.zeros_like(logp)
    for rows in cut:
        part = PairExtras(extras.log_square[rows])
        ours[rows] = objective.grad(batch.select(rows), logp[rows], pair_totals(batch), part)[0]
    expected, _ = objective.grad(batch, logp, pair_totals(batch))
    assert torch.allclose(ours, expected, rtol=1e-12, atol=0)
