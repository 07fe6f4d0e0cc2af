"""Reward models: the loss of a naive transcription, marks worked out by hand, and folders that rewards can load."""

import json
import math
import sys
from dataclasses import replace

import pytest
import torch

from tests.support.for_every import for_every
from whet.data.families import ClassifierRow
from whet.data.pairs import PreferencePair
from whet.data.tasks import TASKS
from whet.data.tasks.contrast import task_labelled, task_preferences, task_rankings, task_stepped
from whet.model.causal_lm import causal_lm
from whet.model.load import load_model
from whet.model.scalar_head import scalar_model
from whet.objective.preference.reward_model_losses import AllPairs, LabelLoss, PlackettLuce, RankLoss
from whet.record.metrics.distribution import pearson
from whet.record.metrics.reward_model import (
    area_under_curve,
    calibration_of,
    outcome_metrics,
    pair_metrics,
    step_metrics,
)
from whet.record.metrics.timer import PhaseTimer
from whet.reward.learned.outcome import learned
from whet.reward.learned.process import learned_steps
from whet.training import reward_model_trainer
from whet.training.reward_model_trainer import (
    RewardModelDataset,
    RewardModelRow,
    RewardModelTrainer,
    build_reward_model,
    reward_model_rows,
    row_metrics,
)
from whet.training.row_trainer import RowTrainer
from whet.training.sections import OptimizerSection, RowsSection
from whet.types import Prompt, Sample, StopReason, WhetError

RATES = OptimizerSection(learning_rate=1e-2)
ARITHMETIC = TASKS["arithmetic"]


def tiny():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=96, tie_word_embeddings=True, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def judged(stream, completions, places=1):
    prompt = torch.randint(2, 40, (int(torch.randint(2, 9, (), generator=stream)),), generator=stream).tolist()
    rows = []
    for _ in range(completions):
        size = int(torch.randint(places, places + 6, (), generator=stream))
        row = (*prompt, *torch.randint(2, 40, (size,), generator=stream).tolist())
        rows.append(ClassifierRow(row, len(prompt), tuple(range(len(row) - places, len(row)))))
    return tuple(rows)


def rankings(*sizes, margin=0.0):
    stream = torch.Generator().manual_seed(0)
    made = []
    for size in sizes:
        rows = judged(stream, size)
        lengths = tuple(len(row.tokens) - row.shared for row in rows)
        made.append(RewardModelRow(rows, lengths, ranks=tuple(range(size)), margin=margin))
    return made


def labels():
    stream = torch.Generator().manual_seed(0)
    given = [(1.0, 0.0, None), (1.0,), (0.5, 1.0), (0.0,), (1.0, 1.0, 1.0)]
    return [RewardModelRow(judged(stream, 1, len(each)), (3,), labels=each) for each in given]


def trainer(objective, rows, **changes):
    batch = RowsSection(**{"rows_per_step": max(1, len(rows)), "micro_batch_tokens": 60, **changes})
    judge = scalar_model(causal_lm(tiny()), "sequence", 7)
    return RewardModelTrainer(
        judge, None, objective, RewardModelDataset(rows, rows), batch=batch, optimizer=RATES, steps=4, seed=3
    )


def gradient(made, monkeypatch):
    found = {}

    def note(model, optimizer, limit, check, *rest):
        found.update({name: value.grad.clone() for name, value in model.named_parameters()})
        return 1.0

    monkeypatch.setattr(sys.modules[RowTrainer.__module__], "optimizer_step", note)
    report, _ = made.step(1, PhaseTimer())
    return found, report.metrics


def naive_scores(made, row):
    hidden = made.model.model(input_ids=torch.tensor([row.tokens])).last_hidden_state[0]
    return made.model.score(hidden)[list(row.places), 0]


def close(first, second):
    size = max(float(value.abs().max()) for value in second.values())
    assert size > 1e-3
    for name, value in second.items():
        torch.testing.assert_close(first[name], value, rtol=0, atol=3e-5 * size, msg=name)


