"""Learning from a teacher: the numbers it gives, what a run without a reward does, and what is refused."""

import json
import re
import shutil
import threading
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.support.commands import finished
from tests.training.test_kill import content
from whet import api
from whet.api.evaluation import evaluation_config
from whet.data.chat import prompt_tokens
from whet.data.distillation_target import with_text
from whet.data.packing import token_batch
from whet.data.tasks import TASKS, prompts
from whet.model.causal_lm import causal_lm
from whet.model.load import load_model
from whet.model.reference import FrozenModel
from whet.model.vocabulary import vocabulary_refusal
from whet.record.log import read_metrics
from whet.training.assembly.assembly import assemble
from whet.training.assembly.serving import build_server
from whet.training.config import resolved
from whet.training.sections import TeacherSection
from whet.training.teacher import DistillationSettings, ModelTeacher, taught_rows
from whet.types import Group, Prompt, Sample, StopReason, TokenBatch, WhetError

SMALL = {
    "eval": {"every": 0, "prompts": 12},
    "data": {"count": 40},
    "sampling": {"max_new_tokens": 32},
    "batch": {"prompts_per_step": 32},
    "report": {"save_every": 2},
    "seed": 3,
}


@pytest.fixture(scope="module")
def teacher(imitator):
    """The built-in model after a few demonstrations: near enough to agree, far enough to teach."""
    return imitator


def prompts_file(folder: Path) -> str:
    asked = prompts(TASKS["arithmetic"], "train", 40, 0, 3)
    rows = [{"prompt": [dict(message) for message in prompt.messages]} for prompt in asked]
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


def test_a_teacher_scores_the_tokens_as_its_softmax_says(teacher):
    loaded = load_model(teacher)
    stream = torch.Generator().manual_seed(0)
    tokens = torch.randint(5, 40, (3, 12), generator=stream)
    action = torch.zeros_like(tokens, dtype=torch.bool)
    action[:, 4:] = torch.rand(3, 8, generator=stream) < 0.7
    batch = TokenBatch(tokens, action, torch.arange(3), torch.zeros(3))
    found = ModelTeacher(FrozenModel(causal_lm(loaded.model, torch.float32)), 1.5, 20).logp(batch)
    with torch.no_grad():
        logits = loaded.model.double()(tokens).logits / 1.5
    expected = logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    torch.testing.assert_close(found[:, 1:][action[:, 1:]].double(), expected[action[:, 1:]], rtol=1e-4, atol=1e-5)
    assert (found[~action] == 0).all()


def test_a_run_needs_no_reward_and_comes_nearer_to_its_teacher(teacher, tmp_path):
    config = {**SMALL, "folder": str(tmp_path / "run"), "teacher": {"name": teacher}}
    config |= {"optimizer": {"learning_rate": 6e-4}, "data": {}, "sampling": {"max_new_tokens": 16}}
    config |= {"batch": {"prompts_per_step": 16}}
    run = api.train("opd", data=prompts_file(tmp_path), steps=5, config=config, console=False)
    gaps = [line["metrics"]["teacher_kl"] for line in read_metrics(run.folder) if "teacher_kl" in line["metrics"]]
    assert len(gaps) == 5 and gaps[0] > 0.01 and sum(gaps[-2:]) < 0.7 * sum(gaps[:2])
    facts = json.loads((Path(run.folder) / "run.json").read_text())
    assert "none: opd learns without one" in json.dumps(facts)
    with pytest.raises(WhetError, match="no reward"):
        api.train(
            "grpo", data=prompts_file(tmp_path), steps=1, config={"folder": str(tmp_path / "other")}, console=False
        )


@pytest.mark.slow
def test_a_resumed_run_ends_in_the_same_bytes(teacher, tmp_path):
    def words(folder, steps):
        settings = [
            *("report.save_every=2", "eval.every=2", "eval.prompts=6", "data.count=40", "model.threads=1"),
            *("sampling.max_new_tokens=24", "batch.prompts_per_step=6", "report.keep_checkpoints=9"),
        ]
        flags = [f"--steps={steps}", "--seed=3", f"--folder={folder}", f"--teacher={teacher}"]
        return ["train", "opd", *flags, *(word for each in settings for word in ("--set", each))]

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert finished(*words(whole, 4)).returncode == 0
    assert finished(*words(broken, 2)).returncode == 0
    assert finished("resume", str(broken), "--steps=4").returncode == 0
    assert content(broken) == content(whole)


