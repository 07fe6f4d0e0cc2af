"""Ensembles of reward models: heads with rows of their own, marks worked out by hand, and folders that rewards read."""

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from whet.data.families import ClassifierRow
from whet.data.prompts import LabelledCompletion
from whet.data.tasks import TASKS
from whet.data.tasks.contrast import task_labelled, task_preferences
from whet.model.causal_lm import causal_lm
from whet.model.load import load_model
from whet.model.scalar_head import scalar_model
from whet.objective.preference.reward_model_losses import AllPairs, LabelLoss, PlackettLuce, RankLoss
from whet.record.metrics.reward_model import label_ensemble_metrics, member_scales, pair_ensemble_metrics
from whet.record.metrics.timer import PhaseTimer
from whet.reward.learned.outcome import learned
from whet.reward.learned.process import learned_steps
from whet.training.reward_model_trainer import (
    RewardModelDataset,
    RewardModelRow,
    RewardModelTrainer,
    bootstrap_counts,
    bootstrap_rows,
    build_reward_model,
    members_metrics,
    reward_model_rows,
)
from whet.training.row_trainer import RowTrainer
from whet.training.sections import OptimizerSection, RowsSection
from whet.types import Prompt, Sample, StopReason, WhetError

RATES = OptimizerSection(learning_rate=1e-2)
HEADS = 3


def tiny():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=96, tie_word_embeddings=True, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def made_rows(kind):
    """Rows of two or three completions with ranks, or of one to three labelled places."""
    stream = torch.Generator().manual_seed(0)

    def numbers(low, high, count):
        return torch.randint(low, high, (count,), generator=stream).tolist()

    made = []
    for size in (2, 3, 2, 3, 2):
        prompt = numbers(2, 40, int(torch.randint(2, 9, (), generator=stream)))
        if kind == "ranks":
            rows = tuple(
                ClassifierRow((*prompt, *numbers(2, 40, length)), len(prompt), (len(prompt) + length - 1,))
                for length in numbers(1, 7, size)
            )
            made.append(RewardModelRow(rows, (4,) * size, ranks=tuple(range(size))))
        else:
            row = (*prompt, *numbers(2, 40, size + 2))
            places = tuple(range(len(row) - size, len(row)))
            made.append(
                RewardModelRow((ClassifierRow(row, len(prompt), places),), (4,), labels=(1.0, 0.0, None)[:size])
            )
    return made


def trainer(objective, rows, heads=HEADS, held_out=None, **changes):
    batch = RowsSection(**{"rows_per_step": len(rows), "micro_batch_tokens": 60, **changes})
    judge = scalar_model(causal_lm(tiny()), "sequence", 7, heads=heads)
    lessons = RewardModelDataset(rows, rows if held_out is None else held_out)
    return RewardModelTrainer(judge, None, objective, lessons, batch=batch, optimizer=RATES, steps=4, seed=3)


def gradient(made, monkeypatch):
    found = {}

    def note(model, optimizer, limit, check, *rest):
        found.update({name: value.grad.clone() for name, value in model.named_parameters()})
        return 1.0

    monkeypatch.setattr(sys.modules[RowTrainer.__module__], "optimizer_step", note)
    report, _ = made.step(1, PhaseTimer())
    return found, report.metrics


def close(first, second):
    size = max(float(value.abs().max()) for value in second.values())
    assert size > 1e-3
    for name, value in second.items():
        torch.testing.assert_close(first[name], value, rtol=0, atol=3e-5 * size, msg=name)


def test_each_head_learns_its_own_draw_of_the_rows(monkeypatch):
    rows = bootstrap_rows(made_rows("ranks"), HEADS, seed=0)
    made = trainer(RankLoss(AllPairs()), rows)
    found, metrics = gradient(made, monkeypatch)
    made.model.zero_grad()
    losses = []
    for row in rows:
        states = [made.model.model(input_ids=torch.tensor([each.tokens])).last_hidden_state[0, -1] for each in row.rows]
        scores = torch.stack([made.model.score(state) for state in states])  # [completions, heads]
        for head, count in enumerate(row.counts):
            pairs = [(i, j) for i in range(len(scores)) for j in range(len(scores)) if i < j]
            cost = [-torch.nn.functional.logsigmoid(scores[i, head] - scores[j, head]) for i, j in pairs]
            losses.append(count * torch.stack(cost).mean())
    loss = torch.stack(losses).sum() / len(rows) / HEADS
    loss.backward()
    close(found, {name: value.grad for name, value in made.model.named_parameters()})
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("objective", "kind"),
    [(RankLoss(AllPairs(), 0.01), "ranks"), (RankLoss(PlackettLuce()), "ranks"), (LabelLoss(), "labels")],
)
def test_passes_and_packing_never_change_the_gradient_of_several_heads(objective, kind, monkeypatch):
    rows = bootstrap_rows(made_rows(kind), HEADS, seed=1)
    wanted, metrics = gradient(trainer(objective, rows, micro_batch_tokens=10_000, packed=False), monkeypatch)
    for changes in (
        {"micro_batch_tokens": 1},
        {"micro_batch_tokens": 10_000},
        {"micro_batch_tokens": 40, "packed": False},
    ):
        found, again = gradient(trainer(objective, rows, **changes), monkeypatch)
        close(found, wanted)
        assert again["accuracy"] == pytest.approx(metrics["accuracy"])


