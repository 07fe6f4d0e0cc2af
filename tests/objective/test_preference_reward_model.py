"""Reward-model losses: naive formulas in float64, numbers by hand, and real pairs and steps."""

import itertools
import math
import re
import zlib

import pytest
import torch

from tests.support.for_every import for_every
from tests.support.real_data import data_rows
from whet.objective.preference.reward_model_losses import (
    AllPairs,
    LabelBatch,
    LabelLoss,
    PlackettLuce,
    RankBatch,
    RankLoss,
    RewardTotals,
    reward_totals,
)
from whet.types import WhetError


def ranked(seed=0, num_rows=6, most=5):
    """Rows of 2 to `most` ranked answers, some tied, with margins between 0 and 1."""
    draw = torch.Generator().manual_seed(seed)
    score = torch.randn(num_rows, most, generator=draw, dtype=torch.float64)
    rank = torch.randint(0, 3, (num_rows, most), generator=draw)
    for row in range(num_rows):
        rank[row, 2 + row % (most - 1) :] = -1
    rank[:, 0], rank[:, 1] = 2, 0
    margin = torch.rand(num_rows, most, most, generator=draw, dtype=torch.float64)
    return score, rank, margin


def gradient(loss, batch, score):
    leaf = score.clone().requires_grad_()
    value = loss.loss(batch, leaf, reward_totals(batch)).value
    value.backward()
    return value.detach(), leaf.grad


def naive_all_pairs(score, rank, margin, centre):
    rows = []
    for r, order in zip(range(len(rank)), rank.tolist(), strict=True):
        there = [i for i, place in enumerate(order) if place >= 0]
        costs = []
        for i, j in itertools.permutations(there, 2):
            if order[i] < order[j]:
                apart = score[r, i] - score[r, j] - margin[r, i, j]
                both = score[r, i] + score[r, j]
                costs.append(torch.log(1 + torch.exp(-apart)) + centre * both**2)
        rows.append(sum(costs) / len(costs))
    return sum(rows) / len(rows)


@for_every([0.0, 0.01])
def test_a_row_of_ties_is_in_no_number(centre):
    score, rank, margin = ranked()
    tied = rank.clone()
    tied[2:4] = torch.where(rank[2:4] >= 0, 1, -1)
    kept = torch.tensor([0, 1, 4, 5])
    loss, without = RankLoss(AllPairs(), centre), RankBatch(rank[kept], margin[kept])
    found = loss.loss(RankBatch(tied, margin), score, reward_totals(RankBatch(tied, margin)))
    expected = loss.loss(without, score[kept], reward_totals(without))
    assert {name: float(value) for name, value in found.metrics.items()} == pytest.approx(
        {name: float(value) for name, value in expected.metrics.items()}, rel=1e-12
    )


@for_every(range(4), [0.0, 0.01])
def test_all_pairs_equal_the_formula(seed, centre):
    score, rank, margin = ranked(seed)
    value, grad = gradient(RankLoss(AllPairs(), centre), RankBatch(rank, margin), score)
    leaf = score.clone().requires_grad_()
    expected = naive_all_pairs(leaf, rank, margin, centre)
    expected.backward()
    assert float(value) == pytest.approx(float(expected.detach()), rel=1e-12)
    assert float((grad - leaf.grad).norm() / leaf.grad.norm()) < 1e-12


@pytest.mark.parametrize("seed", range(4))
def test_plackett_luce_is_the_probability_of_the_order(seed):
    draw = torch.Generator().manual_seed(seed)
    score = torch.randn(3, 4, generator=draw, dtype=torch.float64)
    rank = torch.stack([torch.randperm(4, generator=draw) for _ in range(3)])
    leaf = score.clone().requires_grad_()
    rows = []
    for r in range(3):
        order = sorted(range(4), key=lambda i, r=r: int(rank[r, i]))
        chance = 1.0
        for k in range(4):
            chance = chance * torch.exp(leaf[r, order[k]]) / sum(torch.exp(leaf[r, j]) for j in order[k:])
        rows.append(-torch.log(chance))
    expected = sum(rows) / 3
    expected.backward()
    value, grad = gradient(RankLoss(PlackettLuce()), RankBatch(rank), score)
    assert float(value) == pytest.approx(float(expected.detach()), rel=1e-12)
    assert float((grad - leaf.grad).norm() / leaf.grad.norm()) < 1e-12


