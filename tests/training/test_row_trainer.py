"""The frame that steps on given rows have in common."""

import math

import pytest
import torch
from torch import nn

from whet.objective.policy import Loss
from whet.record.metrics.timer import PhaseTimer
from whet.training.distributed.ranks import Ranks
from whet.training.row_trainer import RowTrainer, rank_batches, sum_micro_batches
from whet.training.run_loop import RunFailed
from whet.training.sections import OptimizerSection, RowsSection


class BusierFirst(Ranks):
    """Two ranks, of which the first has two rows of three."""

    def shares(self, costs, families=None):
        return [[0, 2], [1]]

    def most(self, number):
        return 2


def test_a_rank_with_fewer_batches_has_empty_ones_to_follow():
    batches = [
        rank_batches(BusierFirst(rank, 2), "abc", len, lambda rows: [[n] for n in range(len(rows))]) for rank in (0, 1)
    ]
    assert batches == [[[0], [2]], [[1], []]]


class Steps(RowTrainer):
    """What all such trainers have; which rows, and how they are measured, is not asked here."""

    def step(self, number, timer):
        raise NotImplementedError

    def evaluate(self):
        raise NotImplementedError


def model():
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def trainer(network, **changes):
    given = {
        "tokenizer": None,
        "optimizer": OptimizerSection(learning_rate=0.1, schedule="linear"),
        "batch": RowsSection(rows_per_step=2),
        "steps": 4,
        "num_rows": 5,
        "seed": 7,
        **changes,
    }
    return Steps(network, **given)


def accumulate(network, rows):
    loss = (network(torch.eye(3)[[row % 3 for row in rows]]) - 1).square().mean()
    loss.backward()
    return {"loss": float(loss.detach()), "seen": float(len(rows))}


def steps(network, made, numbers):
    reports = []
    for number in numbers:
        rows = made.take_rows(2)
        reports.append(
            made.optimize(number, PhaseTimer(), lambda rows=rows: accumulate(network, rows), {"rows": len(rows)})
        )
    return reports


def test_a_step_learns_and_tells_what_it_saw():
    network = model()
    before = network.weight.detach().clone()
    made, timer = trainer(network), PhaseTimer()
    report = made.optimize(1, timer, lambda: accumulate(network, [0, 1]), {"rows": 2})
    assert report.counts == {"rows": 2} and (report.step, report.policy_version) == (1, 0)
    assert report.metrics["seen"] == 2.0 and report.metrics["learning_rate"] == 0.1
    assert report.metrics["gradient_norm"] > 0 and timer.seconds["train"] > 0
    assert (network.weight - before).abs().max() > 0.01


def test_the_rate_follows_the_schedule():
    network = model()
    rates = [report.metrics["learning_rate"] for report in steps(network, trainer(network), [1, 2, 3, 4])]
    assert rates == pytest.approx([0.1, 0.075, 0.05, 0.025])


def test_rows_come_in_a_seeded_order_and_each_once_an_epoch():
    made = trainer(model())
    taken = [row for _ in range(5) for row in made.take_rows(2)]
    assert sorted(taken[:5]) == sorted(taken[5:]) == [0, 1, 2, 3, 4]
    assert trainer(model()).take_rows(10) == taken
    assert trainer(model(), seed=8).take_rows(5) != taken[:5]


def test_a_loss_that_is_not_finite_stops_the_run_and_leaves_the_weights():
    network = model()
    made = trainer(network)
    before = network.weight.detach().clone()

    def broken():
        accumulate(network, [0])
        return {"loss": math.inf}

    with pytest.raises(RunFailed, match=r"step 3: the loss is not finite.*learning_rate.*last checkpoint"):
        made.optimize(3, PhaseTimer(), broken, {})
    assert torch.equal(network.weight, before)


def test_what_was_saved_goes_on_bit_for_bit():
    whole = model()
    made = trainer(whole)
    steps(whole, made, [1, 2])
    resumed = model()
    resumed.load_state_dict(whole.state_dict())
    again = trainer(resumed)
    again.restore(made.state(), made.tensors())
    rest, same = steps(whole, made, [3, 4]), steps(resumed, again, [3, 4])
    assert [report.metrics for report in rest] == [report.metrics for report in same]
    assert torch.equal(whole.weight, resumed.weight)


def test_the_micro_batches_of_a_step_add_up():
    done = [
        Loss(torch.tensor(1.5, requires_grad=True), {"margin": torch.tensor(0.25, dtype=torch.float64)}),
        Loss(torch.tensor(2.0), {"margin": torch.tensor(0.5), "rare": torch.tensor(3)}),
    ]
    assert sum_micro_batches(done) == {"margin": 0.75, "loss": 3.5, "rare": 3.0}
