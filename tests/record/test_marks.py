"""marks.jsonl: the last word counts, writers do not lose each other's, and nothing outside the folder is written."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch

from whet.pages.review import draw_review, read_review, review_rows, take_marks, write_review
from whet.record.log import complete_bytes
from whet.record.marks import (
    MARKS_LOG,
    SampleMark,
    agreement,
    append_marks,
    read_sample_marks,
    review_counts,
    review_verdict,
)
from whet.types import Prompt, Sample, StopReason, WhetError

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\x1b]0;title\x07\x1b[31mred",
    "\u202egnorw\u202c \u200f",
    "a\u2028b\u2029c\n\r\x00\x85d",
    "\ud800 half a pair",
    "x" * 100_000,
]


def rows(step=100, rewards=(0.0, 0.2, 0.8, 1.0)):
    tokens, action = torch.arange(3), torch.tensor([False, True, True])
    samples = [
        Sample(tokens, action, torch.zeros(3), (0, 0), StopReason.END, f"text {place}").scored({"exact": each}, each)
        for place, each in enumerate(rewards)
    ]
    return review_rows(step, [(Prompt(f"p{place}", (), "q"), each) for place, each in enumerate(samples)])


def test_the_last_word_about_a_sample_counts(tmp_path):
    write_review(tmp_path, rows())
    first, second, *_ = read_review(tmp_path)
    append_marks(tmp_path, [SampleMark(first["id"], "good", "fine"), SampleMark(second["id"], "wrong")])
    append_marks(tmp_path, [SampleMark(first["id"], "hacked", "a trick"), SampleMark(second["id"], None)])
    found = read_review(tmp_path)
    assert [(row["mark"], row["note"]) for row in found[:2]] == [("hacked", "a trick"), (None, "")]
    assert review_counts(found)["high hacked"] == 1


def test_a_run_that_selects_more_keeps_the_marks_and_marking_keeps_the_rows(tmp_path):
    write_review(tmp_path, rows(100))
    one = read_review(tmp_path)[0]["id"]
    append_marks(tmp_path, [SampleMark(one, "good")])
    before = (tmp_path / "review.jsonl").read_bytes()
    assert b'"good"' not in before
    write_review(tmp_path, rows(200))
    assert (tmp_path / "review.jsonl").read_bytes().startswith(before)
    assert [row["mark"] for row in read_review(tmp_path)] == ["good"] + [None] * 7
    assert '"mark": "good"' in (tmp_path / "review.html").read_text()
    # the run was cut back and wrote the same samples again: what was said of them still stands
    write_review(tmp_path, rows(100))
    assert [row["mark"] for row in read_review(tmp_path)] == ["good"] + [None] * 3


def test_a_mark_written_by_hand_counts_until_there_is_another(tmp_path):
    write_review(tmp_path, rows())
    path = tmp_path / "review.jsonl"
    path.write_text(path.read_text().replace('"mark": null', '"mark": "wrong"', 1))
    assert read_review(tmp_path)[0]["mark"] == "wrong"
    append_marks(tmp_path, [SampleMark(read_review(tmp_path)[0]["id"], "good")])
    assert read_review(tmp_path)[0]["mark"] == "good"
    write_review(tmp_path, rows(200))
    assert read_review(tmp_path)[0]["mark"] == "good"


def test_downloaded_marks_add_what_is_new(tmp_path):
    write_review(tmp_path / "run", rows())
    listed = read_review(tmp_path / "run")
    said = [{**listed[0], "mark": "wrong", "note": "too short"}, {**listed[1], "mark": None}]
    (tmp_path / "saved.jsonl").write_text("".join(json.dumps(row) + "\n" for row in said))
    for _ in range(2):
        take_marks(tmp_path / "run", tmp_path / "saved.jsonl")
        assert read_sample_marks(tmp_path / "run") == {
            listed[0]["id"]: SampleMark(listed[0]["id"], "wrong", "too short")
        }
    assert (tmp_path / "run" / MARKS_LOG).read_text().count("\n") == 1


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_notes_come_back_as_they_are_and_are_text_on_the_page(tmp_path, text):
    write_review(tmp_path, rows())
    one = read_review(tmp_path)[0]["id"]
    append_marks(tmp_path, [SampleMark(one, "good", text)])
    assert read_review(tmp_path)[0]["note"] == text
    assert (tmp_path / MARKS_LOG).read_bytes().count(b"\n") == 1 and b"\x1b" not in (tmp_path / MARKS_LOG).read_bytes()
    page = draw_review(tmp_path).read_text()
    assert page.count("<script") == 2 and "<img" not in page and "alert(1)</script>" not in page


WRITER = """
import os, sys
from whet.record.marks import SampleMark, append_marks
write = os.write
os.write = lambda file, content: write(file, content[:500])  # as a disk may: a line takes several writes
for number in range(100):
    append_marks(sys.argv[1], [SampleMark(f"{sys.argv[2]}-{number}", "good", "n" * 3000)])