def test_the_orders_of_plackett_luce_have_probability_one():
    score = torch.tensor([[0.3, -1.0, 2.0]], dtype=torch.float64)
    chances = []
    for order in itertools.permutations(range(3)):
        value, _ = gradient(RankLoss(PlackettLuce()), RankBatch(torch.tensor([order])), score)
        chances.append(math.exp(-float(value)))
    assert sum(chances) == pytest.approx(1) and len(set(chances)) == 6


def test_two_answers_are_a_pair_under_both_costs():
    score = torch.tensor([[1.0, -0.5], [0.2, 0.9]], dtype=torch.float64)
    expected = (math.log1p(math.exp(-1.5)) + math.log1p(math.exp(0.7))) / 2
    for cost in (AllPairs(), PlackettLuce()):
        value, _ = gradient(RankLoss(cost), RankBatch(torch.tensor([[0, 1]] * 2)), score)
        assert float(value) == pytest.approx(expected)


def test_a_constant_added_to_the_scores_is_felt_only_by_the_centre():
    score, rank, _ = ranked()
    for cost in (AllPairs(), PlackettLuce()):
        _, grad = gradient(RankLoss(cost), RankBatch(rank), score)
        _, moved = gradient(RankLoss(cost), RankBatch(rank), score + 7)
        assert torch.allclose(grad, moved, rtol=1e-9, atol=1e-12) and grad.norm() > 0.1
    assert gradient(RankLoss(AllPairs(), 0.01), RankBatch(rank), score + 7)[1].sum() > 0.1


def test_tied_answers_are_not_compared():
    score = torch.tensor([[3.0, -2.0, 0.5]], dtype=torch.float64)
    tied = RankBatch(torch.tensor([[0, 0, 1]]))
    pairs = math.log1p(math.exp(-2.5)), math.log1p(math.exp(2.5))
    assert float(gradient(RankLoss(AllPairs()), tied, score)[0]) == pytest.approx(sum(pairs) / 2)
    assert float(gradient(RankLoss(PlackettLuce()), tied, score)[0]) == pytest.approx(sum(pairs))
    assert reward_totals(tied) == RewardTotals(1, 2, 3)


def test_metrics_of_ranked_answers():
    batch = RankBatch(torch.tensor([[0, 1, -1], [1, 0, 2], [0, 0, 0]]))
    score = torch.tensor([[2.0, 1.0, 99.0], [0.0, 0.0, 3.0], [5.0, 5.0, 5.0]])
    found = RankLoss(AllPairs()).loss(batch, score, reward_totals(batch)).metrics
    # apart: 1; 0 (a tie of scores), -3 and -3
    assert found["accuracy"] == pytest.approx((1 + 0.5) / 4)
    assert found["margin"] == pytest.approx((1 + 0 - 3 - 3) / 4)
    sure = 1 / (1 + math.exp(-3))
    assert found["confidence"] == pytest.approx((1 / (1 + math.exp(-1)) + 0.5 + 2 * sure) / 4)
    assert found["score"] == pytest.approx(6 / 5) and found["score_square"] == pytest.approx(14 / 5)


