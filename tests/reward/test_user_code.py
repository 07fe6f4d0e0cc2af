"""What a reward changes in the process it shares with the training holds for rewards only."""

from __future__ import annotations

import gc
import locale
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy
import pytest
import torch

from whet.registry import imported
from whet.reward import user_code
from whet.reward.call import as_reward
from whet.reward.combine import RewardPart
from whet.reward.failure import RewardFailure
from whet.reward.find import find_reward
from whet.reward.score import score
from whet.types import Prompt, Sample, StopReason, WhetError

PROMPT = Prompt("p1", (), text="q", answer="1")
SAMPLE = Sample(torch.tensor([1]), torch.tensor([True]), torch.zeros(1), (0, 0), StopReason.END, "text")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_code, "_changes", {})
    monkeypatch.setattr(user_code, "_reported", set())
    monkeypatch.setattr(user_code, "_random", None)


def call(function: Callable[[], Any]) -> float | None:
    """Score one sample by a reward that runs this first."""

    def meddling(completion: str) -> float:
        function()
        return 1.0

    return score([PROMPT], [SAMPLE], [RewardPart(as_reward(meddling))], 60.0, "stop")[0].reward


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "gradients": (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
    "inference mode": (lambda: torch.inference_mode().__enter__(), torch.is_inference_mode_enabled),
    "dtype": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
    "device": (lambda: torch.set_default_device("meta"), lambda: str(torch.get_default_device())),
    "threads": (lambda: torch.set_num_threads(torch.get_num_threads() + 1), torch.get_num_threads),
    "deterministic": (lambda: torch.use_deterministic_algorithms(True), torch.are_deterministic_algorithms_enabled),
    "matmul": (lambda: torch.set_float32_matmul_precision("medium"), torch.get_float32_matmul_precision),
    "anomalies": (lambda: torch.autograd.set_detect_anomaly(True), torch.is_anomaly_enabled),
    "torch's random numbers": (lambda: torch.manual_seed(1), lambda: torch.get_rng_state().tolist()),
    "random numbers": (lambda: random.seed(1), random.getstate),
    "numpy's random numbers": (lambda: numpy.random.seed(1), lambda: numpy.random.get_state()[1].tolist()),
    "numpy's errors": (lambda: numpy.seterr(all="raise"), numpy.geterr),
    "folder": (lambda: os.chdir("/"), os.getcwd),
    "environment": (lambda: os.environ.update(WHET_TEST_ENTRY="1"), lambda: dict(os.environ)),
    "removed variable": (lambda: os.environ.pop("PATH"), lambda: dict(os.environ)),
    "warnings": (lambda: warnings.simplefilter("error"), lambda: list(warnings.filters)),
    "locale": (lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"), lambda: locale.setlocale(locale.LC_ALL)),
    "recursion": (lambda: sys.setrecursionlimit(12_345), sys.getrecursionlimit),
    "sockets": (lambda: socket.setdefaulttimeout(3), socket.getdefaulttimeout),
    "garbage": (gc.disable, gc.isenabled),
    "umask": (lambda: os.umask(0), user_code._umask),
    "signals": (lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN), lambda: signal.getsignal(signal.SIGTERM)),
    "stdout": (lambda: setattr(sys, "stdout", None), lambda: sys.stdout),
    "closed stdout": (lambda: sys.stdout.close(), lambda: sys.stdout.closed),
    "closed descriptor": (lambda: os.close(1), lambda: os.fstat(1).st_ino),
    "os._exit": (lambda: setattr(os, "_exit", print), lambda: os._exit),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_run_keeps_its_own(name: str) -> None:
    change, read = CHANGES[name]
    if name == "locale" and locale.setlocale(locale.LC_ALL) == "C.UTF-8":
        pytest.skip("that is the locale already")
    before = read()
    assert call(change) == 1.0
    assert read() == before


def test_the_next_call_finds_what_an_earlier_one_changed() -> None:
    """A reward that sets a key, or goes to its folder, when it is imported."""
    here = os.getcwd()
    call(lambda: (os.environ.update(WHET_TEST_KEY="secret"), os.chdir("/"), torch.set_grad_enabled(False)))
    assert "WHET_TEST_KEY" not in os.environ
    seen: list[Any] = []
    call(lambda: seen.extend((os.environ["WHET_TEST_KEY"], os.getcwd(), torch.is_grad_enabled())))
    assert seen == ["secret", "/", False]
    assert os.getcwd() == here


def test_random_numbers_of_rewards_go_on_and_are_not_those_of_the_run() -> None:
    random.seed(5)
    numpy.random.seed(5)
    torch.manual_seed(5)

    def draw() -> list[float]:
        return [random.random(), float(numpy.random.rand()), float(torch.rand(()))]

    drawn: list[list[float]] = []
    call(lambda: drawn.append(draw()))
    call(lambda: drawn.append(draw()))
    own = draw()
    assert all(first != second for first, second in zip(*drawn, strict=True))
    assert own == drawn[0]  # the run's numbers did not move


def test_a_change_is_said_once_and_names_the_reward(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            call(lambda: os.chdir("/"))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert (
        said[0].startswith("reward 'meddling' changed the working directory (") and "the run keeps its own" in said[0]
    )


def test_importing_a_file_for_its_reward_changes_nothing(tmp_path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import os, torch\ntorch.set_grad_enabled(False)\nos.chdir('/')\ndef mine(completion):\n    return 1.0\n"
    )
    here = os.getcwd()
    reward = find_reward(f"{file}:mine")
    assert (torch.is_grad_enabled(), os.getcwd()) == (True, here)
    assert score([PROMPT], [SAMPLE], [RewardPart(reward)], 5.0, "stop")[0].reward == 1.0


class Own(BaseException):
    pass


class Unreadable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Own("mine"), "raised Own: mine"),
        (Unreadable(), "raised Unreadable: \\(its message cannot be read\\)"),
        (SystemExit(0), "raised SystemExit: 0"),
        (GeneratorExit(), "raised GeneratorExit at"),
    ],
)
def test_whatever_a_reward_raises_names_reward_and_sample(error: BaseException, said: str) -> None:
    def failing() -> None:
        raise error

    with pytest.raises(RewardFailure, match=rf"reward 'meddling' {said}.*prompt 'p1', completion 'text'"):
        call(failing)