def test_heads_that_count_no_row_get_no_gradient(monkeypatch):
    rows = [replace(row, counts=(1.0, 0.0)) for row in made_rows("ranks")]
    found, _ = gradient(trainer(RankLoss(AllPairs()), rows, heads=2), monkeypatch)
    assert found["score.weight"][0].abs().max() > 0 and not found["score.weight"][1].any()


def test_a_bootstrap_is_a_draw_with_replacement():
    counts = bootstrap_counts(1000, 3, seed=5)
    assert (
        counts.shape == (1000, 3)
        and (counts.sum(0) == 1000).all()
        and (counts == 0).mean() == pytest.approx(math.exp(-1), abs=0.03)
    )
    assert not np.array_equal(counts[:, 0], counts[:, 1])
    assert np.array_equal(counts, bootstrap_counts(1000, 3, seed=5))
    assert not np.array_equal(counts, bootstrap_counts(1000, 3, seed=6))
    with pytest.raises(WhetError, match="at least one"):
        bootstrap_counts(0, 3, 0)


def test_scales_are_written_by_an_evaluation_and_forgotten_by_a_step():
    rows = bootstrap_rows(made_rows("ranks"), HEADS, seed=0)
    made = trainer(RankLoss(AllPairs()), rows)
    assert made.model.config.score_members == [None] * HEADS
    marks = made.evaluate()
    scores = [each for row in made.eval_scores()[1] for each in row]
    for head, (centre, scale) in enumerate(made.model.config.score_members):
        own = torch.tensor([each[head] for each in scores], dtype=torch.float64)
        assert centre == pytest.approx(own.mean().item(), rel=1e-5)
        assert scale == pytest.approx(own.std(correction=0).item(), rel=1e-5)
    assert {"accuracy_worst", "disagreement_right", "member/3/accuracy"} <= set(marks)
    made.step(1, PhaseTimer())
    assert made.model.config.score_members == [None] * HEADS


def test_marks_of_pairs_by_hand():
    better = [(2.0, 1.0), (1.0, 0.0), (0.0, 4.0)]
    worse = [(0.0, 0.0), (0.0, 3.0), (2.0, 0.0)]
    found = pair_ensemble_metrics(better, worse)  # margins (2, 1), (1, -3), (-2, 4); means 1.5, -1, 1
    assert found["member/1/accuracy"] == pytest.approx(2 / 3) == found["member/2/accuracy"]
    assert found["accuracy_lowest_member"] == pytest.approx(2 / 3)
    assert found["disagreement_right"] == pytest.approx((0.5 + 3) / 2) and found["disagreement_wrong"] == 2
    assert found["disagreement_finds_errors"] == 0.5 and found["small_margin_finds_errors"] == 0.75
    assert found["accuracy_worst"] == pytest.approx((1 + 0.5 + 0.5) / 3)  # 1 - 0, 0 - 0, 0 - 0
    # mean - 0.5 variance: 1.5 - 0.125 > 0; 0.5 - 0.125 < 1.5 - 1.125 is a tie; 2 - 2 < 1 - 0.5
    assert found["accuracy_mean_minus_variance"] == pytest.approx((1 + 0.5 + 0) / 3)


def test_marks_of_labels_by_hand():
    found = label_ensemble_metrics([(2.0, 1.0), (-1.0, 3.0), (-2.0, -1.0)], [1.0, 0.0, 0.0])
    assert found["member/1/accuracy"] == 1.0 and found["member/2/accuracy"] == pytest.approx(2 / 3)
    assert found["accuracy_worst"] == 1.0  # the worst opinion of the second is -1
    assert found["disagreement_wrong"] == 2.0 and found["disagreement_finds_errors"] == 1.0


def test_members_are_put_on_one_scale_before_they_are_averaged():
    rows = [
        RewardModelRow((), (3, 5), ranks=(0, 1)),
        RewardModelRow((), (3, 5), ranks=(0, 1)),
        RewardModelRow((), (3, 5), ranks=(0, 1)),
    ]
    first = [(1.0, 0.0), (2.0, 1.0), (0.5, 0.0)]  # always right
    loud = [(100.0, 130.0), (170.0, 90.0), (80.0, 130.0)]  # wrong twice, and louder
    scores = [[[a, x], [b, y]] for (a, b), (x, y) in zip(first, loud, strict=True)]
    plain = [[[sum(each) / 2] for each in row] for row in scores]
    assert members_metrics(rows, plain)["accuracy"] == pytest.approx(1 / 3)
    assert members_metrics(rows, scores)["accuracy"] == pytest.approx(2 / 3)
    assert member_scales([(1.0,), (1.0,)]) is None


