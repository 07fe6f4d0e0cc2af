"""Programs in the sandbox: what they may do, and the attacks that must come to nothing."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

import whet
from whet.reward.sandbox.isolation import Confinement, renew_folder
from whet.reward.sandbox.job import DEFAULT_LIMITS, JobResult, Limits, ProgramJob
from whet.reward.sandbox.pool import Sandbox
from whet.reward.sandbox.protections import active_protections, num_jobs_left
from whet.reward.sandbox.worker import SandboxWorker
from whet.threads import in_threads
from whet.types import WhetError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the attacks are Linux ones")

SMALL = Limits(cpu_seconds=0.5, wall_seconds=6.0, memory_mb=96, file_mb=1, processes=8, output_kb=64)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(2) as pool:
        yield pool


def ran(sandbox: Sandbox, source: str, stdin: str = "", limits: Limits = SMALL) -> JobResult:
    (found,) = sandbox.run([ProgramJob(textwrap.dedent(source), stdin, limits)])
    assert not found.is_lost
    return found


def test_a_program_reads_its_input_and_writes_its_output(sandbox):
    found = ran(sandbox, "import sys\nprint(sum(map(int, sys.stdin)))\nsys.exit(3)", "1\n2\n39\n")
    assert (found.stdout, found.exit_code, found.ended) == ("42\n", 3, "")
    assert "ZeroDivisionError" in ran(sandbox, "1 / 0").stderr


def test_outcomes_keep_the_order_of_the_jobs(sandbox):
    jobs = [ProgramJob("import time\ntime.sleep(float(input()) / 200)\nprint('done')", str(20 - n)) for n in range(20)]
    jobs = [replace(job, source=job.source.replace("'done'", str(n))) for n, job in enumerate(jobs)]
    assert [int(found.stdout) for found in sandbox.run(jobs)] == list(range(20))


def test_every_job_starts_alike(sandbox):
    leave = "import builtins, os, random, sys, math\nmath.pi = 3\nbuiltins.print = None\nopen('left', 'w').write('x')"
    assert [found.exit_code for found in sandbox.run([ProgramJob(leave)] * 4)] == [0] * 4
    quick = "import os\nos.mkdir('a')\nprint(sorted(os.listdir('.')))"
    assert {found.stdout for found in sandbox.run([ProgramJob(quick)] * 40)} == {"['a']\n"}
    look = "import math, os, random\nprint(math.pi, os.listdir('.'), random.random(), hash('a'))"
    seen = {found.stdout for found in sandbox.run([ProgramJob(look)] * 6)}
    assert len(seen) == 1 and "3.14159" in seen.pop()


def test_common_ways_to_write_programs_work(sandbox):
    source = """
    import asyncio, dataclasses, subprocess, sys, tempfile, threading
    @dataclasses.dataclass
    class Point:
        x: int
    async def later():
        await asyncio.sleep(0)
        return Point(2)
    def deep(n):
        return 0 if n == 0 else 1 + deep(n - 1)
    sys.setrecursionlimit(20000)
    held = []
    thread = threading.Thread(target=lambda: held.append(1))
    thread.start(); thread.join()
    with tempfile.TemporaryFile(dir='.') as file:
        file.write(b'x')
    if __name__ == '__main__':
        print(asyncio.run(later()), deep(10000), held)
    """
    assert ran(sandbox, source).stdout == "Point(x=2) 10000 [1]\n"


def test_infinite_loop(sandbox):
    started = time.monotonic()
    found = ran(sandbox, "while True: pass")
    assert found.exit_code < 0 and 0.3 < found.processor_seconds < 3
    assert time.monotonic() - started < 6


def test_sleeping_forever_and_ignoring_signals(sandbox):
    source = """
    import signal, time
    for number in range(1, 64):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    print('deaf', flush=True)
    while True:
        time.sleep(1)
    """
    found = ran(sandbox, source, limits=replace(SMALL, wall_seconds=0.7))
    assert found.ended == "out of time" and found.stdout == "deaf\n" and found.seconds < 3


def test_catching_the_processor_limit_does_not_help(sandbox):
    source = """
    import resource, signal
    signal.signal(signal.SIGXCPU, lambda *_: None)
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (100, 100))
    except (OSError, ValueError):
        print('refused', flush=True)
    while True: pass
    """
    found = ran(sandbox, source)
    assert found.stdout == "refused\n" and found.exit_code < 0 and found.processor_seconds < 3


def test_fork_bomb(sandbox):
    source = """
    import os
    print('start', flush=True)
    while True:
        try:
            os.fork()
        except OSError:
            pass
    """
    found = ran(sandbox, source, limits=replace(SMALL, wall_seconds=0.7))
    assert found.stdout.startswith("start") and found.seconds < 5
    assert num_jobs_left(sandbox) == 0
    assert ran(sandbox, "print('alive')").stdout == "alive\n"


def test_memory_bomb(sandbox):
    found = ran(sandbox, "kept = []\nwhile True: kept.append(bytearray(1 << 20))")
    assert "MemoryError" in found.stderr or found.ended == "out of memory"


def test_memory_bomb_of_many_processes(sandbox):
    sandbox.start()
    if not sandbox.holds["tree_memory"]:
        pytest.skip("the kernel shows this worker no memory of its jobs")
    source = """
    import os, time
    for _ in range(4):
        if os.fork() == 0:
            break
    held = bytearray(60 << 20)  # within what one process may have
    for page in range(0, len(held), 4096):
        held[page] = 1
    time.sleep(30)
    """
    found = ran(sandbox, source)
    assert found.ended == "out of memory", found


def test_huge_output(sandbox):
    found = ran(sandbox, "while True: print('x' * 10000)")
    assert found.ended == "too much output" and len(found.stdout) == SMALL.output_kb * 1024
    assert len(ran(sandbox, "import sys\nsys.stderr.write('x' * 300000)\nprint('end')").stderr) <= 4096


def test_the_last_words_of_a_quick_job_are_heard(sandbox):
    results = sandbox.run([ProgramJob("print('x' * 50000)", limits=SMALL)] * 60)
    assert {(len(result.stdout), result.ended) for result in results} == {(50001, "")}
    (found,) = sandbox.run([ProgramJob("print('x' * 50000)", limits=replace(SMALL, output_kb=1))])
    assert found.ended == "too much output"


def test_large_file(sandbox):
    found = ran(sandbox, "with open('a', 'wb') as f: f.write(bytes(5 << 20))")
    assert found.exit_code == 1 and "OSError" in found.stderr
    many = "for n in range(10):\n    with open(str(n), 'wb') as f: f.write(bytes(900 << 10))"
    sandbox.start()
    if sandbox.holds["private_root"]:
        assert "OSError" in ran(sandbox, many).stderr


def test_files_outside_cannot_be_read_changed_or_deleted(sandbox, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("the secret")
    secret.chmod(0o666)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        if os.access(folder, os.W_OK):
            folder.chmod(folder.stat().st_mode | 0o005)
    package = Path(whet.__file__)
    before = package.read_bytes()
    source = f"""
    import os, shutil, subprocess
    def tried(act):
        try:
            return act()
        except OSError:
            return 'refused'
    print(tried(lambda: open({str(secret)!r}).read()))
    print(tried(lambda: open({str(secret)!r}, 'w').write('changed')))
    print(tried(lambda: os.remove({str(secret)!r})))
    print(tried(lambda: open({str(package)!r}, 'a').write('changed')))
    print(tried(lambda: os.listdir({str(Path.home())!r})))
    print(tried(lambda: open('/etc/passwd').read()))
    print(tried(lambda: open('/proc/1/environ').read()))
    print(tried(lambda: open('/tmp/left-behind', 'w').write('x')))
    shutil.rmtree('/', ignore_errors=True)
    os.system('rm -rf /usr/bin /etc ' + {str(secret)!r} + ' 2>/dev/null')
    """
    found = ran(sandbox, source, limits=replace(SMALL, wall_seconds=20.0, cpu_seconds=10))
    assert found.stdout.split() == ["refused"] * 8
    assert secret.read_text() == "the secret" and package.read_bytes() == before
    assert Path("/usr/bin/env").exists()


def test_sockets(sandbox):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0.2)
        source = f"""
        import socket
        for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
            try:
                line = socket.socket(family, socket.SOCK_STREAM)
                line.connect(('127.0.0.1', {listener.getsockname()[1]}) if family != socket.AF_UNIX else '/x')
                print('connected')
            except OSError:
                print('refused')
        """
        assert ran(sandbox, source).stdout.split() == ["refused"] * 3
        with pytest.raises(TimeoutError):
            listener.accept()


def test_daemons_die_with_the_job(sandbox):
    source = """
    import os, signal, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            time.sleep(60)
        os._exit(0)
    print('left')
    """
    started = time.monotonic()
    assert [found.stdout for found in sandbox.run([ProgramJob(textwrap.dedent(source))] * 4)] == ["left\n"] * 4
    assert time.monotonic() - started < 5 and num_jobs_left(sandbox) == 0


def test_threads_and_exit_handlers_do_not_outlive(sandbox):
    source = """
    import atexit, threading, time
    atexit.register(lambda: time.sleep(60))
    threading.Thread(target=lambda: time.sleep(60)).start()
    print('end')
    """
    found = ran(sandbox, source)
    assert found.stdout == "end\n" and found.seconds < 4


def test_nothing_is_inherited(sandbox, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "abc")
    with Sandbox(1) as fresh, open(__file__) as held:
        os.set_inheritable(held.fileno(), True)
        found = ran(
            fresh,
            """
            import os
            print('SECRET_TOKEN' in os.environ)
            for number in range(3, 200):
                try:
                    os.fstat(number)
                    print('open', number)
                except OSError:
                    pass
            """,
        )
    assert found.stdout == "False\n"


def test_the_worker_cannot_be_harmed(sandbox):
    source = """
    import ctypes, os, resource, signal
    libc = ctypes.CDLL(None, use_errno=True)
    for process in (1, os.getppid(), -1):
        try:
            os.kill(process, signal.SIGKILL)
        except OSError:
            pass
    print(libc.ptrace(16, os.getppid(), 0, 0), libc.unshare(0x10000000), libc.mount(b'x', b'/', b'tmpfs', 0, 0))
    try:
        resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))
        print('changed')
    except OSError:
        print('refused')
    """
    found = sandbox.run([ProgramJob(textwrap.dedent(source), limits=SMALL)] * 3)
    # a process that signals everybody may end itself: then there is no output, and no harm either
    assert all(each.stdout in ("-1 -1 -1\nrefused\n", "") for each in found)
    assert ran(sandbox, "print('alive')").stdout == "alive\n"


def test_active_protections_are_observed(sandbox):
    found = active_protections(sandbox)
    assert found.effects["wall clock limit"] and found.effects["bare start"] and found.effects["memory limit"]
    assert len(found.effects) == 11 and "stopped:" in found.summary()
    assert num_jobs_left(sandbox) == 0


def test_limits_are_checked():
    with pytest.raises(WhetError, match="cpu_seconds is 0"):
        Limits(cpu_seconds=0)
    for kind, value in (("memory_mb", 1 << 40), ("wall_seconds", float("inf")), ("processes", float("nan"))):
        with pytest.raises(WhetError, match=f"{kind} is .*; give a number above 0, at most"):
            Limits(**{kind: value})
    for kind, least in (("open_files", 8), ("memory_mb", 16)):
        Limits(**{kind: least})
        with pytest.raises(WhetError, match=f"{kind} is {least - 1}; the interpreter needs at least {least}"):
            Limits(**{kind: least - 1})
    with pytest.raises(WhetError, match="workers is -1"):
        Sandbox(-1)


def test_a_worker_keeps_nothing_open_of_a_job_that_ended(tmp_path):
    near, far = socket.socketpair()
    with near, far:
        worker = SandboxWorker(near.fileno(), Confinement(str(tmp_path)))
        counts = []
        for _ in range(3):
            job = os.posix_spawn("/bin/true", ["true"], {})
            assert worker.watch(job, DEFAULT_LIMITS.counts(), time.monotonic() + 10) == ""
            counts.append(len(os.listdir("/proc/self/fd")))
        os.close(worker.ready)
        os.close(worker.ready_end)
    assert len(set(counts)) == 1


def test_a_folder_that_is_emptied_belongs_to_the_worker_alone(tmp_path):
    folder = tmp_path / "jobs"
    folder.mkdir(mode=0o755)
    (folder / "left").write_text("behind")
    before = folder.stat()
    renew_folder(Confinement(str(folder)), 1)
    after = folder.stat()
    assert not os.listdir(folder) and stat.S_IMODE(after.st_mode) == 0o700
    assert (after.st_ino, after.st_uid, after.st_gid) == (before.st_ino, before.st_uid, before.st_gid)


def test_a_dead_worker_is_replaced(sandbox):
    sandbox.start()
    for worker in sandbox.workers:
        worker.process.kill()
        worker.process.wait()
    assert [found.stdout for found in sandbox.run([ProgramJob("print(1)")] * 4)] == ["1\n"] * 4


@pytest.fixture
def interruptible():
    # a shell's background job is started with this signal ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupted_batch_leaves_a_usable_pool(interruptible):
    with Sandbox(1) as pool:
        pool.start()

        def strike() -> None:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=strike).start()
        with pytest.raises(KeyboardInterrupt):
            pool.run([ProgramJob("import time\ntime.sleep(20)", limits=replace(SMALL, wall_seconds=30.0))])
        assert ran(pool, "print('again')").stdout == "again\n"


def test_many_threads_share_a_pool(sandbox):
    found: dict[int, list[str]] = {}

    def ask(number: int) -> None:
        results = sandbox.run([ProgramJob(f"print({number})")] * 3)
        found[number] = [result.stdout for result in results]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [f"{number}\n"] * 3 for number in range(4)}


def test_a_forked_process_gets_workers_of_its_own(sandbox):
    sandbox.start()
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if ran(sandbox, "print('child')").stdout == "child\n" else 2
            sandbox.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ran(sandbox, "print('parent')").stdout == "parent\n"


def test_workers_end_with_the_process_that_started_them():
    script = """
    import os, signal, sys
    from whet.reward.sandbox.job import ProgramJob
    from whet.reward.sandbox.pool import Sandbox
    pool = Sandbox(1)
    assert pool.run([ProgramJob("print(1)")])[0].stdout == "1\\n"
    print(pool.workers[0].process.pid, flush=True)
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    folder = Path(whet.__file__).parents[1]
    started = [subprocess.Popen([*command, way], stdout=subprocess.PIPE, cwd=folder) for way in ("ended", "killed")]
    workers = [int(each.communicate()[0]) for each in started]
    assert [each.returncode for each in started] == [0, -9]
    deadline = time.monotonic() + 5
    while any(map(_is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(_is_running, workers))


def _is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


SHARED = """
import mmap, os, time
for _ in range(4):
    if os.fork() == 0:
        break
held = mmap.mmap(-1, 60 << 20)
for _ in range(60):
    held.write(b"x" * (1 << 20))
time.sleep(30)
"""


def test_shared_memory_counts():
    # without the filter, which refuses it altogether: processes of 60 MB each, below their own limit of 96
    with Sandbox(1, without=("seccomp",), require="none") as pool:
        pool.start()
        if not pool.holds["tree_memory"]:
            pytest.skip("the kernel shows this worker no memory of its jobs")
        found = ran(pool, SHARED)
        assert found.ended == "out of memory" and found.seconds < 3


def test_shared_memory_without_a_file_is_refused(sandbox):
    found = ran(sandbox, "import mmap\nmmap.mmap(-1, 4096)")
    assert "PermissionError" in found.stderr
    of_a_file = """
    import mmap
    open('f', 'wb').write(bytes(4096))
    with open('f', 'r+b') as file:
        print(len(mmap.mmap(file.fileno(), 0)))
    """
    assert ran(sandbox, of_a_file).stdout == "4096\n"
    assert ran(sandbox, "import mmap\nprint(len(mmap.mmap(-1, 4096, mmap.MAP_PRIVATE)))").stdout == "4096\n"


def test_a_straggler_keeps_one_worker_busy_and_no_other_batch_waiting():
    """Batches of several threads share the workers job by job: the quick ones are done long before the slow one is."""
    order: list[str] = []
    with Sandbox(2) as pool:
        pool.start()

        def ask(name: str, source: str, count: int) -> None:
            results = pool.run([ProgramJob(source, limits=replace(SMALL, wall_seconds=3.0))] * count)
            assert all(result.stdout == f"{name}\n" or name == "slow" for result in results)
            order.append(name)

        slow = threading.Thread(target=ask, args=("slow", "import time\ntime.sleep(60)", 1))
        slow.start()
        quick = [threading.Thread(target=ask, args=(str(number), f"print({number})", 6)) for number in range(4)]
        for thread in (*quick, slow):
            if thread is not slow:
                thread.start()
        for thread in (*quick, slow):
            thread.join()
    assert len(order) == 5 and order[-1] == "slow"


def test_a_pool_that_is_closed_under_a_batch_still_gives_its_results():
    with Sandbox(2) as pool:
        pool.start()
        found: list[str] = []
        batch = [ProgramJob(f"import time\ntime.sleep(0.4)\nprint({number})") for number in range(4)]
        thread = threading.Thread(target=lambda: found.extend(result.stdout for result in pool.run(batch)))
        thread.start()
        time.sleep(0.2)
        pool.close()
        thread.join()
    assert found == ["0\n", "1\n", "2\n", "3\n"]


def test_workers_that_have_yet_to_start_end_with_their_pool(monkeypatch):
    monkeypatch.setattr("whet.reward.sandbox.pool.END_SECONDS", 60.0)
    sandbox = Sandbox(1, ("math_verify",), is_trusted=True)
    (batch,) = in_threads([sandbox.start], 1, "starter")
    while not sandbox._starting:
        time.sleep(0.001)
    (worker,) = sandbox._starting
    sandbox.close()
    assert worker.process.poll() == -signal.SIGKILL and not Path(worker.scratch).exists()  # nobody waits for it
    with pytest.raises(WhetError, match="did not start"):
        batch.result(60)
    assert not sandbox.workers and not sandbox._starting
