"""The run folder: what is written is read back, a kill costs at most a line, a resume cuts back exactly."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from whet.api.inputs import check_callbacks
from whet.record.log import (
    EvalRecord,
    RunRecorder,
    cut_back,
    eval_records,
    read_metrics,
    read_samples,
    read_summary,
    recorded,
    recorded_samples,
    step_reports,
)
from whet.types import Prompt, Sample, StepReport, StopReason, WhetError


def sample(completion: str, reward: float | None, num_tokens: int = 3) -> Sample:
    action = torch.tensor([False, False] + [True] * num_tokens)
    bare = Sample(torch.arange(len(action)), action, torch.zeros(len(action)), (4, 5), StopReason.END, completion)
    return bare.scored({"exact": reward or 0.0}, reward)


def prompt(name: str) -> Prompt:
    return Prompt(name, ({"role": "user", "content": f"question {name}"},), answer=42)


def report(step: int, **metrics: float) -> StepReport:
    return StepReport(
        step, step - 1, {"samples": 4, "prompts": 2}, {"total": 0.1 + 0.2}, metrics, ("odd",), {"train": 1.5}
    )


def test_record_is_a_reporter(tmp_path: Path) -> None:
    check_callbacks([RunRecorder(tmp_path)])


def test_step_round_trips_exactly(tmp_path: Path) -> None:
    record = RunRecorder(tmp_path)
    written = report(1, loss=1 / 3, kl=1e-300, entropy=math.pi)
    record.stepped(written, [])
    assert step_reports(read_metrics(tmp_path)) == [written]
    assert list(read_metrics(tmp_path)[0]) == [
        "step",
        "policy_version",
        "counts",
        "reward",
        "metrics",
        "health",
        "spread",
        "seconds",
    ]


def test_bytes_do_not_depend_on_the_order_of_keys(tmp_path: Path) -> None:
    RunRecorder(tmp_path / "a").stepped(report(1, loss=1.0, kl=2.0), [])
    RunRecorder(tmp_path / "b").stepped(report(1, kl=2.0, loss=1.0), [])
    text = (tmp_path / "a/metrics.jsonl").read_bytes()
    assert b'"kl": 2.0, "loss": 1.0' in text
    assert text == (tmp_path / "b/metrics.jsonl").read_bytes()


def test_what_is_not_finite_is_null_on_disk_and_nan_when_read(tmp_path: Path) -> None:
    record = RunRecorder(tmp_path)
    record.stepped(report(1, loss=math.nan, kl=math.inf, entropy=1.0), [])
    line = read_metrics(tmp_path)[0]
    assert line["metrics"] == {"entropy": 1.0, "kl": None, "loss": None}
    assert math.isnan(step_reports([line])[0].metrics["kl"])


def test_sample_line_has_every_field(tmp_path: Path) -> None:
    RunRecorder(tmp_path).stepped(report(7), [(prompt("a"), sample("a\u2028b\n\ud800 é", 0.5))])
    assert read_samples(tmp_path) == [
        {
            "step": 7,
            "prompt_id": "a",
            "question": "question a",
            "answer": 42,
            "completion": "a\u2028b\n\ud800 é",
            "stop": "end",
            "parts": {"exact": 0.5},
            "reward": 0.5,
            "tokens": 3,
            "versions": [4, 5],
            "reward_hash": "",
        }
    ]


def test_answers_of_any_type_are_recorded(tmp_path: Path) -> None:
    answers = [torch.tensor([1.0, math.nan]), {"x": (1, 2)}, Path("a"), None]
    pairs = [(Prompt(str(place), (), "q", answer), sample("r", 0.0)) for place, answer in enumerate(answers)]
    RunRecorder(tmp_path, samples_per_step=4).stepped(report(1), pairs)
    assert [line["answer"] for line in read_samples(tmp_path)] == [[1.0, None], {"x": [1, 2]}, "a", None]


@pytest.mark.parametrize(
    ("samples_per_step", "expected"), [(0, []), (1, [0, 1, 3, 4]), (2, [0, 1, 2, 3, 4]), (9, [0, 1, 2, 3, 4, 5])]
)
def test_first_groups_and_the_extremes_are_recorded(samples_per_step: int, expected: list[int]) -> None:
    rewards = [("a", 0.5), ("a", None), ("b", 0.5), ("b", 1.0), ("c", 0.0), ("c", 0.5)]
    pairs = [(prompt(name), sample(str(place), reward)) for place, (name, reward) in enumerate(rewards)]
    assert [int(kept.completion) for _, kept in recorded_samples(pairs, samples_per_step)] == expected


def test_negative_samples_per_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WhetError, match="samples_per_step is -1"):
        RunRecorder(tmp_path, samples_per_step=-1)


def test_evaluations_are_lines_of_their_own(tmp_path: Path) -> None:
    record = RunRecorder(tmp_path)
    record.evaluated(0, "held_out", {"accuracy": 0.25}, 1.5)
    record.stepped(report(1), [])
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])["eval"] == "held_out"
    (found,) = eval_records(read_metrics(tmp_path))
    assert (found.step, found.name, found.result, found.seconds) == (0, "held_out", {"accuracy": 0.25}, 1.5)
    assert [step.step for step in step_reports(read_metrics(tmp_path))] == [1]


def test_torn_last_line_is_ignored_and_not_grown_onto(tmp_path: Path) -> None:
    record = RunRecorder(tmp_path)
    record.stepped(report(1), [])
    record.close()
    with (tmp_path / "metrics.jsonl").open("ab") as log:
        log.write(b'{"step": 2, "policy')
    assert [line["step"] for line in read_metrics(tmp_path)] == [1]
    RunRecorder(tmp_path).stepped(report(2), [])
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2]


def test_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\nnonsense\n{"step": 2}\n')
    with pytest.raises(WhetError, match=r"metrics\.jsonl:2"):
        read_metrics(tmp_path)


def test_truncating_to_a_position_gives_the_bytes_of_that_moment(tmp_path: Path) -> None:
    record = RunRecorder(tmp_path)
    record.stepped(report(1), [(prompt("a"), sample("one", 1.0))])
    position = record.position()
    written = {name for name, each in position.items() if each["lines"] == 1}
    assert written == {"metrics.jsonl", "samples.jsonl"} == {path.name for path in tmp_path.iterdir()}
    then = {name: (tmp_path / name).read_bytes() for name in written}
    record.stepped(report(2), [(prompt("b"), sample("two", 0.0))])
    assert len(read_samples(tmp_path)) == 2
    cut_back(tmp_path, position)
    assert {name: (tmp_path / name).read_bytes() for name in written} == then
    # a log that is still open appends at the new end
    record.stepped(report(2), [])
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2]


def test_truncating_a_log_that_lost_lines_is_refused_and_touches_nothing(tmp_path: Path) -> None:
    record = RunRecorder(tmp_path)
    record.stepped(report(1), [(prompt("a"), sample("one", 1.0))])
    position = record.position()
    record.stepped(report(2), [])
    grown = (tmp_path / "metrics.jsonl").read_bytes()
    (tmp_path / "samples.jsonl").unlink()
    with pytest.raises(WhetError, match=r"samples\.jsonl has 0 lines"):
        cut_back(tmp_path, position)
    assert (tmp_path / "metrics.jsonl").read_bytes() == grown


def test_position_of_an_untouched_folder_is_zero(tmp_path: Path) -> None:
    position = RunRecorder(tmp_path).position()
    logs = ("metrics.jsonl", "samples.jsonl", "tokens.jsonl")
    assert {name: each["lines"] for name, each in position.items()} == dict.fromkeys(logs, 0)
    cut_back(tmp_path, position)


def test_lines_that_the_run_did_not_write_are_refused(tmp_path: Path) -> None:
    record = RunRecorder(tmp_path)
    record.stepped(report(1), [(prompt("a"), sample("one", 1.0))])
    position = record.position()
    log = tmp_path / "samples.jsonl"
    log.write_text(log.read_text().replace("one", "two"))
    record.stepped(report(2), [])
    grown = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(WhetError, match=r"samples\.jsonl: its lines are not those that this run wrote"):
        cut_back(tmp_path, position)
    assert (tmp_path / "metrics.jsonl").read_bytes() == grown


def test_the_position_does_not_depend_on_times(tmp_path: Path) -> None:
    positions = []
    for seconds in (0.25, 1234.5):
        record = RunRecorder(tmp_path / str(seconds))
        record.stepped(replace(report(1), seconds={"train": seconds}), [])
        positions.append(record.position())
    assert positions[0] == positions[1]
    cut_back(tmp_path / "0.25", positions[1])


def test_a_folder_or_log_that_was_taken_away_is_lost(tmp_path: Path) -> None:
    record = RunRecorder(tmp_path / "run")
    record.started({"title": "t"})
    record.stepped(report(1), [])
    assert record.lost() is None
    log = tmp_path / "run" / "metrics.jsonl"
    log.rename(tmp_path / "away")
    assert record.lost() == str(log)
    log.write_bytes((tmp_path / "away").read_bytes())  # a copy is another file
    assert record.lost() == str(log)
    (tmp_path / "away").replace(log)
    assert record.lost() is None
    config = tmp_path / "run" / "config.toml"
    complete = RunRecorder(tmp_path / "run", beside=("config.toml",))
    assert complete.lost() == str(config)
    config.touch()
    assert complete.lost() is None
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    (tmp_path / "run").mkdir()
    assert record.lost() == str(tmp_path / "run")


def test_a_line_is_read_for_what_is_as_expected() -> None:
    odd = {"a": "x", "b": 10**400, "c": None, "d": True, "e": 2}
    spans = [["train", 0.0, 1.5], ["train", 0.0], ["train", "0", 1.5], [3, 0.0, 1.5], "train"]
    line = {"step": 3, "counts": {"tokens": 4.0, "samples": None}, "metrics": odd, "spread": {"total": odd, "s": 7}}
    step = recorded({**line, "reward": [1], "timeline": spans, "health": [1, "y" * 9000, *"z" * 99]})
    assert isinstance(step, StepReport) and (step.step, step.policy_version) == (3, 0)
    assert math.isnan(step.metrics["c"]) and {**step.metrics, "c": 0} == {"c": 0, "e": 2}
    assert list(step.spread) == ["total", "s"] and list(step.spread["total"]) == ["c", "e"] and step.spread["s"] == {}
    assert step.counts == {"tokens": 4} and step.reward == step.seconds == step.machine == {}
    assert step.timeline == (("train", 0.0, 1.5),)
    assert (step.health[0], len(step.health[1]), len(step.health)) == ("1", 4000, 50)
    scores = {"accuracy": [1, 0, 0.5], "gaps": [None, 10**400], "other": [1, "x"], "none": 3}
    found = recorded({"step": 0, "eval": "eval", "result": odd, "size": -1, "scores": scores, "seconds": {}})
    assert isinstance(found, EvalRecord) and (found.size, found.seconds, found.result["e"]) == (0, 0.0, 2)
    gaps = found.scores["gaps"]
    assert len(gaps) == 2 and all(map(math.isnan, gaps))
    assert {**found.scores, "gaps": []} == {"accuracy": [1, 0, 0.5], "gaps": [], "other": [], "none": []}
    for neither in ({}, {"step": "3"}, {"step": True}, {"step": -1}, {"step": 3, "eval": 7}):
        assert recorded(neither) is None


def test_fields_of_a_summary_that_have_another_type_are_left_out(tmp_path: Path) -> None:
    good = {"title": "t", "started": 1e9, "total_steps": 3, "objective": [], "newer": {"x": 1}, "finished": None}
    odd = {"facts": "odd", "status": 3, "tokens": "x", "settings": [], "memory": {}}
    odd |= {"seconds": {"train": "x", "rollout": 2}, "before": {"accuracy": None}, "after": {"a": 10**400}}
    (tmp_path / "run.json").write_text(json.dumps({**good, **odd}))
    kept = {"seconds": {"rollout": 2}, "before": {"accuracy": None}, "after": {}}
    assert read_summary(tmp_path) == {**good, **kept}
    (tmp_path / "run.json").write_text('{"started": -1, "finished": 1e11, "title": "t"}')
    assert read_summary(tmp_path) == {"title": "t"}


def test_summary_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = RunRecorder(tmp_path / "new")
    record.started({"title": "t", "before": {"accuracy": math.nan}})
    assert read_summary(tmp_path / "new") == {
        "status": "running",
        "finished": None,
        "title": "t",
        "before": {"accuracy": None},
    }

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        record.finished({"tokens": 3})
    assert read_summary(tmp_path / "new")["status"] == "running"
    monkeypatch.undo()
    record.finished({"tokens": 3})
    assert read_summary(tmp_path / "new")["status"] == "finished"
    assert read_summary(tmp_path / "new")["title"] == "t"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["run.json"]


def test_folder_without_a_summary_is_named(tmp_path: Path) -> None:
    with pytest.raises(WhetError, match=r"has no run\.json"):
        read_summary(tmp_path)


def test_a_summary_or_log_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(b"[" * 100_000)
    with pytest.raises(WhetError, match=r"run\.json is not JSON"):
        read_summary(tmp_path)
    (tmp_path / "run.json").unlink()
    for name in ("run.json", "metrics.jsonl"):
        (tmp_path / name).mkdir()
    with pytest.raises(WhetError, match=r"run\.json cannot be read"):
        read_summary(tmp_path)
    with pytest.raises(WhetError, match=r"metrics\.jsonl is not a file"):
        read_metrics(tmp_path)
