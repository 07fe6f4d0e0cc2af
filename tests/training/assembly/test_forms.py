"""How a benchmark is asked: what a chat model and a base model get, what `data.as_chat` changes, and who says so."""

import json
import struct
from pathlib import Path

import pytest

import whet
from whet import api
from whet.data.benchmarks import REASON
from whet.model import chat_template
from whet.model.chat_template import has_chat_template
from whet.tools.evaluation.evaluation import PromptStyle, examples_for
from whet.tools.evaluation.measure import EvalPlan, prepared
from whet.training.assembly.forms import form_facts, prompt_form
from whet.training.assembly.prompts import load_prompts
from whet.training.assembly.sft import load_demonstrations
from whet.training.config import resolved
from whet.training.saved_config import read_config
from whet.types import WhetError

ROW = {"question": "1 + 2?", "answer": "1 + 2 = <<1+2=3>>3\n#### 3"}


def gsm8k(folder: Path, *questions: str) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({**ROW, "question": question}) + "\n" for question in questions or ("1 + 2?",)))
    return f"gsm8k:{path}"


def model(folder: Path, settings: dict[str, object], template: str = "") -> str:
    """As much of a model folder as tells whether it has a chat template."""
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if template:
        (folder / "chat_template.jinja").write_text(template)
    return str(folder)


