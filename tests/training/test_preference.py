"""Preference training: the gradient of a naive transcription, whatever the packing, passes and reference are."""

import math
import sys
from dataclasses import replace

import pytest
import torch

from tests.support.for_every import for_every
from tests.support.told_apart import told_apart
from whet.data import families
from whet.data.chat import demonstration_tokens
from whet.data.families import Family, family_rows
from whet.data.pairs import PreferencePair
from whet.data.prompts import LabelledCompletion
from whet.data.tasks import TASKS
from whet.data.tasks.contrast import task_preferences
from whet.model.causal_lm import causal_lm
from whet.model.load import load_model
from whet.model.reference import CopiedReference
from whet.model.shared_prefix import shared_prefix_batch
from whet.model.token_logp import packs
from whet.objective.presets.preference import PAIR_PRESETS
from whet.record.metrics.timer import PhaseTimer
from whet.training import completion_logp
from whet.training.completion_logp import (
    LiveReference,
    StoredReference,
    families_logp,
    score_completions,
    stored_reference,
)
from whet.training.preference_trainer import (
    PreferenceDataset,
    PreferenceModels,
    PreferenceRow,
    PreferenceTrainer,
    preference_rows,
)
from whet.training.row_trainer import RowTrainer
from whet.training.run_loop import RunFailed
from whet.training.sections import OptimizerSection, RowsSection
from whet.types import Demonstration, Encoded, Prompt, WhetError


def tiny(seed=1):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=96, tie_word_embeddings=True, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():  # random weights of the usual size say nothing about anything
        for parameter in model.parameters():
            parameter.mul_(4)
    return model


def family(stream, *, completions=2) -> Family:
    prompt = torch.randint(2, 40, (int(torch.randint(2, 9, (), generator=stream)),), generator=stream).tolist()
    made = []
    for _ in range(completions):
        completion = torch.randint(2, 40, (int(torch.randint(1, 7, (), generator=stream)),), generator=stream).tolist()
        made.append(Encoded((*prompt, *completion, 1), (False,) * len(prompt) + (True,) * (len(completion) + 1)))
    return tuple(made)


def pairs(count=7, seed=0):
    stream = torch.Generator().manual_seed(seed)
    return [PreferenceRow(family(stream)) for _ in range(count)]


def labelled(count=8, seed=0):
    stream = torch.Generator().manual_seed(seed)
    return [PreferenceRow(family(stream, completions=1), label=1 if at % 2 else -1) for at in range(count)]


def settings(**changes):
    batch = {"rows_per_step": 4, "micro_batch_tokens": 60}
    batch |= {name: changes.pop(name) for name in list(changes) if name in RowsSection.model_fields}
    return {"batch": RowsSection(**batch), "optimizer": RATES, "steps": 4, "seed": 3, **changes}


RATES = OptimizerSection(learning_rate=1e-2)


def trainer(name="dpo", rows=None, model=None, reference="live", shift=0.02, **changes):
    """A trainer whose policy has already left its reference a little."""
    policy = causal_lm(model or tiny())
    rows = rows if rows is not None else pairs()
    objective = PAIR_PRESETS[name].objective
    known = None
    if "ref_logp" in objective.needs():
        known = LiveReference(CopiedReference(policy), 60)
        if reference == "stored":
            known = stored_reference(policy, [row.family for row in rows], 45)
    if shift:
        stream = torch.Generator().manual_seed(9)
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.add_(shift * torch.randn(parameter.shape, generator=stream))
    return PreferenceTrainer(
        PreferenceModels(policy, None, known), objective, PreferenceDataset(rows, rows[:3]), **settings(**changes)
    )


def gradient(made, monkeypatch):
    """Of the trainer's next step, which leaves the weights alone."""
    found = {}

    def note(model, optimizer, limit, check, *rest):
        found.update({name: value.grad.clone() for name, value in model.named_parameters()})
        return 1.0

    monkeypatch.setattr(sys.modules[RowTrainer.__module__], "optimizer_step", note)
    report, _ = made.step(1, PhaseTimer())
    return found, report.metrics


