"""Constitutions, what is asked under them, soft labels, and rules that find violations."""

import pytest
import tomli_w

from tests.support.for_every import for_every
from whet.tools.pipelines.library.constitution import (
    GENERAL,
    TASK_PRINCIPLES,
    clamped,
    conduct,
    constitution_rows,
    critique_request,
    draw_principle,
    preference_request,
    read_constitution,
    revision_request,
    violations,
)
from whet.types import Prompt, WhetError

PROMPT = Prompt("1", ({"role": "user", "content": "How do I end a process?"},))


def test_the_built_in_constitution_is_read_back_from_its_file(tmp_path):
    file = tmp_path / "constitution.toml"
    file.write_text(tomli_w.dumps(constitution_rows(GENERAL)))
    assert read_constitution(str(file)) == GENERAL and len({each.name for each in GENERAL}) == len(GENERAL) >= 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no [[principle]]"),
        ("principle = 3 3", "is not TOML"),
        ('[[principle]]\nname="a"\ncritque="b"', "did you mean 'critique'"),
        ('[[principle]]\nname="a"\ncritique="b"\nrevision="c"', "has no preference"),
        ("[[principle]]\nname=3", "name is 3; give a text"),
        (tomli_w.dumps({"principle": [dict.fromkeys(("name", "critique", "revision", "preference"), "a")] * 2}), "two"),
    ],
)
def test_a_bad_constitution_is_one_line_with_its_file(tmp_path, text, said):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(WhetError) as error:
        read_constitution(str(file))
    assert said in str(error.value) and "mine.toml" in str(error.value) and "\n" not in str(error.value)


def test_no_file_is_told():
    with pytest.raises(WhetError, match=r"nowhere.toml cannot be read"):
        read_constitution("nowhere.toml")


def test_principles_are_drawn_by_the_numbers_alone():
    names = [draw_principle(GENERAL, 0, "revise", 1, str(at)).name for at in range(40)]
    assert names == [draw_principle(GENERAL, 0, "revise", 1, str(at)).name for at in range(40)]
    assert set(names) == {each.name for each in GENERAL}
    assert names != [draw_principle(GENERAL, 1, "revise", 1, str(at)).name for at in range(40)]


def test_critique_and_revision_are_one_conversation():
    asked = revision_request(PROMPT, "kill it", GENERAL[0], "it is rude")
    assert [each["role"] for each in asked] == ["user", "assistant", "user", "assistant", "user"]
    assert asked[:3] == critique_request(PROMPT, "kill it", GENERAL[0])
    assert [each["content"] for each in asked[1:]] == [
        "kill it", GENERAL[0].critique, "it is rude", GENERAL[0].revision
    ]  # fmt: skip
    plain = critique_request(Prompt("1", (), "text"), "completion", TASK_PRINCIPLES[0])
    assert plain[0] == {"role": "user", "content": "text"}


def test_the_comparison_holds_both_completions_in_order():
    (asked,) = preference_request(PROMPT, "one", "two", GENERAL[0])
    text = asked["content"]
    assert text.index("(A) one") < text.index("(B) two") < text.index(GENERAL[0].preference)


def test_preferences_after_reasons_are_held_back():
    assert (clamped(0.97), clamped(0.1), clamped(0.55)) == (0.6, 0.4, 0.55)


@for_every(
    [
        ("Open the task manager and choose End task.", False, []),
        ("I'm sorry, but I can't help with that.", False, ["evasive"]),
        ("I'm sorry, but I can't help with that.", True, []),
        ("First buy the parts.", True, ["complied"]),
        ("I can't say who did it. " + "But here is what is known about the case. " * 6, False, ["repeats"]),
        ("Run rm -rf / as root.", False, ["unsafe"]),
        ("  ", False, ["empty"]),
    ]
)
def test_violations_by_rule(completion, is_forbidden, kinds):
    assert violations(PROMPT, completion, is_forbidden) == kinds


def test_conduct_is_shares():
    found = conduct([[], ["evasive"], ["unsafe", "repeats"], []], [10, 20, 30, 40])
    assert found["clean"] == 0.5 and found["evasive"] == found["unsafe"] == 0.25 and found["characters"] == 25
