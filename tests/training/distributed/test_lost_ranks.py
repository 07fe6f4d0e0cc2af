"""A rank that is killed, hangs, raises or disagrees ends the run everywhere, in time, with its error in the line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.rank_launching import HERE, end, free_port, said, start_ranks

TIMEOUT = 6  # seconds, scale.timeout
# on a busy machine a process may take its time to notice; it must not take the timeout once more
SLACK = 45
SETTINGS = [
    *("--steps", "400", "--set", f"scale.timeout={TIMEOUT}", "--set", "report.save_every=2"),
    *("--set", "batch.prompts_per_step=2", "--set", "batch.group_size=2", "--set", "sampling.max_new_tokens=4"),
    *("--set", "eval.prompts=0", "--set", "data.count=20"),
]
COMMAND = [sys.executable, "-m", "whet", "train", "grpo", "--folder", "run", *SETTINGS]
RESUME = [sys.executable, "-m", "whet", "resume", "run"]


def wait_for(happened: Callable[[], object], seconds: float = 600) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)


def has_checkpoint(folder: Path) -> bool:
    return any((folder / "run" / "checkpoints").glob("step-*/manifest.json"))


def run_of(folder: Path) -> dict:
    return json.loads((folder / "run" / "run.json").read_text())


def ended(ranks: Sequence[subprocess.Popen[str]], seconds: float) -> list[int]:
    until = time.monotonic() + seconds
    return [rank.wait(max(0.1, until - time.monotonic())) for rank in ranks]


def last_checkpoint(folder: Path) -> str:
    return sorted((folder / "run" / "checkpoints").glob("step-*"))[-1].name


def num_lines(folder: Path) -> int:
    return len((folder / "run" / "metrics.jsonl").read_text().splitlines())


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_and_a_signal_to_one_rank_stops_all_at_one_step(tmp_path):
    ranks = start_ranks(2, COMMAND, tmp_path)
    try:
        wait_for(lambda: has_checkpoint(tmp_path) or ranks[0].poll() is not None)
        os.kill(ranks[1].pid, signal.SIGKILL)
        codes = ended(ranks, TIMEOUT + SLACK)
    finally:
        end(ranks)
    line = said(tmp_path, 0).splitlines()[-1]
    assert codes == [1, -signal.SIGKILL], said(tmp_path, 0)
    assert line.startswith("whet: rank 1: it is gone without a word (killed, "), said(tmp_path, 0)
    assert f"`whet resume run` continues from {last_checkpoint(tmp_path)}" in line
    assert run_of(tmp_path)["status"] == "failed"
    assert "rank 1: it is gone" in run_of(tmp_path)["error"]

    port, before = free_port(), num_lines(tmp_path)
    ranks = start_ranks(2, RESUME, tmp_path, port)
    try:
        wait_for(lambda: num_lines(tmp_path) > before + 1 or ranks[0].poll() is not None)
        ranks[1].send_signal(signal.SIGTERM)  # to one rank alone
        codes = ended(ranks, 60 + SLACK)
    finally:
        end(ranks)
    assert codes == [130, 130], said(tmp_path, 0) + said(tmp_path, 1)
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    assert run_of(tmp_path)["status"] == "interrupted"
    assert last_checkpoint(tmp_path) == f"step-{last:06d}"
    assert said(tmp_path, 1) == ""
    with socket.socket() as place:  # nobody keeps the port
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(("127.0.0.1", port))


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stopped_rank_ends_the_run_after_the_timeout_and_is_ended_itself(tmp_path, stopped):
    """The first rank keeps the store that the others ask: while it is stopped nobody answers them."""
    ranks = start_ranks(2, COMMAND, tmp_path)
    try:
        wait_for(lambda: has_checkpoint(tmp_path) or ranks[0].poll() is not None)
        os.kill(ranks[stopped].pid, signal.SIGSTOP)
        began = time.monotonic()
        codes = ended(ranks, TIMEOUT + SLACK)
        assert time.monotonic() - began >= TIMEOUT - 1
    finally:
        end(ranks)
    assert codes[stopped] == -signal.SIGKILL and codes[1 - stopped] == 1, said(tmp_path, 0)
    line = said(tmp_path, 0).splitlines()[-1]
    if stopped == 1:
        assert line.startswith(f"whet: rank 1: no sign of life for {TIMEOUT} s"), said(tmp_path, 0)
        assert f"`whet resume run` continues from {last_checkpoint(tmp_path)}" in line
    else:
        assert "the process is gone without a word" in line, said(tmp_path, 0)
        assert f"for {TIMEOUT} s: rank 0 hangs" in (tmp_path / "run" / "rank-1.log").read_text()
    assert said(tmp_path, 1) == ""


# twelve calls, and then one rank never answers again: in Python, or in C with the interpreter held
HANGING = """
import ctypes, os, time

