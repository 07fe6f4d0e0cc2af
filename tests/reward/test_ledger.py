"""The ledger of a reward: append-only, one entry a change, reasons and effects later."""

import json
from datetime import UTC, datetime

import pytest

from whet.pages.rescore import history_text
from whet.reward.ledger import NOT_GIVEN, Effect, history, ledger_path, note_change, note_effect, note_reason, note_run
from whet.reward.version import RewardVersion
from whet.types import WhetError

FIRST = RewardVersion("aaaa", "math", {"code math": "1", "setting tolerance": "0.01"})
SECOND = RewardVersion("bbbb", "math", {"code math": "1", "setting tolerance": "0.001"})
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
EFFECT = Effect("run-1", 40, {"total": (0.2, 0.7)}, {"accuracy": (0.1, 0.6)})


def test_a_change_is_told_with_what_differs(tmp_path):
    path = tmp_path / "deep" / "rewards.jsonl"
    note_change(path, FIRST, "the start", "it learns", NOON)
    entry = note_change(path, SECOND, "too generous", "fewer lucky answers", NOON)
    assert (entry.old, entry.new, entry.date) == ("aaaa", "bbbb", "2026-01-02T12:00:00+00:00")
    assert entry.changed == ("setting tolerance 0.01 -> 0.001",)
    assert [change.reason for change in history(path)] == ["the start", "too generous"]


def test_a_run_adds_an_entry_only_for_a_new_reward(tmp_path):
    path = tmp_path / "rewards.jsonl"
    assert note_run(path, FIRST).reason == NOT_GIVEN
    assert note_run(path, FIRST) is None
    assert note_run(path, SECOND).old == "aaaa"
    assert note_run(path, FIRST).changed == ("setting tolerance 0.001 -> 0.01",)  # back again is a change too
    assert len(history(path)) == 3


def test_a_reason_may_come_later_and_nothing_is_rewritten(tmp_path):
    path = tmp_path / "rewards.jsonl"
    note_run(path, FIRST, NOON)
    before = path.read_bytes()
    note_reason(path, "", "more format")
    entry = note_change(path, FIRST, "because")  # the same hash: a reason, no second entry
    assert (entry.reason, entry.expected) == ("because", "more format")
    assert path.read_bytes().startswith(before) and len(history(path)) == 1


def test_effects_belong_to_the_latest_entry_of_their_hash(tmp_path):
    path = tmp_path / "rewards.jsonl"
    for version in (FIRST, SECOND, FIRST):
        note_run(path, version)
    note_effect(path, "aaaa", EFFECT)
    note_effect(path, "aaaa", Effect("run-1", 80, {"total": (0.2, 0.8)}, {}))  # the same run, gone on
    entries = history(path)
    assert entries[0].effects == () and [each.steps for each in entries[2].effects] == [80]
    assert entries[2].effects[0].parts == {"total": (0.2, 0.8)}
    with pytest.raises(WhetError, match="no entry has the hash cccc"):
        note_effect(path, "cccc", EFFECT)


def test_nothing_to_explain_is_an_error(tmp_path):
    with pytest.raises(WhetError, match="has no entry to explain"):
        note_reason(tmp_path / "rewards.jsonl", "why")
    assert history(tmp_path / "rewards.jsonl") == []


@pytest.mark.parametrize("line", ["nonsense", "[1]", '{"kind": "change"}', '{"kind": "other"}'])
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "rewards.jsonl"
    note_run(path, FIRST)
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(WhetError, match=r"rewards.jsonl:2"):
        history(path)


def test_a_missing_last_newline_is_fixed(tmp_path):
    path = tmp_path / "rewards.jsonl"
    note_run(path, FIRST)
    path.write_text(path.read_text().rstrip("\n"))
    note_run(path, SECOND)
    assert [json.loads(line)["new"] for line in path.read_text().splitlines()] == ["aaaa", "bbbb"]


def test_the_ledger_lies_beside_the_runs(tmp_path):
    assert ledger_path(tmp_path / "runs" / "first") == (tmp_path / "runs" / "rewards.jsonl").resolve()


def test_the_history_reads_as_a_table(tmp_path):
    from dataclasses import asdict

    path = tmp_path / "rewards.jsonl"
    note_change(path, FIRST, "the start", now=NOON)
    note_effect(path, "aaaa", EFFECT)
    note_change(path, SECOND, "too generous", "fewer lucky answers", NOON)
    note_effect(path, "bbbb", Effect("run-2", 40, {"total": (0.1, 0.5)}, {"accuracy": (0.1, 0.65)}))
    text = history_text([asdict(change) for change in history(path)])
    assert "2026-01-02 12:00  aaaa         -> bbbb" in text
    assert "reason    too generous" in text and "expected  fewer lucky answers" in text
    assert max(map(len, text.splitlines())) <= 80
    text = " ".join(text.split())
    assert "held-out accuracy 10.0% -> 65.0% (the reward before: 60.0%)" in text
    assert "total 0.200 -> 0.700" in text
