"""Preference rows of every shape, their mistakes, and the pairs that built-in tasks make."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.for_every import for_every
from tests.support.real_data import data_file
from whet.data.families import (
    ClassifierRow,
    classifier_batch,
    classifier_family,
    completion_family,
    family_micro_batches,
    family_rows,
    fitting,
    mismatched_family,
    stepped_row,
)
from whet.data.pairs import PreferencePair, labelled_completions_from, preferences_from, rankings_from
from whet.data.prompts import prompts_from, renamed
from whet.data.rows import Row
from whet.data.source import read_rows
from whet.data.step_rows import outcomes_from, stepped_from
from whet.data.tasks import TASKS
from whet.data.tasks.contrast import contrasts, task_labelled, task_preferences, task_rankings, task_stepped
from whet.data.usable import left_out_words, usable
from whet.types import Encoded, Prompt, Sample, StopReason, WhetError

USER = {"role": "user", "content": "2 + 3?"}
FIVE = {"role": "assistant", "content": "5"}
SIX = {"role": "assistant", "content": "6"}


def rows(*values: dict[str, Any]) -> list[Row]:
    return [Row(value, f"pairs.jsonl:{line}") for line, value in enumerate(values, start=1)]


def said(pair: PreferencePair) -> tuple[Any, str, str]:
    prompt = pair.prompt
    return prompt.text if prompt.text is not None else prompt.messages, pair.chosen, pair.rejected


@for_every(
    [
        {"prompt": [USER], "chosen": [FIVE], "rejected": [SIX]},
        {"chosen": [USER, FIVE], "rejected": [USER, SIX]},
        {"prompt": "2 + 3?", "chosen": [USER, FIVE], "rejected": [USER, SIX]},
        {"messages": [USER], "prompt": "", "chosen": "5", "rejected": "6"},
        {
            "conversations": [{"from": "human", "value": "2 + 3?"}],
            "chosen": {"from": "gpt", "value": "5"},
            "rejected": {"from": "gpt", "value": "6"},
        },
        {"chosen": "\n\nHuman: 2 + 3?\n\nAssistant: 5", "rejected": "\n\nHuman: 2 + 3?\n\nAssistant: 6"},
        {"prompt": "\n\nHuman: 2 + 3?\n\nAssistant:", "chosen": "5", "rejected": "6"},
    ]
)
def test_conversations_of_every_shape_are_one_pair(row):
    (pair,) = preferences_from(rows(row))
    assert said(pair) == ((USER,), "5", "6")


@for_every(
    [
        {"prompt": "Add.\n\n2 + 3", "chosen": "5", "rejected": "6"},
        {"instruction": "Add.", "input": "2 + 3", "chosen": "5", "rejected": "6"},
        {
            "instruction": "Add.\n\n2 + 3",
            "input": "",
            "response1": "6",
            "response2": "5",
            "annotator1": 2,
            "annotator2": 2,
            "annotator3": 1,
        },
        {
            "input": "Add.\n\n2 + 3",
            "response1": "5",
            "response2": "6",
            **dict.fromkeys(["annotator1", "annotator2"], 1),
        },
        {"input": "Add.\n\n2 + 3", "output_1": "5", "output_2": "6", "label": 1},
        {"question": "Add.\n\n2 + 3", "response_a": "6", "response_b": "5", "winner": "model_b"},
    ]
)
def test_plain_texts_of_every_shape_are_one_pair(row):
    (pair,) = preferences_from(rows(row))
    assert said(pair) == ("Add.\n\n2 + 3", "5", "6")
    (chat,) = preferences_from(rows(row), as_chat=True)
    assert chat.prompt.messages == ({"role": "user", "content": "Add.\n\n2 + 3"},)


def test_an_implicit_prompt_ends_at_the_last_common_word():
    (pair,) = preferences_from(rows({"chosen": "Q: 2 + 3? A: fifth", "rejected": "Q: 2 + 3? A: fine"}))
    assert said(pair) == ("Q: 2 + 3? A: ", "fifth", "fine")


def test_margin_and_renamed_columns():
    row = {"question": "a", "prompt": "b", "good": "5", "bad": "6", "margin": 2}
    (pair,) = preferences_from(renamed(rows(row), {"good": "chosen", "bad": "rejected"}))
    assert said(pair) == ("b", "5", "6") and pair.margin == 2.0
    plain = {"prompt": "a", "chosen": "5", "rejected": "6"}
    assert preferences_from(rows(plain))[0].margin == 0.0 and preferences_from(rows(plain))[0].preference == 1.0
    assert preferences_from(rows({**plain, "preference": 0.75}))[0].preference == 0.75
    for wrong, told in ((0.3, "swap chosen and rejected"), ("A", "drop the column"), (1.5, "drop the column")):
        with pytest.raises(WhetError, match=f"preference is .* 0.5 to 1.*{told}"):
            preferences_from(rows({**plain, "preference": wrong}))
    with pytest.raises(WhetError, match="did you mean 'good'"):
        preferences_from(renamed(rows(row), {"goof": "chosen"}))


@for_every(
    [
        ({"prompt": "a", "chosen": "5", "rejected": "5"}, "same text as 'chosen'"),
        ({"chosen": "a b", "rejected": "a b"}, "same text as 'chosen'"),
        ({"prompt": "a", "chosen": " ", "rejected": "5"}, "chosen is empty"),
        ({"chosen": "\n\nHuman: a\n\nAssistant:", "rejected": "\n\nHuman: a\n\nAssistant: b"}, "content is empty"),
        ({"chosen": [USER, FIVE], "rejected": [{**USER, "content": "3?"}, SIX]}, "leaves the conversation"),
        (
            {"chosen": "\n\nHuman: a\n\nAssistant: 1", "rejected": "\n\nHuman: b\n\nAssistant: 2"},
            "leaves the conversation",
        ),
        ({"chosen": "five", "rejected": "six"}, "begin differently and there is no 'prompt'"),
        ({"prompt": "a", "chosen": "5", "rejected": "6", "margin": -1}, "margin is -1; expected 0 or more"),
        ({"prompt": "a", "chosen": "5"}, "'rejected' is missing"),
        ({"instruction": "a", "response1": "1", "response2": "2", "annotator1": 1, "annotator2": 2}, "calls it a tie"),
        ({"input": "a", "output_1": "1", "output_2": "2", "label": 3}, "label is 3; expected 1 or 2"),
    ]
)
def test_mistakes_in_pairs_name_line_and_fix(row, told):
    with pytest.raises(WhetError, match=r"pairs\.jsonl:2: ") as error:
        preferences_from(rows({"prompt": "a", "chosen": "5", "rejected": "6"}, row))
    assert told in str(error.value) and "\n" not in str(error.value) and str(error.value).count(";") >= 2


def test_bad_rows_can_be_left_out_and_are_counted():
    good, bad = {"prompt": "a", "chosen": "5", "rejected": "6"}, {"prompt": "a", "chosen": "5", "rejected": "5"}
    empty = {"prompt": "a", "chosen": "", "rejected": "5"}
    data = rows(good, bad, good, empty, good, empty)
    found = usable(data, preferences_from, drop=True)
    assert len(found) == 3 and found.left_out == {"chosen is empty": 2, "rejected is the same text as 'chosen'": 1}
    assert left_out_words(found.left_out) == (
        "3 unusable: chosen is empty (2), rejected is the same text as 'chosen' (1)"
    )
    assert left_out_words(usable(rows(good), preferences_from).left_out) == ""
    with pytest.raises(WhetError, match=r"pairs\.jsonl:2: .*; or leave out the 3 of 6 rows .* data\.unusable=drop$"):
        usable(data, preferences_from)
    with pytest.raises(WhetError, match=r"pairs\.jsonl:1: .*; 2 of 3 rows cannot be used"):
        usable(rows(bad, empty, good), preferences_from, drop=True)


def test_a_reason_does_not_repeat_a_rows_own_values():
    data = [{"prompt": "a", "chosen": "5", "rejected": "6", "margin": -number} for number in range(4)]
    found = usable(rows(*data, data[0], data[0]), preferences_from, drop=True)
    assert len(found) == 3 and found.left_out == {"margin is not n or more": 3}
    many = {f"reason {number}": number for number in range(1, 8)}
    assert left_out_words(many) == (
        "28 unusable: reason 7 (7), reason 6 (6), reason 5 (5), reason 4 (4), other reasons (6)"
    )


def test_rules_about_the_whole_data_are_asked_of_what_is_kept():
    liked = {"prompt": "a", "completion": "5", "label": True}
    with pytest.raises(WhetError, match=r"label is true in all 2 rows") as error:
        usable(rows(liked, liked, {**liked, "label": 3}), labelled_completions_from, drop=True)
    assert "data.unusable" not in str(error.value)
    twins = [{"id": "x", "prompt": "a"}, {"id": "x", "prompt": "b"}]
    with pytest.raises(WhetError, match="is also the id of"):
        usable(rows(*twins), prompts_from, drop=True)


def test_solutions_in_steps_are_outcomes_too():
    solution = {"problem": "a", "steps": ["one ", "two"], "label": -1}
    wrong = {**solution, "label": 1}
    lucky = {**solution, "label": 0, "final_answer_correct": True}
    found = outcomes_from(rows(solution, wrong, lucky))
    assert [(each.completion, each.label) for each in found] == [("one\n\ntwo", label) for label in (True, False, True)]
    with pytest.raises(WhetError, match="label is true in all 2 rows"):
        outcomes_from(rows(solution, lucky))


def test_a_ranking_gives_its_pairs():
    found = preferences_from(rows({"prompt": "a", "completions": ["x", "y", "z"], "scores": [1, 3, 1]}))
    assert [(each.chosen, each.rejected) for each in found] == [("y", "x"), ("y", "z")]


def test_judged_completions_of_every_shape():
    found = labelled_completions_from(
        rows(
            {"prompt": "a", "completion": "5", "label": True},
            {"messages": [USER, SIX], "label": False},
            {"conversations": [{"from": "human", "value": "2 + 3?"}, {"from": "gpt", "value": "5"}], "label": True},
            {"question": "a", "reply": "6", "right": 0},
        )
    )
    assert [(each.completion, each.label) for each in found] == [("5", True), ("6", False), ("5", True), ("6", False)]
    assert [each.prompt.question() for each in found] == ["a", "2 + 3?", "2 + 3?", "a"]


def test_labels_of_one_kind_are_refused():
    with pytest.raises(WhetError, match=r"pairs.jsonl:1: label is true in all 2 rows.* add rows with false"):
        labelled_completions_from(rows(*[{"prompt": "a", "completion": "5", "label": True}] * 2))


def test_rankings_come_best_first():
    found = rankings_from(
        rows(
            {"prompt": "a", "completions": ["x", "y", "z"], "scores": [0.1, 3, 2]},
            {"prompt": "a", "responses": ["x", "y", "z"], "order": [1, 2, 0]},
            {"prompt": "a", "completions": ["x", "y", "z"], "ranks": [2, 0, 1]},
            {"instruction": "a", "completions": [{"response": "z", "overall_score": 2}, {"response": "y", "score": 3}]},
            {"prompt": "a", "chosen": "y", "rejected": "z"},
        )
    )
    assert [each.completions for each in found] == [("y", "z", "x")] * 3 + [("y", "z")] * 2
    assert [each.ranks for each in found] == [(0, 1, 2)] * 3 + [(0, 1)] * 2
    assert [each.prompt.text for each in found] == ["a"] * 5


def test_a_ranking_with_a_tie_gives_the_pairs_that_differ():
    (ranked,) = rankings_from(rows({"prompt": "a", "completions": ["x", "y", "z"], "scores": [1, 2, 1]}))
    assert [(pair.chosen, pair.rejected) for pair in ranked.pairs()] == [("y", "x"), ("y", "z")]


def test_message_trees_give_rankings_and_pairs():
    answers = [
        {"text": text, "role": "assistant", "rank": rank, "replies": []}
        for text, rank in (("5", 1), ("4", 2), ("6", 0))
    ]
    tree = {"message_tree_id": "t", "prompt": {"text": "2 + 3?", "role": "prompter", "replies": answers}}
    (ranked,) = rankings_from(rows(tree))
    assert ranked.completions == ("6", "5", "4") and ranked.prompt.messages == (USER,)
    pairs = preferences_from(rows(tree))
    assert [(pair.chosen, pair.rejected) for pair in pairs] == [("6", "5"), ("6", "4"), ("5", "4")]


@for_every(
    [
        ({"prompt": "a", "completions": ["x", "y"], "scores": [1]}, "scores has 1 for 2 completions"),
        ({"prompt": "a", "completions": ["x", "y"], "order": [1, 1]}, "each of 0 to 1 once"),
        ({"prompt": "a", "completions": ["x", "y"], "scores": [1, 1]}, "are all equal"),
        ({"prompt": "a", "completions": ["x", "x"], "scores": [1, 2]}, "same text as completions[0]"),
        ({"prompt": "a", "completions": ["x", ""], "scores": [1, 2]}, "completions[1] is ''"),
        ({"prompt": "a", "completions": ["x", "y"]}, "add 'scores' or 'order'"),
        ({"prompt": "a"}, "'completions' is missing"),
    ]
)
def test_mistakes_in_rankings(row, told):
    with pytest.raises(WhetError, match=r"pairs\.jsonl:1: ") as error:
        rankings_from(rows(row))
    assert told in str(error.value)


def test_step_labels_of_every_shape():
    steps = ["one", "two", "three"]
    found = stepped_from(
        rows(
            {"prompt": "a", "steps": steps, "labels": [True, 0.5, None]},
            {"prompt": "a", "completions": steps, "labels": [1, 1, 0]},
            {"prompt": "a", "steps": steps, "ratings": [1, 0, -1]},
            {"problem": "a", "steps": steps, "label": 1},
            {"problem": "a", "steps": steps, "label": -1},
            {"input": "a", "steps": steps, "mistake_index": None},
            {"question": "a", "modified_process": steps, "error_steps": [2, 3], "original_process": ["1", "2"]},
        )
    )
    assert [each.labels for each in found] == [
        (1.0, 0.5, None), (1.0, 1.0, 0.0), (1.0, 1.0, 0.0), (1.0, 0.0, None), (1.0,) * 3, (1.0,) * 3,
        (1.0, 0.0, 0.0), (1.0, 1.0),
    ]  # fmt: skip
    assert [each.first_error for each in found] == [None, 2, 2, 1, None, None, 1, None]
    assert {each.prompt.text for each in found} == {"a"}


@for_every(
    [
        (
            [("Q", 0.5), ("Q x", 0.75), ("Q x y", 1.0), ("Q z", 0.0), ("Q x", 0.25)],
            [(("x", "y"), (0.5, 1.0)), (("z",), (0.0,))],
        ),
        ([("Q", 0.5), ("Q x", 0.75), ("Q x y", 1.0)], [(("x", "y"), (0.75, 1.0))]),
    ]
)
def test_a_search_tree_gives_its_longest_solutions(nodes, solutions):
    tree = {"question": "Q", "reasoning_steps": [{"solution_prefix": text, "mc_value": v} for text, v in nodes]}
    assert sorted((each.steps, each.labels) for each in stepped_from(rows(tree))) == solutions


@for_every(
    [
        ({"steps": ["x"], "labels": [1, 0]}, "labels has 2 entries for 1 steps"),
        ({"steps": ["x", "y"], "first_error": 2}, "first_error is 2 in a solution of 2 steps"),
        ({"steps": ["x", " "], "labels": [1, 0]}, "steps[1] is ' '"),
        ({"steps": [], "labels": []}, "expected a list of steps"),
        ({"steps": ["x"], "labels": [-1]}, "'ratings'"),
        ({"steps": ["x"], "labels": [2]}, "labels[0] is 2"),
        ({"steps": ["x"]}, "add 'labels' or 'first_error'"),
    ]
)
def test_mistakes_in_steps(row, told):
    with pytest.raises(WhetError, match=r"pairs\.jsonl:1: ") as error:
        stepped_from(rows({"prompt": "a", **row}))
    assert told in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", TASKS)
def test_tasks_contrast_right_and_wrong_completions(name):
    from whet.reward.find import find_reward

    task = TASKS[name]
    found = contrasts(task, "train", 30, 3, 2)
    assert len(found) == 30 and contrasts(task, "train", 30, 3, 2) == found
    reward = find_reward(task.reward)
    prompts = [each.prompt for each in found]
    for field, expected in (("right", 1.0), ("careless", 1.0), ("wrong", 0.0)):
        samples = [completion(getattr(each, field)) for each in found]
        assert reward(prompts, samples) == [expected] * 30
    assert all(len({each.right, each.careless, each.wrong}) == 3 for each in found)


def completion(text: str) -> Sample:
    import torch

    none = torch.zeros(0)
    return Sample(none.long(), none.bool(), none, (0, 0), StopReason.END, text)


def test_tasks_make_all_kinds_of_rows():
    task = TASKS["arithmetic"]
    asked = (task, "train", 8, 0, 1)
    assert all(pair.chosen != pair.rejected for pair in task_preferences(*asked))
    assert [each.ranks for each in task_rankings(*asked)] == [(0, 1, 2)] * 8
    assert [each.label for each in task_labelled(*asked)] == [True, False] * 4
    stepped = task_stepped(*asked)
    assert [each.first_error is None for each in stepped] == [True, False] * 4
    assert all(len(each.steps) == len(each.labels) == 3 for each in stepped)
    held_out = {pair.prompt.question() for pair in task_preferences(task, "eval", 8, 0, 1)}
    assert held_out and not held_out & {pair.prompt.question() for pair in task_preferences(*asked)}


def encoded(prompt: int, *lengths: int) -> tuple[Encoded, ...]:
    return tuple(Encoded(tuple(range(prompt + length)), (False,) * prompt + (True,) * length) for length in lengths)


def test_families_stay_whole_in_a_pass():
    families = [encoded(10, 5, 3), encoded(10, 5, 5), encoded(4, 1, 1), encoded(90, 60, 70)]
    for packed in (True, False):
        found = family_micro_batches(families, 50, packed)
        assert sorted(number for part in found for number in part) == [0, 1, 2, 3]
        assert found[-1] == [3]  # larger than a pass, and still not torn apart
    assert family_micro_batches(families, 44, True) == [[2, 0, 1], [3]]
    assert family_micro_batches(families, 43, True) == [[2, 0], [1], [3]]
    assert family_micro_batches(families, 60, False) == [[2, 0], [1], [3]]
    padded = family_rows(families[:2])
    assert padded.tokens.shape == (4, 15) and padded.action.sum(-1).tolist() == [5, 3, 5, 5]


def test_a_mismatched_completion_follows_another_prompt():
    first = (Encoded((1, 2, 3, 4), (False, False, True, True)),)
    other = (Encoded((7, 8, 9, 5, 6), (False, False, False, True, True)), Encoded((7, 8, 9, 4), (False,) * 3 + (True,)))
    assert mismatched_family(first, other) == (
        Encoded((1, 2, 5, 6), (False, False, True, True)),
        Encoded((1, 2, 4), (False, False, True)),
    )


def test_families_that_do_not_fit_are_left_out_whole():
    families = [encoded(4, 2, 9), encoded(4, 2, 3)]
    assert fitting(families, 10) == ([1], 1)
    with pytest.raises(WhetError, match="the shortest has 7 tokens"):
        fitting(families, 5)


@pytest.fixture(scope="module")
def tokenizer():
    from whet.model.load import load_model

    return load_model("whetstone").tokenizer


def test_completions_share_the_prompts_tokens(tokenizer):
    prompt = Prompt("p", (USER,))
    chosen, rejected = completion_family(tokenizer, prompt, ["5", "61"])
    start = chosen.action.index(True)
    assert chosen.tokens[:start] == rejected.tokens[:start] and rejected.action.index(True) == start
    assert tokenizer.decode(rejected.tokens[start:]).startswith("61")


def test_a_classifier_reads_the_whole_conversation_and_shares_its_opening(tokenizer):
    prompt = Prompt("p", (USER,))
    first, second = classifier_family(tokenizer, prompt, ["5 and 6", "5 or 6"])
    text = tokenizer.apply_chat_template([USER, {"role": "assistant", "content": "5 or 6"}], tokenize=False)
    assert second.tokens == tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
    assert second.places == (len(second.tokens) - 1,)
    assert first.tokens[: first.shared] == second.tokens[: first.shared] and first.shared == second.shared
    assert first.tokens[first.shared] != second.tokens[first.shared]
    batch = classifier_batch([(first, second), (ClassifierRow((1, 2), 1, (0, 1)),)])
    assert batch.scored.sum(-1).tolist() == [1, 1, 2] and batch.shared.tolist() == [first.shared, first.shared, 1]
    assert batch.scored[0].nonzero().item() == len(first.tokens) - 1


def test_steps_are_scored_where_their_separator_ends(tokenizer):
    row = stepped_row(tokenizer, Prompt("p", (USER,)), ["1+1=2", "2+3=5"], ";")
    ends = [tokenizer.decode(row.tokens[row.shared : place + 1]) for place in row.places]
    assert ends == ["1+1=2;", "1+1=2;2+3=5;"]
    with pytest.raises(WhetError, match="separator"):
        stepped_row(tokenizer, Prompt("p", (USER,)), ["1"], "")


@pytest.mark.parametrize(
    ("file", "reader", "kept", "refused"),
    [
        ("dpo_en_demo", preferences_from, 300, 0),
        ("hh_harmless_base_test", preferences_from, 2303, 9),
        ("llmbar", preferences_from, 883, 2),
        ("oasst_en_100_tree", preferences_from, 754, 0),
        ("oasst_en_100_tree", rankings_from, 212, 0),
        ("pandalm_testset", preferences_from, 836, 163),
        ("human_pairs_unified", preferences_from, 4776, 64),
        ("kto_en_demo", labelled_completions_from, 300, 0),
    ],
)
def test_real_preference_files(file, reader, kept, refused):
    data = read_rows(str(data_file(f"preference/{file}.jsonl.gz")))
    found = usable(data, reader, drop=True)
    assert (len(found), found.left_out.total()) == (kept, refused)
    if refused:
        with pytest.raises(WhetError, match=rf"^{file}\.jsonl\.gz:\d+: .* leave out the {refused} of {len(data)} rows"):
            usable(data, reader)


@pytest.mark.parametrize(
    ("file", "kept", "refused"),
    [
        ("processbench_gsm8k", 400, 0),
        ("processbench_math", 1000, 0),
        ("bigbench_mistake_word_sorting", 300, 0),
        ("bigbench_mistake_dyck_languages", 985, 1),
        ("prmbench_subset400", 756, 11),
        ("openr_math_aps_samples", 124, 0),
    ],
)
def test_real_process_files(file, kept, refused):
    found = usable(read_rows(str(data_file(f"process/{file}.jsonl.gz"))), stepped_from, drop=True)
    assert (len(found), found.left_out.total()) == (kept, refused)
    wrong = sum(one.first_error is not None for one in found)
    assert 0 < wrong < len(found)
