"""The cgroup of a worker's jobs: found, limited, joined, removed; left-over ones are cleaned up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from whet.reward.sandbox import cgroup
from whet.reward.sandbox.cgroup import MEGABYTE, PREFIX, SLACK, folders_above, make_group
from whet.reward.sandbox.job import Limits, ProgramJob
from whet.reward.sandbox.pool import Sandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="cgroups are Linux ones")

FILES = ("memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cgroup.procs")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A root with a cgroup tree in plain files; new folders get the files that the kernel would make."""
    tree = tmp_path / "cgroup"
    inner = tree / "user" / "session"
    inner.mkdir(parents=True)
    for folder, handed in ((tree, "cpu memory pids"), (tree / "user", "memory pids"), (inner, "")):
        (folder / "cgroup.subtree_control").write_text(handed)
    own = tmp_path / "proc" / "self"
    own.mkdir(parents=True)
    (own / "cgroup").write_text("4:memory:/elsewhere\n0::/user/session\n")
    (own / "mountinfo").write_text(
        f"35 24 0:30 / {tree} rw,nosuid - cgroup2 cgroup2 rw\n36 24 0:31 / /x rw - tmpfs tmpfs rw\n"
    )
    really = os.mkdir

    def mkdir(name, mode=0o777, *, dir_fd=None):
        really(name, mode, dir_fd=dir_fd)
        for file in (*FILES, "memory.events"):
            os.close(os.open(f"{name}/{file}", os.O_CREAT | os.O_WRONLY, dir_fd=dir_fd))

    monkeypatch.setattr(os, "mkdir", mkdir)
    return tmp_path


def content(folder: Path, group: cgroup.JobGroup) -> dict[str, str]:
    return {file: (folder / group.name / file).read_text() for file in FILES}


def test_the_nearest_folder_that_hands_out_both_is_used(machine):
    assert [Path(each).name for each in folders_above(f"{machine}/")] == ["session", "user", "cgroup"]
    group = make_group(f"{machine}/")
    folder = machine / "cgroup" / "user"
    assert [each.name for each in folder.glob(f"{PREFIX}-*")] == [group.name]
    assert content(folder, group)["memory.oom.group"] == "1" and content(folder, group)["memory.swap.max"] == "0"
    group.join({"memory_mb": 320, "file_mb": 16, "processes": 8})
    found = content(folder, group)
    assert (
        int(found["memory.max"]) == 336 * MEGABYTE + SLACK and found["pids.max"] == "9" and found["cgroup.procs"] == "0"
    )
    (folder / group.name / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 1\n")
    assert group.num_killed() == 2


@pytest.mark.parametrize("handed", ["", "memory", "cpu pids"])
def test_without_both_controllers_there_is_none_and_the_reason_says_which(machine, handed):
    for folder in ("cgroup", "cgroup/user"):
        (machine / folder / "cgroup.subtree_control").write_text(handed)
    missing = " and ".join(sorted({"memory", "pids"} - set(handed.split())))
    with pytest.raises(OSError, match="does not hand out memory and pids"):  # of the nearest folder
        make_group(f"{machine}/")
    (machine / "proc/self/cgroup").write_text("0::/user\n")
    with pytest.raises(OSError, match=f"user does not hand out {missing}"):
        make_group(f"{machine}/")
    (machine / "proc/self/cgroup").write_text("4:memory:/only-v1\n")
    with pytest.raises(OSError, match="no cgroup v2"):
        make_group(f"{machine}/")


def test_folders_of_dead_workers_are_removed_and_no_others(machine):
    folder = machine / "cgroup" / "user"
    own = cgroup._maker(os.getpid())
    space, process, started = own.split("-")
    dead = [f"{PREFIX}-{space}-{process}-{int(started) - 1}", f"{PREFIX}-{space}-999999999-1"]
    alive = [f"{PREFIX}-{cgroup._maker(os.getppid())}", f"{PREFIX}-7-{process}-1", f"{PREFIX}-odd", "other"]
    for name in (*dead, *alive):
        (folder / name).mkdir()
    for each in (folder / name for name in (*dead, *alive)):
        for file in each.iterdir():
            file.unlink()  # the kernel's own files do not keep a folder
    group = make_group(f"{machine}/")
    assert {each.name for each in folder.iterdir() if each.is_dir()} == {*alive, "session", group.name}


def test_a_real_group_is_joined_and_removed():
    try:
        group = make_group(needed=frozenset())
    except OSError as error:
        pytest.skip(f"no cgroup v2 to write to: {error}")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        group.write("cgroup.procs", child.pid)
        assert f"/{group.name}" in Path(f"/proc/{child.pid}/cgroup").read_text()
        group.remove()
        assert group.name in os.listdir(group.parent)  # the kernel keeps it while somebody is in it
        child.kill()
    group.remove()
    assert group.name not in os.listdir(group.parent)


@pytest.mark.parametrize("way", ["ended", "killed"])
def test_a_worker_takes_its_group_with_it(way):
    script = (
        "import os, sys\nfrom whet.reward.sandbox.job import ProgramJob\nfrom whet.reward.sandbox.pool import Sandbox\n"
        "pool = Sandbox(1)\npool.run([ProgramJob('1')])\n"
        "print(int(pool.holds['cgroup']), pool.workers[0].process.pid, flush=True)\n"
        "if sys.argv[1] == 'killed': os.kill(os.getpid(), 9)\npool.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", script, way], capture_output=True, text=True, timeout=60)
    assert done.returncode == (-signal.SIGKILL if way == "killed" else 0), done.stderr
    has_group, worker = map(int, done.stdout.split())
    if not has_group:
        pytest.skip("this machine hands out no cgroup")
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and any(f"-{worker}-" in each for each in _groups()):
        time.sleep(0.05)
    assert not any(f"-{worker}-" in each for each in _groups())


def _groups() -> list[str]:
    return [name for folder in folders_above() for name in os.listdir(folder) if name.startswith(PREFIX)]


def test_the_group_ends_a_job_that_takes_too_much():
    with Sandbox(1) as pool:
        pool.start()
        if not pool.holds["cgroup"]:
            pytest.skip("this machine hands out no cgroup")
        source = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        break
held = bytearray(os.urandom(1 << 20) * 90)
time.sleep(20)
"""
        (found,) = pool.run([ProgramJob(source, limits=Limits(memory_mb=128, processes=8))])
        assert found.ended == "out of memory" and found.seconds < 5
        assert pool.run([ProgramJob("print('next')")])[0].stdout == "next\n"
