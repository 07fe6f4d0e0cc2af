"""Logs that grow, are cut back, replaced, torn and deleted under the reader's eyes."""

import json
import os
from itertools import pairwise

import pytest

from whet.pages.board import files as growing_log
from whet.pages.board.files import GrowingLog, last_lines, line_at, spaced_lines
from whet.pages.board.sample_index import SampleIndex


def sample(step, reward=1.0, **more):
    return {"step": step, "prompt_id": f"p{step % 3}", "reward": reward, "tokens": 5, "completion": "a\u2028b", **more}


def write(path, *lines, mode="ab", end=b"\n"):
    with path.open(mode) as file:
        for line in lines:
            file.write((line if isinstance(line, bytes) else json.dumps(line).encode()) + end)


def read_all(log):
    lines, anew = [], False
    while True:
        part = log.read(64)
        anew = anew or part.is_anew
        lines = part.lines if part.is_anew else lines + part.lines
        if part.is_end:
            return [text for _, text in lines], anew


def test_lines_come_once_and_a_torn_one_waits_for_its_end(tmp_path):
    path = tmp_path / "log"
    log = GrowingLog(path)
    assert read_all(log) == ([], False)
    write(path, b"one", b"two")
    write(path, b"thr", end=b"")
    assert read_all(log) == ([b"one", b"two"], False)
    assert read_all(log) == ([], False)
    write(path, b"ee", b"x" * 300)
    assert read_all(log) == ([b"three", b"x" * 300], False)


@pytest.mark.parametrize("how", ["cut", "cut and grown", "replaced", "deleted"])
def test_a_log_that_is_not_the_same_is_read_anew(tmp_path, how):
    path = tmp_path / "log"
    write(path, *(b"line %d" % number for number in range(50)))
    log = GrowingLog(path)
    assert len(read_all(log)[0]) == 50
    if how == "cut":
        os.truncate(path, 70)
    elif how == "cut and grown":
        os.truncate(path, 70)
        write(path, *(b"other %d" % number for number in range(90)))
    elif how == "replaced":
        other = tmp_path / "other"
        write(other, *(b"line %d" % number for number in range(60)))
        os.replace(other, path)
    else:
        path.unlink()
    lines, anew = read_all(log)
    assert anew
    expected = path.read_bytes().split(b"\n")[:-1] if how != "deleted" else []
    assert lines == expected


def test_a_line_that_is_too_long_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(growing_log, "LONGEST", 256)
    path = tmp_path / "log"
    write(path, b"short", b"y" * 2000, b"after")
    log, lines, too_long = GrowingLog(path), [], 0
    for _ in range(100):
        part = log.read(64)
        lines += [text for _, text in part.lines]
        too_long += part.num_too_long
        if part.is_end:
            break
    assert lines == [b"short", b"after"] and too_long == 1


def test_lines_by_their_place_from_the_end_and_evenly(tmp_path):
    path = tmp_path / "log"
    texts = [b"%d" % number * (1 + number % 7) for number in range(1000)]
    write(path, *texts)
    write(path, b"torn", end=b"")
    assert [text for _, text in last_lines(path, 3, block=8)] == texts[-3:]
    assert [text for _, text in last_lines(path, 5000)] == texts
    spaced = spaced_lines(path, 100, block=16)
    assert 90 <= len(spaced) <= 100 and spaced[0] == (0, texts[0])
    numbers = [texts.index(text) for _, text in spaced]
    assert numbers == sorted(numbers) and max(b - a for a, b in pairwise(numbers)) < 40
    for place, text in spaced:
        assert line_at(path, place) == text
    assert line_at(path, spaced[5][0] + 1) is None  # no line begins there
    assert line_at(path, path.stat().st_size - 4) is None  # torn


def test_links_and_pipes_are_not_opened(tmp_path):
    secret = tmp_path / "secret"
    write(secret, b"secret")
    (tmp_path / "link").symlink_to(secret)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "."):
        assert read_all(GrowingLog(tmp_path / name)) == ([], False)
        assert last_lines(tmp_path / name, 3) == [] and line_at(tmp_path / name, 0) is None


def test_the_index_keeps_up_and_finds_samples_by_their_place(tmp_path):
    path = tmp_path / "samples.jsonl"
    index = SampleIndex(path)
    assert index.refresh() and len(index) == 0
    write(path, sample(1, 0.5), sample(1, None), b"not json", [1, 2], sample(2, float("nan")), {"step": "2"})
    assert index.refresh() and len(index) == 3 and index.num_damaged == 3
    columns, prompts = index.columns(), index.prompt_names()
    assert [columns[name][0] for name in ("step", "reward", "tokens")] == [1, 0.5, 5]
    assert columns["reward"][1] != columns["reward"][1]
    assert [prompts[code] for code in columns["prompt"]] == ["p1", "p1", "p2"]
    first, second, third = (index.place(number) for number in range(3))
    assert index.line(third)["step"] == 2 and index.line(third + 1) is None
    write(path, sample(3, 2))
    assert index.refresh() and len(index) == 4 and index.newest(1)[0][1]["step"] == 3
    assert [line["step"] for _, line in index.lines([first, 7, third])] == [1, 2]
    generation = index.generation
    os.truncate(path, second)
    assert index.refresh() and len(index) == 1 and index.generation == generation + 1
