"""Few-shot and plain prompts: what is sent, and that no test question is among the examples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from whet import api
from whet.tools.evaluation.evaluation import PromptStyle, eval_setup, examples_for, styled
from whet.training.assembly.prompts import load_prompts
from whet.types import Demonstration, Prompt, WhetError


def prompt(question: str, **more) -> Prompt:
    return Prompt(question, ({"role": "user", "content": question},), **more)


EXAMPLES = [Demonstration(prompt("1+1?"), "It is 2."), Demonstration(prompt("2+2?"), "It is 4.")]


def test_examples_stand_before_the_question_and_behind_the_system_message():
    asked = Prompt("q", ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "3+3?"}))
    (sent,) = styled([asked], EXAMPLES, plain=False)
    assert [message["role"] for message in sent.messages] == ["system", *["user", "assistant"] * 2, "user"]
    assert [message["content"] for message in sent.messages][1:3] == ["1+1?", "It is 2."]
    assert sent.question() == "3+3?" and sent.text is None


def test_plain_text_is_questions_and_answers():
    (sent,) = styled([prompt("3+3?", answer="6")], EXAMPLES, plain=True)
    assert (
        sent.text == "Question: 1+1?\nAnswer: It is 2.\n\nQuestion: 2+2?\nAnswer: It is 4.\n\nQuestion: 3+3?\nAnswer:"
    )
    assert sent.messages == () and sent.answer == "6"
    assert styled([prompt("3+3?")], [], plain=True)[0].text == "3+3?"
    assert styled([Prompt("q", (), "3+3?")], EXAMPLES, plain=False)[0].text == sent.text  # it is plain already


def config(data: str | None = None, **settings):
    return api.evaluation_config("whetstone", data, {"model": {"threads": 1}, "eval": {"prompts": 5}, **settings})


def test_a_tasks_examples_are_training_questions():
    settings = config()
    prompts = load_prompts(settings, evaluation=True)
    shown = examples_for(settings, PromptStyle(shots=3), prompts)
    assert len({each.prompt.question() for each in shown}) == 3 and all("<answer>" in each.completion for each in shown)
    assert not {each.prompt.question() for each in shown} & {each.question() for each in prompts}
    assert shown == examples_for(settings, PromptStyle(shots=3), prompts)


def rows(path: Path, *questions: str, **columns: str) -> str:
    path.write_text("".join(json.dumps({"question": each, "answer": f"so #### {at}"} | columns) + "\n"
                            for at, each in enumerate(questions)))  # fmt: skip
    return str(path)


def test_a_test_question_in_the_file_of_examples_is_never_shown(tmp_path):
    train = rows(tmp_path / "train.jsonl", "one?", "two?", "three?")
    test = rows(tmp_path / "test.jsonl", "Two? ", "four?")
    settings = config(test)
    prompts = load_prompts(settings, evaluation=True)
    shown = examples_for(settings, PromptStyle(shots=2, shots_from=train), prompts)
    assert {each.prompt.question() for each in shown} == {"one?", "three?"}
    assert shown[0].completion.startswith("so #### ")
    with pytest.raises(WhetError, match="only 2 examples that are no test prompts"):
        examples_for(settings, PromptStyle(shots=3, shots_from=train), prompts)
    with pytest.raises(WhetError, match="give --shots-from FILE"):
        examples_for(settings, PromptStyle(shots=1), prompts)
    with pytest.raises(WhetError, match="has no effect without --shots"):
        examples_for(settings, PromptStyle(shots_from=train), prompts)


def test_the_judge_sees_the_question_alone_and_the_model_everything():
    bare = eval_setup(config())[1]
    shown = eval_setup(config(), style=PromptStyle(shots=2))[1]
    assert [each.messages for each in shown.prompts] == [each.messages for each in bare.prompts]
    assert min(map(len, shown.prompt_tokens)) > max(map(len, bare.prompt_tokens))
    plain = eval_setup(config(), style=PromptStyle(plain=True))[1]
    assert max(map(len, plain.prompt_tokens)) < max(map(len, bare.prompt_tokens))
