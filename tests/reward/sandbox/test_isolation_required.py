"""A machine that isolates too little runs no code. The kernel's refusals are real: a filter around the process."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from benchmarks.trust._weaker import environment, interpreter
from whet.reward.sandbox import requirement
from whet.reward.sandbox.job import Limits, ProgramJob, UnitTestJob
from whet.reward.sandbox.pool import Sandbox
from whet.reward.sandbox.requirement import (
    ALWAYS,
    MECHANISMS,
    check_isolation,
    isolation_given,
    isolation_warnings,
    reason,
    require_isolation,
)
from whet.types import WhetError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the protections are Linux ones")

WEAKER = Path(__file__).parents[3] / "benchmarks/trust/_weaker.py"
EVERYTHING = {step: True for steps in MECHANISMS.values() for step in steps} | {"tree_memory": True}
NO_FILES = "read, write and delete this user's files"
HELLO = ProgramJob("print('hello')")


@pytest.fixture(autouse=True)
def usual():
    yield
    require_isolation("any")


def machine_without(missing: str, source: str) -> subprocess.CompletedProcess:
    """Run the source as an unprivileged user whose kernel refuses what is missing."""
    program = interpreter()
    if program is None:
        pytest.skip("no interpreter that an unprivileged user can start")
    command = [sys.executable, "-P", str(WEAKER), missing, "--", program, "-c", textwrap.dedent(source)]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60, cwd="/")


RUN = """
import json
from whet.reward.sandbox.job import ProgramJob
from whet.reward.sandbox.pool import Sandbox
from whet.reward.sandbox.requirement import isolation_given
from whet.types import WhetError
for require in ("any", "namespaces", "landlock", "none"):
    with Sandbox(1, require=require) as pool:
        try:
            (found,) = pool.run([ProgramJob("print('hello')")])
            print(json.dumps([require, sorted(isolation_given(pool.holds)), found.stdout]))
        except WhetError as error:
            print(json.dumps([require, None, str(error)]))
        assert not pool.workers or isolation_given(pool.holds) or require == "none"