def grads(made):
    return {name: value.grad for name, value in made.model.named_parameters()}


def test_pairs_are_bradley_and_terrys(monkeypatch):
    sure = (1.0, 0.7, 0.5)
    rows = [replace(row, preference=each) for row, each in zip(rankings(2, 2, 2, margin=0.3), sure, strict=True)]
    made = trainer(RankLoss(AllPairs(), centre=0.01), rows)
    found, metrics = gradient(made, monkeypatch)
    made.model.zero_grad()
    losses = []
    for row in rows:
        better, worse = (naive_scores(made, each)[-1] for each in row.rows)
        apart, log_sigma = better - worse - 0.3, torch.nn.functional.logsigmoid
        cost = -row.preference * log_sigma(apart) - (1 - row.preference) * log_sigma(-apart)
        losses.append(cost + 0.01 * (better + worse) ** 2)
    loss = torch.stack(losses).mean()
    loss.backward()
    close(found, grads(made))
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)


def test_labels_of_steps_are_cross_entropies(monkeypatch):
    rows = labels()
    made = trainer(LabelLoss(), rows)
    found, metrics = gradient(made, monkeypatch)
    made.model.zero_grad()
    losses = []
    for row in rows:
        for score, label in zip(naive_scores(made, row.rows[0]), row.labels, strict=True):
            if label is not None:
                losses.append(torch.nn.functional.binary_cross_entropy_with_logits(score, torch.tensor(label)))
    loss = torch.stack(losses).mean()
    loss.backward()
    close(found, grads(made))
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("objective", "rows"),
    [
        (RankLoss(AllPairs()), rankings(2, 4, 3)),
        (RankLoss(PlackettLuce()), rankings(4, 2, 3)),
        (LabelLoss(even_completions=True), labels()),
    ],
)
def test_passes_and_packing_never_change_the_gradient(objective, rows, monkeypatch):
    wanted, metrics = gradient(trainer(objective, rows, micro_batch_tokens=10_000, packed=False), monkeypatch)
    for changes in (
        {"micro_batch_tokens": 1},
        {"micro_batch_tokens": 10_000},
        {"micro_batch_tokens": 40, "packed": False},
    ):
        found, again = gradient(trainer(objective, rows, **changes), monkeypatch)
        close(found, wanted)
        assert again["accuracy"] == pytest.approx(metrics["accuracy"])


def test_a_resumed_trainer_goes_on_to_the_same_bytes():
    rows = rankings(2, 3, 2, 2)
    whole, halves = (trainer(RankLoss(AllPairs()), rows, rows_per_step=3) for _ in range(2))
    for number in (1, 2, 3, 4):
        whole.step(number, PhaseTimer())
    for number in (1, 2):
        halves.step(number, PhaseTimer())
    later = trainer(RankLoss(AllPairs()), rows, rows_per_step=3)
    later.model.load_state_dict(halves.model.state_dict())
    later.restore(halves.state(), halves.tensors())
    for number in (3, 4):
        later.step(number, PhaseTimer())
    assert all(torch.equal(value, later.model.state_dict()[key]) for key, value in whole.model.state_dict().items())
    assert later.state() == whole.state() and whole.evaluate() == later.evaluate()


def test_a_trainer_resumed_after_its_last_evaluation_saves_the_scales_that_it_measured():
    rows = rankings(2, 3, 2, 2)
    ended, later = (trainer(RankLoss(AllPairs()), rows, rows_per_step=3) for _ in range(2))
    ended.step(1, PhaseTimer())
    assert ended.evaluate()
    later.restore(json.loads(json.dumps(ended.state())), ended.tensors())
    scales = ended.model.config.score_members
    assert None not in scales and later.model.config.score_members == scales


