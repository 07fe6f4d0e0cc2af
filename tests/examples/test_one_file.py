"""The one-file example: it teaches, so what it says must be true. Its parts are checked against the plain forward and
hand-worked numbers, and the whole is run as a newcomer runs it."""

from __future__ import annotations

import ast
import importlib.util
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

FILE = Path(__file__).resolve().parents[2] / "examples" / "one_file.py"
QUESTIONS = ["Left to right mod 10: 7*3", "Left to right mod 10: 7*3+5-8*9+6", "Left to right mod 10: 1+2-3"]


@pytest.fixture(scope="module")
def one_file():
    spec = importlib.util.spec_from_file_location("one_file", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["one_file"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["one_file"]


@pytest.fixture(scope="module")
def parts(one_file):
    tokenizer = one_file.transformers.AutoTokenizer.from_pretrained(one_file.MODEL)
    model = one_file.transformers.AutoModelForCausalLM.from_pretrained(one_file.MODEL, dtype=torch.float32)
    return model.eval(), tokenizer


def plain_logits(model, batch, row: int) -> tuple[Tensor, Tensor]:
    """Tokens [L] of one row without padding, and the logits [L, V] of the plain forward on them."""
    tokens = batch.tokens[row][batch.real[row].bool()]
    return tokens, model(tokens[None]).logits[0]


def test_it_is_short_and_stands_alone():
    source = FILE.read_text(encoding="utf-8")
    assert len(source.splitlines()) < 250
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add("relative" if node.level else node.module.split(".")[0])
    assert {"torch", "transformers"} <= imported
    assert imported - {"torch", "transformers"} <= sys.stdlib_module_names


@pytest.mark.slow
def test_a_few_steps_raise_the_held_out_accuracy():
    command = [sys.executable, str(FILE), "--steps", "4", "--seed", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stderr
    assert len(re.findall(r"^step +\d+  reward 0\.\d\d  kl ", run.stdout, re.MULTILINE)) == 4
    before, after = (float(share) for share in re.findall(r"^(?:before|after): +([\d.]+)%", run.stdout, re.MULTILINE))
    assert before < 20
    assert after > before + 30


def test_a_group_of_one_is_refused(one_file, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["one_file.py", "--group-size", "1"])
    with pytest.raises(SystemExit) as stopped:
        one_file.main()
    assert stopped.value.code == 2
    assert "--group-size is 1" in capsys.readouterr().err


def test_questions_have_the_answer_python_works_out(one_file):
    problems = one_file.new_questions(random.Random(5), 200, held_out=False)
    for question, answer in problems:
        value, *operations = re.findall(r"[+*-]?\d", question.removeprefix("Left to right mod 10: "))
        for operation in operations:
            value = eval(f"{value}{operation}")
        assert str(value % 10) == answer and len(operations) == 5
    assert {answer for _, answer in problems} == set("0123456789")


def test_training_and_held_out_questions_never_meet(one_file):
    train = {question for question, _ in one_file.new_questions(random.Random(0), 3000, held_out=False)}
    held_out = {question for question, _ in one_file.new_questions(random.Random(0), 3000, held_out=True)}
    assert len(train) > 2900 and len(held_out) > 2900
    assert not train & held_out


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("<think>7*3=1</think><answer>1</answer>", 1.0),
        ("<answer>1</answer>", 1.0),
        ("<answer>2</answer>", 0.0),
        ("<answer>0</answer><answer>1</answer>", 0.0),
        ("<answer>1</answer><answer>2</answer>", 0.0),
        ("<answer>1", 0.0),
        ("1", 0.0),
        ("", 0.0),
    ],
)
def test_only_one_right_answer_is_rewarded(one_file, completion, reward):
    assert one_file.reward_of(completion, "1") == reward


def test_advantages_worked_by_hand(one_file):
    # first group: mean 1/4, squared distances sum to 3/4, std = sqrt((3/4) / 3) = 1/2
    reward = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    expected = torch.tensor([[1.5, -0.5, -0.5, -0.5], [0.0] * 4, [0.0] * 4])
    torch.testing.assert_close(one_file.group_advantage(reward), expected, atol=1e-5, rtol=0)
    assert not one_file.group_advantage(reward)[1:].any()


def test_cached_sampling_agrees_with_the_plain_forward(one_file, parts):
    """Questions of three lengths: padding on the left, completions that end early and the cache must not be felt."""
    model, tokenizer = parts
    torch.manual_seed(1)
    batch = one_file.sample(model, tokenizer, QUESTIONS * 4)
    with torch.no_grad():
        whole = one_file.token_logp(model, batch)
        for row in range(len(batch.tokens)):
            tokens, logits = plain_logits(model, batch, row)
            logp = logits[:-1].log_softmax(-1).gather(-1, tokens[1:, None])[:, 0]
            real, action = batch.real[row].bool(), batch.action[row]
            assert action.sum() >= 3 and (batch.old_logp[row][action] < 0).any()
            torch.testing.assert_close(batch.old_logp[row][action], logp[action[real][1:]], atol=1e-4, rtol=0)
            torch.testing.assert_close(whole[row][real][1:], logp, atol=1e-4, rtol=0)
            assert not batch.old_logp[row][~action].any()
    assert len(set(batch.real.sum(-1).tolist())) > 1


def test_a_row_is_its_question_then_its_completion(one_file, parts):
    model, tokenizer = parts
    torch.manual_seed(2)
    batch = one_file.sample(model, tokenizer, QUESTIONS * 3)
    completions = one_file.completions_of(batch, tokenizer)
    for row, (question, completion) in enumerate(zip(QUESTIONS * 3, completions, strict=True)):
        real = batch.real[row].bool()
        text = tokenizer.decode(batch.tokens[row][real], skip_special_tokens=False)
        assert text == f"<|user|>{question}<|end|><|assistant|>{completion}<|end|>"
        assert (
            tokenizer.decode(batch.tokens[row][batch.action[row]], skip_special_tokens=False) == f"{completion}<|end|>"
        )
    assert len(set(completions)) > 3


def test_greedy_takes_the_likeliest_token(one_file, parts):
    model, tokenizer = parts
    batch = one_file.sample(model, tokenizer, QUESTIONS, greedy=True)
    for row in range(len(QUESTIONS)):
        tokens, logits = plain_logits(model, batch, row)
        action = batch.action[row][batch.real[row].bool()]
        assert tokens[action].tolist() == logits[:-1].argmax(-1)[action[1:]].tolist()
        assert tokens[-1] == tokenizer.eos_token_id


def test_sampling_follows_the_probabilities(one_file, parts):
    model, tokenizer = parts
    torch.manual_seed(3)
    batch = one_file.sample(model, tokenizer, QUESTIONS[:1] * 400)
    first = batch.action.int().argmax(-1)[0]
    with torch.no_grad():
        chance = model(batch.tokens[:1, :first]).logits[0, -1].softmax(-1)
    drawn = torch.bincount(batch.tokens[:, first], minlength=len(chance)) / 400
    likely = chance.topk(2).indices
    assert chance[likely].min() > 0.1
    torch.testing.assert_close(drawn[likely], chance[likely], atol=0.1, rtol=0)


def naive_loss(one_file, logp: Tensor, ref_logp: Tensor, advantage: Tensor, batch) -> Tensor:
    """The papers' formula, token by token: mean over completions of the mean over tokens of surrogate - beta k3."""
    rows = []
    for row in range(len(logp)):
        terms = []
        for t in range(logp.shape[1]):
            if not batch.action[row, t]:
                continue
            ratio = torch.exp(logp[row, t] - batch.old_logp[row, t])
            bounded = torch.clamp(ratio, 1 - one_file.CLIP, 1 + one_file.CLIP)
            surrogate = torch.minimum(ratio * advantage[row, 0], bounded * advantage[row, 0])
            kl = torch.exp(ref_logp[row, t] - logp[row, t]) - (ref_logp[row, t] - logp[row, t]) - 1
            terms.append(surrogate - one_file.KL_WEIGHT * kl)
        rows.append(torch.stack(terms).mean())
    return -torch.stack(rows).mean()


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_has_the_gradient_of_the_papers_formula(one_file, seed):
    random_numbers = torch.Generator().manual_seed(seed)
    rows, width = 12, 9

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random_numbers, dtype=torch.float64)

    logp = (normal(rows, width) - 3).requires_grad_()
    ref_logp, advantage = logp.detach() + 0.5 * normal(rows, width), normal(rows, 1)
    advantage[0] = 0.0
    lengths = torch.randint(1, width, (rows, 1), generator=random_numbers)
    column = torch.arange(width)[None]
    action = (column >= 1) & (column <= lengths)
    old_logp = (logp.detach() + 0.3 * normal(rows, width)) * action
    batch = one_file.Batch(torch.zeros(rows, width), torch.ones(rows, width), action, old_logp)

    loss, kl, clipped = one_file.grpo_loss(logp, ref_logp, advantage, batch)
    (gradient,) = torch.autograd.grad(loss, logp)
    (expected,) = torch.autograd.grad(naive_loss(one_file, logp, ref_logp, advantage, batch), logp)
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-9)
    assert gradient.abs().max() > 1e-3 and not gradient[~action].any()
    assert kl > 0 and 0.05 < clipped < 0.6


