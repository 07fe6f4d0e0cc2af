"""The console: plain lines in a pipe, a live display on a terminal, and a terminal left as it was found."""

from __future__ import annotations

import io
import math
import os
import re
import subprocess
import sys
import time

import pytest

from whet.api.inputs import check_callbacks
from whet.record.console import Console
from whet.record.text import duration, metric_text, number, quantity, sparkline
from whet.types import StepReport

SUMMARY = {
    "title": "[bold]odd[/bold] title",
    "objective": ["maximise the reward", "loss = - SUM_it share[i,t] * logp"],
    "facts": {"model": "tiny", "dtype": "float32"},
    "total_steps": 3,
}
CLOSING = {
    **SUMMARY,
    "status": "finished",
    "before": {"accuracy": 0.25},
    "after": {"accuracy": 0.75},
    "seconds": {"rollout": 30.0, "train": 10.0, "start_up": 2.0},
    "tokens": 4200,
    "memory": 2.5e9,
    "report": "runs/a/report.html",
    "next": "whet show runs/a",
}


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def report(step: int, health: tuple[str, ...] = ()) -> StepReport:
    metrics = {"kl": 0.0125, "entropy": 1.5}
    counts = {"samples": 10, "tokens": 400}
    return StepReport(step, step - 1, counts, {"total": 0.2 * step}, metrics, health, {"rollout": 1.5, "train": 0.5})


def watch(console: Console, health: tuple[str, ...] = ()) -> None:
    console.started(SUMMARY)
    console.evaluated(0, "eval", {"accuracy": 0.25}, 1.0)
    for step in (1, 2, 3):
        console.stepped(report(step, health), [])
    console.finished(CLOSING)


def test_console_is_a_reporter() -> None:
    check_callbacks([Console(io.StringIO())])


def test_a_run_of_less_than_a_second_says_where_its_time_went() -> None:
    stream = io.StringIO()
    Console(stream).finished({**CLOSING, "seconds": {"rollout": 0.4, "train": 0.1}})
    assert "time" in stream.getvalue() and "8,400 per second" in stream.getvalue()


def test_a_run_without_an_evaluation_says_what_would_make_one() -> None:
    def said(prompts: int) -> str:
        stream = io.StringIO()
        nothing = {**CLOSING, "before": {}, "after": {}, "settings": {"eval.prompts": prompts}}
        Console(stream).finished(nothing)
        return next(line for line in stream.getvalue().splitlines() if "not evaluated" in line)

    assert "give eval.source" in said(200) and said(0).endswith("eval.prompts is 0")


def test_pipe_gets_plain_lines() -> None:
    stream = io.StringIO()
    watch(Console(stream, seconds_between_lines=0))
    text = stream.getvalue()
    assert "\x1b" not in text
    assert "whet  [bold]odd[/bold] title" in text and "share[i,t]" in text
    assert "eval at step 0  accuracy 25.0%" in text
    lines = [line for line in text.splitlines() if line.startswith("step ")]
    assert lines[1].startswith(
        "step 2/3  reward 0.400  tokens/s 200  KL 0.013 nats  entropy 1.50 nats  length 40.0 tokens"
    )
    assert len(lines) == 3
    assert "25.0% → 75.0%" in text and "runs/a/report.html" in text and "whet show runs/a" in text
    assert re.search(r"rollout +█+ +30 s +71%", text) and "100 per second, 140 while generating" in text


def test_fast_steps_are_thinned_but_the_last_is_shown() -> None:
    stream = io.StringIO()
    watch(Console(stream, seconds_between_lines=60))
    assert re.findall(r"^step (\d)/3", stream.getvalue(), re.MULTILINE) == ["1", "3"]


def test_finding_is_told_once() -> None:
    stream = io.StringIO()
    watch(Console(stream), ("KL is 3: cause; fix.",))
    assert stream.getvalue().count("KL is 3") == 1


def test_the_best_is_of_all_evaluations_though_the_kind_of_run_is_known_from_the_first_step_on() -> None:
    stream = io.StringIO()
    console = Console(stream)
    console.started({**SUMMARY, "eval_size": 40})
    for step, ordered in ((0, 0.5), (3, 0.125), (6, 0.125)):
        if step:
            console.stepped(StepReport(step, step - 1, {"rows": 8}, {}, {"chosen_logp": -9.0, "loss": 0.7}), [])
        console.evaluated(step, "eval", {"pair_accuracy": ordered, "accuracy": 0.05}, 1.0)
    best = "pair accuracy 12.5% (5.5-26.1), best 50.0% (35.2-64.8) at step 0"
    assert stream.getvalue().count(best) == 2


