"""Pairs of a policy's own completions: the right ones, and every dropped one counted."""

import math

import pytest

from whet.data.pairs import preferences_from
from whet.data.source import read_rows
from whet.tools.pipelines.library.pairs import best_against_worst, shown_against_own
from whet.tools.pipelines.library.sampler import prompt_row
from whet.tools.pipelines.stages import json_lines, read_json_lines, stage_result, write_in_chunks
from whet.types import Prompt


def completions(scores, texts=None, finished=None, name="q"):
    texts = texts or [f"completion {number}" for number in range(len(scores))]
    row = {"id": name, "prompt": [{"role": "user", "content": "1+1"}], "completions": texts}
    return {**row, "scores": scores, "finished": finished or [True] * len(scores)}


def test_the_best_stands_against_the_worst():
    (pair,), counts = best_against_worst([completions([0.5, 1.0, 0.25, 0.5])])
    assert (pair["chosen"], pair["rejected"]) == ("completion 1", "completion 2")
    assert (pair["chosen_score"], pair["rejected_score"]) == (1.0, 0.25)
    assert counts == {"prompts": 1, "pairs": 1, "ties": 0, "cut_off": 0, "unscorable_completions": 0}


def test_ties_and_unscorable_completions_are_dropped_and_counted():
    rows = [completions([1.0, 1.0]), completions([None, 1.0]), completions([None, 0.0, 1.0])]
    pairs, counts = best_against_worst(rows)
    assert [(pair["chosen"], pair["rejected"]) for pair in pairs] == [("completion 2", "completion 1")]
    assert counts["ties"] == 2 and counts["unscorable_completions"] == 2 and counts["pairs"] == 1


def test_a_completion_that_was_cut_off_is_never_chosen():
    rows = [
        completions([1.0, 0.5, 0.0], finished=[False, True, True]),
        completions([1.0, 0.0], finished=[False, True], name="r"),
        completions([1.0, 0.0], finished=[False, False], name="s"),
        completions([1.0, 0.0], finished=[True, False], name="t"),
    ]
    pairs, counts = best_against_worst(rows)
    assert [(pair["id"], pair["chosen"]) for pair in pairs] == [("q", "completion 1"), ("t", "completion 0")]
    assert counts["cut_off"] == 2


def test_own_completions_equal_to_the_demonstration_are_dropped():
    shown = [{"id": str(number), "prompt": "p", "completion": "good"} for number in range(3)]
    own = [{"completions": [text], "finished": [done]} for text, done in (("good", True), ("bad", False), (" ", True))]
    pairs, counts = shown_against_own(shown, own)
    assert pairs == [{"id": "1", "prompt": "p", "chosen": "good", "rejected": "bad"}]
    assert counts == {"demonstrations": 3, "pairs": 1, "identical": 1, "empty": 1, "cut_off_rejected": 1}


def test_pairs_are_read_back_by_preference_training(tmp_path):
    prompt = Prompt("x/1", ({"role": "user", "content": "ein\u2028Zeilenende"},))
    pairs, _ = best_against_worst([{**completions([0.0, 1.0]), **prompt_row(prompt)}])
    path = tmp_path / "pairs.jsonl"
    path.write_text(json_lines(pairs), encoding="utf-8")
    (read,) = preferences_from(read_rows(str(path)))
    assert (read.prompt.messages, read.chosen, read.rejected) == (prompt.messages, "completion 1", "completion 0")
    assert read_json_lines(path) == pairs
    assert prompt_row(Prompt("y", (), "plain")) == {"id": "y", "prompt": "plain"}


def test_chunks_written_before_a_break_are_not_written_again(tmp_path):
    asked = []

    def rows_of(number, items):
        asked.append((number, list(items)))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return [{"number": number, "item": item} for item in items]

    path = tmp_path / "rows.jsonl"
    with pytest.raises(KeyboardInterrupt):
        write_in_chunks(path, [1, 2, 3, 4, 5], 2, rows_of)
    assert not path.exists()
    write_in_chunks(path, [1, 2, 3, 4, 5], 2, rows_of)
    write_in_chunks(path, [1, 2, 3, 4, 5], 2, rows_of)
    assert asked == [(0, [1, 2]), (1, [3, 4]), (1, [3, 4]), (2, [5])]
    assert [row["item"] for row in read_json_lines(path)] == [1, 2, 3, 4, 5]
    assert [each.name for each in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_metric_that_is_no_number_is_left_out():
    assert stage_result("said", {"good": 1, "bad": math.nan}, {"rows": 2}, stop_reason="why") == {
        "summary": "said",
        "metrics": {"good": 1.0},
        "counts": {"rows": 2},
        "stop_reason": "why",
    }
