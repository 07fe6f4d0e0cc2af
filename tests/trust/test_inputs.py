"""A cut of the malformed files and hostile settings of benchmarks/trust/inputs.py; the whole of them is slow."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from benchmarks.trust.inputs import (
    READERS,
    FileCase,
    Outcome,
    empty_folders,
    files,
    lost_rows,
    settings,
    try_file,
    try_files,
    try_processes,
    try_settings,
    try_tomls,
    without_training,
)


def faults(outcomes: list[Outcome]) -> list[str]:
    return [f"{' '.join(each.words)[:200]}: {each.wrong}" for each in outcomes if each.wrong]


def test_files_are_read_or_refused_in_one_line():
    tried = try_files(0, 40)
    assert faults([outcome for _, outcome in tried]) == []
    # the harness reaches both ends
    assert sum(outcome.code == 2 for _, outcome in tried) > 15 and sum(not outcome.code for _, outcome in tried) > 2


def test_settings_are_taken_or_refused_in_one_line():
    tried = try_settings(0, 40)
    assert faults(tried) == []
    assert sum(outcome.code == 2 for outcome in tried) > 15
    assert faults(try_tomls(0, 15)) == []


@pytest.mark.slow
def test_ten_thousand_files():
    assert faults([outcome for _, outcome in try_files(0, 10_000)]) == []


@pytest.mark.slow
def test_two_thousand_settings():
    assert faults([*try_settings(0, 2000), *try_tomls(0, 1000)]) == []


@pytest.mark.slow
def test_refused_files_by_processes_of_their_own():
    assert faults(try_processes(1, 30)) == []


def test_the_corpus_is_seeded_and_covers_every_reader():
    first, again = ([(case.reader.name, case.spoilt, case.suffix) for case in files(3, 400)] for _ in range(2))
    assert first == again != [(case.reader.name, case.spoilt, case.suffix) for case in files(4, 400)]
    assert {name for name, _, _ in first} == {reader.name for reader in READERS}
    assert [*settings(3, 50)] == [*settings(3, 50)] != [*settings(4, 50)]


def test_a_traceback_a_wait_and_a_lost_row_would_be_seen(monkeypatch: pytest.MonkeyPatch):
    import whet.data.source
    import whet.training.assembly.rows

    good = FileCase(
        READERS[0],
        "nothing",
        ".jsonl",
        lambda path: Path(path).write_text("".join(json.dumps(READERS[0].row(n)) + "\n" for n in range(4))),
        rows=4,
    )
    with without_training() as counted, empty_folders() as folder:
        assert try_file(good, folder, counted).wrong == ""
        with monkeypatch.context() as patched:
            patched.setattr(whet.training.assembly.rows, "read_rows", lambda *_, **__: 1 / 0)
            assert "ZeroDivisionError" in try_file(good, folder, counted).wrong
            patched.setattr("benchmarks.trust.inputs.PATIENCE", 0.2)
            patched.setattr(whet.training.assembly.rows, "read_rows", lambda *_, **__: time.sleep(60))
            assert "no end" in try_file(good, folder, counted).wrong
        with monkeypatch.context() as patched:
            every = whet.training.assembly.rows.read_rows
            patched.setattr(whet.training.assembly.rows, "read_rows", lambda *given, **more: every(*given, **more)[1:])
            assert "4 rows in the file, 3 read" in try_file(good, folder, counted).wrong
    assert "1 counted" in lost_rows(good, Outcome((), counted=[(4, 2, 1)]))
