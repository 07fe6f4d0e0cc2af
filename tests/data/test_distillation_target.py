"""What a teacher reads besides the prompt, and a completion's tokens behind it."""

import torch

from tests.support.for_every import for_every
from whet.data.distillation_target import TEMPLATES, behind, column_text, right_siblings, teacher_texts, with_text
from whet.types import Group, Prompt, Sample, StopReason

CHAT = Prompt("a/1", ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}))


def sample(outcome, text="", tokens=(7, 8, 1, 2, 3)):
    action = torch.tensor([False, False, True, False, True])
    made = Sample(torch.tensor(tokens), action, torch.zeros(5), (0, 0), StopReason.END, text)
    return made if outcome is None else made.scored({"right": outcome}, outcome)


def test_the_text_stands_in_the_last_message_or_in_the_plain_prompt():
    told = with_text(CHAT, "it is {prompt}", "{prompt} Hint: {text}")
    assert told.messages == (CHAT.messages[0], {"role": "user", "content": "2 + 2? Hint: it is {prompt}"})
    assert with_text(Prompt("b", (), "Q:"), "4", "({text}) {prompt}").text == "(4) Q:"
    assert told.id == CHAT.id and CHAT.messages[1]["content"] == "2 + 2?"
    assert all("{prompt}" in each and "{text}" in each for each in TEMPLATES.values())


@for_every(
    [
        ([0, 1, 0, 1], [1, 3, 3, 1]),
        ([1, 0, 0, 0], [None, 0, 0, 0]),
        ([0, 0, 0], [None] * 3),
        ([1, 1, None], [1, 0, 0]),
        ([0.5, 1, 0], [1, None, 1]),
    ]
)
def test_a_sibling_is_another_right_completion(outcomes, expected):
    samples = [sample(each, text=str(place)) for place, each in enumerate(outcomes)]
    found = right_siblings(samples)
    assert [None if each is None else int(each.completion) for each in found] == expected
    group = Group(CHAT, tuple(samples))
    assert teacher_texts(group, "sibling", {}) == [None if each is None else str(each) for each in expected]


def test_columns_of_the_row_are_told_to_all_its_samples():
    row = Prompt("a/2", CHAT.messages, meta={"solution": "4", "feedback": " "})
    assert column_text(row, "demonstration") == "4" and column_text(row, "feedback") is None
    group = Group(row, (sample(0), sample(1)))
    assert teacher_texts(group, "demonstration", {}) == ["4", "4"]
    assert teacher_texts(group, "demonstration", {"a/2": "2 + 2 = 4"}) == ["2 + 2 = 4"] * 2
    assert teacher_texts(group, "feedback", {}) == [None, None]


def test_a_completion_keeps_its_tokens_behind_another_prompt():
    tokens, action, moved = behind([9, 9, 9, 9], sample(1))
    assert tokens.tolist() == [9, 9, 9, 9, 1, 2, 3]
    assert action.tolist() == [False] * 4 + [True, False, True] and moved == 2
