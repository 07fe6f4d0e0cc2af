"""Sessions of the sandbox: a process that keeps its state between calls, and cannot do more than a job could."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from whet.reward.sandbox.job import Limits
from whet.reward.sandbox.pool import Sandbox
from whet.reward.sandbox.protections import num_jobs_left
from whet.reward.sandbox.session import CallResult, SandboxSession, SessionOver

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")

SMALL = Limits(cpu_seconds=0.5, wall_seconds=6.0, memory_mb=96, file_mb=1, processes=8, output_kb=64)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(2) as pool:
        yield pool


@pytest.fixture
def session(sandbox):
    made = SandboxSession(sandbox, SMALL)
    yield made
    made.close()


def run(session: SandboxSession, source: str, most: int = 1000) -> CallResult:
    return session.call({"operation": "run", "source": textwrap.dedent(source)}, most)


def value(session: SandboxSession, source: str) -> str:
    result = run(session, source)
    assert result.error == ""
    return result.text


def test_variables_stay_and_the_last_expression_is_shown(session):
    assert value(session, "x = 20\nimport math") == ""
    assert value(session, "print('so', x)\nx + math.floor(22.5)") == "so 20\n42"
    assert value(session, "'a'; None") == ""
    assert value(session, "def f(n): return n if n < 2 else f(n - 1) + f(n - 2)") == ""
    assert value(session, "[f(n) for n in range(7)]") == "[0, 1, 1, 2, 3, 5, 8]"


def test_two_sessions_share_nothing(sandbox, session):
    value(session, "secret = 42\nopen('note', 'w').write('secret')\nimport math\nmath.pi = 3")
    other = SandboxSession(sandbox, SMALL)
    assert "NameError" in run(other, "secret").error
    assert value(other, "import os, math; (os.listdir('.'), math.pi > 3.1)") == "([], True)"
    other.close()


def test_a_worker_that_comes_back_brings_nothing_along(sandbox):
    for number in range(3):
        one = SandboxSession(sandbox, SMALL)
        assert value(one, "import os; (os.listdir('.'), 'left' in globals())") == "([], False)"
        value(one, f"left = {number}\nopen('left', 'w').write('x')")
        one.close()
    assert len(sandbox.idle) >= 1 and not sandbox._lent


def test_an_error_is_one_line_and_keeps_the_state(session):
    value(session, "x = 1")
    assert run(session, "y = 2\n1 / 0").error == "ZeroDivisionError: division by zero (line 2)"
    assert run(session, "def f(:").error.startswith("SyntaxError: ")
    assert run(session, "import sys; sys.exit('bye')").error == "SystemExit: bye (line 1)"
    assert run(session, "raise KeyboardInterrupt").error == "KeyboardInterrupt (line 1)"
    assert run(session, "input()").error.startswith("EOFError")
    bad = "class Bad:\n  def __repr__(self): raise ValueError('no')\nBad()"
    assert run(session, bad).error.startswith("ValueError: no")
    assert run(session, "class Odd(Exception):\n  def __str__(self): 1 / 0\nraise Odd()").error.startswith("Odd")
    assert value(session, "(x, y)") == "(1, 2)"


def test_what_is_printed_is_cut_and_counted(session):
    result = run(session, "for n in range(5000): print('x' * 9)", most=25)
    assert result == CallResult("x" * 9 + "\n" + "x" * 9 + "\n" + "x" * 5, 50000, "")
    assert run(session, "'\\U0001F600' * 100", most=10).text == "'" + "\U0001f600" * 9


FORGE = """
import os
for number in range(3, 64):
    try: os.write(number, {})
    except OSError: pass
