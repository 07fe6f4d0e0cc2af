"""Tool calls in the formats of a run, and in those of other people's chat templates."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.chat_families import FAMILIES, TOOLS
from tests.support.for_every import for_every
from whet.data.call_formats import call_reader, call_stops, call_text, chosen_format, expected_call, tool_instructions
from whet.data.tool_syntax import BROKEN, ToolCall
from whet.types import Completion, WhetError

# families whose templates show tools and write calls; the others cannot, and `auto` writes Python calls for them
OWN_FORMAT = {
    *("qwen2.5", "qwen3", "qwen3-instruct-2507", "qwen3-training", "llama3.1", "llama3.2", "mistral-v0.3"),
    *("mistral-nemo", "phi4-mini", "deepseek-r1", "glm4.5", "gpt-oss", "hermes", "granite4", "kimi-k2"),
    "nemotron3-nano",
}
SINGLE = {"llama3.1", "llama3.2", "gpt-oss", "phi4-mini"}  # one call per turn
AS_JSON = {"phi4-mini"}  # wants arguments as a string


@lru_cache
def tokenizer_of(family: str) -> Any:
    return FAMILIES[family].tokenizer()


def turn(family: str, *values: str, thought: str = "") -> Completion:
    """A turn that calls `add` with each value, as the family's template writes it, end token included."""
    tokenizer = tokenizer_of(family)
    calls = [
        {
            "type": "function",
            "id": f"functions.add:{index}" if family == "kimi-k2" else f"call{index:05d}",
            "function": {"name": "add", "arguments": f'{{"x": "{value}"}}' if family in AS_JSON else {"x": value}},
        }
        for index, value in enumerate(values)
    ]
    question = {"role": "user", "content": "what is it?"}
    kind = {"tools": list(TOOLS), "tokenize": False}
    before = tokenizer.apply_chat_template([question], add_generation_prompt=True, **kind)
    answer = {"role": "assistant", "content": "", "tool_calls": calls}
    whole = tokenizer.apply_chat_template([question, answer], **kind)
    shared = next((place for place, (a, b) in enumerate(zip(before, whole, strict=False)) if a != b), len(before))
    raw = thought + whole[shared:]
    tokens = tokenizer(raw, add_special_tokens=False)["input_ids"]
    return Completion(tokenizer.decode(tokens, skip_special_tokens=True), tokens, raw)


def pairs(calls: tuple[ToolCall, ...]) -> list[tuple[str, dict[str, Any]]]:
    return [(call.name, dict(call.arguments)) for call in calls]


@for_every(FAMILIES)
def test_calls_are_read_as_the_template_writes_them(family: str) -> None:
    tokenizer = tokenizer_of(family)
    assert chosen_format("auto", tokenizer, TOOLS) == ("template" if family in OWN_FORMAT else "python")
    if family not in OWN_FORMAT:
        with pytest.raises(WhetError, match="expected one with tool support; give env"):
            chosen_format("template", tokenizer, TOOLS)
        return
    for values in (("17",), ("two words", 'a "quote"')):
        if len(values) > 1 and family in SINGLE:
            continue
        found = call_reader("template", tokenizer, TOOLS)(turn(family, *values))
        assert pairs(found.announced) == [("add", {"x": value}) for value in values]
        assert not found.malformed
    assert "name" in expected_call("template", tokenizer, TOOLS)
    nothing = call_reader("template", tokenizer, TOOLS)(Completion("It is 5.", raw=f"It is 5.{tokenizer.eos_token}"))
    assert nothing.announced == ()


@for_every(sorted(OWN_FORMAT))
def test_a_call_that_is_cut_off_is_malformed(family: str) -> None:
    tokenizer = tokenizer_of(family)
    raw = turn(family, "17").raw
    cut = raw[: raw.index("17") + 1]
    found = call_reader("template", tokenizer, TOOLS)(Completion(cut, raw=cut))
    assert found.announced == (BROKEN,)
    assert len(found.malformed) == 1
    assert found.calls == ()


@pytest.mark.parametrize("family", ["kimi-k2", "qwen2.5"])
def test_a_whole_call_whose_frame_is_not_whole_is_malformed(family: str) -> None:
    read = call_reader("template", tokenizer_of(family), TOOLS)
    raw = turn(family, "17").raw
    unclosed = raw[: raw.rindex("}") + 1]
    assert read(Completion(unclosed, raw=unclosed)).announced == (BROKEN,)
    unseparated = raw.replace("<|tool_call_argument_begin|>", " ").replace('"arguments"', "")
    assert read(Completion(unseparated, raw=unseparated)).announced == (BROKEN,)


@for_every(sorted(OWN_FORMAT | {"chatml"}))
def test_reading_never_raises(family: str) -> None:
    tokenizer = tokenizer_of(family)
    form = chosen_format("auto", tokenizer, TOOLS)
    pieces = turn(family, "17").raw if family in OWN_FORMAT else "<tool_call>add(x=1)</tool_call>"
    fragments = sorted({pieces[a : a + n] for a in range(0, len(pieces), 3) for n in (1, 5, 17, 60)})

    @settings(max_examples=40, deadline=None, database=None)
    @given(
        st.lists(
            st.sampled_from([*fragments, "\x00", "<tool_call>", "</tool_call>", "{", "[[[", "]", "\\"]), max_size=9
        )
    )
    def read(parts: list[str]) -> None:
        text = "".join(parts)
        for each in (form, "json", "python"):
            found = call_reader(each, tokenizer, TOOLS)(Completion(text))
            assert len([call for call in found.announced if call is BROKEN]) == len(found.malformed)

    read()
    for hostile in (
        "[" * 100_000,
        "<tool_call>" * 5000,
        "{" * 5000 + "<tool_call>" + "(" * 9000,
        "to=functions." * 3000,
    ):
        call_reader(form, tokenizer, TOOLS)(Completion(hostile))