@pytest.mark.parametrize("status", [0, 3])
def test_os_exit_does_not_end_the_run(status: int) -> None:
    with pytest.raises(RewardFailure, match=rf"os\._exit\({status}\) would end the run.*prompt 'p1'"):
        call(lambda: os._exit(status))


def test_a_child_that_a_reward_forks_may_end_with_os_exit() -> None:
    codes: list[int] = []

    def fork() -> None:
        child = os.fork()
        if child == 0:
            os._exit(7)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    call(fork)
    assert codes == [7]


@pytest.mark.parametrize(
    "text", ["raise SystemExit(0)", "import os; os._exit(0)", "class E(BaseException): ...\nraise E"]
)
def test_a_file_that_ends_the_process_when_imported_is_one_line(tmp_path, text: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"{text}\ndef mine(completion):\n    return 1.0\n")
    with pytest.raises(WhetError, match=r"mine\.py fails when imported, at .*mine\.py:\d"):
        find_reward(f"{file}:mine")


@pytest.mark.parametrize("on_main_thread", [True, False])
def test_a_file_whose_import_never_ends_is_one_line_with_its_line(tmp_path, monkeypatch, on_main_thread: bool) -> None:
    monkeypatch.setenv("WHET_IMPORT_SECONDS", "0.2")
    file = tmp_path / "mine.py"
    file.write_text("import time\ntime.sleep(30)\n")

    def load() -> None:
        with pytest.raises(WhetError, match=r"mine\.py is still being imported after 0\.2 s, at .*mine\.py:2; correct"):
            imported(f"{file}:mine", "reward")

    load() if on_main_thread else ThreadPoolExecutor(1).submit(load).result()


DEAF = """
import os, signal, time
while True:
    try:
        {act}
        time.sleep(0.05)
    except BaseException:
        pass
"""


@pytest.mark.parametrize(
    ("act", "code", "line"),
    [
        ("0", 2, "is still being imported after 0.2 s, at "),
        ("os.kill(os.getpid(), signal.SIGINT)", 130, "stopped by SIGINT while importing "),
    ],
)
def test_a_file_that_swallows_every_interruption_is_ended(tmp_path, act: str, code: int, line: str) -> None:
    """By its time limit, and by a second Ctrl-C."""
    file = tmp_path / "mine.py"
    file.write_text(DEAF.format(act=act))
    program = f"""
from whet import limit, registry
limit.GRACE_SECONDS = 0.2
registry.imported("{file}:mine", "reward")
"""
    environment = {**os.environ, "WHET_IMPORT_SECONDS": "0.2" if code == 2 else "20"}
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == code and line in ended.stderr and f"{file}:" in ended.stderr
    assert ended.stderr.startswith("whet: ") and ended.stderr.count("\n") == 1


def test_a_handler_that_an_import_installs_stays(tmp_path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import signal\nmine = lambda *_: 0\nsignal.signal(signal.SIGINT, mine)\n")
    before = signal.getsignal(signal.SIGINT)
    try:
        assert imported(f"{file}:mine", "environment") is signal.getsignal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_nested_and_parallel_calls_leave_everything_as_it_was() -> None:
    here = os.getcwd()

    def inner() -> None:
        call(lambda: os.chdir("/"))

    call(inner)
    threads = [threading.Thread(target=call, args=(inner,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (os.getcwd(), user_code._depth) == (here, 0)
    assert os._exit.__name__ == "_exit"