def test_an_evaluation_that_could_not_be_scored_is_never_the_best() -> None:
    stream = io.StringIO()
    console = Console(stream)
    console.started(SUMMARY)
    for step, reward in ((0, math.nan), (3, 0.5), (6, 0.25), (9, math.nan)):
        console.evaluated(step, "eval", {"reward": reward}, 1.0)
    assert re.findall("reward .*?(?=  )", stream.getvalue()) == [
        "reward -",
        "reward 0.500",
        "reward 0.250, best 0.500 at step 3",
        "reward -",
    ]


def test_stream_without_unicode_is_served() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    watch(Console(stream))
    assert b"25.0% -> 75.0%" in raw.getvalue() and b"####" in raw.getvalue()


class FullDisk(io.StringIO):
    """What `> log` is on a full disk, /dev/full for one."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_run_goes_on_where_stdout_is_closed_or_full(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (None, FullDisk()):
        monkeypatch.setattr(sys, "stdout", stream)
        watch(Console())


def test_terminal_gets_a_display_within_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Screen()
    watch(Console(screen), ("A finding that is rather long: " + "because " * 12 + "; fix.",))
    text = screen.getvalue()
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    assert "step 3/3" in plain and "100%" in plain and "reward 0.600 ▁" in plain and "accuracy 25.0%" in plain
    assert max(len(line) for line in re.split(r"[\r\n]+", plain)) <= 80
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", text)


def test_cursor_is_shown_while_the_display_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    with Console(screen) as console:
        console.started(SUMMARY)
        console.stepped(report(1), [])
        assert screen.getvalue().rfind("\x1b[?25h") > screen.getvalue().rfind("\x1b[?25l")
        assert "\x1b[?1049h" not in screen.getvalue()


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo terminal")
def test_control_c_leaves_the_terminal_sane() -> None:
    import pty

    code = (
        "import time\nfrom whet.record.console import Console\nfrom whet.types import StepReport\n"
        "c = Console(); c.started({'title': 't', 'total_steps': 9})\n"
        "c.stepped(StepReport(1, 0, {}, {'total': 0.5}, {}), [])\ntime.sleep(0.6)\nraise KeyboardInterrupt\n"
    )
    main, side = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=side, stdout=side, stderr=side, env={**os.environ, "TERM": "xterm"}
    )
    os.close(side)
    seen, deadline = b"", time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            block = os.read(main, 65536)
        except OSError:
            break
        if not block:
            break
        seen += block
    os.close(main)
    assert process.wait(10) != 0
    assert b"step 1/9" in seen and b"KeyboardInterrupt" in seen
    assert seen.rfind(b"\x1b[?25h") > seen.rfind(b"\x1b[?25l")


def test_numbers_as_people_read_them() -> None:
    assert [number(value) for value in (None, 0.0, 1234.6, 0.5, 1e-6, -12.34)] == [
        "-", "0", "1,235", "0.500", "1e-06", "-12.3"
    ]  # fmt: skip
    assert [duration(value) for value in (0.25, 3.0, 10.0, 59.6, 125, 3725)] == [
        "0.25 s", "3.0 s", "10 s", "1 min 00 s", "2 min 05 s", "1 h 02 min"
    ]  # fmt: skip
    assert [quantity(value) for value in (950, 12_300, 4_560_000, 2e9)] == ["950", "12.3 k", "4.56 M", "2 G"]
    assert metric_text("accuracy", 0.5) == "50.0%" and metric_text("loss", 0.5) == "0.500"


def test_sparkline() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline(list(range(100)), width=4)[0] == "▁" and len(sparkline(list(range(100)), width=4)) == 4
    assert sparkline([]) == "" and len(set(sparkline([2.0, 2.0, float("nan")]))) == 1


def test_a_finding_is_told_once_however_its_numbers_move() -> None:
    stream = io.StringIO()
    console = Console(stream)
    console.started(SUMMARY)
    for step in (1, 2, 3):
        console.stepped(report(step, (f"both fall, chosen -170.2 -> -17{step}.6 nats", f"other, {step}%")), [])
    console.finished(CLOSING)
    text = stream.getvalue()
    assert text.count("both fall") == text.count("other") == 1
    assert "2.50 GB" in text


def test_a_stream_that_is_closed_does_not_stop_the_run():
    stream = io.StringIO()
    console = Console(stream)
    console.started({"total_steps": 2})
    stream.close()
    for step in (1, 2):
        console.stepped(StepReport(step, step, {"samples": 1}, {"total": 0.5}, {}), [])
    console.evaluated(2, "eval", {"accuracy": 1.0}, 0.1)
    console.finished({"status": "finished"})
