"""Every way to name data is parsed once, and the parsed value says what follows from it."""

from __future__ import annotations

import pytest

from tests.support.for_every import for_every
from whet.data.source import EVAL, EVAL_SEED, TRAIN, DataSource, SourceKind, parse_source
from whet.data.tasks import TASKS, prompts
from whet.types import WhetError


@for_every(
    [
        ("task:arithmetic", DataSource(SourceKind.TASK, "arithmetic")),
        ("task:arithmetic+lists", DataSource(SourceKind.TASK, "arithmetic+lists")),
        ("gym:chain_sum", DataSource(SourceKind.GYM, "chain_sum")),
        ("hub:owner/name", DataSource(SourceKind.HUB, "owner/name")),
        ("hub:owner/name:test", DataSource(SourceKind.HUB, "owner/name", None, "test")),
        ("hub:owner/name/main:test", DataSource(SourceKind.HUB, "owner/name", "main", "test")),
        ("rows.jsonl", DataSource(SourceKind.FILE, "rows.jsonl")),
        ("C:rows.jsonl", DataSource(SourceKind.FILE, "C:rows.jsonl")),
        ("", DataSource(SourceKind.FILE, "")),
    ]
)
def test_a_source_is_parsed_and_written_back(text, expected):
    assert parse_source(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize("text", ["hub:name", "hub:a/b/c/d", "hub:/name", "hub:owner/"])
def test_a_hub_name_without_an_owner_is_refused(text):
    with pytest.raises(WhetError, match="expected hub:owner/name"):
        parse_source(text)


def test_what_follows_from_the_kind():
    task, gym, file, hub = map(parse_source, ("task:lists", "gym:chain_sum", "rows.csv", "hub:a/b"))
    assert [each.is_generated for each in (task, gym, file, hub)] == [True, True, False, False]
    assert [each.is_stored for each in (task, gym, file, hub)] == [False, False, True, True]
    assert [each.may_hold_completions for each in (task, gym, file, hub)] == [True, False, True, True]
    with pytest.raises(WhetError, match=r"gym:chain_sum.*no completions.*sft needs"):
        gym.require_completions("sft")
    file.require_completions("sft")


def test_keys_that_a_source_does_not_read():
    of_files = dict.fromkeys(("limit", "columns", "as_chat", "unusable"), "files")
    of_task = {**of_files, "system_prompt": "files", "settings": "gym datasets"}
    assert parse_source("task:lists").unused_keys() == of_task
    assert parse_source("gym:x").unused_keys() == {**of_files, "difficulty": "tasks", "share_worked": "tasks"}
    stored = {**dict.fromkeys(("difficulty", "share_worked", "count"), "tasks"), "settings": "gym datasets"}
    assert parse_source("rows.jsonl").unused_keys() == parse_source("hub:a/b").unused_keys() == stored


def test_tasks_share_the_count_and_eval_prompts_ignore_the_seed():
    source = parse_source("task:arithmetic+lists")
    found = source.prompts(TRAIN, 7, 5, (1, 2))
    assert [prompt.id.split("/")[0] for prompt in found] == ["arithmetic"] * 4 + ["lists"] * 4
    assert found[:2] == prompts(TASKS["arithmetic"], "train", 2, 5, 1)
    assert source.prompts(EVAL, 4, 5, (1,)) == source.prompts(EVAL, 4, 9, (1,))
    assert source.prompts(EVAL, 4, 5, (1,))[:2] == prompts(TASKS["arithmetic"], "eval", 2, EVAL_SEED, 1)
    assert source.prompts(TRAIN, 4, 5, (1,)) != source.prompts(TRAIN, 4, 9, (1,))
    assert source.prompts(EVAL, 0, 0) == []


def test_an_unknown_task_is_named_with_the_known_ones():
    with pytest.raises(WhetError, match=r"task:arithmetik: no task is called 'arithmetik' \(did you mean 'arithmetic'"):
        parse_source("task:arithmetik").tasks()


def test_eval_questions_are_those_of_0_1():
    """Published numbers were measured on them: renaming the split must not draw others."""
    found = prompts(TASKS["arithmetic"], "eval", 2, EVAL_SEED, 3)
    assert [prompt.question() for prompt in found] == QUESTIONS_OF_0_1


QUESTIONS_OF_0_1 = ["Left to right mod 10: 4+1-6+1+5-8", "Left to right mod 10: 1+2-8*3*9*9"]
