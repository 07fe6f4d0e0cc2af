from __future__ import annotations

from typing import Any

import pytest

from tests.support.for_every import for_every
from whet.data.prompts import (
    LabelledCompletion,
    PreferencePair,
    demonstrations_from,
    labelled_from,
    pairs_from,
    prompts_from,
    renamed,
)
from whet.data.rows import Row
from whet.types import Demonstration, Prompt, WhetError

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "2 + 3?"}
FIVE = {"role": "assistant", "content": "5"}
SIX = {"role": "assistant", "content": "6"}
AGAIN = {"role": "user", "content": "sure?"}
TOOL = {"role": "tool", "content": "5", "name": "calculator"}


def rows(*values: dict[str, Any]) -> list[Row]:
    return [Row(value, f"train.jsonl:{line}") for line, value in enumerate(values, start=1)]


def test_plain_prompt_keeps_answer_and_other_columns() -> None:
    made = prompts_from(rows({"prompt": "2 + 3?", "answer": 5, "level": "easy", "completion": "5"}))
    assert made == [
        Prompt("train.jsonl:1", (), "2 + 3?", 5, {"level": "easy", "completion": "5"}),
    ]


def test_as_chat_sends_a_user_message() -> None:
    (prompt,) = prompts_from(rows({"prompt": "2 + 3?"}), as_chat=True)
    assert prompt == Prompt("train.jsonl:1", (USER,))


def test_conversation_prompts() -> None:
    made = prompts_from(
        rows(
            {"prompt": [SYSTEM, USER]},
            {"messages": [USER, FIVE, AGAIN, FIVE], "prompt": None},
            {"messages": [USER, FIVE, TOOL]},
        )
    )
    assert [prompt.messages for prompt in made] == [(SYSTEM, USER), (USER, FIVE, AGAIN), (USER, FIVE, TOOL)]
    assert all(prompt.text is None for prompt in made)


def test_prompt_wins_over_messages_which_go_to_meta() -> None:
    (prompt,) = prompts_from(rows({"prompt": "a", "messages": [USER]}))
    assert prompt.text == "a"
    assert prompt.meta == {"messages": [USER]}


def test_nulls_of_tables_are_dropped_from_messages() -> None:
    (prompt,) = prompts_from(rows({"prompt": [{**USER, "tool_calls": None}]}))
    assert prompt.messages == (USER,)


def test_ids() -> None:
    made = prompts_from([*rows({"prompt": "a", "id": 7}, {"prompt": "b"}), Row({"prompt": "c"}, "d.json: item 3")])
    assert [prompt.id for prompt in made] == ["7", "train.jsonl:2", "d.json:3"]
    assert all("id" not in prompt.meta for prompt in made)


def test_columns_rename() -> None:
    (prompt,) = prompts_from(renamed(rows({"question": "a", "prompt": "old"}), {"question": "prompt", "prompt": "was"}))
    assert prompt.text == "a"
    assert prompt.meta == {"was": "old"}


def test_demonstrations() -> None:
    made = demonstrations_from(
        rows(
            {"prompt": "2 + 3?", "completion": "5", "answer": 5, "level": 1},
            {"prompt": [USER], "completion": [FIVE]},
            {"prompt": [USER], "completion": "5"},
            {"prompt": [USER], "completion": [FIVE, TOOL, SIX]},
            {"messages": [SYSTEM, USER, FIVE], "prompt": "2 + 3?"},
        )
    )
    where = "train.jsonl:{}".format
    assert made == [
        Demonstration(Prompt(where(1), (), "2 + 3?", 5, {"level": 1}), "5"),
        Demonstration(Prompt(where(2), (USER,)), "5"),
        Demonstration(Prompt(where(3), (USER,)), "5"),
        Demonstration(Prompt(where(4), (USER, FIVE, TOOL)), "6"),
        Demonstration(Prompt(where(5), (SYSTEM, USER), meta={"prompt": "2 + 3?"}), "5"),
    ]
    (chatted,) = demonstrations_from(rows({"prompt": "2 + 3?", "completion": [FIVE]}), as_chat=True)
    assert chatted == Demonstration(Prompt(where(1), (USER,)), "5")


