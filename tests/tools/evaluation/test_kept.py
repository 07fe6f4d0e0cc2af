"""Completions on disk: a run that is killed goes on to the same bytes; other settings start anew, and say so."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
import torch

from tests.support.commands import finished, started
from whet import api
from whet.pages.eval_report import eval_record
from whet.tools.evaluation import measure
from whet.tools.evaluation.measure import (
    CompletionFile,
    EvalPlan,
    sample_from,
    sample_record,
)
from whet.tools.evaluation.side_by_side import EvalCell, evaluate_cells
from whet.types import Sample, StopReason, Turn, WhetError


def test_a_sample_survives_json():
    turns = (
        Turn("assistant", "hi", 2, 4, 0.5, "s", StopReason.TEXT, {"tool_calls": 1}, ("bad",)),
        Turn("tool", "ok", 4, 5),
    )
    sample = Sample(
        torch.tensor([5, 6, 7, 8, 9, 10]), torch.tensor([False, False, True, True, False, True]),
        torch.tensor([0.0, 0.0, -0.1, -2.5, 0.0, -1e-7]), (0, 0), StopReason.TURNS, "hi", parts={"a": 1.0}, reward=0.5,
        turns=turns, returned=0.25, episode="e", role="r", metrics={"m": 2.0}, steps=((3, 0.5),),
    )  # fmt: skip
    back = sample_from(json.loads(json.dumps(sample_record(sample))))
    for name in ("tokens", "action", "behavior_logp"):
        assert torch.equal(getattr(back, name), getattr(sample, name)), name
    for name in ("stop", "completion", "parts", "reward", "turns", "returned", "episode", "role", "metrics", "steps"):
        assert getattr(back, name) == getattr(sample, name), name


def test_whole_chunks_are_found_again_and_a_torn_one_is_dropped(tmp_path):
    place, same = tmp_path / "e.jsonl", {"model": "a"}
    file = CompletionFile(place, same)
    file.add([{"prompt_id": "1"}])
    file.add([{"prompt_id": "2"}])
    with file.path.open("a") as torn:
        torn.write('[{"prompt_id": "3"')
    again = CompletionFile(place, same)
    assert [chunk[0]["prompt_id"] for chunk in again.chunks] == ["1", "2"] and not again.restarted
    again.add([{"prompt_id": "3"}])
    assert len(CompletionFile(place, same).chunks) == 3
    other = CompletionFile(place, {"model": "b"})
    assert not other.chunks and "3 prompts of an interrupted evaluation that differs in model" in other.restarted
    CompletionFile.discard(place)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_record_is_replaced_and_one_that_cannot_be_written_is_told(tmp_path):
    place = tmp_path / "e.jsonl"
    Path(f"{place}.part").write_text("not json\n")
    assert "is no record of an evaluation" in CompletionFile(place, {}).restarted
    assert CompletionFile(place, {"a": "b"}).restarted == ""  # nothing had been written yet
    place.write_text("")
    with pytest.raises(WhetError, match="cannot write the completions there"):
        CompletionFile(place / "x.jsonl", {})


PLAN = EvalPlan(samples=2, budgets=(4, 12), chunk=3)


def test_two_completions_are_the_fewest_that_vote():
    EvalPlan(samples=2, confidence="votes").check(config())
    with pytest.raises(WhetError, match="share of several completions that agree; give --samples 8"):
        EvalPlan(samples=1, confidence="votes").check(config())


def config(**settings):
    values = {"model": {"threads": 1}, "eval": {"prompts": 8}, "sampling": {"max_new_tokens": 16}, **settings}
    return api.evaluation_config("whetstone", None, values)


def run(place: Path, plan: EvalPlan = PLAN, **settings):
    told: list[str] = []
    report = evaluate_cells([EvalCell(config(**settings), place)], plan, lambda *_: None, told.append)
    record = eval_record(report)
    for each in record["evals"]:
        each.pop("completions")
    return json.dumps(record), place.read_bytes(), told


def test_progress_counts_prompts_and_seconds(tmp_path):
    found, began = [], time.monotonic()
    evaluate_cells([EvalCell(config(), tmp_path / "e.jsonl")], PLAN, lambda _, now: found.append(now), lambda _: None)
    assert [each.done for each in found] == [3, 6, 8]
    assert 0 < found[0].seconds <= found[-1].seconds <= time.monotonic() - began


def interrupted(place: Path, monkeypatch, after: int, plan: EvalPlan = PLAN) -> None:
    """The same evaluation, ended by Ctrl-C in a chunk."""
    whole, count = measure._chunk, 0

    def stops(setup, rows):
        nonlocal count
        count += 1
        if count > after:
            raise KeyboardInterrupt
        return whole(setup, rows)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as found:
        patch.setattr(measure, "_chunk", stops)
        run(place, plan)
    assert "run the same command to continue" in found.value.__notes__[0]


def test_an_interrupted_evaluation_goes_on_to_the_same_bytes(tmp_path, monkeypatch):
    result, completions, told = run(tmp_path / "whole.jsonl")
    assert not told and not list(tmp_path.glob("*.part"))
    place = tmp_path / "torn.jsonl"
    interrupted(place, monkeypatch, 2)
    assert not place.exists() and Path(f"{place}.part").exists()
    again = run(place)
    assert again[:2] == (result, completions)
    assert again[2] == [f"{place}.part: going on after 6 of 8 prompts"] and not Path(f"{place}.part").exists()


@pytest.mark.parametrize(
    ("plan", "settings", "what"),
    [
        (EvalPlan(samples=2, budgets=(4, 10), chunk=3), {}, "differs in sampling, budgets"),
        (PLAN, {"seed": 1}, "differs in seed"),
        (PLAN, {"eval": {"prompts": 7}}, "differs in prompts, eval"),
    ],
)
def test_other_settings_start_anew_and_say_what_differs(tmp_path, monkeypatch, plan, settings, what):
    place = tmp_path / "e.jsonl"
    interrupted(place, monkeypatch, 1)
    _, completions, told = run(place, plan, **settings)
    assert "3 prompts of an interrupted evaluation" in told[0] and what in told[0] and "started anew" in told[0]
    assert completions == run(tmp_path / "fresh.jsonl", plan, **settings)[1]


def test_a_finished_evaluation_leaves_nothing_to_go_on_from(tmp_path):
    first = run(tmp_path / "e.jsonl")
    second = run(tmp_path / "e.jsonl")
    assert first == second and first[2] == []


@pytest.mark.slow
def test_a_killed_command_goes_on_to_the_same_bytes(tmp_path):
    words = ("eval", "whetstone", "--samples", "8", "--chunk", "2", "--json", "--set", "eval.prompts=24", "--set",
             "model.threads=1", "--out", "e.jsonl")  # fmt: skip
    folders = [tmp_path / name for name in ("whole", "torn")]
    for folder in folders:
        folder.mkdir()
    whole = finished(*words, folder=folders[0])
    assert whole.returncode == 0, whole.stderr
    torn, part = started(*words, folder=folders[1]), folders[1] / "e.jsonl.part"
    while not (part.exists() and len(part.read_bytes().splitlines()) > 3):
        assert torn.poll() is None, torn.stderr
        time.sleep(0.005)
    torn.send_signal(signal.SIGKILL)
    torn.wait()
    again = finished(*words, folder=folders[1])
    assert again.returncode == 0 and "going on after" in again.stderr
    assert again.stdout == whole.stdout
    assert (folders[1] / "e.jsonl").read_bytes() == (folders[0] / "e.jsonl").read_bytes() and not part.exists()
