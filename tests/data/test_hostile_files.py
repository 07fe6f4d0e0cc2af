"""Files that are none, and rows that nobody can read: one line that names file and row, droppable where it is a row."""

from __future__ import annotations

import gzip
import json
import os

import pytest

from whet.data.pairs import rankings_from
from whet.data.prompts import prompts_from
from whet.data.rows import DEEPEST, MOST_DIGITS, Row, json_value
from whet.data.sections import DataSection
from whet.data.source import read_rows
from whet.settings.user_files import readable_file
from whet.training.assembly.rows import read_usable
from whet.types import WhetError

GOOD = [{"prompt": f"What is {number}?", "answer": str(number)} for number in range(5)]


def lines(*rows: object) -> bytes:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows).encode()


def read(path, drop: bool = False):
    data = DataSection(source=str(path), unusable="drop" if drop else "stop")
    return read_usable(data, str(path), lambda _: prompts_from)


BAD_LINES = {
    "deep": '{"prompt": ' + "[" * 5000 + "]" * 5000 + "}",
    "not so deep": '{"prompt": ' + "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1) + "}",
    "digits": '{"prompt": "a", "answer": ' + "9" * 5000 + "}",
    "surrogate": '{"prompt": "a\\ud83d", "answer": "1"}',
    "surrogate in a key": '{"prompt": "a", "\\ud83d": "1"}',
    "twice": '{"prompt": "a", "prompt": "b"}',
    "array": "[1]",
    "syntax": '{"prompt": "a",}',
    "NaN": '{"prompt": "a", "answer": NaN}',
    "infinite": '{"prompt": "a", "answer": 1e999}',
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_is_named_or_dropped_and_counted(tmp_path, name):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(lines(*GOOD[:3], BAD_LINES[name], *GOOD[3:]))
    with pytest.raises(WhetError, match=r"rows\.jsonl:4: .*; or leave out the 1 of 6 rows") as told:
        read(path)
    assert len(str(told.value).splitlines()) == 1 and len(str(told.value)) < 400
    kept = read(path, drop=True)
    assert len(kept) == 5 and sum(kept.left_out.values()) == 1


def test_a_line_that_is_not_utf_8_is_named_or_dropped(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(lines(*GOOD) + b'{"prompt": "\xff"}\n')
    with pytest.raises(WhetError, match=r"rows\.jsonl:6: byte 13 is not UTF-8"):
        read(path)
    assert read(path, drop=True).left_out == {"the line is not UTF-8": 1}


def test_honest_text_is_left_alone(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": "\U0001f600 \u2028 x" * 3, "answer": 10 ** (MOST_DIGITS - 1)}, {"prompt": "é\x00"}]
    path.write_bytes(lines(*rows))
    assert b"\\ud83d\\ude00" in path.read_bytes()  # a whole character in two escapes
    assert [row.values for row in read_rows(str(path))] == rows
    assert json_value('{"a": {"b": [1, {"c": "\\u00e9"}]}}') == {"a": {"b": [1, {"c": "é"}]}}


def test_a_csv_row_of_another_width_is_dropped_and_a_long_field_is_read(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("prompt,answer\na,1\nb\nc,3\n" + "x" * 200_000 + ",4\n")
    with pytest.raises(WhetError, match=r"rows\.csv:3: the row has 1 fields; expected 2"):
        read(path)
    kept = read(path, drop=True)
    assert [prompt.answer for prompt in kept] == ["1", "3", "4"] and sum(kept.left_out.values()) == 1


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet", ".jsonl.gz"])
@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"\xff\xfe" * 50, b"[" * 9000, b"PAR1" + b"x" * 40 + b"PAR1"])
def test_files_of_other_content_are_one_line(tmp_path, suffix, content):
    path = tmp_path / f"rows{suffix}"
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    with pytest.raises(WhetError, match="rows") as told:
        read(path)
    assert len(str(told.value).splitlines()) == 1


def test_parquet_with_text_that_is_not_utf_8_and_damaged_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "rows.parquet"
    array = pyarrow.Array.from_buffers(
        pyarrow.string(), 1, [None, pyarrow.py_buffer(b"\0\0\0\0\2\0\0\0"), pyarrow.py_buffer(b"\xff\xfe")]
    )
    parquet.write_table(pyarrow.table({"prompt": array}), path)
    with pytest.raises(WhetError, match=r"rows\.parquet: not readable as Parquet"):
        read(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20] + b"\xff" * 12 + whole[-8:])
    with pytest.raises(WhetError, match=r"rows\.parquet: not readable as Parquet"):
        read(path)


def test_what_is_no_file_is_told_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "loop.jsonl").symlink_to(tmp_path / "loop.jsonl")
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    for name, words in (
        ("pipe.jsonl", "is a pipe"),
        ("loop.jsonl", "not a path"),
        ("zero.jsonl", "is a device"),
        ("folder", "is a folder"),
        ("x" * 300 + ".jsonl", "not a path"),
        ("a\nb.jsonl", "no such file"),
    ):
        with pytest.raises(WhetError, match=words) as told:
            read_rows(str(tmp_path / name))
        assert len(str(told.value).splitlines()) == 1 and len(str(told.value)) < 700
    with pytest.raises(WhetError, match="not a path"):
        readable_file("a\0b", "a file")
    with pytest.raises(WhetError, match=f"no such file; expected a file; did you mean {tmp_path}/pipe.jsonl"):
        readable_file(str(tmp_path / "pip.jsonl"), "a file")
    with pytest.raises(WhetError, match=r"no such file; expected a file; give a path$"):
        readable_file(str(tmp_path / "pip.jsonl"), "a file", missing="give a path")
    with pytest.raises(WhetError, match=f"nor the folder {tmp_path}/none; expected a file; correct the path$"):
        readable_file(str(tmp_path / "none" / "pipe.jsonl"), "a file")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_file_that_may_not_be_read(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(lines(*GOOD))
    path.chmod(0)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and len(folder.parts) > 2:
            folder.chmod(0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(WhetError, match=r"cannot be read \(Permission denied\)|Permission denied"):
            read_rows(str(path))
    finally:
        os.seteuid(0)


def test_orders_that_contradict_each_other():
    def ranked(**columns: object):
        return rankings_from([Row({"prompt": "p", "completions": ["a", "b", "c"], **columns}, "f:1")])

    assert ranked(scores=[3, 2, 1], ranks=[0, 1, 2])[0].completions == ("a", "b", "c")
    assert ranked(scores=[3, 3, 1], order=[1, 0, 2])  # a tie contradicts nothing
    assert ranked(ranks=[0, 1, 2], scores=[None, None, None])
    with pytest.raises(WhetError, match=r"f:1: scores puts the completions in another order than 'ranks'"):
        ranked(scores=[1, 2, 3], ranks=[0, 1, 2])
    with pytest.raises(WhetError, match="expected numbers"):
        ranked(scores=[float("inf"), 2, 3])