def taught(rows, held_out, objective, kind="sequence", seed=0, steps=12):
    loaded = load_model("whetstone")
    lessons = reward_model_rows(loaded.tokenizer, rows, loaded.context, "\n")[0]
    kept = reward_model_rows(loaded.tokenizer, held_out, loaded.context, "\n")[0]
    judge = build_reward_model(causal_lm(loaded.model), loaded.tokenizer, [*lessons, *kept], kind, seed)
    made = RewardModelTrainer(
        judge, loaded.tokenizer, objective, RewardModelDataset(lessons, kept),
        batch=RowsSection(rows_per_step=16, micro_batch_tokens=4096), optimizer=OptimizerSection(learning_rate=1e-3),
        steps=steps, seed=seed,
    )  # fmt: skip
    before = made.evaluate()
    for number in range(1, steps + 1):
        made.step(number, PhaseTimer())
    return made, before, made.evaluate()


def completion(text):
    none = torch.zeros(0)
    return Sample(none.long(), none.bool(), none, (0, 0), StopReason.END, text)


@pytest.mark.slow
def test_a_reward_model_learns_a_task_and_its_folder_is_a_reward(tmp_path):
    rows = task_preferences(ARITHMETIC, "train", 320, 0, 1)
    held_out = task_preferences(ARITHMETIC, "eval", 60, 0, 1)
    folders, opinions = [], []
    for seed in (0, 1):
        made, before, after = taught(rows, held_out, RankLoss(AllPairs(), 0.01), seed=seed, steps=40)
        assert after["accuracy"] > max(before["accuracy"], 0.7) and after["loss"] < before["loss"] - 0.1
        assert after["brier"] < before["brier"] and 0 <= after["calibration_error"] < 0.5
        folder = tmp_path / str(seed)
        made.model.save_pretrained(folder)
        made.tokenizer.save_pretrained(folder)
        folders.append(str(folder))
        _, scores = made._total_loss(made.eval_rows, learn=False)
        opinions.append([given[0][0] for given in scores])
    prompts = [pair.prompt for pair in held_out]
    samples = [completion(pair.chosen) for pair in held_out]
    alone = learned(folder=folders[0], device="cpu")(prompts, samples)
    assert alone == pytest.approx(opinions[0], abs=1e-4) and len({round(score, 3) for score in alone}) > 5
    worst = learned(folder=folders, ensemble="worst", scale="plain", device="cpu")(prompts, samples)
    assert worst == pytest.approx([min(both) for both in zip(*opinions, strict=True)], abs=1e-4)


def test_a_process_model_learns_steps_and_its_folder_is_a_step_reward(tmp_path):
    rows = task_stepped(ARITHMETIC, "train", 80, 0, 1)
    held_out = task_stepped(ARITHMETIC, "eval", 20, 0, 1)
    made, before, after = taught(rows, held_out, LabelLoss(), kind="token", steps=7)
    assert after["loss"] < before["loss"] and {"errors_found", "right_kept", "f1", "step_accuracy"} <= set(after)
    made.model.save_pretrained(tmp_path)
    made.tokenizer.save_pretrained(tmp_path)
    _, scores = made._total_loss(made.eval_rows, learn=False)
    judge = learned_steps(folder=str(tmp_path), separator="\n", device="cpu")
    for row, given in zip(held_out[:5], scores, strict=False):
        found = judge.steps(row.prompt, "\n".join(row.steps))
        chances = [1 / (1 + math.exp(-score)) for (score,) in given]
        assert [score for _, score in found] == pytest.approx(chances, abs=1e-5) and len(found) == len(row.steps)


def test_rankings_and_outcomes_of_a_task_are_learnt_from():
    ranked = task_rankings(ARITHMETIC, "train", 24, 0, 1)
    _, before, after = taught(ranked, ranked, RankLoss(PlackettLuce()), steps=5)
    assert after["loss"] < before["loss"] and 0.4 < after["accuracy"] <= 1
    graded = task_labelled(ARITHMETIC, "train", 32, 0, 1)
    _, before, after = taught(graded, graded, LabelLoss(), steps=5)
    assert after["loss"] < before["loss"] and after["area_under_curve"] > 0.5


