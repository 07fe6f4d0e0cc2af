"""pytest plugin of mutants.py: collects the tests once, then forks for each mutant and runs tests until one fails.

In the fork the changed functions get the code of the mutant: no interpreter has to start and import everything; its
file is changed too, for processes that start from it. The tests that name a mutated function, or one of its module
that calls it, come first.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import inspect
import json
import os
import re
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

ROOT = Path(os.environ["MUTANTS_TREE"])  # the tree whose tests run here, and whose texts the mutants are of
ASKED = Path(os.environ["MUTANTS_ASKED"])  # {"mutants": [...], "seconds": of processor time, "files": how many}
LINES = Path(os.environ["MUTANTS_LINES"])  # one line of JSON for each that is done
WAITS = 20  # times its processor time after which a mutant that computes nothing hangs
FOUND_BY_NAME = 4  # calls from a mutated function to one that tests name
OTHER_TESTS = ("architecture", "gpu", "peers")  # of the text of the tree, of a GPU, of other packages


# the tests of a mutant


@cache
def text_of(file: str) -> str:
    return (ROOT / file).read_text("utf-8")


@cache
def functions_of(file: str) -> list[tuple[str, tuple[str, ...], str]]:
    """(name, the names around it, text) of every function."""
    found: list[tuple[str, tuple[str, ...], str]] = []

    def visit(node: ast.AST, around: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                if not isinstance(child, ast.ClassDef):
                    found.append((child.name, around, ast.unparse(child)))
                visit(child, (*around, child.name))

    visit(ast.parse(text_of(file)), ())
    return found


def names_of(path: str, qualname: str) -> set[str]:
    """The function, its class, and the functions of its module that come to it."""
    *around, function = qualname.split(".")
    names = {function, *(name for name in around if is_class(name))}
    for _ in range(FOUND_BY_NAME):
        calls = words(names)
        for name, outer, text in functions_of(path):
            if calls.search(text):
                names |= {name, *(each for each in outer if is_class(each))}
    return {name for name in names if not name.startswith("__")} or {function}


def is_class(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def words(names: set[str]) -> re.Pattern[str]:
    return re.compile(r"\b(?:" + "|".join(sorted(map(re.escape, names))) + r")\b")


def test_files(path: str, qualname: str, files: Sequence[str]) -> list[str]:
    """Those that may notice a change of a function: its module or room and its name, its name, its module or room."""
    inner = Path(path).relative_to("src").with_suffix("")
    module = ".".join(inner.parts).removesuffix(".__init__")
    folders, named = set(inner.parts[1:-1]), words(names_of(path, qualname))
    direct = words({qualname.rpartition(".")[2]})

    def rank(file: str) -> tuple[int, ...]:
        text = text_of(file)
        near = bool(folders.intersection(Path(file).parts[1:-1]))
        imports = f"{module} import" in text or f"import {module}" in text
        hits = len(set(named.findall(text)))
        own = Path(file).stem.removeprefix("test_") == inner.name
        known = near or imports
        return tuple(
            -int(each)
            for each in (known and bool(direct.search(text)), known and hits > 0, known, hits > 0, own, hits, imports)
        )

    ranks = {file: rank(file) for file in files if Path(file).parts[1] not in OTHER_TESTS}
    return sorted((file for file, found in ranks.items() if any(found[:4])), key=lambda file: ranks[file])


def chosen_tests(asked: dict[str, Any], items: Sequence[pytest.Item], most: int) -> list[pytest.Item]:
    """The tests of the nearest files, those that name the function or one that comes to it before the others."""
    by_file: dict[str, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(item.nodeid.partition("::")[0], []).append(item)
    files = test_files(asked["path"], asked["qualname"], list(by_file))[:most]
    named = words(names_of(asked["path"], asked["qualname"]))

    def says(item: pytest.Item) -> bool:
        with contextlib.suppress(OSError, TypeError):
            return bool(named.search(inspect.getsource(item.function)))  # type: ignore[attr-defined]
        return False

    return sorted((item for file in files for item in by_file[file]), key=lambda item: not says(item))


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
    killers: dict[str, list[dict[str, Any]]] = {}
    for mutant in asked["mutants"]:
        items = chosen_tests(mutant, session.items, asked["files"])
        text_of(mutant["path"])  # read before it is changed
        with mutated_file(mutant):
            found = in_a_fork(session, mutant, items, asked["seconds"])
        found.pop("failed", None)
        line = {"number": mutant["number"], **found}
        write(line)
        killers.setdefault(line.get("killer", ""), []).append(line)
    again = [item for item in session.items if item.nodeid in killers]
    for test in in_a_fork(session, None, again, 0).get("failed", []) if again else []:
        for line in killers[test]:
            write({**line, "state": "survived", "note": f"{test} fails without a change too"})
    return True


def write(line: dict[str, Any]) -> None:
    with LINES.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(line["state"], line["number"], line.get("killer", ""), line.get("note", ""), flush=True)
