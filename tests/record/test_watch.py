"""The frame of `whet watch`: what it shows, how it fits, and what it does with words it should not trust."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from whet.api.watching import watched_run
from whet.cli import app
from whet.record.log import RunRecorder
from whet.record.run_folder import locked
from whet.record.watch import WatchFrame, frame_lines, plain
from whet.types import StepReport, WhetError

HOSTILE = "\x1b[2J\x1b]0;owned\x07<b>hi</b>\u202e right\r\nnext"


def write_run(folder: Path, steps: int = 30, status: str | None = None, health: str = "") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('method = "grpo"\n')
    record = RunRecorder(folder)
    record.started({"title": f"GRPO {HOSTILE}", "total_steps": 60, "started": time.time() - 100})
    record.evaluated(0, "eval", {"accuracy": 0.1}, 0.2)
    for step in range(1, steps + 1):
        found = (health,) if health and step == steps else ()
        metrics = {"kl": 0.001 * step, "entropy": 1.0 / step}
        seconds = {"rollout": 1.0, "train": 1.0}
        counts = {"samples": 8, "tokens": 800}
        record.stepped(StepReport(step, step, counts, {"total": step / 60}, metrics, found, seconds), [])
    record.evaluated(steps, "eval", {"accuracy": 0.6}, 0.2)
    with (folder / "samples.jsonl").open("a") as file:
        for reward in (0.0, 1.0):
            line = {"step": steps, "prompt_id": "a", "question": f"q {HOSTILE}", "completion": f"{reward} {HOSTILE}"}
            file.write(json.dumps({**line, "parts": {}, "reward": reward, "tokens": 3, "stop": "end"}) + "\n")
    if status:
        record.finished({"status": status})
    record.close()
    return folder


def texts(frame: WatchFrame, width: int = 80, height: int = 24, unicode: bool = True) -> list[str]:
    return [line.plain for line in frame_lines(frame, width, height, unicode)]


def test_a_frame_has_the_essentials(tmp_path: Path) -> None:
    advice = "a rule of before: the KL rose to 3 nats: the policy leaves its reference; raise objective.kl.coefficient."
    with locked(write_run(tmp_path / "run", health=advice)):
        shown = "\n".join(texts(watched_run(tmp_path / "run")))
    assert "running" in shown and "step 30/60" in shown and "50%" in shown and "1 min 00 s left" in shown
    assert "eval at step 30  accuracy 60.0% (from 10.0%)" in shown
    assert "reward" in shown and "▁" in shown and "█" in shown and "0.500  from 0.017" in shown
    shown = " ".join(shown.split())
    assert "! a rule of before" in shown and "raise objective.kl.coefficient." in shown
    assert "rollout 50% train 50%" in shown and "397 tokens/s" in shown
    assert "best 1.00" in shown and "worst 0" in shown


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (20, 3), (80, 1)])
def test_a_frame_fits_and_gives_up_the_least_first(tmp_path: Path, width: int, height: int) -> None:
    with locked(write_run(tmp_path / "run", health="KL runaway: " + "word " * 50)):
        shown = texts(watched_run(tmp_path / "run"), width, height)
    assert len(shown) <= height and all(len(line) <= width for line in shown)
    assert shown[0].startswith("GRPO")
    if height >= 3:
        assert shown[1].startswith("step 30/60")


@pytest.mark.parametrize("width", [100, 60, 50])
def test_the_bar_leaves_room_for_the_time_that_is_left(tmp_path: Path, width: int) -> None:
    with locked(write_run(tmp_path / "run")):
        line = texts(watched_run(tmp_path / "run"), width)[1]
    assert line.endswith("1 min 00 s left") and line.count("█") == line.count("░") > 1


def test_words_of_a_run_do_not_command_the_terminal(tmp_path: Path) -> None:
    shown = "\n".join(texts(watched_run(write_run(tmp_path / "run"))))
    assert "\x1b" not in shown and "\x07" not in shown and "\u202e" not in shown and "\r" not in shown
    assert "<b>hi</b>" in shown  # words stay words
    assert plain("a\x1b[31mb\tc\n\nd") == "a[31mb c d"


def test_without_utf8_a_frame_is_ascii(tmp_path: Path) -> None:
    assert "\n".join(texts(watched_run(write_run(tmp_path / "run")), unicode=False)).isascii()


def test_a_run_whose_process_is_gone_is_interrupted(tmp_path: Path) -> None:
    assert watched_run(write_run(tmp_path / "run")).status == "interrupted"
    assert watched_run(write_run(tmp_path / "done", status="finished")).status == "finished"


def test_half_a_line_is_not_there_yet(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 31, "policy')
    assert watched_run(run).run.num_steps == 30


def test_what_cannot_be_watched_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(WhetError, match="no such folder"):
        watched_run(tmp_path / "nowhere")
    with pytest.raises(WhetError, match="not a run folder"):
        watched_run(tmp_path)
    run = write_run(tmp_path / "newer")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 31, "of": "tomorrow"}\n')
    with pytest.raises(WhetError, match="not as this version writes them"):
        watched_run(run)
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    (fresh / "config.toml").write_text('method = "grpo"\n')
    with locked(fresh):
        assert "starting: no step yet" in "\n".join(texts(watched_run(fresh)))


def test_a_pipeline_shows_its_stage(tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text("")
    stages = [{"name": "sft", "seconds": 0.0}, {"name": "grpo", "seconds": None}]
    (tmp_path / "pipeline.json").write_text(json.dumps({"name": "r1", "status": "running", "stages": stages}))
    with pytest.raises(WhetError, match=r"no stage of the pipeline r1 trains yet \(1 of 2 done\)"):
        watched_run(tmp_path)
    write_run(tmp_path / "01-sft" / "run", status="finished")
    time.sleep(0.02)
    write_run(tmp_path / "02-grpo" / "run")
    with locked(tmp_path):
        frame = watched_run(tmp_path)
    assert frame.status == "running" and frame.above == "pipeline r1  running, 1 of 2 stages done  stage 02-grpo"


def test_without_a_terminal_it_prints_one_frame_and_ends(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["watch", str(write_run(tmp_path / "run", status="finished"))])
    assert result.exit_code == 0 and "step 30/60" in result.output and "\x1b" not in result.output
    assert " ".join(result.output.split()).count("rose from 10.0% to 60.0%") == 1  # the verdict
    assert max(map(len, result.output.splitlines())) <= 80
    missing = CliRunner().invoke(app, ["watch", str(tmp_path / "none"), "--once"])
    assert isinstance(missing.exception, WhetError)


@pytest.mark.slow
def test_in_a_terminal_it_follows_the_run_to_its_end(tmp_path: Path) -> None:
    pexpect = pytest.importorskip("pexpect")
    run = write_run(tmp_path / "run", steps=3)
    holder = subprocess.Popen(
        [sys.executable, "-c", f"import fcntl,sys; f=open({str(run / 'lock')!r},'w'); fcntl.flock(f,fcntl.LOCK_EX);"
         "print('locked',flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None and holder.stdout.readline() == b"locked\n"
    try:
        command = [sys.executable, "-m", "whet", "watch", str(run), "--every", "0.2"]
        child = pexpect.spawn(command[0], command[1:], dimensions=(24, 80), timeout=60, encoding="utf-8")
        child.expect("step 3/60")
        record = RunRecorder(run)
        record.stepped(StepReport(4, 4, {"samples": 8, "tokens": 8}, {"total": 0.9}, {}, (), {"train": 1.0}), [])
        child.expect("step 4/60")
        record._summary = {"title": "GRPO", "total_steps": 60}
        record.finished({"status": "finished"})
        child.expect("It took 4 steps")  # the verdict
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == 0
    finally:
        assert holder.stdin is not None
        holder.stdin.close()
        holder.wait()
