"""Choices by log-likelihood: the numbers against a plain forward pass, verdicts by hand, the report of two models."""

import json
from pathlib import Path

import pytest
import torch

import whet
from tests.cli.test_eval import eval_
from tests.data.test_choices import ROWS, package, written
from whet import api
from whet.data.multiple_choice import CHOICES, choice_questions
from whet.model.load import load_model
from whet.tools.evaluation.likelihood import measured_choices, right_choice
from whet.tools.evaluation.measure import EvalPlan
from whet.training.assembly.runtime import load_runtime
from whet.training.completion_logp import choice_logp
from whet.types import Prompt, WhetError


def config(source: str, **settings):
    return api.evaluation_config("whetstone", source, {"model": {"threads": 1, "device": "cpu"}, **settings})


def naive_logp(model, tokenizer, text: str, choice: str) -> float:
    """As lm-evaluation-harness does it: the tokens of both, less those of the text alone, one row at a time."""
    before, whole = tokenizer(text)["input_ids"], tokenizer(f"{text} {choice}")["input_ids"]
    row = before + whole[len(before) :]
    with torch.no_grad():
        logp = model(torch.tensor([row[:-1]])).logits.double().log_softmax(-1)[0]
    return sum(float(logp[place - 1, row[place]]) for place in range(len(before), len(row)))


def test_the_numbers_are_those_of_a_plain_forward_pass(tmp_path):
    rows = [ROWS["hellaswag"], {**ROWS["hellaswag"], "ctx_b": "", "endings": ["a", "some much longer ending", "b c"]}]
    questions = choice_questions(CHOICES["hellaswag"], written(tmp_path, *rows))
    questions += choice_questions(CHOICES["mmlu"], written(tmp_path, ROWS["mmlu"]))
    runtime = load_runtime(config(f"piqa:{tmp_path}"))
    scores = choice_logp(runtime.policy, runtime.tokenizer, questions, runtime.loaded.context)
    loaded = load_model("whetstone")
    expected = [
        [naive_logp(loaded.model, loaded.tokenizer, question.text, choice) for choice in question.meta["choices"]]
        for question in questions
    ]
    assert [len(row) for row in scores] == [2, 3, 4] and all(value < -1 for row in expected for value in row)
    for ours, theirs in zip(scores, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=2e-4)


def test_a_question_that_is_too_long_loses_its_beginning(tmp_path):
    (question,) = choice_questions(CHOICES["piqa"], written(tmp_path, {**ROWS["piqa"], "goal": "word " * 700}))
    runtime = load_runtime(config(f"piqa:{tmp_path}"))
    ((first, second),) = choice_logp(runtime.policy, runtime.tokenizer, [question], 64)
    ((longer, _),) = choice_logp(runtime.policy, runtime.tokenizer, [question], 128)
    assert first != second and first != longer and all(value < 0 for value in (first, second, longer))


def test_verdicts_by_hand():
    """By itself -4 is the likelier; per character -4/2 is less than -6/6."""
    question = Prompt("q", (), "?", None, {"choices": ["ab", "abcdef"], "right": 1})
    assert (right_choice(question, [-4.0, -6.0], by_length=False), right_choice(question, [-4.0, -6.0], True)) == (0, 1)
    assert right_choice(question, [-5.0, -5.0], by_length=False) == 0  # of equal ones the first


def test_no_question_is_no_evaluation(tmp_path):
    source = f"piqa:{written(tmp_path, ROWS['piqa'])}"
    with pytest.raises(WhetError, match=r"eval\.prompts is 0"):
        measured_choices(config(source, eval={"source": source, "prompts": 0}), EvalPlan())


def rows_of(count: int) -> list[dict[str, object]]:
    return [
        {**ROWS["mmlu"], "question": f"{number} + 1?", "subject": f"part_{number % 2}", "answer": number % 4}
        for number in range(count)
    ]


def test_two_models_are_compared_by_subject_and_in_pairs(capsys, tmp_path):
    source = f"mmlu:{written(tmp_path, *rows_of(12))}"
    other = tmp_path / "other"
    loaded = load_model("whetstone")
    with torch.no_grad():
        for weight in loaded.model.parameters():
            weight.mul_(-1)
    loaded.model.save_pretrained(other)
    loaded.tokenizer.save_pretrained(other)
    out = tmp_path / "out"
    asked = ("whetstone", str(other), "--data", source, "--out", str(out), "--set", "model.threads=1")
    code, printed, errors = eval_(capsys, *asked, "--json", "--set", "eval.by=subject")
    assert code == 0, errors
    report = json.loads(printed)
    ((test,),) = report["pairs"].values()
    assert test["first"] == "whetstone" and test["gained"] + test["lost"] > 0
    for model in report["evals"]:
        summary, lines = model["summary"], Path(model["completions"]).read_text().splitlines()
        file = [json.loads(line) for line in lines]
        right = [row["acc"] for row in file]
        assert len(file) == 12 and all(len(row["logp"]) == 4 for row in file)
        assert model["metrics"]["acc"] == model["metrics"]["accuracy"] == pytest.approx(sum(right) / 12)
        assert summary["readings"]["acc"]["low"] < model["metrics"]["acc"] < summary["readings"]["acc"]["high"]
        by_subject = [summary["tasks"][f"part_{number}"]["value"] for number in (0, 1)]
        assert by_subject == pytest.approx([sum(right[number::2]) / 6 for number in (0, 1)])
    _, text, _ = eval_(capsys, *asked)
    assert "12 questions, choices scored by log-likelihood" in text and "acc_norm" in text and "truncated" not in text


def test_one_model_says_how_it_was_scored(capsys, tmp_path):
    package(tmp_path, "piqa", *[ROWS["piqa"]] * 9)
    few = ("--set", "eval.prompts=3", "--set", "model.threads=1")
    _, text, _ = eval_(capsys, "whetstone", "--data", f"piqa:{tmp_path}", "--out", str(tmp_path / "out.jsonl"), *few)
    assert "accuracy is acc_norm" in text and "3 of 9, evenly spread; eval.prompts=9 asks all" in text


def test_from_python(tmp_path):
    result = whet.evaluate("whetstone", f"mmlu:{written(tmp_path, *rows_of(4))}", settings={"model": {"threads": 1}})
    assert result["prompts"] == 4 and result.summary.lengths is None and len(result.completions) == 4


def test_what_is_for_completions_is_refused(tmp_path):
    source = f"mmlu:{written(tmp_path, ROWS['mmlu'])}"
    said = {
        "--samples has no effect on mmlu": {"samples": 4},
        "--reward has no effect on mmlu": {"reward": "exact_answer"},
        r"data\.as_chat has no effect": {"settings": {"data": {"as_chat": True}}},
        "log-likelihoods need a model that runs here": {"settings": {"sampling": {"engine": "openai"}}},
        r"eval\.by=level: row .* has no such column": {"settings": {"eval": {"by": "level"}}},
    }
    for message, given in said.items():
        with pytest.raises(WhetError, match=message):
            whet.evaluate("whetstone", source, **given)
    with pytest.raises(WhetError, match="nothing is written or learned"):
        whet.train("grpo", data=source, reward="exact_answer", folder=str(tmp_path / "run"), console=False)