@pytest.mark.parametrize("even", [True, False])
def test_labels_equal_the_formula(even):
    draw = torch.Generator().manual_seed(1)
    logit = torch.randn(5, 6, generator=draw, dtype=torch.float64)
    label = torch.rand(5, 6, generator=draw, dtype=torch.float64)
    judged = torch.rand(5, 6, generator=draw) < 0.5
    judged[3] = False
    leaf, rows, places = logit.clone().requires_grad_(), [], 0
    for i in range(5):
        costs = []
        for t in range(6):
            if judged[i, t]:
                p = 1 / (1 + torch.exp(-leaf[i, t]))
                costs.append(-3 * label[i, t] * torch.log(p) - (1 - label[i, t]) * torch.log(1 - p))
        places += len(costs)
        if costs:
            rows.append(sum(costs) / (len(costs) if even else 1))
    expected = sum(rows) / (len(rows) if even else places)
    expected.backward()
    loss = LabelLoss(even_completions=even, positive_weight=3.0)
    value, grad = gradient(loss, LabelBatch(label, judged), logit)
    assert float(value) == pytest.approx(float(expected.detach()), rel=1e-12)
    assert float((grad - leaf.grad).norm() / leaf.grad.norm()) < 1e-12


def test_metrics_of_labels():
    batch = LabelBatch(torch.tensor([[1.0, 0.0, 1.0]]), torch.tensor([[True, True, False]]))
    logit = torch.tensor([[2.0, 1.0, -9.0]])
    found = LabelLoss().loss(batch, logit, reward_totals(batch)).metrics
    assert found["accuracy"] == 0.5 and found["right_labels"] == 0.5 and found["right_said"] == 1.0
    p, q = 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(-1))
    assert found["squared_error"] == pytest.approx(((1 - p) ** 2 + q**2) / 2)


def test_the_best_logit_is_that_of_the_label():
    label = torch.tensor([[0.2, 0.5, 0.875]], dtype=torch.float64)
    batch = LabelBatch(label, torch.ones(1, 3, dtype=torch.bool))
    assert gradient(LabelLoss(), batch, label.logit())[1].abs().max() < 1e-15
    assert gradient(LabelLoss(), batch, label.logit() + 1)[1].abs().min() > 1e-3


def test_what_has_no_meaning_is_refused():
    with pytest.raises(WhetError, match="centre is -1"):
        RankLoss(AllPairs(), -1)
    with pytest.raises(WhetError, match="positive_weight is 0"):
        LabelLoss(positive_weight=0)
    with pytest.raises(WhetError, match="use all_pairs"):
        gradient(RankLoss(PlackettLuce()), RankBatch(torch.tensor([[0, 1]]), torch.ones(1, 2, 2)), torch.zeros(1, 2))


def words_of(text, size=1024):
    """Counts of hashed words, with a stable hash."""
    places = [zlib.crc32(word.encode()) % size for word in re.findall(r"[a-z']+", text.lower())]
    return torch.bincount(torch.tensor(places, dtype=torch.long), minlength=size).float().log1p()


def test_a_bag_of_words_learns_real_preferences():
    """A linear reward on words, fitted by the loss: better than a coin on pairs it has not seen."""
    rows = data_rows("preference/human_pairs_unified")[:1000]
    features = torch.stack([torch.stack([words_of(row["chosen"]), words_of(row["rejected"])]) for row in rows])
    held = torch.arange(len(rows)) % 4 == 0
    reward = torch.zeros(features.shape[-1], requires_grad=True)
    loss, optimizer = RankLoss(AllPairs(), 0.01), torch.optim.Adam([reward], lr=0.01, weight_decay=0.01)

    def metrics(chosen):
        batch = RankBatch(torch.tensor([[0, 1]] * int(chosen.sum())))
        return loss.loss(batch, features[chosen] @ reward, reward_totals(batch))

    before = metrics(~held).metrics["accuracy"]
    for _ in range(60):
        optimizer.zero_grad()
        metrics(~held).value.backward()
        optimizer.step()
    assert before == 0.5
    assert metrics(~held).metrics["accuracy"] > 0.75
    assert metrics(held).metrics["accuracy"] > 0.54