def test_pair_metrics_by_hand():
    found = pair_metrics([2.0, 0.0, 1.0], [0.0, 1.0, 1.0], [4, 9, 5], [6, 3, 2])
    sure = 1 / (1 + math.exp(-2.0)), 1 / (1 + math.exp(-1.0))
    assert found["accuracy"] == pytest.approx(0.5) and found["margin"] == pytest.approx(1 / 3)
    assert found["brier"] == pytest.approx(((1 - sure[0]) ** 2 + sure[1] ** 2 + 0.25) / 3)
    assert found["calibration_error"] == pytest.approx(((1 - sure[0]) + sure[1] + 0) / 3)
    assert found["accuracy_when_shorter"] == 1.0 and found["accuracy_when_longer"] == 0.25
    assert found["longer_correlation"] < -0.9 and -1 <= found["length_correlation"] < 0
    assert "longer_correlation" not in pair_metrics([1.0, 2.0], [0.0, 0.0], [3, 3], [3, 3])


def test_outcome_and_step_metrics_by_hand():
    found = outcome_metrics([1.0, -1.0, 2.0, 0.5], [1, 1, 1, 0])
    assert found["accuracy"] == 0.5 and found["area_under_curve"] == pytest.approx(2 / 3)
    steps = step_metrics([[1, -1, 1], [1, 1], [-1, 1]], [(1.0, 0.0, None), (1.0, 1.0), (1.0, 0.0)])
    assert steps["errors_found"] == 0.5 and steps["right_kept"] == 1.0 and steps["f1"] == pytest.approx(2 / 3)
    assert steps["step_accuracy"] == pytest.approx(4 / 6)
    assert area_under_curve([1, 1, 0], [True, False, False]) == pytest.approx(0.75)
    assert area_under_curve([1, 2], [True, True]) is None
    assert calibration_of([0.9, 0.9, 0.6], [1, 0, 1]).error == pytest.approx((0.8 + 0.4) / 3)
    assert pearson([1, 2, 3], [6, 4, 2]) == pytest.approx(-1)


def test_verdict_marks_take_every_pair_of_a_ranking():
    found = row_metrics(rankings(3), [[3.0, 1.0, 2.0]])
    assert found["accuracy"] == pytest.approx(2 / 3)


def test_long_rows_are_left_out_whole_and_lengths_are_the_completions():
    tokenizer = load_model("whetstone").tokenizer
    prompt = Prompt("p", ({"role": "user", "content": "2 + 3?"},))
    found, dropped = reward_model_rows(
        tokenizer, [PreferencePair(prompt, "5", "1" * 300), PreferencePair(prompt, "5", "66", 1.0)], 100
    )
    assert dropped == 1 and found[0].margin == 1.0 and found[0].ranks == (0, 1)
    assert found[0].lengths == tuple(len(tokenizer(text)["input_ids"]) for text in ("5", "66"))


def test_rows_that_are_tokenized_together_have_the_tokens_of_each(monkeypatch):
    monkeypatch.setattr(reward_model_trainer, "ROWS_TOGETHER", 3)
    loaded = load_model("whetstone")
    tokenizer, (pair, *pairs) = loaded.tokenizer, task_preferences(ARITHMETIC, "train", 3, 0, 1)
    rows = [
        *(pair, *task_rankings(ARITHMETIC, "train", 2, 0, 1), *task_stepped(ARITHMETIC, "train", 2, 0, 1)),
        *(replace(pair, prompt=Prompt("plain", (), "2 + 3 =")), *task_labelled(ARITHMETIC, "train", 2, 0, 1), *pairs),
    ]
    found, dropped = reward_model_rows(tokenizer, rows, loaded.context, "\n")
    alone = [reward_model_rows(tokenizer, [row], loaded.context, "\n")[0][0] for row in rows]
    assert (found, dropped) == (alone, 0) and len({each.rows for each in found}) > 7
    for row, each in zip(found[-2:], pairs, strict=True):
        assert row.lengths == tuple(len(tokenizer(text)["input_ids"]) for text in (each.chosen, each.rejected))
    said = [{"role": "assistant", "content": pair.rejected}]
    whole = tokenizer.apply_chat_template([*pair.prompt.messages, *said], return_dict=False)
    assert found[0].rows[1].tokens == tuple(whole) and found[5].rows[0].tokens == tuple(
        tokenizer(f"2 + 3 ={pair.chosen}")["input_ids"]
    )