def gguf(path: Path, *fields: tuple[str, str]) -> str:
    """The header of a GGUF file: a list of texts as tokenizers have, then text fields."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    tokens = text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + text("a") + text("bc") + text("")
    more = b"".join(text(key) + struct.pack("<I", 8) + text(value) for key, value in fields)
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 1 + len(fields)) + tokens + more)
    return str(path)


def test_a_template_is_seen_without_loading_the_model(tmp_path):
    expected = {
        "whetstone": True,
        "smollm2": True,
        model(tmp_path / "jinja", {}, "{{ messages }}"): True,
        model(tmp_path / "stated", {"chat_template": "{{ messages }}"}): True,
        model(tmp_path / "named", {"chat_template": [{"name": "default", "template": "x"}]}): True,
        model(tmp_path / "base", {"eos_token": "</s>"}): False,
        gguf(tmp_path / "chat.gguf", ("general.name", "x"), ("tokenizer.chat_template", "{{ messages }}")): True,
        gguf(tmp_path / "base.gguf", ("general.name", "x")): False,
        str(tmp_path / "nowhere"): None,
    }
    assert {name: has_chat_template(name) for name in expected} == expected


def test_the_template_of_a_run_is_its_models_however_the_run_is_named(tmp_path, monkeypatch):
    final = Path(model(tmp_path / "run", {})) / "final"
    model(final, {}, "{{ messages }}")
    (final / "manifest.json").write_text("{}")
    (final / "saved.json").write_text('{"step": 3}')
    monkeypatch.chdir(tmp_path)
    names = "run", "./run", "run/", str(tmp_path / "run")
    assert [has_chat_template(name) for name in names] == [True] * len(names)
    assert has_chat_template(".") is False  # a folder of this machine, not that of the built-in models


def test_the_template_of_a_hub_model_is_read_from_its_files(tmp_path, monkeypatch):
    files = {"tokenizer_config.json": Path(model(tmp_path / "hub", {}, "x")) / "tokenizer_config.json"}
    monkeypatch.setattr(chat_template, "hub_file", lambda name, file: files.get(file))
    assert has_chat_template("owner/base") is False
    assert has_chat_template("owner") is has_chat_template("owner/name/more") is has_chat_template("./absent") is None
    files["chat_template.jinja"] = tmp_path / "hub" / "chat_template.jinja"
    assert has_chat_template("owner/chat") is True
    files.clear()
    assert has_chat_template("owner/unknown") is None


def test_the_form_by_model_setting_and_source(tmp_path):
    chat, base = model(tmp_path / "chat", {}, "{{ messages }}"), model(tmp_path / "base", {})
    source, file = gsm8k(tmp_path), str(tmp_path / "rows.jsonl")
    bare, told = "1 + 2?", f"1 + 2?\n{REASON}"
    expected = {  # what is asked, as a message or as text
        (chat, "auto", source): (told, True),
        (chat, True, source): (bare, True),  # as_chat of older configs means what it meant
        (chat, False, source): (bare, False),
        (base, "auto", source): (bare, False),
        (base, False, source): (bare, False),
        (chat, "auto", file): (bare, False),
        (chat, True, file): (bare, True),
    }
    asked = {}
    for name, as_chat, data in expected:
        config = api.evaluation_config(name, data, {"data": {"as_chat": as_chat}})
        (prompt,) = load_prompts(config, evaluation=True)
        asked[name, as_chat, data] = (prompt.question(), bool(prompt.messages))
        assert prompt.answer == "3"
    assert asked == expected
    with pytest.raises(WhetError, match=r"has no chat template to write a user message with; give data\.as_chat=false"):
        load_prompts(api.evaluation_config(base, source, {"data": {"as_chat": True}}), evaluation=True)


def test_what_is_no_choice_is_refused_in_one_line():
    for value in ("AUTO", "true", 1, False):
        assert resolved("grpo", {"data": {"source": "x.jsonl", "as_chat": value}}).data.as_chat in ("auto", True, False)
    with pytest.raises(WhetError, match=r"data\.as_chat: give auto, true or false$"):
        resolved("grpo", {"data": {"source": "x.jsonl", "as_chat": "maybe"}})


def test_a_server_writes_conversations_itself(tmp_path):
    config = api.evaluation_config("some-name", gsm8k(tmp_path), {"sampling": {"engine": "openai"}})
    assert prompt_form(config, config.eval.source).says_answer_form


def test_the_run_says_its_form(tmp_path):
    base, source = model(tmp_path / "base", {}), gsm8k(tmp_path)
    said = [
        form_facts(api.evaluation_config(name, source, {"data": {"as_chat": as_chat}}), source)["form"]
        for name, as_chat in (
            *(("whetstone", "auto"), ("whetstone", True), ("whetstone", False)),
            *((base, "auto"), (str(tmp_path / "nowhere"), "auto")),
        )
    ]
    assert "user message that asks for the answer in \\boxed{} (the model has a chat template" in said[0]
    assert said[1:] == [
        "the bare prompt as a user message (data.as_chat=true)",
        "plain text (data.as_chat=false)",
        "plain text (the model has no chat template)",
        "plain text (the model's chat template cannot be read)",
    ]
    config = api.evaluation_config("whetstone", str(tmp_path / "rows.jsonl"), {})
    assert form_facts(config, config.eval.source) == {}
    ifeval = f"ifeval:{tmp_path / 'rows.jsonl'}"
    several = form_facts(config, source, ifeval, source)["form"]
    assert several.startswith("gsm8k: a user message that asks") and "; ifeval: a user message (" in several


def test_demonstrations_answer_in_the_form_that_is_asked_for(tmp_path):
    source = gsm8k(tmp_path)
    settings = {"data": {"source": source}}
    ((chat,), _) = load_demonstrations(resolved("sft", settings))
    assert chat.prompt.question().endswith(REASON) and chat.completion == "1 + 2 = <<1+2=3>>3\n\\boxed{3}"
    ((plain,), _) = load_demonstrations(resolved("sft", settings, {"data": {"as_chat": False}}))
    assert (plain.prompt.text, plain.completion) == ("1 + 2?", ROW["answer"])


def test_worked_examples_have_the_same_form_and_are_no_test_questions(tmp_path):
    (tmp_path / "train").mkdir()
    train = gsm8k(tmp_path / "train", "1 + 2?", "0 + 3?")
    test = gsm8k(tmp_path, "1 + 2?")
    config = api.evaluation_config("whetstone", test, {})
    prompts = load_prompts(config, evaluation=True)
    for file in (train, train.removeprefix("gsm8k:")):  # in the form of the prompts, and bare
        (shown,) = examples_for(config, PromptStyle(shots=1, shots_from=file), prompts)
        assert shown.prompt.question().startswith("0 + 3?")
        assert (shown.prompt.question().endswith(REASON), "\\boxed{3}" in shown.completion) == (file == train,) * 2


def test_plain_evaluation_asks_the_bare_question(tmp_path):
    config = api.evaluation_config("whetstone", gsm8k(tmp_path), {"model": {"threads": 1}})
    told, plain = (prepared(config, EvalPlan(style=PromptStyle(plain=chosen))) for chosen in (False, True))
    assert told.evaluator.prompts[0].question() == f"1 + 2?\n{REASON}"
    assert plain.evaluator.prompts[0].question() == "1 + 2?"
    assert len(plain.evaluator.prompt_tokens[0]) < len(told.evaluator.prompt_tokens[0])


def test_a_run_keeps_its_form_in_its_folder_and_when_it_is_resumed(tmp_path):
    source = gsm8k(tmp_path, "1 + 2?", "3 + 4?")
    small = {
        "model": {"threads": 1, "device": "cpu"},
        "sampling": {"max_new_tokens": 4},
        "batch": {"prompts_per_step": 2, "group_size": 2},
        "report": {"save_every": 1},
    }
    asked = {}
    for name, as_chat in (("auto", "auto"), ("older", False)):  # older: 0.2 wrote `as_chat = false` into its folders
        folder = tmp_path / name
        data = {"source": source, "as_chat": as_chat}
        whet.train("grpo", steps=1, folder=str(folder), config={**small, "data": data}, console=False)
        facts = json.loads((folder / "run.json").read_text())["facts"]
        asked[name] = facts["form"]
        assert read_config(folder).data.as_chat == as_chat
        whet.resume(folder, steps=2, console=False)
        questions = {json.loads(line)["question"] for line in (folder / "samples.jsonl").read_text().splitlines()}
        assert all(question.endswith(REASON) == (as_chat == "auto") for question in questions) and questions
        assert json.loads((folder / "run.json").read_text())["facts"]["form"] == facts["form"]
    assert asked["auto"].startswith("a user message that asks for") and asked["older"].startswith("plain text")
