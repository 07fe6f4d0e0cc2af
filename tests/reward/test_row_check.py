"""A row that a reward would stop at is found before the first step, or left out and counted."""

from __future__ import annotations

import json

import pytest

from tests.support.for_every import for_every
from whet.data.sections import DataSection
from whet.data.usable import Usable
from whet.reward.call import as_reward
from whet.reward.combine import RewardPart
from whet.reward.find import find_reward
from whet.reward.row_check import Unscorable, require_scorable
from whet.training.assembly.rewards import scorable_prompts
from whet.types import Prompt, WhetError


def part(name: str) -> RewardPart:
    return RewardPart(find_reward(name))


def prompt(answer: object = "4", **meta: object) -> Prompt:
    return Prompt("f.jsonl:7", (), "What is 2+2?", answer, meta)


@for_every(["exact_answer", "math_answer", "choice_answer", "set_answer", "countdown", "tool_calls"])
def test_a_row_without_an_answer_is_unscorable(name):
    with pytest.raises(Unscorable, match=r"f\.jsonl:7") as told:
        require_scorable([part(name)], prompt(None))
    assert told.value.reason == f"reward {name} cannot read the row"


@for_every(["exact_answer", "math_answer"], [[], {}, "", "  "])
def test_an_empty_answer_is_none(name, answer):
    with pytest.raises(Unscorable):
        require_scorable([part(name)], prompt(answer))


def test_rows_without_tests_and_without_a_column_that_a_function_asks_for():
    def mine(completion: str, level: int) -> float:
        return 1.0

    with pytest.raises(Unscorable, match="needs tests"):
        require_scorable([part("code_tests")], prompt("4"))
    with pytest.raises(Unscorable, match="'level'"):
        require_scorable([RewardPart(as_reward(mine))], prompt())
    require_scorable([RewardPart(as_reward(mine))], prompt(level=3))


def test_a_function_of_the_users_is_not_run():
    def mine(prompt: Prompt, completion: str) -> float:
        raise AssertionError("called before there is a completion")

    require_scorable([RewardPart(as_reward(mine))], prompt())
    require_scorable([part("exact_answer"), part("think_format")], prompt())


def test_the_first_stops_with_the_fix_or_all_are_left_out_and_counted():
    prompts = Usable([prompt() if number != 2 else prompt(None) for number in range(6)], {"prompt is empty": 2})
    parts = [part("exact_answer")]
    with pytest.raises(WhetError, match=r"the 1 of 6 rows that cannot be scored: data\.unusable=drop"):
        scorable_prompts(prompts, parts, DataSection(source="f.jsonl"))
    kept = scorable_prompts(prompts, parts, DataSection(source="f.jsonl", unusable="drop"))
    assert len(kept) == 5
    assert isinstance(kept, Usable)
    assert kept.left_out == {"prompt is empty": 2, "reward exact_answer cannot read the row": 1}
    with pytest.raises(WhetError, match="leaves out at most half"):
        scorable_prompts([prompt(None)] * 3, parts, DataSection(source="f.jsonl", unusable="drop"))


def test_the_run_stops_before_its_first_step(tmp_path, monkeypatch):
    import whet

    rows = [{"prompt": f"{number}?", "answer": str(number)} for number in range(20)]
    del rows[15]["answer"]
    (tmp_path / "f.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    config = {"batch": {"prompts_per_step": 1, "group_size": 2}, "sampling": {"max_new_tokens": 2}}
    with pytest.raises(WhetError, match=r"f\.jsonl:16"):
        whet.train("grpo", data="f.jsonl", reward="exact_answer", steps=1, config=config, console=False)
    assert not (tmp_path / "runs").exists() or not [*(tmp_path / "runs").iterdir()]
