"""Stages are done once, in order, and go on after a break."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from whet.tools.pipelines.stages import FinishedStage, Interrupted, Stage, run_stages, unchanged_stages
from whet.types import WhetError


class Recorder:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def stage_started(self, number: int, total: int, stage: Stage) -> None:
        self.lines.append(f"{number}/{total} {stage.name}")

    def stage_finished(self, number: int, total: int, stage: Stage, done: FinishedStage, is_old: bool) -> None:
        self.lines.append(f"{stage.name} {'old' if is_old else 'new'} {dict(done.result)}")

    def stage_replaced(self, stage: Stage, kept: Path) -> None:
        self.lines.append(f"{stage.name} replaced")


def stages(calls: list[str], broken: bool = False, factor: int = 10, addend: int = 3) -> list[Stage]:
    def first(folder: Path, done) -> dict[str, int]:
        calls.append("first")
        (folder / "three").write_text("3")
        return {"found": addend}

    def second(folder: Path, done) -> dict[str, int]:
        calls.append("second")
        if broken:
            raise Interrupted
        return {"found": factor * int((done["first"].folder / "three").read_text()) + done["first"].result["found"]}

    return [
        Stage("first", "three", first, {"addend": addend}),
        Stage("second", "thirty-three", second, {"factor": factor}),
    ]


def test_each_stage_sees_the_ones_before_it(tmp_path):
    recorder = Recorder()
    done = run_stages(stages([]), tmp_path, recorder)
    assert done["second"].result == {"found": 33}
    assert recorder.lines == ["1/2 first", "first new {'found': 3}", "2/2 second", "second new {'found': 33}"]
    assert done["second"].folder == tmp_path / "02-second"


def test_a_broken_run_goes_on_and_does_nothing_twice(tmp_path):
    calls: list[str] = []
    with pytest.raises(Interrupted):
        run_stages(stages(calls, broken=True), tmp_path, Recorder())
    done = run_stages(stages(calls), tmp_path, Recorder())
    assert calls == ["first", "second", "second"]
    assert run_stages(stages(calls), tmp_path, Recorder()) == done
    assert len(calls) == 3


def test_a_stage_with_other_settings_runs_again_and_those_before_it_do_not(tmp_path):
    run_stages(stages([]), tmp_path, Recorder())
    calls, recorder = [], Recorder()
    done = run_stages(stages(calls, factor=2), tmp_path, recorder)
    assert calls == ["second"] and done["second"].result == {"found": 9}
    assert recorder.lines == ["first old {'found': 3}", "second replaced", "2/2 second", "second new {'found': 9}"]
    before = json.loads((tmp_path / "replaced" / "02-second" / "stage.json").read_text())
    assert before["result"] == {"found": 33}


def test_a_stage_runs_again_when_one_that_it_reads_did(tmp_path):
    run_stages(stages([]), tmp_path, Recorder())
    calls = []
    assert run_stages(stages(calls, addend=4), tmp_path, Recorder())["second"].result == {"found": 34}
    assert calls == ["first", "second"]


def test_a_stage_that_reads_none_of_the_others_stays_done(tmp_path):
    def pair(calls, addend):
        first, second = stages(calls, addend=addend)
        alone = replace(second, work=lambda folder, done: calls.append("alone") or {"found": 1}, reads=())
        return [first, alone]

    calls = []
    run_stages(pair(calls, 3), tmp_path, Recorder())
    run_stages(pair(calls, 4), tmp_path, Recorder())
    assert calls == ["first", "alone", "first"]


def test_a_file_that_changed_is_another_input(tmp_path):
    file, calls = tmp_path / "rows.jsonl", []

    def one():
        return [
            Stage("read", "", lambda folder, done: calls.append(1) or {}, inputs=lambda: {"rows": file.read_text()})
        ]

    for text in ("a", "a", "b"):
        file.write_text(text)
        run_stages(one(), tmp_path / "run", Recorder())
    assert len(calls) == 2 and unchanged_stages(one(), tmp_path / "run") == ["read"]


def test_what_an_interrupted_stage_left_is_not_mixed_with_other_settings(tmp_path):
    def leaves(factor, broken):
        def work(folder, done):
            found = (folder / "partial").read_text() if (folder / "partial").exists() else ""
            (folder / "partial").write_text(found + str(factor))
            if broken:
                raise Interrupted
            return {"found": (folder / "partial").read_text()}

        return [Stage("long", "", work, {"factor": factor})]

    for factor in (1, 1):
        with pytest.raises(Interrupted):
            run_stages(leaves(factor, True), tmp_path, Recorder())
    assert run_stages(leaves(2, False), tmp_path, Recorder())["long"].result == {"found": "2"}
    assert (tmp_path / "replaced" / "01-long" / "partial").read_text() == "11"


def test_stages_added_before_it_do_not_move_a_finished_one(tmp_path):
    calls = []
    first, second = stages(calls)
    run_stages([first, replace(second, reads=("first",))], tmp_path, Recorder())
    more = Stage("more", "", lambda folder, done: {})
    done = run_stages([first, more, replace(second, reads=("first",))], tmp_path, Recorder())
    assert calls == ["first", "second"] and done["second"].folder == tmp_path / "02-second"


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: [*stages([]), stages([])[0]], "two stages are called 'first'"),
        (lambda: [replace(stages([])[1], reads=("first",))], "reads 'first', and no stage before it"),
    ],
)
def test_stages_that_cannot_be_told_apart_or_found_are_refused(made, said, tmp_path):
    with pytest.raises(WhetError, match=said):
        run_stages(made(), tmp_path, Recorder())


def test_a_damaged_result_says_what_to_do(tmp_path):
    run_stages(stages([]), tmp_path, Recorder())
    (tmp_path / "01-first" / "stage.json").write_text(json.dumps({"name": "first"})[:-3])
    with pytest.raises(WhetError, match="remove"):
        run_stages(stages([]), tmp_path, Recorder())