@contextmanager
def served(model):
    """`whet serve` in a thread."""
    server, _ = build_server(evaluation_config(model, None, {}), "secret", host="127.0.0.1", port=0, rows=4)
    server.start()
    writing = threading.Thread(target=server.run, daemon=True)
    writing.start()
    try:
        yield f"{server.address}/v1"
    finally:
        server.stop()
        writing.join(20)


def test_a_teacher_behind_http_teaches_what_it_would_in_this_process(teacher, tmp_path, monkeypatch):
    monkeypatch.setenv("TEACHER_KEY", "secret")
    small = {**SMALL, "batch": {"prompts_per_step": 2}, "eval": {"every": 0, "prompts": 0}, "model": {"threads": 1}}
    small |= {"sampling": {"max_new_tokens": 12}, "data": {"count": 8}}

    def losses(method, name, section):
        config = {**small, "folder": str(tmp_path / name), "teacher": section}
        run = api.train(method, steps=2 if method == "opd" else 1, config=config, console=False)
        return [line["metrics"]["loss"] for line in read_metrics(run.folder) if "counts" in line]

    with served(teacher) as address:
        there = {"base_url": address, "key_variable": "TEACHER_KEY"}
        assert losses("opd", "a", there) == pytest.approx(losses("opd", "b", {"name": teacher}), rel=1e-4, abs=1e-6)
        likeliest = losses("gkd", "c", {**there, "top_k": 5})
        assert likeliest == pytest.approx(losses("gkd", "d", {"name": teacher, "top_k": 5}), rel=1e-4)
        assert abs(likeliest[0] - losses("gkd", "e", {"name": teacher})[0]) > 1e-6
        with pytest.raises(WhetError, match=r"compares whole distributions.*teacher\.top_k"):
            losses("gkd", "f", there)
        monkeypatch.setenv("TEACHER_KEY", "wrong")
        with pytest.raises(WhetError, match="check the key in TEACHER_KEY"):
            losses("opd", "g", there)


