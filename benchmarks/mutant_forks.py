"""pytest plugin of mutants.py: collects the tests once, then forks for each mutant and runs tests until one fails.

In the fork the changed functions get the code of the mutant: no interpreter has to start and import everything; its
file is changed too, for processes that start from it. mutant_tests.py says which tests come first.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import json
import os
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from mutant_tests import NearTests, calls_from

ROOT = Path(os.environ["MUTANTS_TREE"])  # the tree whose tests run here, and whose texts the mutants are of
ASKED = Path(os.environ["MUTANTS_ASKED"])  # {"mutants": [...], "seconds": of processor time, "files": how many}
LINES = Path(os.environ["MUTANTS_LINES"])  # one line of JSON for each that is done
WAITS = 20  # times its processor time after which a mutant that computes nothing hangs
NEAR = NearTests(ROOT)


# the tests of a mutant


@cache
def text_of(file: str) -> str:
    return (ROOT / file).read_text("utf-8")


def chosen_tests(asked: dict[str, Any], items: Sequence[pytest.Item], most: int) -> list[pytest.Item]:
    """The tests of the nearest files, those that name what comes to the function by the fewest calls before others."""
    by_file: dict[str, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(item.nodeid.partition("::")[0], []).append(item)
    place = asked["path"], asked["qualname"]
    files = NEAR.files(*place, by_file)[:most]
    words = {file: NEAR.in_test(file, *place) for file in files}

    def calls(item: pytest.Item) -> int:
        text = ""
        with contextlib.suppress(OSError, TypeError):
            text = inspect.getsource(item.function)  # type: ignore[attr-defined]
        return calls_from(text, words[item.nodeid.partition("::")[0]])

    return sorted((item for file in files for item in by_file[file]), key=calls)


# a mutant in this process


def changed_code(file: str, old: str, new: str) -> Iterator[tuple[CodeType, CodeType]]:
    """The outermost functions that differ between two texts of a file."""

    def visit(one: CodeType, two: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
        inner = [[each for each in code.co_consts if isinstance(each, CodeType)] for code in (one, two)]
        for before, after in zip(*inner, strict=True):
            if before != after:
                is_function = bool(before.co_flags & inspect.CO_NEWLOCALS)
                yield from [(before, after)] if is_function else visit(before, after)

    yield from visit(compile(old, file, "exec"), compile(new, file, "exec"))


@contextlib.contextmanager
def mutated_file(asked: dict[str, Any] | None) -> Iterator[None]:
    """For processes that start from the tree's files, as those of the sandbox do."""
    if asked is None:
        yield
        return
    file = ROOT / asked["path"]
    file.write_text(mutated_text(asked), "utf-8")
    try:
        yield
    finally:
        file.write_text(text_of(asked["path"]), "utf-8")


def mutated_text(asked: dict[str, Any]) -> str:
    text = text_of(asked["path"])
    return text[: asked["start"]] + asked["new"] + text[asked["end"] :]


def mutate(asked: dict[str, Any]) -> None:
    """Give the changed functions of this process the mutant's code."""
    gc.unfreeze()
    loaded = [each for each in gc.get_objects() if isinstance(each, FunctionType)]
    done = False
    for before, after in changed_code(str(ROOT / asked["path"]), text_of(asked["path"]), mutated_text(asked)):
        for function in loaded:
            code = function.__code__
            same = (code.co_qualname, code.co_firstlineno) == (before.co_qualname, before.co_firstlineno)
            if same and code.co_filename.endswith(asked["path"]):
                function.__code__ = after.replace(co_filename=code.co_filename)
                done = True
    commands = sys.modules.get("tests.support.commands")
    if done and commands is not None:  # processes that tests start are forked from a copy of this one
        from multiprocessing import forkserver

        forkserver._forkserver.__init__()  # type: ignore[attr-defined]
        commands.fork_server()


class Failures:
    """The tests that failed, in their order."""

    def __init__(self) -> None:
        self.tests: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.tests.append(report.nodeid)


def used_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def run_tests(session: pytest.Session, items: Sequence[pytest.Item], seconds: float) -> dict[str, Any]:
    """Run until a test fails or the processor time is used up; 0: all of them, whatever fails."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        session.config.pluginmanager.unregister(reporter)
    failures, begun, done = Failures(), used_seconds(), 0
    session.config.pluginmanager.register(failures)
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        done += 1
        if seconds and (failures.tests or used_seconds() - begun > seconds):
            break
    ended = "" if failures.tests or done == len(items) else f"{done} of {len(items)} tests"
    state = "killed" if failures.tests else "survived"
    spent = {"tests": done, "seconds": round(used_seconds() - begun, 1), "note": ended}
    return {"state": state, "killer": next(iter(failures.tests), ""), "failed": failures.tests, **spent}


def in_a_fork(
    session: pytest.Session, asked: dict[str, Any] | None, items: Sequence[pytest.Item], seconds: float
) -> dict[str, Any]:
    """What the tests say, with the mutant in place where one is given; whatever they start ends with the fork."""
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        os.setsid()
        silence = os.open(os.devnull, os.O_RDWR)
        for number in (1, 2):
            os.dup2(silence, number)
        try:
            if asked is not None:
                mutate(asked)
            found = run_tests(session, items, seconds)
        except BaseException as error:
            found = {"state": "killed", "killer": f"{type(error).__name__}: {error}"[:200]}
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], WAITS * seconds or None)
    told = os.read(reading, 1 << 20) if ready else b""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    os.close(reading)
    if told:
        return json.loads(told)
    return {"state": "killed", "killer": "it ends the process of the tests" if ready else "it hangs"}


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    asked = json.loads(ASKED.read_text("utf-8"))
    waiting, items = asked["mutants"], session.items
    while waiting:
        lines = [tried(session, mutant, items, asked) for mutant in waiting]
        killers = {line.get("killer", "") for line in lines}
        again = [item for item in items if item.nodeid in killers]
        failing = set(in_a_fork(session, None, again, 0).get("failed", [])) if again else set()
        items = [item for item in items if item.nodeid not in failing]  # without a change they fail too
        waiting = [mutant for mutant, line in zip(waiting, lines, strict=True) if line.get("killer") in failing]
    return True


def tried(session: pytest.Session, mutant: dict[str, Any], items: Sequence[pytest.Item], asked: Any) -> dict[str, Any]:
    """What became of a mutant, which is written too."""
    text_of(mutant["path"])  # read before it is changed
    with mutated_file(mutant):
        found = in_a_fork(session, mutant, chosen_tests(mutant, items, asked["files"]), asked["seconds"])
    found.pop("failed", None)
    line = {"number": mutant["number"], **found}
    write(line)
    return line


def write(line: dict[str, Any]) -> None:
    with LINES.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(line["state"], line["number"], line.get("killer", ""), line.get("note", ""), flush=True)