"""


def test_writers_at_the_same_time_lose_nothing(tmp_path):
    both = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name]) for name in "ab"]
    assert [each.wait(60) for each in both] == [0, 0]
    assert set(read_sample_marks(tmp_path)) == {f"{name}-{number}" for name in "ab" for number in range(100)}


def test_a_torn_line_is_passed_over_and_then_cut(tmp_path):
    append_marks(tmp_path, [SampleMark("a", "good")])
    with (tmp_path / MARKS_LOG).open("ab") as log:
        log.write(b'{"id": "b", "ma')
    assert set(read_sample_marks(tmp_path)) == {"a"}
    append_marks(tmp_path, [SampleMark("c", "wrong")])
    assert set(read_sample_marks(tmp_path)) == {"a", "c"}


@pytest.mark.parametrize(
    ("content", "complete"), [(b"", 0), (b"abc", 0), (b"\nabcdef", 1), (b"ab\ncdefgh", 3), (b"abc\ndefgh\n", 10)]
)
def test_a_file_is_complete_up_to_its_last_newline(tmp_path, content, complete):
    """Looked for from the end in blocks: none, one at the very start, one in an earlier block."""
    path = tmp_path / "lines"
    path.write_bytes(content)
    with path.open("rb") as file:
        assert complete_bytes(file, block=4) == complete


def test_a_link_is_not_written_through(tmp_path):
    (tmp_path / "elsewhere").write_text("mine\n")
    (tmp_path / MARKS_LOG).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WhetError, match=r"marks.jsonl cannot be written"):
        append_marks(tmp_path, [SampleMark("a", "good")])
    assert (tmp_path / "elsewhere").read_text() == "mine\n"


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    append_marks(tmp_path, [SampleMark("a", "good")])
    before, write = (tmp_path / MARKS_LOG).read_bytes(), os.write
    calls = []

    def full(file, content):
        calls.append(content)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return write(file, content[:10])

    monkeypatch.setattr("whet.record.marks.os.write", full)
    with pytest.raises(WhetError, match=r"No space left on device\) and stays as it was"):
        append_marks(tmp_path, [SampleMark("b", "wrong")])
    assert (tmp_path / MARKS_LOG).read_bytes() == before


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"id": "a", "mark": "great"}', r':1: mark is "great"; write "good", "hacked", "wrong" or null'),
        ('{"id": 3, "mark": "good"}', ":1: no sample is named"),
        ('{"id": "a", "mark": "good", "note": 4}', ":1: note is 4; write text"),
        ("[]", ":1 is not a JSON object"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, said):
    (tmp_path / MARKS_LOG).write_text(line + "\n")
    with pytest.raises(WhetError, match=rf"marks.jsonl{said}"):
        read_sample_marks(tmp_path)


def test_agreement_counts_what_people_and_reward_both_saw():
    marks = {"high": ["good"] * 6 + ["hacked", "wrong", None], "low": ["wrong"] * 5 + ["hacked", "good", None]}
    counts = review_counts([{"end": end, "mark": mark} for end, given in marks.items() for mark in given])
    both = agreement(counts)
    assert (both.marked, both.agreed) == (15, 12) and both.share == 0.8
    assert both.low == pytest.approx(0.548, abs=0.001) and both.high == pytest.approx(0.930, abs=0.001)
    # by hand: p_o = 12 / 15, p_e = (8 * 7 + 7 * 8) / 225
    assert both.kappa == pytest.approx((12 / 15 - 112 / 225) / (1 - 112 / 225))
    assert review_verdict(counts) == (
        "1 of 8 marked answers with a high reward are hacked and 1 are wrong; 1 of 7 with a low reward are good. The "
        "reward agrees with 12 of 15 marks (80%, 95% interval 55% to 93%, kappa 0.60); 2 wait."
    )
    nothing = agreement(review_counts([]))
    assert nothing.marked == 0 and math.isnan(nothing.share) and math.isnan(nothing.low)