def test_pairs() -> None:
    made = pairs_from(
        rows(
            {"prompt": "2 + 3?", "chosen": "5", "rejected": "6", "score": 0.5},
            {"prompt": [USER], "chosen": [FIVE], "rejected": [SIX]},
            {"chosen": [SYSTEM, USER, FIVE], "rejected": [SYSTEM, USER, SIX]},
            {"prompt": "2 + 3?", "chosen": [USER, FIVE], "rejected": [USER, SIX]},
            {"prompt": [USER], "chosen": "5", "rejected": "6"},
        )
    )
    where = "train.jsonl:{}".format
    assert made == [
        PreferencePair(Prompt(where(1), (), "2 + 3?", meta={"score": 0.5}), "5", "6"),
        PreferencePair(Prompt(where(2), (USER,)), "5", "6"),
        PreferencePair(Prompt(where(3), (SYSTEM, USER)), "5", "6"),
        PreferencePair(Prompt(where(4), (USER,), meta={"prompt": "2 + 3?"}), "5", "6"),
        PreferencePair(Prompt(where(5), (USER,)), "5", "6"),
    ]
    (chatted,) = pairs_from(rows({"prompt": "2 + 3?", "chosen": [FIVE], "rejected": [SIX]}), as_chat=True)
    assert chatted.prompt.messages == (USER,)


def test_labelled() -> None:
    made = labelled_from(
        rows(
            {"prompt": "2 + 3?", "completion": "5", "label": True},
            {"prompt": [USER], "completion": [SIX], "label": False, "by": "me"},
            {"prompt": "2 + 3?", "completion": "6", "label": "False"},
        )
    )
    assert made == [
        LabelledCompletion(Prompt("train.jsonl:1", (), "2 + 3?"), "5", True),
        LabelledCompletion(Prompt("train.jsonl:2", (USER,), meta={"by": "me"}), "6", False),
        LabelledCompletion(Prompt("train.jsonl:3", (), "2 + 3?"), "6", False),
    ]


GOOD = {"prompt": "fine", "completion": "fine", "chosen": "a", "rejected": "b", "label": True}


