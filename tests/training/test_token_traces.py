"""The values of recorded tokens are those that the loss used, whatever the updates, the rule and the run."""

import json

import pytest
import torch

import whet
from tests.support.for_every import for_every
from whet.objective import PRESETS, step_totals, with_changes
from whet.record.recorded_tokens import recorded_tokens
from whet.training import rl_trainer
from whet.training.step_metrics import TokenTraces
from whet.types import TokenBatch

BASE = {
    "seed": 4,
    "model": {"threads": 1, "device": "cpu"},
    "data": {"count": 24},
    "sampling": {"max_new_tokens": 24},
    "batch": {"prompts_per_step": 2, "group_size": 4},
    "optimizer": {"learning_rate": 3e-3},
    "eval": {"prompts": 0},
    "report": {"save_every": 9, "review_every": 0},
}


def lines(folder, name="tokens.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def batch_of(rows=3, width=6, seed=0, moved=True):
    draw = torch.Generator().manual_seed(seed)
    action = torch.rand(rows, width, generator=draw) > 0.3
    action[:, 0] = False
    action[:, 1] = True
    noise = 0.6 * torch.randn(2, rows, width, generator=draw, dtype=torch.float64)
    logp = -torch.rand(rows, width, generator=draw, dtype=torch.float64) - 0.1
    advantage = torch.randn(rows, 1, generator=draw, dtype=torch.float64) * action
    batch = TokenBatch(
        torch.randint(0, 50, (rows, width), generator=draw),
        action,
        torch.zeros(rows).long(),
        torch.ones(rows),
        behavior_logp=(logp + noise[1] / 3) * action,
        old_logp=(logp + noise[0]) * action if moved else None,
        advantage=advantage,
        max_new_tokens=width,
    )
    return batch, logp


@for_every(["dr_grpo", "grpo", "gspo", "cispo", "sapo", "topr", "ppo_penalty", "gmpo"], [None, "truncate", "mask"])
def test_the_weight_is_the_factor_in_front_of_the_gradient(method, mismatch):
    objective = PRESETS[method].objective
    objective = with_changes(
        objective, {"kl": "none", "control": "fixed", **({"mismatch": mismatch} if mismatch else {})}
    )
    batch, logp = batch_of(8, 10)
    variable = logp.clone().requires_grad_()
    totals = step_totals(batch, 10)
    (grad,) = torch.autograd.grad(objective.loss(batch, variable, totals).value, variable)
    share = objective.aggregate(batch, totals)
    expected = torch.where(batch.action, -grad / (share * batch.advantage), 0.0)
    found = objective.token_weight(batch, logp)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert found[batch.action].unique().numel() > 1 and not found[~batch.action].any()


def test_rows_may_be_asked_about_alone_and_the_last_update_counts():
    objective = PRESETS["grpo"].objective
    batch, logp = batch_of(6, 10)
    traces = TokenTraces(batch, [4, 1])
    traces.add(objective, batch.select([5, 4, 3]), [5, 4, 3], logp[[5, 4, 3]])
    traces.add(objective, batch.select([0, 1, 2]), [0, 1, 2], logp[[0, 1, 2]])
    later = logp - 0.3
    traces.add(objective, batch.select([1, 4]), [1, 4], later[[1, 4]])
    assert sorted(traces._weight) == [1, 4]
    torch.testing.assert_close(traces._weight[4], objective.token_weight(batch, later)[4].float())
    torch.testing.assert_close(traces._logp[4], logp[4].float())


@pytest.fixture
def updates(monkeypatch):
    """(rows of the step, batch, log-probabilities as the update saw them) of every update."""
    found, rows, update, minibatches = [], [], rl_trainer.update, rl_trainer.minibatches

    def noted(*arguments):
        parts = minibatches(*arguments)
        rows.extend(parts)
        return parts

    def watched(state, objective, batch, totals, **settings):
        metrics, scores = update(state, objective, batch, totals, **settings)
        found.append((rows[len(found)], batch, scores.logp))
        return metrics, scores

    monkeypatch.setattr(rl_trainer, "update", watched)
    monkeypatch.setattr(rl_trainer, "minibatches", noted)
    return found


def test_a_run_records_what_its_updates_used(tmp_path, updates):
    layers = {
        **BASE,
        "batch": {**BASE["batch"], "updates_per_step": 2, "epochs_per_batch": 2},
        "objective": {"keep": "everything", "clip": {"low": 0.1, "high": 0.05}},
        "report": {**BASE["report"], "samples_per_step": 2},
    }
    whet.train("dapo", config=layers, steps=2, folder=str(tmp_path / "run"), console=False)
    samples, recorded = lines(tmp_path / "run", "samples.jsonl"), lines(tmp_path / "run")
    assert len(recorded) == len(samples) == 16 and len(updates) == 8
    clipped = 0
    for sample, line in zip(samples, recorded, strict=True):
        assert "".join(line["pieces"]).replace("<|end|>", "") == sample["completion"]
        of_step = updates[4 * (line["step"] - 1) : 4 * line["step"]]
        rows, batch, logp = [each for each in of_step if line["place"] in each[0]][-1]
        row, tokens = rows.index(line["place"]), recorded_tokens(line)
        for place, token in zip(batch.action[row].nonzero().flatten().tolist(), tokens, strict=True):
            advantage = float(batch.advantage[row, place])
            ratio = float((logp[row, place] - batch.old_logp[row, place]).exp())
            kept = not ((advantage > 0 and ratio > 1.05) or (advantage < 0 and ratio < 0.9))
            clipped += not kept
            assert token.advantage == pytest.approx(advantage, rel=1e-3)
            assert token.weight == pytest.approx(ratio if kept else 0.0, rel=1e-3, abs=1e-6)
            assert token.logp == pytest.approx(float(batch.behavior_logp[row, place]), rel=1e-3, abs=1e-6)
            gap = float(batch.old_logp[row, place] - batch.behavior_logp[row, place])
            assert token.gap == pytest.approx(gap, abs=2e-6)
    assert clipped


def test_switched_off_nothing_is_recorded_and_nothing_else_changes(tmp_path):
    for name, tokens in (("on", 40), ("off", 0)):
        report = {**BASE["report"], "tokens": tokens}
        whet.train("grpo", config={**BASE, "report": report}, steps=2, folder=str(tmp_path / name), console=False)
    assert not (tmp_path / "off/tokens.jsonl").exists()
    assert (tmp_path / "on/samples.jsonl").read_bytes() == (tmp_path / "off/samples.jsonl").read_bytes()
    recorded = lines(tmp_path / "on")
    for number in (1, 2):
        assert 30 < sum(len(line["pieces"]) for line in recorded if line["step"] == number) <= 40
    assert any("left_out" in line for line in recorded)
