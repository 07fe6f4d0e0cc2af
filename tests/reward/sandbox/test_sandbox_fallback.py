"""With protections missing the sandbox still works, the others hold alone, and it says what is missing."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from whet.reward import sandbox as package
from whet.reward.sandbox import isolation
from whet.reward.sandbox.job import Limits, ProgramJob, UnitTestJob
from whet.reward.sandbox.pool import Sandbox
from whet.reward.sandbox.protections import active_protections, num_jobs_left

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the protections are Linux ones")

INSIDE = (
    *("candidate", "suite_log", "suite_peer", "suite_pytest", "suite_runner", "session_runner", "cgroup", "isolation"),
    *("kernel", "literal", "remote", "seccomp", "wire", "worker"),
)
ALWAYS = {"memory limit", "file size limit", "processor time limit", "wall clock limit", "output limit", "bare start"}
SMALL = Limits(cpu_seconds=1, wall_seconds=4.0, memory_mb=128)


@pytest.mark.parametrize(
    ("without", "mechanism", "stopped"),
    [
        (("privilege",), "user_namespace", {"files hidden", "files unchangeable", "no network", "whole tree killed"}),
        (("namespaces", "seccomp"), "landlock", {"files hidden", "files unchangeable"}),
        (("namespaces", "landlock"), "seccomp", {"no network", "process limit"}),
    ],
)
def test_each_protection_holds_alone(without, mechanism, stopped):
    with Sandbox(2, without=without, require="none") as pool:
        found = active_protections(pool)
        if not found.mechanisms.get(mechanism):
            pytest.skip(f"this kernel grants no {mechanism}")
        assert {name for name, holds in found.effects.items() if holds} >= ALWAYS | stopped
        job = UnitTestJob(
            ("def f(x): return x + 1",), {"form": "assertions", "tests": ["assert f(1) == 2", "assert f(1) == 3"]}
        )
        assert [result.passed for result in pool.run([job] * 3)] == [(True, False)] * 3


def test_with_nothing_it_works_and_says_so(caplog):
    with Sandbox(1, without=("namespaces", "landlock", "seccomp"), require="none") as pool:
        found = active_protections(pool)
        assert {name for name, holds in found.effects.items() if holds} >= ALWAYS
        assert {"no network", "files unchangeable"} <= set(found.missing())
        assert "can read, write and delete this user's files and reach the network" in caplog.text


def test_orphans_are_found_without_a_process_namespace():
    source = """
    import os, signal, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(60)
        os._exit(0)
    time.sleep(0.2)
    """
    with Sandbox(1, without=("namespaces", "seccomp"), require="none") as pool:
        (found,) = pool.run([ProgramJob(textwrap.dedent(source), limits=SMALL)])
        assert found.exit_code == 0 and num_jobs_left(pool) == 0 and found.seconds < 3


def test_signals_stay_inside_without_a_process_namespace():
    source = f"""
    import os
    for process in (-1, 1, {__import__("os").getpid()}, os.getppid()):
        try:
            os.kill(process, 15)
            print('sent')
        except OSError:
            print('refused')
    """
    with Sandbox(1, without=("namespaces", "landlock"), require="none") as pool:
        (found,) = pool.run([ProgramJob(textwrap.dedent(source), limits=SMALL)])
        if not pool.holds["seccomp"]:
            pytest.skip("this kernel grants no seccomp")
        assert found.stdout.split() == ["refused"] * 4


def test_the_tests_are_nowhere_in_the_memory_of_the_code():
    # without a private root the code can list its own memory: the strongest reader there is
    code = """
    import ctypes, re
    def f(pattern):
        for line in open('/proc/self/maps'):
            start, end = (int(part, 16) for part in line.split()[0].split('-'))
            if 'rw' in line and re.search(pattern.encode(), ctypes.string_at(start, end - start)):
                return True
        return False
    kept = 'needle' + 'stack'[:0] + chr(45) + 'mine'
    """
    tests = [
        # the patterns do not contain what they match: the search must not find itself
        "assert f('needle-[m]ine') == True",
        "assert f('kept-[b]y-the-tests') == False",
        "'kept-by-the-tests'",
    ]
    expected = [*tests[:2], "assert f('x') == 'kept-by-the-tests'"]  # judged without a process for the tests
    jobs = [
        UnitTestJob((textwrap.dedent(code),), {"form": "assertions", "tests": each}, limits=SMALL)
        for each in (tests, expected)
    ]
    assert [list(job.streams()) for job in jobs] == [["record"], ["answers"]]
    with Sandbox(1, without=("namespaces", "landlock"), require="none") as pool:
        assert [result.passed[:2] for result in pool.run(jobs * 3)] == [(True, True)] * 6


def test_workers_load_only_the_standard_library():
    """A worker must start fast and must hold nothing worth stealing: no torch, no package of the trainer."""
    folder = Path(package.__file__).parent
    for name in INSIDE:
        known = {*sys.stdlib_module_names, *(("pytest", "_pytest") if name == "suite_pytest" else ())}
        for node in ast.walk(ast.parse((folder / f"{name}.py").read_text())):
            if isinstance(node, ast.Import):
                assert all(alias.name.split(".")[0] in known for alias in node.names), name
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("whet"):
                loaded = {alias.name for alias in node.names} if node.module == "whet.reward.sandbox" else set()
                assert loaded <= set(INSIDE) and (node.module or "").split(".")[-1] in ("sandbox", *INSIDE), name
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] in known, name
    with Sandbox(1) as pool:
        (found,) = pool.run(
            [
                ProgramJob(
                    "import sys\nprint(sorted(n for n in sys.modules if n[:4] in ('whet', 'torc', 'nump', 'pyte')))"
                )
            ]
        )
    assert found.stdout == "[]\n"


def test_a_job_cut_short_without_a_process_namespace_leaves_nothing():
    source = "import os, time\nif os.fork() == 0:\n    os.setsid()\ntime.sleep(60)"
    with Sandbox(1, without=("namespaces", "seccomp"), require="none") as pool:
        started = time.monotonic()
        (found,) = pool.run([ProgramJob(source, limits=Limits(wall_seconds=0.5))])
        assert found.ended == "out of time" and num_jobs_left(pool) == 0 and time.monotonic() - started < 4


WITHOUT_NAMESPACES = [
    pytest.param("for n in range(99999): open(str(n), 'w').close()", id="many"),
    pytest.param(
        "for n in range(99): open(str(n), 'wb').write(bytes(1 << 19))\nimport time\ntime.sleep(9)", id="large"
    ),
    pytest.param("import os\nfor n in range(99999):\n    os.mkdir('d' * 200)\n    os.chdir('d' * 200)", id="deep"),
]


@pytest.mark.parametrize("source", WITHOUT_NAMESPACES)
def test_files_together_have_a_limit_without_a_file_system_of_their_own(source):
    limits = Limits(cpu_seconds=20, wall_seconds=20.0, file_mb=4)
    with Sandbox(1, without=("namespaces",)) as pool:
        (found,) = pool.run([ProgramJob(source, limits=limits)])
        assert found.ended == "too many files" and found.seconds < 15
        (after,) = pool.run([ProgramJob("import os\nprint(os.listdir('.'))")])
        assert after.stdout == "[]\n"


def test_a_killed_trainer_leaves_no_folder_behind(tmp_path):
    script = """
    import os, signal
    from whet.reward.sandbox.job import ProgramJob
    from whet.reward.sandbox.pool import Sandbox
    pool = Sandbox(1, without=("namespaces",))
    pool.run([ProgramJob("open('left', 'w').write('x')")])
    print(os.listdir(os.environ["TMPDIR"]), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == -9 and "whet-sandbox-" in done.stdout, done.stderr
    deadline = time.monotonic() + 5
    while os.listdir(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert os.listdir(tmp_path) == []


def test_a_folder_is_emptied_whatever_is_in_it(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(outside)
    (folder / "hard").hardlink_to(outside / "kept")
    os.mkfifo(folder / "pipe")
    place = os.open(folder, os.O_RDONLY)
    for number in range(3000):  # deeper than any path, and than any recursion
        os.mkdir("deep", dir_fd=place)
        if number % 1000 == 0:
            os.symlink(outside, "link", dir_fd=place) if number else None
            os.mkdir("side", dir_fd=place)
        inner = os.open("deep", os.O_RDONLY, dir_fd=place)
        os.chmod(place, 0)
        os.close(place)
        place = inner
    os.close(place)
    isolation.empty_folder(str(folder))
    assert os.listdir(folder) == [] and (outside / "kept").read_text() == "x"
    with pytest.raises(NotADirectoryError):
        isolation.empty_folder(str(_linked(tmp_path / "to-outside", outside)))
    assert (outside / "kept").exists()


def _linked(place: Path, target: Path) -> Path:
    place.symlink_to(target)
    return place