@for_every(
    [
        (
            prompts_from,
            {"promt": "a"},
            r"'prompt' or 'messages' is missing; the row has 'promt'; did you mean 'promt'\?",
        ),
        (prompts_from, {"Mesages": []}, r"set data.columns.Mesages=messages"),
        (prompts_from, {"x": "a", "y": 1}, r"has 'x', 'y'; rename the column, or set data.columns.YOURS=prompt"),
        (prompts_from, {"prompt": None}, r"is null; expected a value; fill it in"),
        (prompts_from, {"prompt": 5}, r"prompt is 5; expected text, or a list of \{role, content\}"),
        (prompts_from, {"prompt": " \n"}, r"prompt is empty; expected some text; fill it in"),
        (prompts_from, {"prompt": []}, r"prompt is an empty list"),
        (prompts_from, {"messages": "hi"}, r"messages is 'hi'; expected a list of \{role, content\}"),
        (prompts_from, {"prompt": ["hi"]}, r"prompt\[0\] is 'hi'; expected the keys 'role' and 'content'"),
        (
            prompts_from,
            {"messages": [{"by": "human", "value": "hi"}]},
            r"messages\[0\] has the keys 'by', 'value'; expected the keys 'role' and 'content'; write",
        ),
        (
            prompts_from,
            {"prompt": [SYSTEM, {"role": "usr", "content": "a"}]},
            r"prompt\[1\]\.role is 'usr'; expected one of system, .*; did you mean 'user'\?",
        ),
        (prompts_from, {"prompt": [{"role": None, "content": "a"}]}, r"prompt\[0\]\.role is null; expected one of"),
        (
            prompts_from,
            {"prompt": [{"role": "user", "content": ""}]},
            r"prompt\[0\]\.content is empty; expected some text",
        ),
        (
            prompts_from,
            {"prompt": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
            r"prompt\[0\]\.content is \[\{'type'.*; expected a string; write the text itself",
        ),
        (
            prompts_from,
            {"prompt": [{**USER, "weight": 1}]},
            r"prompt\[0\]\.weight is 1; expected a string; .*drop the key",
        ),
        (prompts_from, {"prompt": [SYSTEM]}, r"prompt has no user turn .*add the user's message"),
        (prompts_from, {"messages": [FIVE]}, r"messages has no user turn"),
        (
            prompts_from,
            {"prompt": [USER, FIVE]},
            r"assistant turn right before the completion; .*move the completion to 'completion'",
        ),
        (prompts_from, {"prompt": "a", "id": ["x"]}, r"id is \['x'\]; expected text or a whole number"),
        (
            demonstrations_from,
            {"prompt": "a", "complition": "b"},
            r"'completion' is missing; .*did you mean 'complition'",
        ),
        (demonstrations_from, {"completion": "b"}, r"'prompt' is missing; the row has 'completion'"),
        (demonstrations_from, {"answer": "b"}, r"'prompt' or 'messages' is missing"),
        (demonstrations_from, {"prompt": "a", "completion": ""}, r"completion is empty"),
        (demonstrations_from, {"prompt": "a", "completion": [FIVE]}, r"'prompt' is plain text; .*pass as_chat=True"),
        (
            demonstrations_from,
            {"prompt": [USER], "completion": [AGAIN]},
            r"completion has a user turn where the completion",
        ),
        (
            demonstrations_from,
            {"messages": [USER, FIVE, AGAIN]},
            r"messages has a user turn where .*; expected an assistant",
        ),
        (pairs_from, {"prompt": "a", "chosen": "b"}, r"'rejected' is missing"),
        (pairs_from, {"chosen": "b", "rejected": "c"}, r"'prompt' is missing"),
        (pairs_from, {"prompt": "a", "chosen": "b", "rejected": "b"}, r"same text as 'chosen'; .*drop the row"),
        (pairs_from, {"chosen": [USER, FIVE], "rejected": [USER, FIVE]}, r"same text as 'chosen'"),
        (pairs_from, {"chosen": [USER, FIVE], "rejected": [AGAIN, SIX]}, r"before the last turn; .*; cut both after"),
        (
            pairs_from,
            {"prompt": [USER], "chosen": [FIVE, AGAIN, FIVE], "rejected": [SIX]},
            r"rejected leaves the conversation of 'chosen'",
        ),
        (pairs_from, {"chosen": [USER, FIVE], "rejected": [USER]}, r"rejected has a user turn where the completion"),
        (labelled_from, {"prompt": "a", "completion": "b"}, r"'label' is missing"),
        (
            labelled_from,
            {"prompt": "a", "completion": "b", "label": 1},
            r"label is 1; expected true or false; write true",
        ),
        (
            labelled_from,
            {"prompt": "a", "completion": "b", "label": "good"},
            r"label is 'good'; expected true or false",
        ),
    ]
)
def test_a_bad_row_is_named_with_its_fix(read: Any, bad: dict[str, Any], complaint: str) -> None:
    with pytest.raises(WhetError, match=rf"^train\.jsonl:2: .*{complaint}") as raised:
        read(rows(GOOD, bad))
    assert "\n" not in str(raised.value)
    assert len(read(rows(GOOD))) == 1


@pytest.mark.parametrize("read", [prompts_from, demonstrations_from, pairs_from, labelled_from])
def test_ids_must_be_unique(read: Any) -> None:
    with pytest.raises(WhetError, match=r"^train\.jsonl:3: id '7' is also the id of train\.jsonl:1; .*change one"):
        read(rows({**GOOD, "id": 7}, {**GOOD, "id": "8"}, {**GOOD, "id": "7"}))
    same = rows(GOOD)
    with pytest.raises(WhetError, match="is also the id of"):
        read([*same, *same])


def test_columns_mistakes() -> None:
    with pytest.raises(
        WhetError, match=r"columns: 'qestion' .*; expected one of 'question', 'id'; did you mean 'question'"
    ):
        prompts_from(renamed(rows({"question": "a", "id": 1}), {"qestion": "prompt"}))
    with pytest.raises(
        WhetError, match=r"^train\.jsonl:1: prompt would come from both .*data.columns.prompt=other_prompt"
    ):
        prompts_from(renamed(rows({"question": "a", "prompt": "b"}), {"question": "prompt"}))


def test_an_optional_column_may_be_renamed_where_only_some_rows_have_it() -> None:
    made = prompts_from(renamed(rows({"prompt": "a"}, {"prompt": "b", "gold": 2}), {"gold": "answer"}))
    assert [prompt.answer for prompt in made] == [None, 2]
