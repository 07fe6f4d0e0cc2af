"""`whet doctor`: what it says about ill, healthy, running, damaged and old run folders."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.health_cases import CASES, Course, after
from whet.cli import app
from whet.pages.board.reader import RunReader
from whet.record.doctor import doctor_report, doctor_text
from whet.record.health.diagnosis import RULES, diagnosis
from whet.record.log import RunRecorder
from whet.record.run import read_run
from whet.record.run_folder import locked
from whet.types import StepReport, WhetError

SETTINGS = {"optimizer.learning_rate": 1e-4, "sampling.temperature": 1.0, "objective.clip.high": 0.2}


def written(folder: Path, course: Course, status: str = "finished", **summary: object) -> Path:
    """A run folder, with the problems that each step shows recorded as a run does."""
    steps = course.reports(course.steps)
    record = RunRecorder(folder, 1)
    record.started({"title": "GRPO", "method": "grpo", "total_steps": 30, "settings": SETTINGS, **summary})
    for place, step in enumerate(steps, 1):
        record.stepped(replace(step, health=diagnosis(steps[:place], settings=SETTINGS)), [])
    if status == "finished":
        record.finished({"status": status})
    return folder


def ill(folder: Path, **options: object) -> Path:
    return written(folder, CASES["entropy collapse"].ill, **options)


def test_a_problem_is_explained_with_its_steps_settings_and_a_command_that_exists(tmp_path: Path) -> None:
    report = doctor_report(ill(tmp_path / "a run"))
    names = [span.finding.name for span in report.problems]
    assert names == ["entropy collapse"] and not report.is_healthy
    span = report.problems[0]
    assert (span.first, span.num_steps, span.finding.changes[0]) == (14, 17, "optimizer.learning_rate=3e-05")
    text = doctor_text(report)
    for part in (
        "since         step 14",
        "has stopped exploring",
        "normal when",
        "from 0.0001 to 3e-05",
    ):
        assert part in text
    assert max(len(line) for line in text.splitlines()[1:] if not line.startswith("  try")) <= 80
    command = next(line for line in text.splitlines() if line.startswith("  try")).split(maxsplit=1)[1]
    words = shlex.split(command)
    assert words[:3] == ["whet", "train", "grpo"] and f"{tmp_path / 'a run'}/config.toml" in words
    assert words[-2:] == ["--set", "optimizer.learning_rate=3e-05"]
    with locked(ill(tmp_path / "b", status="running")):
        running = doctor_text(doctor_report(tmp_path / "b"))
    assert "--accept-changes" in running and "whet resume" in running and "running, looked" in running


def test_a_run_that_failed_or_was_killed_is_not_healthy_and_its_error_is_the_headline(tmp_path: Path) -> None:
    course = CASES["flat reward"].well["it rises"]
    failed = written(tmp_path / "failed", replace(course, steps=5), status="running")
    (failed / "error.log").write_text("Traceback")
    summary = json.loads((failed / "run.json").read_text())
    (failed / "run.json").write_text(json.dumps({**summary, "status": "failed", "error": "unexpected KeyError: 'x'"}))
    report = doctor_report(failed)
    assert not report.is_healthy and report.status == "failed"
    assert report.story.headline == "The run failed after step 5: unexpected KeyError: 'x'"
    assert str(failed / "error.log") in doctor_text(report) and f"whet resume {failed}" in doctor_text(report)
    killed = written(tmp_path / "killed", replace(course, steps=5), status="running")
    (killed / "scoring.txt").write_bytes(b"reward 'mine' was judging prompt 'p7'" + b"\0" * 100)
    report = doctor_report(killed)
    assert report.status == "interrupted" and not report.is_healthy
    assert "was killed after step 5" in report.story.headline and "prompt 'p7'" in report.story.evidence[0]
    assert read_run(killed).story() == report.story and read_run(failed).story().state == "failed"
    (killed / "metrics.jsonl").unlink()
    (killed / "run.json").unlink()
    with locked(killed), pytest.raises(WhetError, match="is starting"):
        doctor_report(killed)
    assert RunReader(killed).status() == "damaged"
    with locked(killed):
        assert RunReader(killed).status() == "running"


def test_a_healthy_run_is_called_so_with_what_was_looked_at_and_what_could_not_be(tmp_path: Path) -> None:
    healthy = Course(CASES["flat reward"].well["it rises"].reward, {"entropy": 0.5, "kl": 0.01, "gradient_norm": 1.0})
    report = doctor_report(written(tmp_path, healthy))
    assert report.is_healthy and {"entropy collapse", "KL runaway", "flat reward"} <= set(report.looked_at)
    assert report.not_seen["critic misfit"] == ("metrics.critic_explains",)
    assert not set(report.looked_at) & set(report.not_seen) and set(report.not_seen) <= set(RULES)
    text = " ".join(doctor_text(report).split())  # however it is wrapped
    assert "healthy: " in text and "critic misfit (critic_explains)" in text


def test_it_looks_back_at_an_earlier_step(tmp_path: Path) -> None:
    folder = ill(tmp_path)
    assert doctor_report(folder, 13).is_healthy and doctor_report(folder, 14).problems[0].first == 14
    with pytest.raises(WhetError, match="no step up to step 0"):
        doctor_report(folder, 0)


def test_what_is_over_is_said_and_what_an_older_version_did_not_record_is_found(tmp_path: Path) -> None:
    spike = Course({"total": after(12, 0.4, -9.0)}, {"gradient_norm": lambda step: 50.0 if step == 12 else 1.0})
    over = doctor_report(written(tmp_path / "over", replace(spike, steps=15)))
    assert [(span.finding.name, span.first, span.last) for span in over.over] == [("gradient spike", 12, 12)]
    folder = ill(tmp_path / "old")
    lines = [{**json.loads(line), "health": []} for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert doctor_report(folder).problems[0].first == 10


def test_what_held_until_just_now_is_told_and_what_only_older_rules_said_is_not(tmp_path: Path) -> None:
    late = Course(metrics={"sampler_gap": lambda step: 0.01 if 10 <= step <= 28 else 1e-6})
    report = doctor_report(written(tmp_path / "late", late))
    assert report.story.cause.finding.name == "sampler gap" and report.story.change and not report.is_healthy
    folder = written(tmp_path / "old", CASES["flat reward"].well["it rises"])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    said = ["flat reward: it is flat: too slow; raise optimizer.learning_rate."]
    text = "".join(json.dumps({**line, "health": said if line["step"] > 20 else []}) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    report = doctor_report(folder)
    assert report.is_healthy and [span.finding.name for span in report.over] == ["flat reward"]


def test_a_damaged_folder_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    folder = ill(tmp_path / "run")
    log = folder / "metrics.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:12], b"\x00garbage\n", b'{"step": "x"}\n', b"[1]\n", *lines[12:], lines[0][:40]]))
    (folder / "run.json").write_text("{")
    report = doctor_report(folder)
    assert [span.finding.name for span in report.problems] == ["entropy collapse"]
    assert len(report.damage) == 2 and "3 lines" in report.damage[1] and "settings" in report.damage[0]
    assert report.problems[0].finding.changes == ()  # nothing is known of its settings
    (folder / "run.json").unlink()
    assert doctor_report(folder).status == "interrupted"
    with pytest.raises(WhetError, match="give the folder of a run"):
        doctor_report(tmp_path)
    (folder / "metrics.jsonl").write_text("")
    with pytest.raises(WhetError, match="nothing to look at"):
        doctor_report(folder)


@pytest.mark.parametrize("name", ["likelihood displacement", "guessing", "loss rises", "overfitting"])
def test_runs_of_every_kind(tmp_path: Path, name: str) -> None:
    course = CASES[name].ill
    folder = written(tmp_path, course)
    with (folder / "metrics.jsonl").open("a") as log:
        for step, result in course.evals:
            log.write(json.dumps({"step": step, "eval": "eval", "result": result, "seconds": {"evaluate": 1.0}}) + "\n")
    assert name in [span.finding.name for span in doctor_report(folder).problems]


def test_terminal_codes_in_names_are_not_passed_on(tmp_path: Path) -> None:
    folder = written(tmp_path, CASES["entropy collapse"].ill, title="\x1b[31mred\x07")
    assert "\x1b" not in doctor_text(doctor_report(folder)) and "\x07" not in doctor_text(doctor_report(folder))


def test_the_exit_code_says_whether_a_problem_holds(tmp_path: Path) -> None:
    sick, well = ill(tmp_path / "sick"), written(tmp_path / "well", CASES["flat reward"].well["it rises"])
    runner = CliRunner()
    found = runner.invoke(app, ["doctor", str(sick), "--json"])
    values = json.loads(found.stdout)
    assert found.exit_code == 1 and values["problems"][0]["since"] == 14 and not values["healthy"]
    assert values["story"]["command"].endswith("--set optimizer.learning_rate=3e-05")
    assert runner.invoke(app, ["doctor", str(well)]).exit_code == 0
    assert runner.invoke(app, ["doctor", str(sick), "--step", "9"]).exit_code == 0


def test_a_long_run_takes_no_longer_than_a_short_one() -> None:
    """Of 100,000 steps the rules see a bounded number."""
    from whet.record.flat_rows import ThinnedLog

    log: ThinnedLog[StepReport] = ThinnedLog()
    for step in range(1, 100_001):
        log.append(StepReport(step, step, {"samples": 8}, {"total": 0.5}, {"entropy": 1.0}))
    assert len(log.items()) <= 750 and diagnosis(log.items()) != ()


def test_what_only_the_last_step_lacks_was_recorded(tmp_path: Path) -> None:
    record = RunRecorder(tmp_path)
    record.started({"title": "a run"})
    for step in range(1, 13):
        metrics = {"reward_length_correlation": 0.1} if step < 12 else {}
        record.stepped(StepReport(step, step, {"samples": 8, "tokens": 80}, {"total": 0.1 * step}, metrics), [])
    record.close()
    text = doctor_text(doctor_report(tmp_path))
    assert "reward follows length" not in text and "critic misfit" in text.partition("not looked at")[2]