def test_of_rows_that_are_tokenized_together_the_first_that_cannot_be_used_is_named():
    tokenizer = load_model("whetstone").tokenizer
    tokenizer.chat_template = f"{{{{ 1 / (messages[0].content != 'no') }}}}{tokenizer.chat_template}"
    tokenizer.embedding_rows = 1
    known, refused = (Prompt(text, ({"role": "user", "content": text},)) for text in ("2 + 3?", "no"))
    for prompts, said in (((known, refused), "embedding has 1 rows"), ((refused, known), "refuses the turns")):
        with pytest.raises(WhetError, match=said):
            reward_model_rows(tokenizer, [PreferencePair(prompt, "5", "6") for prompt in prompts], 100)


def test_padding_is_never_what_a_row_ends_in():
    loaded = load_model("whetstone")
    loaded.tokenizer.pad_token = loaded.tokenizer.eos_token
    rows = reward_model_rows(loaded.tokenizer, task_preferences(ARITHMETIC, "train", 4, 0, 1), loaded.context)[0]
    judge = build_reward_model(causal_lm(loaded.model), loaded.tokenizer, rows, "sequence", 0)
    ends = {each.tokens[-1] for row in rows for each in row.rows}
    assert judge.model.config.pad_token_id not in ends
    assert loaded.tokenizer.pad_token_id == judge.model.config.pad_token_id


@for_every(
    [
        (RankLoss(AllPairs()), [], "no rows"),
        (RankLoss(AllPairs()), labels(), "learns from rankings or pairs and the data has labels"),
        (LabelLoss(), rankings(2), "learns from labels and the data has rankings"),
        (LabelLoss(), [labels()[1]], "all labels of the data say the same"),
        (LabelLoss(), [*labels(), *rankings(2)], "mixed"),
    ]
)
def test_what_does_not_fit_together_is_refused(objective, rows, told):
    with pytest.raises(WhetError, match=told):
        trainer(objective, rows)


def test_a_checkpoint_is_a_classifier_that_a_run_and_a_critic_can_start_from(tmp_path):
    from tests.support.checkpoints import save_checkpoint
    from whet.model.checkpoint import load_checkpoint
    from whet.model.critic import critic_on

    loaded = load_model("whetstone")
    rows = reward_model_rows(loaded.tokenizer, task_preferences(ARITHMETIC, "train", 8, 0, 1), loaded.context)[0]

    def fresh(seed):
        policy = causal_lm(load_model("whetstone").model)
        judge = build_reward_model(policy, loaded.tokenizer, rows, "sequence", seed)
        return RewardModelTrainer(
            judge,
            loaded.tokenizer,
            RankLoss(AllPairs()),
            RewardModelDataset(rows, rows),
            batch=RowsSection(rows_per_step=8, micro_batch_tokens=4096),
            optimizer=RATES,
            steps=4,
            seed=0,
        )

    made = fresh(0)
    made.step(1, PhaseTimer())
    path = save_checkpoint(tmp_path, 1, made.model, made.tokenizer, made.tensors(), made.state())
    other = fresh(1)
    assert other.evaluate() != made.evaluate()
    tensors, state = load_checkpoint(path, other.model)
    other.restore(state, tensors)
    assert other.evaluate() == made.evaluate()
    head = made.model.score.weight.detach().clone()
    reports = [each.step(2, PhaseTimer())[0] for each in (made, other)]
    assert reports[0].metrics == reports[1].metrics
    critic = critic_on(causal_lm(load_model("whetstone").model), shared=False, start=str(path))
    torch.testing.assert_close(critic.head.weight, head)
