"""Pairs split by prompt: no prompt on two sides, held-out ones the same for every seed, overlap refused."""

import json

import pytest

from whet.data.sections import DataSection
from whet.tools.pipelines.library.pairs import check_split, prompt_key, read_pairs, split_by_prompt
from whet.types import WhetError

ROWS = [{"prompt": f"question {number // 2}", "chosen": f"good {number}", "rejected": "bad"} for number in range(400)]


def keys(rows):
    return {prompt_key(row) for row in rows}


def test_no_prompt_lies_on_two_sides_and_no_pair_is_lost():
    split = split_by_prompt(ROWS, None, 0.2, seed=0)
    sides = [split.own, split.judge, split.held_out]
    assert sum(map(len, sides)) == len(ROWS)
    assert not keys(split.own) & keys(split.judge) and not keys(split.own) & keys(split.held_out)
    assert not keys(split.judge) & keys(split.held_out)
    assert 50 < len(split.held_out) < 110 and abs(len(split.own) - len(split.judge)) < 80


def test_seeds_share_the_held_out_prompts_and_not_the_halves():
    one, two = (split_by_prompt(ROWS, None, 0.2, seed) for seed in (0, 1))
    assert one.held_out == two.held_out and keys(one.own) != keys(two.own)


def test_held_out_rows_of_their_own_take_nothing_from_the_others():
    test = [{"prompt": "another", "chosen": "a", "rejected": "b"}] * 3
    split = split_by_prompt(ROWS, test, 0.2, 0)
    assert split.held_out == test and len(split.own) + len(split.judge) == len(ROWS)


def test_a_test_set_inside_the_train_set_is_refused_unless_allowed():
    split = split_by_prompt(ROWS, ROWS[:4], 0.2, 0)
    with pytest.raises(WhetError, match=r"2 prompts of test.jsonl are in pairs.jsonl too.*allow_overlap=true"):
        check_split(split, "pairs.jsonl", "test.jsonl", allow_overlap=False)
    check_split(split, "pairs.jsonl", "test.jsonl", allow_overlap=True)


def test_too_few_pairs_are_one_line():
    with pytest.raises(WhetError, match="after the split by prompt; give more pairs"):
        check_split(split_by_prompt(ROWS[:2], None, 0.2, 0), "pairs.jsonl", "", allow_overlap=False)


def test_pairs_are_read_as_the_data_section_says(tmp_path):
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({"question": "q", "chosen": "a", "rejected": "b", "margin": 2.0}) + "\n")
    data = DataSection(columns={"question": "prompt"}, as_chat=True)
    (row,) = read_pairs(str(file), data)
    assert row["prompt"] == [{"role": "user", "content": "q"}] and (row["chosen"], row["rejected"]) == ("a", "b")
    assert row["margin"] == 2.0 and row["id"] == prompt_key(row)
