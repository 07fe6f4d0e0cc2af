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
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from math_verify import parser

from whet.reward.call import Together, as_reward
from whet.reward.failure import collected_reasons
from whet.reward.find import find_reward
from whet.reward.mathematics import verifier, verifier_calls
from whet.reward.mathematics.math_answer import math_answer, math_answers, unread_gold
from whet.reward.mathematics.verifier import MathJob, MathPool, MathResult
from whet.reward.sandbox.job import ProgramJob
from whet.reward.sandbox.pool import Sandbox, WorkerProcess
from whet.threads import side_by_side
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


RUNNING_TEXTS = (
    r"Natalia sold \[ \text{May} = \frac{48}{2} = 24 \] clips in May. That is $48 + 24 = 72$ clips",
    "so she has 48 / 2 = 24 of them, and 24 + 3 =",
    "### Step 2\nThey sold 1,234.5 of 2,000 (that is 61.7%)",
    r"either $3$ or $4$, and $5$ and $x + \unknown{$",
    r"the value \( \ \) is missing, 7 before it and \[ \] after",
    r"\[ 2 \times 12 = 24 \] so we have \frac{1}{2} of it, 50%",
    r"$\{x \mid x > 3\}$, and $12 \%$ of $9^{9^{9}$",
    "so x is $3$ and $4$",
    r"first \boxed{3} clips, all that she sold to her friends in the whole month of April, then \boxed{ } clips",
    "nothing at all",
)


@pytest.mark.parametrize("text", RUNNING_TEXTS)
def test_the_text_found_in_running_text_is_the_librarys_own(text: str) -> None:
    latex = parser.LatexExtractionConfig(normalization_config=verifier_calls._normalization())
    parts = parser.parse(text, (latex, parser.ExprExtractionConfig()), parsing_timeout=None)
    assert [verifier_calls.extract(text)] == ([part for part in parts if isinstance(part, str)] or [None])


def test_sympy_reads_no_text_that_is_only_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("parse_latex_cached", "parse_expr_cached"):
        monkeypatch.setattr(parser, name, lambda text: pytest.fail(f"sympy was asked for {text!r}"))
    assert verifier_calls.extract(RUNNING_TEXTS[0]) == "48 + 24 = 72"
    assert verifier_calls.extract("so 48 / 2 + 24") == "48 / 2 + 24"


def starters() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "whet math-verify 1"]


def test_jobs_do_not_wait_for_processes_that_have_yet_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    made, begun, go_on, usual = MathPool(3), threading.Event(), threading.Event(), Sandbox._started
    work = [MathJob("read", ("x",))] * 9
    assert made.run(work[:1])[0].value is True and len(pids(made)) == 1 and not starters()

    def late(sandbox: Sandbox) -> WorkerProcess:
        begun.set()
        assert go_on.wait(60)
        return usual(sandbox)

    monkeypatch.setattr(Sandbox, "_started", late)
    assert [result.value for result in made.run(work)] == [True] * 9 and begun.wait(60) and len(pids(made)) == 1
    made.run(work)  # no second time
    go_on.set()
    (starter,) = starters()
    starter.join(60)
    monkeypatch.setattr(Sandbox, "_started", lambda sandbox: pytest.fail("there are three that wait"))
    assert len(made._idle) == 3 and [result.value for result in made.run(work)] == [True] * 9
    made.close()


def test_a_long_batch_is_shared_with_processes_that_start_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    made, main, widths = MathPool(2), threading.current_thread(), []

    def noted(jobs: list[Callable[[], MathResult]], most: int) -> list[MathResult]:
        if threading.current_thread() is not main:
            return side_by_side(jobs, most)
        widths.append((len(jobs), most))
        for starter in starters():
            starter.join(60)
        return side_by_side(jobs, most)

    monkeypatch.setattr(verifier, "side_by_side", noted)
    monkeypatch.setattr(verifier, "PIECE", 2)
    made.run([MathJob("read", ("x",))])
    results = made.run([MathJob("read", (text,)) for text in ("x", r"\foo{3}") * 4])
    assert [result.value for result in results] == [True, False] * 4
    assert widths == [(1, 1), (2, 1), (4, 2), (2, 2)]
    made.close()


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
