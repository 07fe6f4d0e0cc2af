"""Processes that run math-verify: replaced when they are slow or lost, and gone with the trainer."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from whet.reward.call import Together, as_reward
from whet.reward.failure import collected_reasons
from whet.reward.find import find_reward
from whet.reward.mathematics import verifier, verifier_calls
from whet.reward.mathematics.math_answer import math_answer, math_answers, unread_gold
from whet.reward.mathematics.verifier import MathJob, MathPool
from whet.reward.sandbox.job import ProgramJob
from whet.reward.sandbox.pool import Sandbox
from whet.reward.sandbox.session import SandboxSession
from whet.types import Prompt

INTEGRAL = r"\int_0^1 x dx"
ENDLESS = MathJob("compare", (INTEGRAL, r"\prod_{k=1}^{10^9} (k^k)!", True))


def prompt(answer: str) -> Prompt:
    return Prompt(f"p {answer}", (), text="q", answer=answer)


def pids(pool: MathPool) -> list[int]:
    return [worker.process.pid for worker in pool.sandbox._lent]


@pytest.fixture(scope="module")
def pool() -> Iterator[MathPool]:
    made = MathPool(2)
    yield made
    made.close()


def test_a_slow_job_is_stopped_and_the_next_one_runs(pool: MathPool) -> None:
    extract = MathJob("extract", ("so we find $7$ in all",))
    results = pool.run([extract, ENDLESS, extract])
    assert [result.value for result in results] == ["7", None, "7"]
    assert [result.is_slow for result in results] == [False, True, False]


@pytest.mark.parametrize(
    ("num_waiting", "num_jobs", "num_taking_part"),
    [(0, 1, 1), (0, 3, 1), (0, 4, 2), (0, 23, 6), (0, 400, 8), (5, 1, 5), (5, 19, 5), (5, 20, 6), (8, 4, 8)],
)
def test_processes_that_wait_take_part_and_others_start_for_many_jobs_alone(
    monkeypatch: pytest.MonkeyPatch, num_waiting: int, num_jobs: int, num_taking_part: int
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(verifier, "side_by_side", lambda jobs, most: asked.append((len(jobs), most)))
    pool = MathPool(8)
    pool._idle = [(SandboxSession(pool.sandbox, verifier.LIMITS), 0.0) for _ in range(num_waiting)]
    pool.run([MathJob("read", (INTEGRAL,))] * num_jobs)
    assert asked == [(num_jobs, num_taking_part)]
    pool.close()


def test_what_the_library_prints_is_not_its_answer(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(logging, "disable", lambda level: None)
    monkeypatch.setattr(sys, "setrecursionlimit", lambda limit: None)
    monkeypatch.setattr(verifier_calls, "read", lambda text: print("a warning", file=sys.stderr) or print(text) or True)
    assert verifier_calls.answer("read", ["x"]) == [True]
    assert capsys.readouterr() == ("", "")


def test_a_process_that_is_lost_is_replaced(pool: MathPool) -> None:
    read = MathJob("read", (INTEGRAL,))
    assert pool.run([read])[0].value is True
    for pid in pids(pool):
        os.kill(pid, signal.SIGKILL)
    assert pool.run([read, MathJob("read", (r"\foo{3}",))])[0].value is True


def test_the_processes_hold_no_torch(pool: MathPool) -> None:
    pool.run([MathJob("read", (INTEGRAL,))])
    maps = f"/proc/{pids(pool)[0]}/maps"
    if not os.path.exists(maps):
        pytest.skip("needs /proc")
    with open(maps) as lines:
        assert "libtorch" not in lines.read()


def test_a_pool_is_anybodys_thread(pool: MathPool) -> None:
    found: list[object] = []
    work = [MathJob("read", (INTEGRAL,))]
    threads = [threading.Thread(target=lambda: found.append(pool.run(work)[0].value)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [True] * 4


@pytest.mark.slow  # a whole interpreter has to start
def test_the_processes_end_with_a_trainer_that_is_killed() -> None:
    code = (
        "import time\nfrom whet.reward.mathematics.verifier import POOL, MathJob\n"
        "POOL.run([MathJob('read', ('x',))])\nprint(*[w.process.pid for w in POOL.sandbox._lent], flush=True)\n"
        "time.sleep(60)"
    )
    trainer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    worker = int(trainer.stdout.readline())
    trainer.kill()
    trainer.wait()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("the worker outlives the trainer")


def test_what_only_math_verify_reads_is_scored() -> None:
    completions = [r"\boxed{\frac12}", r"\boxed{1}", rf"\boxed{{{INTEGRAL}}}", r"\boxed{\int_0^1 9^{9^{9}} dx}"]
    assert math_answers([prompt(INTEGRAL)] * 4, completions) == [1.0, 0.0, 1.0, 0.0]


def test_a_gold_answer_that_is_not_read_in_full_says_what_was_not() -> None:
    golds = ["[-2,1)", "10 negative", r"\foo{3}", "9^{9^{9}}", "5 dozen"]
    reasons = unread_gold([prompt(gold) for gold in golds])
    assert [reason is None for reason in reasons] == [True, False, False, False, True]
    assert reasons[1] == "the gold answer '10 negative' was not read in full: the word 'negative'"
    with collected_reasons() as told:
        assert math_answer(prompt("10 negative"), r"\boxed{10}") is None
    assert told == [("p 10 negative", f"reward 'math_answer': {reasons[1]}")]


def test_the_reward_scores_a_batch_in_one_call() -> None:
    reward = find_reward("math_answer", {"tolerance": 0.1})
    assert isinstance(reward, Together) and isinstance(as_reward(math_answer), Together)
    assert reward.limits_itself


def test_packages_are_found_where_this_process_has_them(monkeypatch):
    """Also what they import later, as from a folder that only PYTHONPATH names; programs of a model see no such one."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "elsewhere"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "later.py").write_text("VALUE = 7\n")
        Path(folder).chmod(0o755)  # others may read a package
        monkeypatch.syspath_prepend(folder)
        printed = []
        for is_trusted in (True, False):
            with Sandbox(1, ("elsewhere",), is_trusted=is_trusted) as sandbox:
                program = ProgramJob("from elsewhere.later import VALUE\nprint(VALUE)\n")
                printed.append(sandbox.run([program])[0].stdout.strip())
    assert printed == ["7", ""]
