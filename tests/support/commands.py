"""whet commands as processes of their own, forked from one that has imported whet: half a second instead of five.

That one is forked itself, from the process that has collected the tests, before it runs any (`fork_server`).

They are killed, interrupted and resumed as `python -m whet` is. What is said of a process that starts from nothing
(its imports, its environment, a script) is tested with `subprocess`.
"""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path
from unittest import mock

FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["tests.support.warm_start"])


def warm_up() -> None:
    """Import what commands import, and make their small run; once per process, and copies of it have it."""
    importlib.import_module("tests.support.warm_start").run_once()


def fork_server() -> None:
    """Start the server as a copy of this process, with its imports; without this it starts anew when it is needed."""
    warm_up()
    resource_tracker.ensure_running()
    with mock.patch.object(util, "spawnv_passfds", _copied), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which hold nothing of ours
        forkserver.ensure_running()


def _copied(_program: str, _arguments: Sequence[str], passed: Sequence[int]) -> int:
    if process := os.fork():
        return process
    try:
        faulthandler.disable()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in map(int, os.listdir("/proc/self/fd")):
            if number > 2 and number != nowhere and number not in passed:
                # whoever waits for the tests to end must not wait for this process; the number stays taken, as an
                # object that was copied too may close it once more when it is collected
                with suppress(OSError):
                    os.dup2(nowhere, number, inheritable=False)
        forkserver._forkserver.__init__()  # its lock is held by the copied process
        forkserver.main(*passed, ["tests.support.warm_start"])
    finally:
        os._exit(0)


class Command:
    """A running `whet WORDS`, or `python WORDS` where the first word is a script."""

    def __init__(self, words: tuple[str, ...], folder: Path | None = None, **environment: str) -> None:
        self._notes = tempfile.TemporaryDirectory()
        places = [str(Path(self._notes.name) / name) for name in ("stdout", "stderr")]
        self._process = FORK.Process(target=_obey, args=(words, str(folder or Path.cwd()), environment, *places))
        self._process.start()

    def poll(self) -> int | None:
        """The exit code; negative: the signal that it died of."""
        return self._process.exitcode

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float = 300) -> int:
        self._process.join(timeout)
        assert self._process.exitcode is not None, "the command did not end"
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    @property
    def stdout(self) -> str:
        return self._printed("stdout")

    @property
    def stderr(self) -> str:
        return self._printed("stderr")

    def _printed(self, name: str) -> str:
        place = Path(self._notes.name) / name
        return place.read_text(errors="replace") if place.exists() else ""


def started(*words: str, folder: Path | None = None, **environment: str) -> Command:
    """`whet WORDS` in a folder, with further environment variables; packages of a PYTHONPATH are found first."""
    return Command(words, folder, **environment)


def finished(*words: str, folder: Path | None = None, **environment: str) -> Command:
    """`started`, and waited for."""
    command = Command(words, folder, **environment)
    command.wait()
    return command


def _obey(words: tuple[str, ...], folder: str, environment: dict[str, str], output: str, errors: str) -> None:
    """Run one command in the forked process, which ends as the command does."""
    if "tests.support.warm_start" not in sys.modules:  # a fork server says nothing of what it could not import
        importlib.import_module("tests.support.warm_start")
        raise RuntimeError("commands are forked from a process that has not imported tests.support.warm_start")
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in a shell's background
    sys.path[:0] = [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]
    for number, place in ((1, output), (2, errors)):
        file = os.open(place, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    if words[0].endswith(".py"):
        sys.argv = list(words)
        runpy.run_path(words[0], run_name="__main__")
        return
    sys.argv = ["whet", *words]
    from whet.cli import main

    main()
