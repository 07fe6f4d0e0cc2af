"""pytest, run on what a test program has defined: its fixtures, parameters, marks and classes are pytest's own.

Runs inside the sandbox's own processes: only the standard library may be imported here, and pytest where it is
installed. It reads no file: the folder it stands in is the code's too, which could leave a conftest.py there.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import types
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from whet.reward.sandbox import wire
from whet.reward.sandbox.remote import CannotJudge, Remote, RemoteType

if TYPE_CHECKING:
    from whet.reward.sandbox.suite_runner import ResultLog

# plugins that read or write files, or that tell a person something
LEFT_OUT = (
    *("terminal", "cacheprovider", "stepwise", "pastebin", "junitxml", "doctest", "faulthandler", "setuponly"),
    *("setupplan", "debugging", "legacypath", "unraisableexception", "threadexception"),
)
OPTIONS = (
    "--noconftest",
    "--assert=plain",
    "-s",
    "-c",
    os.devnull,
    "--rootdir=/",
    *(f"-pno:{each}" for each in LEFT_OUT),
)
_prepared: list[Any] = []  # a configuration that the worker made: it takes longer than most tests


def prepare() -> None:
    """Read pytest's options, once for all jobs of a worker."""
    _prepared.append(_configuration())


def _configuration() -> Any:
    from _pytest.config import _prepareconfig

    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # what is installed for other tests
    try:
        return _prepareconfig([*OPTIONS, *(f"-pno:{each}" for each in LEFT_OUT)], [])
    finally:
        del os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"]


def run(defined: Mapping[str, Any], log: ResultLog, more: int) -> list[bool]:
    """Run the tests among what a program has defined; which of them passed. `more` results will follow."""
    try:
        import pytest
    except ImportError:
        raise CannotJudge("the tests need pytest, which is not installed") from None
    import pathlib  # not above: a worker is as small as can be
    import tempfile

    results: list[bool] = []
    is_one_test = log.depth > 0  # all of it together
    module = types.ModuleType("tests")
    # not what stands for the code's: pytest would look for tests in there
    vars(module).update({k: v for k, v in defined.items() if not isinstance(v, Remote | RemoteType | types.ModuleType)})

    class Tests(pytest.Module):
        def _getobj(self) -> types.ModuleType:
            return module

    class MonkeyPatch(pytest.MonkeyPatch):
        def setattr(self, target: Any, name: Any, *value: Any, **named: Any) -> None:
            if not isinstance(target, RemoteType):
                return super().setattr(target, name, *value, **named)
            self.endings.callback(setattr, target, name, getattr(target, name))
            setattr(target, name, *value)

    class Plugin:
        error: BaseException | None = None  # that ends all tests
        caught: BaseException | None = None
        outcomes: set[str]

        @pytest.fixture
        def tmp_path(self) -> pathlib.Path:
            folder = tempfile.mkdtemp(dir=os.getcwd())
            os.chmod(folder, 0o770)  # for the code too, which is another user
            return pathlib.Path(folder)

        @pytest.fixture
        def monkeypatch(self) -> Iterator[Any]:
            made = MonkeyPatch()
            with contextlib.ExitStack() as made.endings:
                yield made
                made.undo()

        @pytest.hookimpl(tryfirst=True)
        def pytest_collection(self, session: Any) -> bool:
            collected = session.genitems(Tests.from_parent(session, path=pathlib.Path("/tests.py")))
            session.items = [item for item in collected if not any(map(_leaves_out, item.iter_markers()))]
            session.testscollected = len(session.items)
            log.plan(len(session.items) + more)
            return True

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
            self.caught, self.outcomes = None, set()
            log.depth += 1
            try:
                return (yield)
            finally:
                log.depth -= 1
                if self.error is None and ("failed" in self.outcomes or "skipped" not in self.outcomes):
                    results.append("failed" not in self.outcomes)
                    if not is_one_test:
                        log.note(results[-1], self.caught)

        @pytest.hookimpl(tryfirst=True)
        def pytest_pyfunc_call(self, pyfuncitem: Any) -> bool:
            given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
            completed(pyfuncitem.obj(**given))
            return True

        def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
            caught = None if call.excinfo is None else call.excinfo.value
            if isinstance(caught, pytest.FixtureLookupError):
                caught = CannotJudge(f"{item.name} needs {caught.argname}, which the tests do not define")
            if isinstance(caught, CannotJudge | wire.ConnectionClosed):
                self.error = self.error or caught
                item.session.shouldstop = "nothing more can be judged"
            self.caught = self.caught or caught
            outcome = "skipped" if isinstance(caught, pytest.skip.Exception) else "failed" if caught else "passed"
            return pytest.TestReport(item.nodeid, ("", 0, item.name), {}, outcome, None, call.when)

        def pytest_runtest_logreport(self, report: Any) -> None:
            self.outcomes.add(report.outcome)

    configuration = _prepared.pop() if _prepared else _configuration()
    plugin = Plugin()
    configuration.pluginmanager.register(plugin)
    ended = configuration.hook.pytest_cmdline_main(config=configuration)
    if plugin.error is not None:
        raise plugin.error
    if ended not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(f"pytest ended with {ended}")
    return results


def _leaves_out(mark: Any) -> bool:
    """pytest's marks for tests that are not to be run, or whose failure is expected."""
    return mark.name in ("skip", "xfail") or (mark.name == "skipif" and any(each is True for each in mark.args))


def completed(value: Any) -> Any:
    """What a test function returned, run to its end where it only began."""
    if inspect.iscoroutine(value):
        import asyncio

        return asyncio.run(value)
    if inspect.isgenerator(value):
        for _ in value:
            pass
    return value