def naive_logp(model, row: Encoded):
    logits = model(input_ids=torch.tensor([row.tokens])).logits[0]
    each = logits.log_softmax(-1)
    start = row.action.index(True)
    return sum(each[at - 1, row.tokens[at]] for at in range(start, len(row.tokens)))


def close(first, second, tolerance=2e-5):
    size = max(float(value.abs().max()) for value in second.values())
    assert size > 1e-3
    for name, value in second.items():
        torch.testing.assert_close(first[name], value, rtol=0, atol=tolerance * size, msg=name)


@pytest.mark.parametrize("sure", [(1.0,) * 4, (0.9, 0.5, 1.0, 0.6)])
def test_the_step_is_the_papers_formula(sure, monkeypatch):
    rows = [replace(row, preference=each) for row, each in zip(pairs(4), sure, strict=True)]
    made = trainer(rows=rows)
    reference = tiny()  # the policy before it was shifted
    model = made.model
    found, metrics = gradient(made, monkeypatch)
    model.zero_grad()
    gaps = []
    for row in rows:
        with torch.no_grad():
            before = [naive_logp(reference, completion) for completion in row.family]
        now = [naive_logp(model, completion) for completion in row.family]
        gaps.append((now[0] - before[0]) - (now[1] - before[1]))
    gap = 0.1 * torch.stack(gaps)
    sure = torch.tensor([row.preference for row in rows])
    log_sigma = torch.nn.functional.logsigmoid
    loss = -(sure * log_sigma(gap) + (1 - sure) * log_sigma(-gap)).mean()
    loss.backward()
    close(found, {name: value.grad for name, value in model.named_parameters()})
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["margin"] == pytest.approx(0.1 * torch.stack(gaps).mean().item(), rel=1e-3)


@pytest.mark.parametrize("name", ["dpo", "ld_dpo", "wpo", "orpo", "kto", "bco", "pairwise_cringe"])
def test_passes_and_packing_never_change_the_gradient(name, monkeypatch):
    rows = labelled() if name == "kto" else pairs()
    assert packs(causal_lm(tiny()))
    wanted, metrics = gradient(trainer(name, rows, micro_batch_tokens=10_000, packed=False), monkeypatch)
    for changes in (
        {"micro_batch_tokens": 10_000},
        {"micro_batch_tokens": 1},
        {"micro_batch_tokens": 50, "packed": False},
    ):
        found, again = gradient(trainer(name, rows, **changes), monkeypatch)
        close(found, wanted)
        assert again["loss"] == pytest.approx(metrics["loss"], rel=1e-5)


@pytest.mark.parametrize("name", ["dpo", "ld_dpo", "bco"])
def test_a_stored_reference_gives_the_gradient_of_a_live_one(name, monkeypatch):
    live, metrics = gradient(trainer(name), monkeypatch)
    stored, again = gradient(trainer(name, reference="stored"), monkeypatch)
    close(stored, live)
    assert again["drift"] == pytest.approx(metrics["drift"], rel=1e-4) and metrics["drift"] > 1e-3


def test_a_pairs_prompt_is_computed_once():
    for row in pairs():
        rows = family_rows([row.family])
        start = row.family[0].action.index(True)
        tree = shared_prefix_batch(rows.tokens, rows.action)
        assert tree.size == start + sum(len(completion.tokens) - start - 1 for completion in row.family)


