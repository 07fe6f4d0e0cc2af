"""Rows as public data has them: what becomes prompt and gold answer, and by which name a mistake is called."""

from __future__ import annotations

import pytest

from tests.support.for_every import for_every
from whet.data.pairs import preferences_from
from whet.data.prompts import demonstrations_from, prompts_from, renamed
from whet.data.rows import Row
from whet.types import WhetError

CHAT = [{"role": "user", "content": "2+2?"}]
COMPLETIONS = {"chosen": [*CHAT, {"role": "assistant", "content": "4"}]}
COMPLETIONS["rejected"] = [*CHAT, {"role": "assistant", "content": "5"}]
GSM = {"question": "2+2?", "answer": "2+2=<<2+2=4>>4\n#### 4"}
VERL = {"prompt": CHAT, "data_source": "gsm", "reward_model": {"style": "rule", "ground_truth": "4"}, "extra_info": {}}
FROM_SOLUTION = "prompt from problem, answer from the last \\boxed{} of solution"


def read(reader, *rows):
    return reader([Row(row, f"a.jsonl:{line}") for line, row in enumerate(rows, start=1)])


@for_every(
    [
        (GSM, "4", "prompt from question, answer from what follows #### in answer"),
        ({"prompt": "2+2?", "answer": "4"}, "4", ""),
        ({"prompt": "2+2?", "ground_truth": "4"}, "4", "answer from ground_truth"),
        ({"prompt": "2+2?", "ground_truth": "so\n#### 4"}, "4", "answer from what follows #### in ground_truth"),
        ({"problem": "2+2?", "solution": "It is \\boxed{4}."}, "4", FROM_SOLUTION),
        ({"input": "2+2?", "target": 4.0}, 4.0, "prompt from input, answer from target"),
        ({"text": "2+2?", "code": "4"}, None, "prompt from text"),
        ({"instruction": "2+2?", "input": "", "output": "4"}, None, "prompt from instruction"),
        ({"messages": [*CHAT, {"role": "assistant", "content": "4"}]}, None, ""),
        ({"conversations": [{"from": "human", "value": "2+2?"}]}, None, "messages from conversations"),
        ({"prompt": CHAT, "chosen": "4", "rejected": "5"}, None, ""),
        (COMPLETIONS, None, "messages from chosen"),
        ({"chosen": "2+2? 4", "rejected": "2+2? 5"}, None, ""),
        (VERL, "4", "answer from reward_model.ground_truth"),
    ]
)
def test_every_format_has_a_prompt_and_its_gold_answer(row, answer, notes):
    found = read(prompts_from, row)
    assert found[0].question().strip() == "2+2?"
    assert (found[0].answer, found.notes) == (answer, notes)


def test_a_question_comes_with_what_it_is_about():
    rows = {"Body": "Ann has 2.", "Question": "And 2 more?", "Answer": 4.0}, {"context": "Long.", "question": "Why?"}
    svamp, squad = read(prompts_from, *rows)
    assert (svamp.text, svamp.answer, squad.text) == ("Ann has 2. And 2 more?", 4.0, "Long.\n\nWhy?")


def test_what_was_found_elsewhere_still_reaches_a_reward_by_its_own_name():
    (prompt,) = read(prompts_from, {"prompt": "2+2?", "ground_truth": "so\n#### 4", "data_source": "gsm"})
    assert prompt.meta == {"ground_truth": "so\n#### 4", "data_source": "gsm", "solution": "so\n#### 4"}


def test_a_demonstration_learns_the_whole_solution():
    found = read(demonstrations_from, GSM, {"problem": "2+2?", "solution": "It is 4.", "answer": "4"})
    assert [each.completion for each in found] == [GSM["answer"], "It is 4."]
    assert found.notes == "completion from answer or solution, prompt from question or problem"


@for_every(
    [
        (demonstrations_from, {"instruction": "", "output": "4"}, "a.jsonl:1: instruction is empty"),
        (demonstrations_from, {"instruction": None, "output": "4"}, "a.jsonl:1: 'instruction' is null"),
        (demonstrations_from, {"instruction": 7, "output": "4"}, "instruction is 7"),
        (demonstrations_from, {"instruction": "Add.", "output": None}, "'output' is null"),
        (demonstrations_from, {"instruction": "Add.", "output": ""}, "output is empty"),
        (demonstrations_from, {"instruction": "Add.", "output": 5}, "output is 5.*correct the 'output' of this row"),
        (demonstrations_from, {"instruction": "Add."}, "'output' is missing; the row has 'instruction'; "),
        (prompts_from, {"instruction": ""}, "instruction is empty"),
        (prompts_from, {"question": 3}, "question is 3"),
        (prompts_from, {"conversations": [{"from": "human", "value": ""}]}, r"conversations\[0\].value is empty"),
        (preferences_from, {"instruction": "Add.", "output_1": "", "output_2": "4", "label": 2}, "output_1 is empty"),
    ]
)
def test_a_mistake_is_called_by_the_name_that_the_user_has_for_it(reader, row, expected):
    with pytest.raises(WhetError, match=expected):
        read(reader, row)


def test_a_renamed_column_is_called_by_its_own_name():
    with pytest.raises(WhetError, match="frage is empty"):
        prompts_from(renamed([Row({"frage": ""}, "a.jsonl:1")], {"frage": "prompt"}))
