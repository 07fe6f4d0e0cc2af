"""`pytest --workers N`: the process that collected the tests is forked N times, and its copies run them.

What is imported, collected and tried out once is there for all. The first process hands out the tests, a stretch of
files to each worker, and whoever is done takes half of what the slowest has left; it prints what the workers report.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import Pipe, util
from multiprocessing.connection import Connection, wait
from pathlib import Path
from signal import SIGTERM
from typing import Any
from weakref import finalize

import pytest

OWN = "worker"  # its folder of temporary files is called so, and has a number


def common_folder(temporary: pytest.TempPathFactory) -> Path:
    """Where workers share what one of them made."""
    base = temporary.getbasetemp()
    return base.parent if base.name.startswith(OWN) else base


def number_of_workers(wanted: str) -> int:
    if wanted != "auto":
        return int(wanted)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 1  # tests wait for processes, clocks and disks, and a core would wait with them


class Stock:
    """The tests that nobody runs yet, by number: a stretch for each worker."""

    def __init__(self, files: Sequence[Path], workers: int) -> None:
        self._files = files
        self._stretches: list[deque[int]] = [deque() for _ in range(workers)]
        self._stretches[0].extend(range(len(files)))
        for worker in range(1, workers):
            self._share(self._stretches[0], self._stretches[worker], len(files) - len(files) // workers * worker)

    def take(self, worker: int) -> int | None:
        """The next test for this worker; None: there is none left."""
        own = self._stretches[worker]
        if not own:
            longest = max(self._stretches, key=len)
            self._share(longest, own, len(longest) // 2)
        return own.popleft() if own else None

    def put_back(self, number: int) -> None:
        self._stretches[0].append(number)

    def left(self) -> int:
        return sum(map(len, self._stretches))

    def empty(self) -> None:
        for stretch in self._stretches:
            stretch.clear()

    def _share(self, source: deque[int], target: deque[int], keep: int) -> None:
        """Move what is behind the first `keep`, from the next file on if there is one: its fixtures are made once."""
        cut = [*source][keep:]
        file = self._files[cut[0]] if cut and keep else None
        while cut and len({self._files[number] for number in cut}) > 1 and self._files[cut[0]] == file:
            cut.pop(0)
        for _ in cut:
            source.pop()
        target.extend(cut)


class Worker:
    """A copy of this process, as the first one sees it."""

    def __init__(self, number: int, session: pytest.Session, prepare: Callable[[], None]) -> None:
        self.number, self.taken, self.said = number, deque[int](), ""
        self.link, other = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.process = os.fork()
        if self.process == 0:
            self.link.close()
            _end_as(lambda: _work(session, number, other, prepare), other)
        other.close()

    def ended(self) -> int:
        """Its exit status, once it has closed its end; negative: the signal that it died of."""
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


class Workers:
    """A plugin that runs all tests in copies of this process; without such copies pytest runs them itself."""

    def __init__(self) -> None:
        self._workers: list[Worker] = []

    def fork(self, session: pytest.Session, count: int, prepare: Callable[[], None]) -> None:
        """Make the copies, while nothing of pytest's is around the tests yet."""
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # one for all
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which hold nothing of ours
            self._workers = [Worker(number, session, prepare) for number in range(count)]
        self._stock = Stock([item.path for item in session.items], count)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if not self._workers:
            return None
        running = {worker.link: worker for worker in self._workers}
        try:
            while running:
                for link in wait([*running]):
                    worker = running[link]
                    try:
                        self._hear(session, worker, link.recv())
                    except (EOFError, ConnectionError):
                        del running[link]
                        self._bury(session, worker)
                if session.shouldfail or session.shouldstop:
                    self._stock.empty()
        finally:
            for worker in running.values():
                with suppress(ProcessLookupError):
                    os.kill(worker.process, SIGTERM)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        if self._stock.left():
            raise session.Failed(f"{self._stock.left()} tests were not run: no worker was left for them")
        return True

    def _hear(self, session: pytest.Session, worker: Worker, message: tuple[str, Any]) -> None:
        kind, content = message
        hook = session.config.hook
        if kind == "take":
            number = self._stock.take(worker.number)
            if number is not None:
                worker.taken.append(number)
            with suppress(ConnectionError):
                worker.link.send(number)
        elif kind == "report":
            report = hook.pytest_report_from_serializable(config=session.config, data=content)
            hook.pytest_runtest_logreport(report=report)
        elif kind == "start":
            hook.pytest_runtest_logstart(nodeid=content[0], location=content[1])
        elif kind == "finish":
            worker.taken.popleft()
            hook.pytest_runtest_logfinish(nodeid=content[0], location=content[1])
        elif kind == "error":
            worker.said = content
        elif kind == "warning":
            hook.pytest_warning_recorded.call_historic(kwargs=content)

    def _bury(self, session: pytest.Session, worker: Worker) -> None:
        """Say of what a worker died; what it had not begun is for the others."""
        status = worker.ended()
        for place, number in enumerate(worker.taken):
            if place:
                self._stock.put_back(number)
                continue
            item = session.items[number]
            said = f"the worker that ran this test ended with {status}\n{worker.said}".strip()
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", said, "call")
            session.config.hook.pytest_runtest_logreport(report=report)


class Reporter:
    """In a worker: what happens there is told to the first process."""

    def __init__(self, config: pytest.Config, link: Connection) -> None:
        self._config, self._link = config, link

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        self._link.send(("start", (nodeid, location)))

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        self._link.send(("finish", (nodeid, location)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._link.send(("report", data))

    def pytest_warning_recorded(self, warning_message: Any, when: str, nodeid: str, location: Any) -> None:
        kind = warning_message.category
        text = str(warning_message.message) if kind is UserWarning else f"{kind.__name__}: {warning_message.message}"
        plain = warnings.WarningMessage(text, UserWarning, warning_message.filename, warning_message.lineno)
        content = {"warning_message": plain, "when": when, "nodeid": nodeid, "location": location}
        self._link.send(("warning", content))


def _work(session: pytest.Session, number: int, link: Connection, prepare: Callable[[], None]) -> None:
    """Run what the first process hands out; one test ahead, for a test's end hangs on what comes next."""
    config = session.config
    plugins = config.pluginmanager
    capture: Any = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()  # into files that it would share with the others
    if capture.is_globally_capturing():
        with open(os.devnull, "w") as nowhere:  # what threads write between two tests belongs to no report
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
    capture.start_global_capturing()
    plugins.unregister(plugins.getplugin("terminalreporter"))
    plugins.register(Reporter(config, link))
    factory = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = factory.getbasetemp() / f"{OWN}{number}"
    factory._basetemp.mkdir(mode=0o700)
    prepare()

    def handed_out() -> Iterator[pytest.Item]:
        while True:
            link.send(("take", None))
            place = link.recv()
            if place is None:
                return
            yield session.items[place]

    items = handed_out()
    item = next(items, None)
    while item is not None:
        following = next(items, None)
        config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        item = following


def _end_as(work: Callable[[], None], link: Connection) -> None:
    """Do the work and end this process, with what tests left to be done at its end and nothing of the first one's."""
    for inherited in [*finalize._registry]:  # type: ignore[attr-defined]
        inherited.atexit = False
    util._finalizer_registry.clear()  # type: ignore[attr-defined]
    status = 1
    try:
        work()
        util._exit_function()
        finalize._exitfunc()  # type: ignore[attr-defined]
        status = 0
    except Exception:
        link.send(("error", traceback.format_exc()))
    finally:
        os._exit(status)