calls = 0

def sleeping(prompt, completion):
    return hanging(lambda: time.sleep(1000))

def holding(prompt, completion):
    return hanging(lambda: ctypes.PyDLL(None).sleep(1000))

def hanging(sleep):
    global calls
    calls += 1
    while calls > 12 and os.environ["RANK"] == os.environ["HANGS"]:
        sleep()
    return float(calls % 2)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("hangs", "reward"), [(1, "sleeping"), (0, "sleeping"), (1, "holding")])
def test_a_rank_whose_reward_never_answers_is_named_and_no_process_is_left(tmp_path, hangs, reward):
    (tmp_path / "rewards.py").write_text(HANGING)
    command = [*COMMAND, "--reward", f"rewards.py:{reward}", "--set", "reward.timeout=600"]
    ranks = start_ranks(2, command, tmp_path, HANGS=str(hangs))
    try:
        wait_for(lambda: has_checkpoint(tmp_path) or ranks[0].poll() is not None)
        codes = ended(ranks, 60 + TIMEOUT + SLACK)
    finally:
        end(ranks)
    line = said(tmp_path, 0).splitlines()[-1]
    assert codes == [1, -signal.SIGKILL if reward == "holding" else 1], said(tmp_path, 0)
    if reward == "sleeping":
        start = f"whet: rank {hangs}: it kept the others waiting for {TIMEOUT} s, while in step "
        assert line.startswith(start) and "/rewards.py:" in line, said(tmp_path, 0)
    else:
        assert line.startswith(f"whet: rank 1: no sign of life for {TIMEOUT} s"), said(tmp_path, 0)
    assert "`whet resume run` continues from step-" in line
    assert run_of(tmp_path)["status"] == "failed"


@pytest.mark.slow
def test_a_rank_that_raises_is_heard_through_the_first(tmp_path):
    code = (
        "import os, whet\n"
        "import importlib; rl = importlib.import_module('whet.training.rl_trainer')\n"
        "step = rl.RLTrainer.step\n"
        "def broken(self, number, timer):\n"
        "    if number == 3 and os.environ['RANK'] == '1': raise OSError('the tape is torn')\n"
        "    return step(self, number, timer)\n"
        "rl.RLTrainer.step = broken\n"
        "import sys; from whet.cli import main\n"
        "sys.argv = ['whet', *sys.argv[1:]]; main()\n"
    )
    ranks = start_ranks(2, [sys.executable, "-c", code, *COMMAND[3:]], tmp_path)
    try:
        codes = ended(ranks, 600)
    finally:
        end(ranks)
    line = said(tmp_path, 0).splitlines()[-1]
    assert codes == [1, 1]
    assert line.startswith("whet: rank 1: ") and "the tape is torn" in line and "step-000002" in line, line
    assert "the tape is torn" in (tmp_path / "run" / "rank-1.log").read_text()
    assert said(tmp_path, 1) == ""


@pytest.mark.slow
def test_the_first_rank_killed_ends_the_others(tmp_path):
    ranks = start_ranks(2, COMMAND, tmp_path)
    try:
        wait_for(lambda: has_checkpoint(tmp_path) or ranks[0].poll() is not None)
        os.kill(ranks[0].pid, signal.SIGKILL)
        codes = ended(ranks, TIMEOUT + SLACK)
    finally:
        end(ranks)
    assert codes == [-signal.SIGKILL, 1]
    assert "the process is gone without a word" in said(tmp_path, 0)


@pytest.mark.slow
def test_torchrun_starts_the_ranks_and_nothing_is_left_of_them(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1] / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *COMMAND[1:]]
    with (tmp_path / "out.txt").open("w") as out:
        agent = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=out, stderr=subprocess.STDOUT)
    try:
        wait_for(lambda: has_checkpoint(tmp_path) or agent.poll() is not None)
        children = children_of(agent.pid)
        assert len(children) == 2
        victim = next(each for each in children if rank_of(each) == "1")
        os.kill(victim, signal.SIGKILL)
        assert agent.wait(TIMEOUT + SLACK) == 1
    finally:
        if agent.poll() is None:
            agent.terminate()
            agent.wait(60)
    text = (tmp_path / "out.txt").read_text()
    assert "whet: rank 1: it is gone without a word" in text
    wait_for(lambda: not any(Path(f"/proc/{each}").exists() for each in children), 30)


def children_of(process: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def rank_of(process: int) -> str:
    values = dict(
        each.split("=", 1) for each in Path(f"/proc/{process}/environ").read_text().split("\0") if "=" in each
    )
    return values.get("RANK", "")