"""


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("while True: pass", "out of time"),
        ("while True: print('x' * 10000)", "out of time"),
        ("import os\nos._exit(0)", "the process ended"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "the process ended"),
        # a forged answer that is none
        (
            "import os\nfor n in range(3, 64):\n  try: os.write(n, b'\\0\\0\\0\\4null')\n  except OSError: pass",
            "its answer",
        ),
        (
            "import os\nfor n in range(3, 64):\n  try: os.write(n, b'\\x7f' * 70000)\n  except OSError: pass",
            "too much output",
        ),
    ],
)
def test_a_call_over_its_limits_ends_the_session_and_the_next_one_is_fresh(session, source, reason):
    value(session, "x = 1")
    started = time.monotonic()
    with pytest.raises(SessionOver, match=reason):
        run(session, source)
    assert time.monotonic() - started < 10 and session.is_fresh
    assert "NameError" in run(session, "x").error and value(session, "1 + 1") == "2"


def test_sleeping_is_ended_by_the_clock(sandbox):
    session = SandboxSession(sandbox, Limits(cpu_seconds=0.5, wall_seconds=0.4))
    with pytest.raises(SessionOver, match="out of time"):
        run(session, "import time; time.sleep(60)")
    session.close()


def test_processor_time_is_counted_per_call(session):
    for _ in range(3):  # together more than one call may use
        value(session, "import time\nbegan = time.process_time()\nwhile time.process_time() - began < 0.25: pass")


def test_memory_is_bounded(session):
    assert "MemoryError" in run(session, "y = bytearray(1 << 30)").error
    try:
        assert "MemoryError" in run(session, "kept = []\nwhile True: kept.append(bytearray(1 << 20))").error
    except SessionOver as over:
        assert "memory" in str(over)
    session.close()


def test_nothing_runs_between_two_calls(session):
    value(
        session,
        """
        import os, threading, time
        ticks = 0
        def tick():
            global ticks
            while True:
                ticks += 1
                time.sleep(0.001)
        threading.Thread(target=tick, daemon=True).start()
        """,
    )
    before = int(value(session, "ticks"))
    time.sleep(0.5)
    assert int(value(session, "ticks")) - before < 100  # 500 if it had gone on


def test_children_that_detach_end_with_the_session(sandbox):
    session = SandboxSession(sandbox, SMALL)
    source = """
    import os, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(60)
        os._exit(0)
    os.wait()
    """
    run(session, source)
    session.close()
    assert sandbox.idle and num_jobs_left(sandbox) == 0


HOSTILE = """
import os, socket
tried = {}
def attempt(name, act):
    try:
        act()
        tried[name] = 'done'
    except BaseException as error:
        tried[name] = type(error).__name__
attempt('read', lambda: open(SECRET).read())
attempt('write', lambda: open(SECRET, 'w').write('x'))
attempt('socket', lambda: socket.socket())
attempt('home', lambda: os.listdir('/var'))
attempt('signal', lambda: os.kill(PARENT, 9))
attempt('sandbox', lambda: __import__('whet.reward.sandbox.wire'))
sorted(name for name, how in tried.items() if how == 'done')
"""


@pytest.mark.parametrize("without", [(), ("privilege",), ("namespaces",)])
def test_hostile_calls_come_to_nothing(tmp_path, without):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    for path in (tmp_path, *list(tmp_path.parents)[:2]):
        path.chmod(0o777)
    secret.chmod(0o666)
    with Sandbox(1, without=without) as pool:
        session = SandboxSession(pool, SMALL)
        source = HOSTILE.replace("SECRET", repr(str(secret))).replace("PARENT", str(os.getpid()))
        assert value(session, source) == "[]"
        session.close()
    assert secret.read_text() == "secret"


def test_closing_in_the_middle_of_a_call_ends_it(sandbox):
    session = SandboxSession(sandbox, Limits(wall_seconds=30))
    value(session, "1")
    met: list[str] = []

    def sleep() -> None:
        try:
            run(session, "import time; time.sleep(25)")
        except SessionOver as over:
            met.append(str(over))

    thread = threading.Thread(target=sleep)
    thread.start()
    time.sleep(0.3)
    session.close()
    thread.join(5)
    assert not thread.is_alive() and len(met) == 1
    with pytest.raises(SessionOver, match="closed"):
        run(session, "1")
    assert not sandbox._lent


def test_the_trainers_end_takes_the_session_along(tmp_path):
    source = """
    import os, sys
    from whet.reward.sandbox.job import Limits
    from whet.reward.sandbox.pool import Sandbox
    from whet.reward.sandbox.session import SandboxSession
    session = SandboxSession(Sandbox(1), Limits())
    print(session.call({"operation": "run", "source": "1 + 1"}, 10).text, session._worker.process.pid, flush=True)
    os.kill(os.getpid(), 9)
    """
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, env=environment
    )
    text, worker = ran.stdout.split()
    assert text == "2"
    deadline = time.monotonic() + 5
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists() or "Z" in Path(f"/proc/{worker}/stat").read_text().split()[2]


def test_functions_and_objects_are_loaded_once_and_keep_their_state(session):
    source = """
    class Counter:
        def __init__(self): self.count = 0
        def add(self, n): self.count += n; return {"count": self.count}
        async def text(self): return "so"
    """
    load = {"operation": "load", "source": textwrap.dedent(source), "kind": "Counter", "names": ["add", "text"]}
    assert session.call(load, 100).error == ""
    for expected in (2, 4):
        result = session.call({"operation": "call", "name": "add", "arguments": {"n": 2}}, 100)
        assert result.text == f'{{"count": {expected}}}'
    assert session.call({"operation": "call", "name": "text", "arguments": {}}, 100).text == "so"
    assert "TypeError" in session.call({"operation": "call", "name": "add", "arguments": {"n": "x"}}, 100).error


def test_workers_can_be_made_ready(sandbox):
    sandbox.start(3)
    ready = set(sandbox.idle)
    assert len(ready) >= 3 and not sandbox._lent
    session = SandboxSession(sandbox, SMALL)
    assert value(session, "1 + 1") == "2" and session._worker in ready
    session.close()
    sandbox.start(2)
    assert set(sandbox.idle) == ready