def test_at_first_the_policy_is_its_reference():
    made = trainer(shift=0.0)
    report, _ = made.step(1, PhaseTimer())
    assert report.metrics["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert report.metrics["drift"] == 0.0 and report.metrics["accuracy"] == 0.5
    assert report.counts["rows"] == 4 and report.counts["tokens"] > 8


def test_what_a_reference_said_is_kept_in_a_file_for_this_model_and_these_rows(tmp_path, monkeypatch):
    policy, families = causal_lm(tiny()), [row.family for row in pairs()]
    file = tmp_path / "cache" / "reference.safetensors"
    first = stored_reference(policy, families, 60, file)
    asked = families_logp(policy, families, 1000, packed=False)
    for mine, theirs in zip(first.logp(families), asked, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert min(float(values.max()) for values in first.known.values()) < -0.5
    monkeypatch.setattr(completion_logp, "families_logp", lambda *given: pytest.fail("asked again"))
    again = stored_reference(policy, families, 60, file)
    assert isinstance(again, StoredReference)
    assert all(torch.equal(first.known[key], values) for key, values in again.known.items())
    with pytest.raises(WhetError, match=r"by another model.*delete it"):
        stored_reference(causal_lm(tiny(2)), families, 60, file)
    with pytest.raises(WhetError, match="other rows"):
        stored_reference(policy, families[1:], 60, file)
    with pytest.raises(WhetError, match="live reference"):
        again.logp([family(torch.Generator().manual_seed(77))])
    file.write_bytes(b"nothing")
    with pytest.raises(WhetError, match="not readable"):
        stored_reference(policy, families, 60, file)


@for_every(told_apart(PAIR_PRESETS))
def test_every_row_learns_and_is_finite(name):
    single = "pairs" not in PAIR_PRESETS[name].objective.needs()
    made = trainer(name, labelled() if single else pairs())
    before = {key: value.clone() for key, value in made.model.state_dict().items()}
    reports = [made.step(number, PhaseTimer())[0] for number in (1, 2)]
    assert all(math.isfinite(value) for report in reports for value in report.metrics.values())
    assert all(report.metrics["gradient_norm"] > 0 for report in reports)
    assert any(not torch.equal(before[key], value) for key, value in made.model.state_dict().items())
    marks = made.evaluate()
    assert math.isfinite(marks["loss"]) and marks["chosen_logp"] < 0


@for_every(["dpo", "kto", "bco", "tr_dpo_hard", "pairwise_cringe"])
def test_a_resumed_trainer_goes_on_to_the_same_bytes(name):
    rows = labelled() if name == "kto" else pairs()
    whole, halves = trainer(name, rows), trainer(name, rows)
    for number in (1, 2, 3):
        whole.step(number, PhaseTimer())
    halves.step(1, PhaseTimer())
    state, tensors = halves.state(), halves.tensors()
    weights = {key: value.clone() for key, value in halves.model.state_dict().items()}
    later = trainer(name, rows)
    later.model.load_state_dict(weights)
    later.restore(state, tensors)
    for number in (2, 3):
        later.step(number, PhaseTimer())
    assert all(torch.equal(value, later.model.state_dict()[key]) for key, value in whole.model.state_dict().items())
    assert later.state() == whole.state()


def test_a_moving_reference_is_saved_once_it_moved():
    made = trainer("tr_dpo_hard")
    every = int(made._objective.reference.every)
    assert "reference" not in made.tensors()
    made._move_reference(every)
    assert made.tensors()["reference"] and made.state()["moved"]
    report, _ = made.step(1, PhaseTimer())
    assert report.metrics["drift"] == 0.0


def test_extras_are_those_of_the_whole_distribution():
    policy, families = causal_lm(tiny()), [row.family for row in pairs(3)]
    scores = score_completions(policy, families, True, frozenset({"log_square", "rival_logp"}), [1, 2, 3])
    logits = policy.model(input_ids=scores.rows.tokens).logits.log_softmax(-1)[:, :-1]
    places = scores.rows.action[:, 1:]
    square = (2 * logits).logsumexp(-1)
    torch.testing.assert_close(scores.log_square[:, 1:][places], square[places], rtol=1e-4, atol=1e-4)
    own = logits.gather(-1, scores.rows.tokens[:, 1:, None])
    others = logits.scatter(-1, scores.rows.tokens[:, 1:, None], -math.inf)
    rival = scores.rival_logp[:, 1:]
    likely = others.topk(5, -1).values
    nearest = (likely - rival[..., None]).abs().amin(-1)
    assert nearest[places].max() < 1e-3 and (rival - own[..., 0])[places].abs().max() > 1e-2
    assert scores.rival_logp.requires_grad
    again = score_completions(policy, families[2:], True, frozenset({"rival_logp"}), [3])
    torch.testing.assert_close(again.rival_logp[again.rows.action], scores.rival_logp[-2:][scores.rows.action[-2:]])


def test_pairs_of_a_task_teach_the_built_in_model():
    loaded = load_model("whetstone")
    rows = task_preferences(TASKS["arithmetic"], "train", 64, 0, 2)
    held_out = task_preferences(TASKS["arithmetic"], "eval", 24, 0, 2)
    taught, dropped = preference_rows(loaded.tokenizer, rows, loaded.context)
    kept, _ = preference_rows(loaded.tokenizer, held_out, loaded.context)
    assert dropped == 0 and len(taught) == 64
    policy = causal_lm(loaded.model)
    reference = stored_reference(policy, [row.family for row in (*taught, *kept)], 4096)
    made = PreferenceTrainer(
        PreferenceModels(policy, loaded.tokenizer, reference),
        PAIR_PRESETS["dpo"].objective,
        PreferenceDataset(taught, kept),
        batch=RowsSection(rows_per_step=16, micro_batch_tokens=4096),
        optimizer=OptimizerSection(learning_rate=1e-3),
        steps=10,
        seed=0,
    )
    before = made.evaluate()
    for number in range(1, 11):
        made.step(number, PhaseTimer())
    after = made.evaluate()
    assert after["loss"] < before["loss"] - 0.1 and after["pair_accuracy"] > 0.65 > before["pair_accuracy"]
    assert after["margin"] > 0.1


def test_rows_become_tokens_and_long_ones_are_left_out_whole():
    tokenizer = load_model("whetstone").tokenizer
    prompt = Prompt("p", ({"role": "user", "content": "2 + 3?"},))
    long = "1" * 200
    found, dropped = preference_rows(
        tokenizer, [PreferencePair(prompt, "5", long), PreferencePair(prompt, "5", "6", 0.5)], 100
    )
    assert dropped == 1 and len(found) == 1 and found[0].margin == 0.5 and len(found[0].family) == 2
    single, _ = preference_rows(
        tokenizer, [LabelledCompletion(prompt, "5", True), LabelledCompletion(prompt, "6", False)], 100
    )
    assert [row.label for row in single] == [1, -1] and [len(row.family) for row in single] == [1, 1]


def test_rows_that_are_tokenized_together_have_the_tokens_of_each(monkeypatch):
    monkeypatch.setattr(families, "ROWS_TOGETHER", 2)
    tokenizer = load_model("whetstone").tokenizer
    prompts = [Prompt(f"p{number}", ({"role": "user", "content": f"{number} + 3?"},)) for number in range(3)]
    rows = [LabelledCompletion(prompts[1], "7", True), PreferencePair(prompts[0], "5", "61")]
    rows += [PreferencePair(Prompt("plain", (), "2 + 3 ="), "5", "6", 0.5), PreferencePair(prompts[2], "8", "9")]
    rows += [LabelledCompletion(prompts[0], "12", False)]
    found, dropped = preference_rows(tokenizer, rows, 100)
    shown = [
        (row.prompt, (row.chosen, row.rejected) if isinstance(row, PreferencePair) else (row.completion,))
        for row in rows
    ]
    assert dropped == 0 and [row.label for row in found] == [1, 0, 0, 0, -1] and found[2].margin == 0.5
    assert [row.family for row in found] == [
        tuple(demonstration_tokens(tokenizer, Demonstration(prompt, each)) for each in completions)
        for prompt, completions in shown
    ]


@for_every(
    [
        ("dpo", [], "live", "no rows"),
        ("dpo", labelled(), "live", "single ones"),
        ("kto", [*labelled(), *pairs(1)], "live", "mixed"),
        ("kto", [row for row in labelled() if row.label == 1], "live", "same label"),
        ("tr_dpo", pairs(), "stored", "moves with the policy"),
        ("kto", labelled(), "stored", "reference_logp=live"),
    ]
)
def test_what_does_not_fit_together_is_refused(name, rows, reference, told):
    with pytest.raises(WhetError, match=told):
        trainer(name, rows, reference=reference)


def test_without_a_reference_a_row_that_needs_one_is_refused():
    with pytest.raises(WhetError, match="there is none"):
        PreferenceTrainer(
            PreferenceModels(causal_lm(tiny()), None),
            PAIR_PRESETS["dpo"].objective,
            PreferenceDataset(pairs()),
            **settings(),
        )


def test_a_loss_that_is_not_finite_stops_the_run():
    made = trainer()
    with torch.no_grad():
        made.model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(RunFailed, match="step 1: the loss is not finite"):
        made.step(1, PhaseTimer())