def test_with_ratio_one_nothing_is_clipped_and_equal_models_have_no_kl(one_file):
    logp = torch.tensor([[0.0, -1.0, -2.0], [0.0, -0.5, -9.0]], requires_grad=True)
    action = torch.tensor([[False, True, True], [False, True, False]])
    batch = one_file.Batch(torch.zeros(2, 3), torch.ones(2, 3), action, logp.detach() * action)
    loss, kl, clipped = one_file.grpo_loss(logp, logp.detach(), torch.tensor([[1.0], [-1.0]]), batch)
    (gradient,) = torch.autograd.grad(loss, logp)
    assert kl == 0 and clipped == 0
    torch.testing.assert_close(gradient, torch.tensor([[0.0, -0.25, -0.25], [0.0, 0.5, 0.0]]))


def test_padding_does_not_reach_the_weights(one_file, parts):
    """The gradient of a padded batch is the mean of the gradients of its rows alone, and finite."""
    model, tokenizer = parts
    torch.manual_seed(4)
    batch = one_file.sample(model, tokenizer, QUESTIONS)
    advantage = torch.tensor([[1.0], [-0.5], [0.25]])
    parameter = model.model.layers[0].self_attn.q_proj.weight

    def gradient(rows: slice, start: int, end: int) -> Tensor:
        cut = one_file.Batch(
            *(field[rows, start:end] for field in (batch.tokens, batch.real, batch.action, batch.old_logp))
        )
        logp = one_file.token_logp(model, cut)
        return torch.autograd.grad(one_file.grpo_loss(logp, logp.detach(), advantage[rows], cut)[0], parameter)[0]

    whole = gradient(slice(None), 0, batch.tokens.shape[1])
    alone = []
    for row in range(3):
        at = batch.real[row].nonzero()[:, 0]
        alone.append(gradient(slice(row, row + 1), int(at[0]), int(at[-1]) + 1))
    assert whole.isfinite().all() and whole.abs().max() > 1e-4
    torch.testing.assert_close(whole, torch.stack(alone).mean(0), rtol=1e-3, atol=1e-6)
