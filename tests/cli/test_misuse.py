"""What the command line does not take is one line with the fix and exit code 2; a bare command shows its help."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile

import pytest
from typer.core import TyperGroup
from typer.testing import CliRunner

from tests.support.for_every import for_every
from whet.cli import Stopped, _ending, _fill_streams, app


def ending(*words: str) -> tuple[int, str]:
    try:
        app(list(words), standalone_mode=False)
    except BaseException as error:
        return _ending(error)
    return 0, ""


@for_every(
    [
        (("bench", "--seconds", "nan"), "'--seconds'", "whet bench -h"),
        (("train", "grpo", "--steps", "0"), "'--steps'", "whet train -h"),
        (("train", "grpo", "--bogus"), "no such option: --bogus", "whet train -h"),
        (("eval", "--output_dir", "x"), "no such option: --output_dir", "whet eval -h"),
        (("train",), "missing", "whet train -h"),
        (("reward", "test", "--limit", "many"), "'--limit'", "whet reward test -h"),
        (("trian",), "'train'", "whet -h"),
    ]
)
def test_one_line_names_the_option_and_the_help(words, said, command):
    code, line = ending(*words)
    assert code == 2
    assert said in line and command.removeprefix("whet ") in line
    assert line.endswith("shows what it takes") and "\n" not in line


@for_every(
    [
        (("--lr", "1"), "--lr; give --set optimizer.learning_rate=VALUE"),
        (("--learning-rate", "1"), "--learning-rate; give --set optimizer.learning_rate=VALUE"),
        (("--output_dir", "x"), "--output_dir; give --folder"),
        (("--batch.group_size=4",), "--batch.group_size; give --set batch.group_size=VALUE"),
        (("--resume",), "--resume; `whet resume RUN` or whet.resume(folder) continues a run"),
    ]
)
def test_options_of_other_trainers_are_answered_with_ours(words, expected):
    assert ending("train", "grpo", *words) == (2, f"no such option: {expected}")


@for_every(
    [
        ("algorithms",),
        ("explain", "dapo"),
        ("advise", "--signal", "verifiable", "--model-size", "7", "--memory", "80", "--completion-tokens", "8000"),
        ("pipeline",),
        ("reward", "list"),
        ("data", "-h"),
        ("-h",),
    ]
)
def test_what_a_terminal_lists_is_whole_and_fits_it(*words):
    printed = CliRunner().invoke(app, words, env={"COLUMNS": "80"}).output.splitlines()
    prose = [line for line in printed if not line.startswith("  whet ")]  # a command is copied, in one line
    assert len(printed) > 10 and max(map(len, prose)) <= 80
    assert not [line for line in prose[1:] if line.endswith("...")]


def test_a_command_of_an_earlier_version_says_what_it_is_called_now():
    assert ending("study", "overoptimization")[1].endswith("is called `whet pipeline overoptimization` now")


def test_all_unknown_options_are_named_at_once(monkeypatch):
    words = ("train", "grpo", "--learning_rate", "1e-6", "--wandb", "--gpuz=2", "--steps", "3", "--foldr", "x")
    monkeypatch.setattr(sys, "argv", ["whet", *words])
    assert ending(*words)[1].startswith(
        "no such options: --learning_rate (give --set optimizer.learning_rate=VALUE), --wandb (give --set "
        "report.trackers=VALUE (wandb)), --gpuz, --foldr (did you mean --folder?); `"
    )


def test_a_closed_stream_is_dev_null_and_no_file_of_a_run_gets_its_number(monkeypatch):
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    _fill_streams()
    opened = (sys.stdin, sys.stdout, sys.stderr)
    assert sys.stdin.read() == "" and print("nothing", file=sys.stdout, flush=True) is None
    assert {os.readlink(f"/proc/self/fd/{stream.fileno()}") for stream in opened} == {os.devnull}
    assert all(os.get_inheritable(stream.fileno()) for stream in opened)
    for stream in opened:
        stream.close()


@for_every(["make_context", "invoke"])
def test_an_interruption_says_so_while_options_are_read_too(method):
    """typer makes a silent exit of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TyperGroup, method, lambda *_, **__: (_ for _ in ()).throw(Stopped(signal.SIGTERM)))
        assert ending("train", "grpo") == (143, "stopped by SIGTERM; nothing was changed")


def test_a_working_folder_that_is_gone_is_named(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(FileNotFoundError) as raised:
        os.getcwd()
    line = "the folder that this command was started in is gone; `cd` into another one"
    assert _ending(raised.value) == (1, line)
    monkeypatch.chdir(tmp_path)
    assert _ending(raised.value) != (1, line)


def test_no_more_threads_is_said_with_the_fix(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code, line = _ending(RuntimeError("can't start new thread"))
    assert code == 1 and line.startswith("no more threads at ") and "; raise the limit (ulimit -u" in line


def test_the_command_itself_ends_with_code_2_and_one_line():
    done = subprocess.run(
        [sys.executable, "-m", "whet", "bench", "--seconds", "nan"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("whet: ") and len(done.stderr.splitlines()) == 1


def test_the_shell_completes_commands_and_options():
    program = "import sys; sys.argv = ['whet']; from whet.cli import main; main()"
    for words, expected in (("whet mig", "migrate"), ("whet train --fo", "--folder")):
        asked = {"_WHET_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env={**os.environ, **asked}
        )
        assert done.stdout.split() == [expected], done.stderr


def test_a_bare_command_shows_its_help(capsys):
    code, line = ending("reward")
    assert (code, line) == (2, "")
    shown = capsys.readouterr()
    assert "Usage" in shown.out + shown.err