"""


@pytest.mark.parametrize(
    ("missing", "given", "refused"),
    [
        ("", ["landlock", "namespaces"], []),
        ("landlock", ["namespaces"], ["landlock"]),
        ("namespaces", ["landlock"], ["namespaces"]),
        ("namespaces,landlock", [], ["any", "namespaces", "landlock"]),
    ],
)
def test_less_than_required_is_refused(missing, given, refused):
    with Sandbox(1, without=("privilege",)) as pool:
        pool.start()
        if not {"landlock", "namespaces"} <= isolation_given(pool.holds):
            pytest.skip("this machine does not give both to begin with")
    ran = machine_without(missing, RUN)
    assert ran.returncode == 0, ran.stderr
    found = {require: rest for require, *rest in map(json.loads, ran.stdout.splitlines())}
    assert set(found) == {"any", "namespaces", "landlock", "none"}
    for require, (level, text) in found.items():
        if require in refused:
            assert level is None and "\n" not in text and "the sandbox will not run code on this machine" in text
            assert all(f"no {each}: " in text for each in missing.split(",") if require in ("any", each))
            assert ("sandbox.require=none" in text) == (not given)
        else:
            assert level == given and text == "hello\n", (require, text)
    said = [line for line in ran.stderr.splitlines() if line.startswith("sandbox: ")]
    assert any(NO_FILES in line for line in said) == (not given)
    for each in filter(None, missing.split(",")):
        assert any(f"no {each}: " in line and "filter" in line for line in said), said


def test_a_weaker_worker_does_not_replace_a_better_one():
    with Sandbox(1) as pool:
        pool.start()
        if len(isolation_given(pool.holds)) < 2:
            pytest.skip("this machine gives one kind of isolation only")
        pool.without = ("landlock",)
        pool.workers[0].process.kill()
        with pytest.raises(WhetError, match="lost its landlock since it started"):
            pool.run([HELLO])
        assert not pool.workers


def test_a_job_that_cannot_be_confined_is_lost_and_not_wrong(monkeypatch, caplog):
    """What held in the trial and fails in a job: a limit the kernel does not know stands for anything of the kind."""
    tests = {"form": "assertions", "tests": ["assert f() == 1"]}
    marked = Limits(wall_seconds=9.0)
    jobs = [ProgramJob("print('ran')", limits=marked), UnitTestJob(("def f(): return 1",), tests, limits=marked)]

    def counts(limits: Limits) -> dict[str, int]:
        return {**usual_counts(limits), **({"cpu_seconds": 1 << 80} if limits is marked else {})}

    with Sandbox(1) as pool:
        assert [found.is_lost for found in pool.run(jobs)] == [False, False]
        monkeypatch.setattr(Limits, "counts", counts)
        found = pool.run(jobs)
        assert [each.is_lost for each in found] == [True, True] and not found[0].stdout and not found[1].passed
        monkeypatch.undo()
        # code that leaves in a hurry, or as if it had not been confined, gains nothing by it
        hurried = [ProgramJob("import os\nos._exit(66)"), ProgramJob("import os\nos.kill(os.getpid(), 9)")]
        assert [(each.is_lost, each.exit_code) for each in pool.run(hurried)] == [(False, 66), (False, -9)]
        assert pool.run(jobs)[1].passed == (True,)


usual_counts = Limits.counts


def test_workers_of_a_lenient_run_do_not_serve_a_strict_one(caplog):
    require_isolation("none")
    with Sandbox(1, without=("namespaces", "landlock")) as pool:
        assert pool.run([HELLO])[0].stdout == "hello\n"
        assert NO_FILES in caplog.text
        require_isolation("any")
        with pytest.raises(WhetError, match="will not run code"):
            pool.run([HELLO])
        assert not pool.workers


def test_every_run_is_told(caplog, monkeypatch):
    from whet.reward.combine import RewardPart
    from whet.reward.find import find_reward
    from whet.training.assembly import rewards

    pools: dict[int, Sandbox] = {}

    def weak_pool(workers: int = 0) -> Sandbox:
        return pools.setdefault(workers, Sandbox(1, without=("namespaces", "landlock")))

    monkeypatch.setattr("whet.reward.sandbox.pool.shared_sandbox", weak_pool)
    parts = [RewardPart(find_reward("cosine_length", {"accuracy": "code_tests", "max_tokens": 9}))]
    with pytest.raises(WhetError, match=r"sandbox\.require=none"):
        rewards.start_sandbox(parts, "any")
    for number in (1, 2, 3):
        rewards.start_sandbox(parts, "none")
        assert sum(NO_FILES in record.message for record in caplog.records) == number
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    rewards.start_sandbox([RewardPart(find_reward("exact_answer"))], "any")  # runs no code: nothing to refuse
    pools[0].close()


def test_an_unknown_requirement_is_an_error():
    with pytest.raises(WhetError, match=r"did you mean 'landlock'.*any, namespaces, landlock, none"):
        Sandbox(require="landlok")
    with pytest.raises(WhetError, match=r"sandbox\.require is 'all'"):
        require_isolation("all")


@pytest.mark.parametrize(
    "step", ["seccomp", "no_new_privileges", "resource_limits", "private_root", "network_namespace"]
)
def test_a_mechanism_needs_all_its_steps(step):
    holds = {**EVERYTHING, step: False}
    assert isolation_given(EVERYTHING) == {"namespaces", "landlock"}
    assert isolation_given(holds) == (frozenset() if step in ALWAYS else {"landlock"})
    if step in ALWAYS:
        with pytest.raises(WhetError, match=f"no namespaces: .*{step}.*missing"):
            check_isolation("any", holds, {})


def test_nothing_is_said_where_everything_holds():
    assert isolation_warnings("any", EVERYTHING, {}) == []
    assert "not for all of a job" in isolation_warnings("any", {**EVERYTHING, "tree_memory": False}, {})[0]
    assert isolation_warnings("any", {**EVERYTHING, "capabilities_held": False}, {}) == [
        "sandbox: missing: capabilities_held"
    ]


def test_code_that_runs_as_root_is_said():
    alone = {"separate_user": (errno.EINVAL, "Invalid argument")}
    (line,) = isolation_warnings("any", {**EVERYTHING, "separate_user": False}, alone)
    assert "(Invalid argument): whet runs as root, and so does code under test" in line and "another user" in line
    assert isolation_warnings("any", {**EVERYTHING, "separate_user": True}, {}) == []


@pytest.mark.parametrize(
    ("mechanism", "why", "settings", "filtered", "expected"),
    [
        ("namespaces", {"user_namespace": (errno.ENOSPC, "x")}, {}, False, "sysctl -w user.max_user_namespaces"),
        ("namespaces", {"namespaces": (1, "x")}, {"user/max_user_namespaces": "0"}, False, "max_user_namespaces"),
        ("namespaces", {"user_namespace": (1, "unshare: no")}, {}, False, "unshare: no"),
        ("namespaces", {"user_namespace": (1, "x")}, {}, True, "start the container"),
        ("namespaces", {"private_root": (13, "mount /: no")}, {}, False, "mount /: no"),
        ("landlock", {"landlock": (errno.EOPNOTSUPP, "x")}, {}, False, "lsm= parameter"),
        ("landlock", {"landlock": (errno.ENOSYS, "x")}, {}, False, "Linux 5.13"),
        ("landlock", {"landlock": (errno.ENOSYS, "x")}, {}, True, "container hides it"),
        ("landlock", {}, {}, False, "landlock missing"),
    ],
)
def test_the_reason_names_the_setting(mechanism, why, settings, filtered, expected, monkeypatch):
    monkeypatch.setattr(requirement, "_setting", lambda name: settings.get(name, ""))
    monkeypatch.setattr(requirement, "is_filtered", lambda: filtered)
    assert expected in reason(mechanism, {**EVERYTHING, mechanism: False, "private_root": False}, why)


@pytest.mark.parametrize(
    ("setting", "value"), [("unprivileged_userns_clone", "0"), ("apparmor_restrict_unprivileged_userns", "1")]
)
def test_settings_that_only_bind_users_are_named_to_users(setting, value, monkeypatch):
    monkeypatch.setattr(requirement, "_setting", lambda name: value if name.endswith(setting) else "")
    for user, is_named in ((1000, True), (0, False)):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert (setting in reason("namespaces", {}, {"user_namespace": (1, "no")})) == is_named


def test_other_systems_and_machines_are_refused_in_words(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(WhetError, match="this is darwin, and the sandbox needs Linux"):
        check_isolation("any", {}, {})
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(requirement.kernel, "MACHINE", "riscv64")
    with pytest.raises(WhetError, match="no system call numbers for riscv64"):
        check_isolation("any", {}, {})