def test_a_teacher_with_other_tokens_is_refused_with_the_fix(teacher, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(Path(load_model(teacher).source), other)
    file = other / "tokenizer.json"
    stored = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = stored["model"]["vocab"]
    first, second = sorted(vocabulary, key=vocabulary.get)[20:22]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    file.write_text(json.dumps(stored), encoding="utf-8")
    (other / "manifest.json").unlink(missing_ok=True)
    config = {**SMALL, "folder": str(tmp_path / "run"), "teacher": {"name": str(other)}}
    with pytest.raises(WhetError, match=r"another vocabulary.*2 of .*whet label completions"):
        api.train("opd", steps=1, config=config, console=False)
    with pytest.raises(WhetError, match="none is given; add --teacher"):
        api.train("opd", steps=1, config={**SMALL, "folder": str(tmp_path / "none")}, console=False)


def test_what_a_teacher_says_behind_another_prompt_comes_back_to_its_tokens(teacher):
    """Rows of different lengths; one that nobody knows anything about is not trained on."""
    loaded = load_model(teacher)
    encode = partial(prompt_tokens, loaded.tokenizer)
    groups = []
    for number, outcomes in enumerate([(0, 1, 1), (0, 1, 0)]):
        prompt = Prompt(f"q/{number}", ({"role": "user", "content": f"{number}+2"},))
        samples = []
        for place, outcome in enumerate(outcomes):
            own = loaded.tokenizer("<answer>" + "4" * (1 + place) + "</answer>")["input_ids"]
            tokens = torch.tensor([*encode(prompt), *own])
            action = torch.arange(len(tokens)) >= len(encode(prompt))
            plain = Sample(tokens, action, torch.zeros(len(tokens)), (0, 0), StopReason.END, "4" * (1 + place))
            samples.append(plain.scored({"right": outcome}, float(outcome)))
        groups.append(Group(prompt, tuple(samples)))
    batch = token_batch(groups)
    template = "{prompt} (not {text})"
    lesson = DistillationSettings(TeacherSection(context="sibling"), template, encode=encode, longest=200)
    shown = taught_rows(batch, groups, lesson)
    assert shown.rows == [0, 1, 2, 3, 5]  # the fourth row's group has one right completion, which is itself
    judge = ModelTeacher(FrozenModel(causal_lm(loaded.model, torch.float32)), 1.0, 50, top_k=4)
    found = shown.back(judge.logp(shown.batch))
    assert (found[4] == 0).all() and torch.equal(shown.forth(found), judge.logp(shown.batch))
    samples = [sample for group in groups for sample in group.samples]
    for row, sibling in zip(shown.rows, ("44", "444", "44", "44", "44"), strict=True):
        group = groups[row // 3]
        before = encode(with_text(group.prompt, sibling, template))
        own = samples[row].tokens[samples[row].action]
        with torch.no_grad():
            logits = loaded.model(torch.tensor([[*before, *own.tolist()]])).logits[0]
        expected = logits[len(before) - 1 : -1].log_softmax(-1).gather(-1, own[:, None])[:, 0]
        torch.testing.assert_close(found[row][batch.action[row]], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("method", "given", "words"),
    [
        ("sdft", {}, "as it began, that reads a demonstration too; samples without one"),
        ("sdpo", {}, "a moving average of it, that reads a sibling too; samples without one"),
        ("opd", {"teacher": {"name": "self"}, "objective": {"reference": "ema"}}, "a moving average of it"),
    ],
)
def test_a_policy_that_teaches_itself_says_what_it_reads_in_addition(method, given, words):
    trainer = assemble(resolved(method, {**SMALL, "data": {"count": 8}, **given})).trainer
    assert trainer.taught_by.startswith(f"the policy itself, {words}")
    assert (" reads a " in trainer.taught_by) == (" reads a " in words)


@pytest.mark.parametrize("method", ["sdpo", "sdft"])
def test_the_policy_teaches_itself_and_goes_on_from_a_checkpoint(tmp_path, method):
    small = {**SMALL, "batch": {"prompts_per_step": 4}, "report": {"save_every": 1, "keep_checkpoints": 9}}
    small |= {"eval": {"every": 0, "prompts": 0}, "data": {"count": 8}, "sampling": {"max_new_tokens": 16}}
    run = api.train(method, steps=2, config={**small, "folder": str(tmp_path / "whole")}, console=False)
    shutil.copytree(tmp_path / "whole", tmp_path / "broken")
    api.resume(tmp_path / "broken", steps=2, checkpoint="step-000001", console=False)
    weights = [(tmp_path / name / "checkpoints/step-000002").glob("*.safetensors") for name in ("whole", "broken")]
    whole, broken = ({file.name: file.read_bytes() for file in files} for files in weights)
    assert whole == broken and ("reference.safetensors" in whole) == (method == "sdpo")
    steps = [line for line in read_metrics(run.folder) if "counts" in line]
    assert len(steps) == 2 and all("untaught" in line["counts"] for line in steps)
    if method == "sdpo":
        assert sum(line["counts"]["untaught"] for line in steps) > 0
        assert all(line["metrics"]["teacher_divergence"] > 0 for line in steps if line["metrics"]["gradient_norm"])
    else:
        said = json.loads((run.folder / "run.json").read_text())["facts"]["teacher"]
        read, unread = re.search(r"has (-[\d.]+) nats per token, and (-[\d.]+) unread", said).groups()
        # the built-in model never saw a demonstration beside a prompt
        assert float(read) < float(unread) - 3 and "cannot use what it reads" in said


class Words:
    def __init__(self, *words):
        self._words = words

    def get_vocab(self):
        return {word: number for number, word in enumerate(self._words)}


def test_vocabularies_are_compared_by_what_we_have():
    assert vocabulary_refusal(Words("a", "b"), Words("a", "b", "padding")) == ""
    assert "1 of 3" in vocabulary_refusal(Words("a", "b", "c"), Words("a", "b"))
    assert "'a' is 0 here and 1 there" in vocabulary_refusal(Words("a", "b"), Words("b", "a"))