def test_an_outcome_stands_on_every_token_of_the_completion():
    loaded = load_model("whetstone")
    tokenizer = loaded.tokenizer
    prompt = Prompt("p", ({"role": "user", "content": "2 + 3?"},))
    rows = [LabelledCompletion(prompt, "5", True), LabelledCompletion(prompt, "2 + 3 = 6", False)]
    last = reward_model_rows(tokenizer, rows, loaded.context)[0]
    every = reward_model_rows(tokenizer, rows, loaded.context, every_token=True)[0]
    opening = tokenizer.apply_chat_template([*prompt.messages], add_generation_prompt=True, tokenize=False)
    start = len(tokenizer(opening, add_special_tokens=False)["input_ids"])
    for one, all_of_it, row in zip(last, every, rows, strict=True):
        assert one.rows[0].tokens == all_of_it.rows[0].tokens
        assert all_of_it.rows[0].places == tuple(range(start, len(one.rows[0].tokens)))
        assert all_of_it.labels == (float(row.label),) * len(all_of_it.rows[0].places)
        assert all_of_it.rows[0].places[-1] == one.rows[0].places[0]
        assert row.completion in tokenizer.decode([one.rows[0].tokens[at] for at in all_of_it.rows[0].places])


def completion(text):
    none = torch.zeros(0)
    return Sample(none.long(), none.bool(), none, (0, 0), StopReason.END, text)


def taught(rows, held_out, objective, kind="sequence", steps=10):
    loaded = load_model("whetstone")
    lessons = reward_model_rows(loaded.tokenizer, rows, loaded.context, every_token=isinstance(objective, LabelLoss))[0]
    kept = reward_model_rows(loaded.tokenizer, held_out, loaded.context)[0]
    judge = build_reward_model(causal_lm(loaded.model), loaded.tokenizer, [*lessons, *kept], kind, 0, HEADS)
    made = RewardModelTrainer(
        judge, loaded.tokenizer, objective, RewardModelDataset(bootstrap_rows(lessons, HEADS, 0), kept),
        batch=RowsSection(rows_per_step=16, micro_batch_tokens=4096), optimizer=OptimizerSection(learning_rate=1e-3),
        steps=steps, seed=0,
    )  # fmt: skip
    before = made.evaluate()
    for number in range(1, steps + 1):
        made.step(number, PhaseTimer())
    return made, before, made.evaluate()


def test_heads_learn_together_and_their_folder_is_read_as_members(tmp_path):
    task = TASKS["arithmetic"]
    rows, held_out = (task_preferences(task, split, count, 0, 1) for split, count in (("train", 80), ("eval", 20)))
    made, before, after = taught(rows, held_out, RankLoss(AllPairs()), steps=6)
    assert after["loss"] < before["loss"]
    made.model.save_pretrained(tmp_path)
    made.tokenizer.save_pretrained(tmp_path)
    scores = [row[0] for row in made.eval_scores()[1]]
    prompts, samples = [pair.prompt for pair in held_out], [completion(pair.chosen) for pair in held_out]
    scales = made.model.config.score_members
    even = [[(value - c) / s for value, (c, s) in zip(row, scales, strict=True)] for row in scores]
    judge = learned(folder=str(tmp_path), device="cpu")
    assert judge(prompts, samples) == pytest.approx([sum(row) / HEADS for row in even], abs=1e-3)
    worst = learned(folder=str(tmp_path), device="cpu", ensemble="worst", scale="plain")(prompts, samples)
    assert worst == pytest.approx([min(row) for row in scores], abs=1e-4)
    alone = learned(folder=str(tmp_path), device="cpu", label="score_2")(prompts, samples)
    assert alone == pytest.approx([row[1] for row in scores], abs=1e-4)
    apart = [float(np.std(row)) for row in even]
    assert judge.take_notes() == pytest.approx({"learned_disagreement": sum(apart) / len(apart)}, rel=1e-2)
    assert judge.take_notes() == {}


def test_outcomes_on_every_token_teach_the_last_one():
    graded = task_labelled(TASKS["arithmetic"], "train", 32, 0, 1)
    _, before, after = taught(graded, graded, LabelLoss(), steps=5)
    assert after["loss"] < before["loss"] and after["area_under_curve"] > 0.5


def test_heads_of_a_token_classifier_are_members_too(tmp_path):
    loaded = load_model("whetstone")
    judge = scalar_model(causal_lm(loaded.model), "token", 0, heads=HEADS)
    judge.model.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    prompt = Prompt("p", ({"role": "user", "content": "2 + 3?"},))
    found = {}
    for how in ("mean", "worst"):
        reward = learned_steps(folder=str(tmp_path), separator="\n", ensemble=how, device="cpu")
        found[how] = [score for _, score in reward.steps(prompt, "2 + 3 = 5\n5")]
    singles = []
    for head in range(HEADS):
        reward = learned_steps(folder=str(tmp_path), separator="\n", label=str(head), device="cpu")
        singles.append([score for _, score in reward.steps(prompt, "2 + 3 = 5\n5")])
    assert found["mean"] == pytest.approx([sum(each) / HEADS for each in zip(*singles, strict=True)], abs=1e-5)
    assert found["worst"] == pytest.approx([min(each) for each in zip(*singles, strict=True)], abs=1e-5)
    assert len(found["mean"]) == 2 and len({round(score, 4) for score in (*found["mean"], *found["worst"])}) > 2