@pytest.mark.parametrize("form", ["python", "json"])
def test_calls_in_tags(form: str) -> None:
    read = {"python": 'add(2, y="a, b")', "json": '{"name": "add", "arguments": {"x": 2, "y": "a, b"}}'}[form]
    tools = [{"function": {"name": "add", "parameters": {"properties": {"x": {}, "y": {}}}}}]
    text = (
        f"<think>maybe <tool_call>nothing()</tool_call></think>so: <tool_call>{read}</tool_call> and <tool_call>{read}"
    )
    found = call_reader(form, None, tools)(Completion(text))
    assert pairs(found.announced) == [("add", {"x": 2, "y": "a, b"}), ("", {})]
    assert found.malformed == (read,)
    assert found.text == "so:  and"
    for broken in ("add(", '{"name": "add", "arguments": ', '{"arguments": {}}', "", "just words", "import os"):
        found = call_reader(form, None, tools)(Completion(f"<tool_call>{broken}</tool_call>"))
        assert (found.calls, found.malformed) == ((), (broken,))
    # an answer that happens to be a call in Python is an answer
    assert call_reader(form, None, tools)(Completion("add(1, 2)")).announced == ()


def test_stops_and_instructions() -> None:
    assert call_stops("python") == call_stops("json") == ("</tool_call>",)
    assert call_stops("template") == ()
    for form in ("python", "json"):
        text = tool_instructions(form, TOOLS)
        assert '"name": "add"' in text
        example = text.splitlines()[1]
        assert pairs(call_reader(form)(Completion(example)).announced)[0][0] == "name"
        assert example == expected_call(form, tokenizer_of("chatml"))
    assert tool_instructions("template", TOOLS) == ""
    with pytest.raises(
        WhetError, match=r"env\.call_format is 'xml'; expected one of auto, template, loose, json, python"
    ):
        chosen_format("xml", tokenizer_of("chatml"), TOOLS)


CALL = '{"name": "add", "arguments": {"x": 1, "y": "b"}}'
OTHER = '{"name": "sum", "arguments": {"x": 1}}'
ONE = {"name": "python", "parameters": {"type": "object", "properties": {"code": {"type": "string"}}}}


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (CALL, [("add", {"x": 1, "y": "b"})]),
        (f"I add:\n```json\n{CALL}\n```\nand wait", [("add", {"x": 1, "y": "b"})]),
        (f"<tool_call>{CALL}</tool_call> or\n```json\n{OTHER}\n```", [("add", {"x": 1, "y": "b"})]),
        ("so\n```python\nprint(3)\n```\nhence 3", [("python", {"code": "print(3)\n"})]),
        (f"```json\n{OTHER}\n```", [("sum", {"x": 1})]),  # the whole turn: it is told that there is no such tool
        (f"prose with\n```json\n{OTHER}\n```", []),
        ("```text\nprint(3)\n```", []),
        ('{"name": "Tom", "age": 3}', []),
        ("[1, 2]", []),
        ("add(1, 2)", []),
    ],
)
def test_loose_calls(text: str, read: list[tuple[str, dict[str, Any]]]) -> None:
    tools = [*TOOLS, {"type": "function", "function": ONE}]
    for tokenizer in (None, tokenizer_of("chatml")):
        assert pairs(call_reader("loose", tokenizer, tools)(Completion(text)).announced) == read
    assert chosen_format("loose", tokenizer_of("chatml"), tools) == "loose"
    assert call_stops("loose") == ()


def test_the_tokenizers_own_response_template_is_used() -> None:
    tokenizer = FAMILIES["qwen3"].tokenizer()
    tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "thinking": {"open": "<think>", "close": "</think>", "content": "text"},
            "tool_calls": {
                "open": "<tool_call>",
                "close": "</tool_call>",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"close": "<|im_end|>", "content": "text"},
        },
    }
    call = '<tool_call>\n{"name": "add", "arguments": {"x": "5"}}\n</tool_call>'
    said = Completion(f"<think>\nwhy\n</think>\n\nlet me see{call}<|im_end|>")
    found = call_reader("template", tokenizer, TOOLS)(said)
    assert pairs(found.announced) == [("add", {"x": "5"})]
    assert found.text.strip() == "let me see"
    for broken in ('<tool_call>\n{"name": "add", "argu\n</tool_call><|im_end|>', '<tool_call>\n{"name": "add"'):
        assert call_reader("template", tokenizer, TOOLS)(Completion(broken)).announced == (BROKEN,)


@for_every(["python", "json"], [{"x": "2"}, {"x": 'it\'s "so"', "y": 2.5}, {"x": [1, {"a": None}], "y": True}])
def test_a_call_that_is_written_is_read_again(call_format: str, arguments: dict[str, Any]) -> None:
    """A text that is a number stays a text."""
    found = call_reader(call_format)(call_text(call_format, "add", arguments))
    assert pairs(found.announced) == [("add", arguments)]
