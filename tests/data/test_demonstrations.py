"""Demonstrations in the shapes of other people's files: Alpaca, ShareGPT, plain text, tool calls."""

from __future__ import annotations

import pytest

from tests.data.test_chat import CHATML, built
from tests.support.for_every import for_every
from whet.data.chat import demonstration_tokens, prompt_tokens
from whet.data.prompts import demonstrations_from, prompts_from
from whet.data.rows import Row
from whet.types import Demonstration, Prompt, WhetError

WITH_TOOLS = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<call>{{ call.function.name }}({{ call.function.arguments | tojson }})"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}


def rows(*values):
    return [Row(each, f"a.jsonl:{number}") for number, each in enumerate(values, start=1)]


def test_alpaca_rows_with_and_without_an_input():
    found = demonstrations_from(
        rows(
            {"instruction": "Add.", "input": "2 + 3", "output": "5"},
            {"instruction": "Say hello.", "input": "", "output": "hello"},
        )
    )
    assert [(each.prompt.text, each.completion) for each in found] == [("Add.\n\n2 + 3", "5"), ("Say hello.", "hello")]
    (chat,) = demonstrations_from(rows({"instruction": "Add.", "output": "5"}), as_chat=True)
    assert chat.prompt.messages == ({"role": "user", "content": "Add."},)


def test_an_instruction_with_several_instances_is_several_demonstrations():
    instances = [{"input": "1", "output": "one"}, {"input": "2", "output": "two"}]
    found = demonstrations_from(rows({"id": "n", "instruction": "Spell.", "instances": instances}))
    assert [(each.prompt.id, each.prompt.text, each.completion) for each in found] == [
        ("n/0", "Spell.\n\n1", "one"),
        ("n/1", "Spell.\n\n2", "two"),
    ]


@pytest.mark.parametrize("name", ["output", "response", "answer"])
def test_the_completion_under_another_name(name):
    (found,) = demonstrations_from(rows({"prompt": "2 + 3?", name: "5"}))
    assert (found.prompt.text, found.completion) == ("2 + 3?", "5")


def test_sharegpt_conversations_with_system_and_tools():
    turns = [
        {"from": "human", "value": "2 + 3?"},
        {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 2}}'},
        {"from": "observation", "value": "5"},
        {"from": "gpt", "value": "It is 5."},
    ]
    (found,) = demonstrations_from(rows({"conversations": turns, "system": "Be short.", "tools": '[{"name": "add"}]'}))
    assert found.prompt.messages == (
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "2 + 3?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "5"},
    )
    assert found.completion == "It is 5." and found.prompt.tools == ({"name": "add"},)


@pytest.mark.parametrize("text", ['{"status": "done"}', "[1, 2]", "adding"])
def test_a_call_without_a_name_stays_text(text):
    turns = [
        {"from": "human", "value": "2 + 3?"},
        {"from": "function_call", "value": text},
        {"from": "observation", "value": "5"},
        {"from": "gpt", "value": "It is 5."},
    ]
    (found,) = demonstrations_from(rows({"conversations": turns}))
    assert found.prompt.messages[1] == {"role": "assistant", "content": text}


def test_plain_text_learns_every_token():
    (found,) = demonstrations_from(rows({"text": "it is five", "source": "book"}))
    assert found == Demonstration(Prompt("a.jsonl:1", (), "", None, {"source": "book"}), "it is five")
    encoded = demonstration_tokens(built(None), found)
    assert len(encoded.tokens) > 2
    assert encoded.action == (False, *(True,) * (len(encoded.tokens) - 1))  # nothing predicts the very first


def test_tool_calls_reach_the_template_and_are_learnt():
    asked = {"role": "user", "content": "2 + 3?"}
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{**CALL, "function": {"name": "add", "arguments": '{"a": 2}'}}],
    }
    (found,) = demonstrations_from(rows({"messages": [asked, call], "tools": TOOLS}))
    assert found.tool_calls == (CALL,) and found.completion == ""
    tokenizer = built(WITH_TOOLS)
    encoded = demonstration_tokens(tokenizer, found)
    learnt = tokenizer.decode([token for token, action in zip(encoded.tokens, encoded.action, strict=True) if action])
    assert '<call>add({"a": 2})' in learnt and learnt.rstrip().endswith("<|im_end|>")
    whole = tokenizer.decode(encoded.tokens)
    assert '"parameters"' in whole and '"parameters"' not in learnt


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "tools": TOOLS},
            "the column 'tools'",
        ),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [CALL]}]}, "tool_calls"),
    ],
)
def test_a_template_without_tool_support_is_refused(row, expected):
    (found,) = demonstrations_from(rows(row))
    with pytest.raises(
        WhetError, match=f"'a.jsonl:1': the chat template does not write {expected}.*trained with tools"
    ):
        demonstration_tokens(built(CHATML), found)


@for_every(
    [
        ({"text": ""}, "text is empty"),
        ({"text": 5}, "text is 5; expected a string"),
        ({"instruction": "Add."}, "'output' is missing"),
        ({"conversations": [{"from": "martian", "value": "x"}]}, "conversations[0].from is 'martian'"),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{"x": 1}]}]},
            "tool_calls[0] is",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
                ]
            },
            "arguments is '{'; expected an object",
        ),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "tools": "x"},
            "tools is 'x'; expected a list",
        ),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": None}]}, "content is null"),
    ]
)
def test_mistakes_name_the_line_and_the_fix(row, expected):
    with pytest.raises(WhetError) as error:
        demonstrations_from(rows(row))
    assert str(error.value).startswith("a.jsonl:1: ") and expected in str(error.value)


def test_the_tools_of_a_prompt_reach_the_model_and_the_rewards():
    row = {"prompt": [{"role": "user", "content": "a"}], "tools": TOOLS}
    (prompt,) = prompts_from(rows(row))
    assert prompt.tools == tuple(TOOLS) and prompt.meta["tools"] == TOOLS
    tokenizer = built(WITH_TOOLS)
    assert '"parameters"' in tokenizer.decode(prompt_tokens(tokenizer, prompt))
    with pytest.raises(WhetError, match="does not write the column 'tools'"):
        prompt_tokens(built(CHATML), prompt)


def test_a_conversation_with_tool_results_needs_a_template_that_writes_them():
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [CALL]}]
    (prompt,) = prompts_from(rows({"prompt": [*turns, {"role": "tool", "content": "5"}]}))
    with pytest.raises(WhetError, match="does not write tool_calls"):
        prompt_tokens(built(CHATML), prompt)
    tokenizer = built(WITH_TOOLS)
    assert "<call>add" in tokenizer.decode(prompt_tokens(tokenizer, prompt))


def test_plain_text_is_sent_as_it_is_and_its_tools_are_for_the_rewards():
    (prompt,) = prompts_from(rows({"prompt": "a", "tools": TOOLS}))
    assert prompt.text == "a" and not prompt.tools and prompt.meta["tools"] == TOOLS
