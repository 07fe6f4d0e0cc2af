"""Demonstrations beside the policy's own completions: their rows, what they change, and what is refused."""

import json
from dataclasses import fields, replace

import pytest
import torch

from whet import api
from whet.data.packing import with_demonstrations
from whet.data.tasks import TASKS, solutions
from whet.objective import PRESETS, step_totals
from whet.record.log import read_metrics
from whet.types import Encoded, TokenBatch, WhetError

SMALL = {
    "eval": {"every": 0, "prompts": 0},
    "sampling": {"max_new_tokens": 24},
    "batch": {"prompts_per_step": 8, "group_size": 4},
}


@pytest.fixture
def batch():
    action = torch.tensor([[False, True, True, False]] * 4)
    return TokenBatch(
        tokens=torch.arange(16).reshape(4, 4),
        action=action,
        group=torch.tensor([0, 0, 1, 1]),
        reward=torch.tensor([1.0, 0.0, 0.5, 2.0], dtype=torch.float64),
        old_logp=torch.full((4, 4), -0.7, dtype=torch.float64),
        support=torch.zeros(4, 4, 2, dtype=torch.int32),
        part_weight=torch.tensor([[1.0, 0.5]] * 4),
        episode=torch.tensor([0, 1, 2, 2]),
        max_new_tokens=8,
    )


ROWS = [Encoded((7, 8, 9), (False, True, True)), Encoded((7, 8, 9, 1, 2, 3), (False, False, True, True, True, True))]


def test_rows_of_demonstrations_have_no_action_and_no_reward(batch):
    found = with_demonstrations(batch, ROWS)
    assert found.tokens.shape == (6, 6) and found.tokens[4].tolist() == [7, 8, 9, 0, 0, 0]
    assert found.tokens[5].tolist() == [7, 8, 9, 1, 2, 3]
    assert not found.action[4:].any() and found.reward[4:].isnan().all()
    assert found.demonstrated.nonzero().tolist() == [[4, 1], [4, 2], [5, 2], [5, 3], [5, 4], [5, 5]]
    assert found.group.tolist() == [0, 0, 1, 1, 2, 3] and found.episode.tolist() == [0, 1, 2, 2, 3, 4]
    assert (found.support[4:] == -1).all() and (found.support[:, 4:] == -1).all()
    assert torch.equal(found.part_weight[4:], batch.part_weight[:2])
    kept = found.select(range(4)).narrowed(4)
    for field in fields(batch):
        before, after = getattr(batch, field.name), getattr(kept, field.name)
        assert field.name == "demonstrated" or (torch.equal(before, after) if torch.is_tensor(before) else True)
    none = with_demonstrations(batch, [])
    assert none.tokens.shape == (4, 4) and not none.demonstrated.any()


@pytest.mark.parametrize("episode", [None, torch.tensor([0, 1, 2, 2])])
@pytest.mark.parametrize("late", [True, False])
def test_what_the_samples_teach_is_scaled_and_nothing_else(batch, late, episode):
    """Demonstrations are in no statistic and no denominator of the others, whenever they come."""
    objective, plain = PRESETS["chord"].objective, PRESETS["chord"].objective
    plain = replace(plain, imitate=type(PRESETS["grpo"].objective.imitate)())
    batch = replace(batch, episode=episode)
    if late or episode is not None:
        shown = with_demonstrations(objective.advantage(batch, {})[0], ROWS)
    else:
        shown = objective.advantage(with_demonstrations(batch, ROWS), {})[0]
    alone, _ = plain.advantage(batch, {})
    assert torch.equal(shown.advantage[:4, :4], alone.advantage) and not shown.advantage[4:].any()
    stream = torch.Generator().manual_seed(0)
    logp = (-2 * torch.rand(6, 6, generator=stream, dtype=torch.float64)).requires_grad_()
    totals, before = step_totals(shown, 8), step_totals(alone, 8)
    assert (totals.tokens, totals.sequences, totals.demonstrated_tokens) == (before.tokens, before.sequences, 6)
    (found,) = torch.autograd.grad(objective.loss(shown, logp, totals).value, logp)
    (usual,) = torch.autograd.grad(plain.loss(alone, logp[:4, :4], before).value, logp)
    torch.testing.assert_close(found[:4], 0.9 * usual[:4], rtol=1e-12, atol=0)
    p = logp.detach().exp()
    expected = torch.where(shown.demonstrated, -0.1 / 6 * p * (1 - p), 0.0)
    torch.testing.assert_close(found[4:], expected[4:], rtol=1e-12, atol=0)


def rows_file(path, having):
    rows = []
    for number, each in enumerate(solutions(TASKS["arithmetic"], "train", 24, 0, 3)):
        row = {"prompt": [dict(message) for message in each.prompt.messages], "answer": each.prompt.answer}
        rows.append({**row, "demonstration": each.completion} if having(number) else row)
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


def test_a_task_shows_its_own_solutions(tmp_path):
    config = {**SMALL, "folder": str(tmp_path / "run"), "optimizer": {"learning_rate": 1e-3}}
    config["objective"] = {"imitate": {"kind": "demonstrations", "weight": 0.95, "decay": 4}}
    run = api.train("chord", steps=3, config=config, console=False)
    lines = [line for line in read_metrics(run.folder) if "counts" in line]
    assert [line["counts"]["demonstrations"] for line in lines] == [8, 8, 8]
    facts = (tmp_path / "run" / "run.json").read_text()
    assert "every prompt has one" in facts


def test_a_column_shows_them_and_rows_without_one_are_only_practised(tmp_path):
    data = rows_file(tmp_path / "rows.jsonl", lambda number: number % 2 == 0)
    # another temperature than 1: samples and demonstrations are scored in passes of their own
    config = {**SMALL, "folder": str(tmp_path / "run"), "sampling": {"max_new_tokens": 24, "temperature": 0.8}}
    config["batch"] = {"prompts_per_step": 24, "group_size": 2, "updates_per_step": 2, "micro_batch_tokens": 100}
    run = api.train("chord", data=data, reward="exact_answer", steps=1, config=config, console=False)
    assert [line["counts"]["demonstrations"] for line in read_metrics(run.folder) if "counts" in line] == [12]
    assert "12 of 24 prompts" in (tmp_path / "run" / "run.json").read_text()


def test_a_run_without_demonstrations_is_refused(tmp_path):
    data = rows_file(tmp_path / "rows.jsonl", lambda number: False)
    config = {**SMALL, "folder": str(tmp_path / "run")}
    with pytest.raises(WhetError, match=r"no row of .* has a column demonstration or completion or solution; add one"):
        api.train("chord", data=data, reward="exact_answer", steps=1, config=config, console=False)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"env": {"name": "reasoning_gym"}}, "a demonstration has no turns; give objective.imitate=none"),
        ({"objective": {"imitate": {"last": 0.3}}}, "has no effect with imitate.decay 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path, changes, line):
    config = {**SMALL, "folder": str(tmp_path / "run"), **changes}
    with pytest.raises(WhetError, match=line):
        api.train("chord", steps=1, config=config, console=False)
