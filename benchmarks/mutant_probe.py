"""Which test reaches which place: copied beside the package by mutants.py, as a module and as a pytest plugin.

The plugin runs the tests of the list `.mutants/chosen` in its order (all, where there is none) and writes one line per
report. `reach` is called by the places that are watched, also in processes that tests start: these read from a file
which test is running, since a process may be forked from one that an earlier test began.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

NOTES = Path(__file__).resolve().parents[1] / ".mutants"
FRESH = 0.02  # seconds for which a process that is not pytest's own trusts what it read

_seen: set[tuple[int, str]] = set()
_test = ""  # "setup", "call" or "teardown", a space and the test's id
_pytest_process = 0
_read_at = 0.0


def reach(place: int) -> bool:
    """Note that the test which runs now came to a place; always true."""
    global _test, _read_at
    if os.getpid() != _pytest_process and (now := time.monotonic()) - _read_at > FRESH:
        with contextlib.suppress(OSError):  # a sandbox may hide it
            _test, _read_at = (NOTES / "running").read_text("utf-8"), now
    if (place, _test) not in _seen:
        _seen.add((place, _test))
        with contextlib.suppress(OSError):
            _write("reached", [place, _test])
    return True


def pytest_configure(config: Any) -> None:
    global _pytest_process
    _pytest_process = os.getpid()


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    chosen = NOTES / "chosen"
    if not chosen.exists():
        return
    place = {test: number for number, test in enumerate(json.loads(chosen.read_text("utf-8")))}
    config.hook.pytest_deselected(items=[each for each in items if each.nodeid not in place])
    items[:] = sorted((each for each in items if each.nodeid in place), key=lambda each: place[each.nodeid])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: Any) -> None:
    _run(f"setup {item.nodeid}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: Any) -> None:
    _run(f"call {item.nodeid}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: Any) -> None:
    _run(f"teardown {item.nodeid}")


def pytest_runtest_logfinish(nodeid: str, location: Any) -> None:
    _run("")


def pytest_runtest_logreport(report: Any) -> None:
    _write("reports", [report.nodeid, report.when, report.outcome, report.duration])


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        _write("reports", [report.nodeid, "collect", "failed", 0.0])


def _run(test: str) -> None:
    global _test
    _test = test
    (NOTES / "running").write_text(test, "utf-8")


def _write(name: str, line: Any) -> None:
    with open(NOTES / name, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
