"""pytest, run on what a test program has defined: its fixtures, parameters, marks and classes are pytest's own.

Runs inside the sandbox's own processes: only the standard library may be imported here, and pytest where it is
installed. It reads no file: the folder it stands in is the code's too, which could leave a conftest.py there.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from whet.reward.sandbox import wire
from whet.reward.sandbox.remote import CannotJudge, Remote, RemoteType
from whet.reward.sandbox.suite_log import ResultLog

# plugins that read or write files, or that tell a person something
LEFT_OUT = (
    *("terminal", "cacheprovider", "stepwise", "pastebin", "junitxml", "doctest", "faulthandler", "setuponly"),
    *("setupplan", "debugging", "legacypath", "unraisableexception", "threadexception"),
)
OPTIONS = ("--noconftest", "--assert=plain", "-s", "-c", os.devnull, "--rootdir=/")
_prepared: list[Any] = []  # a session that the worker began: that takes longer than most tests


def prepare() -> None:
    """Begin a session, once for all jobs of a worker."""
    from _pytest.config import _prepareconfig
    from _pytest.main import Session

    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # what is installed for other tests
    config = _prepareconfig([*OPTIONS, *(f"-pno:{plugin}" for plugin in LEFT_OUT)], [])
    del os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"]
    config._do_configure()
    _prepared.append(Session.from_config(config))
    config.hook.pytest_sessionstart(session=_prepared[-1])


def results(defined: Mapping[str, Any], log: ResultLog, more: int) -> Iterator[tuple[bool, BaseException | None]]:
    """Run the tests among what a program has defined, each when it is asked for: whether it passed, and what it met.
    `more` results will follow."""
    try:
        import pytest
        from _pytest.runner import runtestprotocol
    except ImportError:
        raise CannotJudge("the tests need pytest, which is not installed: pip install pytest") from None
    import pathlib  # not above: a worker is as small as can be
    import tempfile

    caught: list[BaseException] = []
    module = types.ModuleType("tests")
    # not what stands for the code's: pytest would look for tests in there
    vars(module).update({k: v for k, v in defined.items() if not isinstance(v, Remote | RemoteType | types.ModuleType)})

    class Tests(pytest.Module):
        def _getobj(self) -> types.ModuleType:
            return module

    class Plugin:
        @pytest.fixture
        def tmp_path(self) -> pathlib.Path:
            folder = tempfile.mkdtemp(dir=os.getcwd())
            os.chmod(folder, 0o770)  # for the code too, which is another user
            return pathlib.Path(folder)

        @pytest.fixture
        def monkeypatch(self) -> Iterator[Any]:
            made = pytest.MonkeyPatch()
            with contextlib.ExitStack() as endings:
                endings.callback(made.undo)
                vars(made)["setattr"] = functools.partial(_set_attribute, made.setattr, endings)
                yield made

        @pytest.hookimpl(tryfirst=True)
        def pytest_pyfunc_call(self, pyfuncitem: Any) -> bool:
            fixtures = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
            completed(pyfuncitem.obj(**fixtures))
            return True

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                raise RuntimeError(report.longreprtext.splitlines()[-1])

        def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
            error = None if call.excinfo is None else call.excinfo.value
            # not by its truth, which the code may decide
            if error is not None:
                caught.append(error)
            is_skip = isinstance(error, pytest.skip.Exception)
            outcome: Literal["passed", "failed", "skipped"] = (
                "passed" if error is None else "skipped" if is_skip else "failed"
            )
            return pytest.TestReport(item.nodeid, ("", 0, item.name), {}, outcome, None, call.when)

    if not _prepared:
        prepare()
    session = _prepared.pop()
    session.config.pluginmanager.register(Plugin())
    collected = session.genitems(Tests.from_parent(session, path=pathlib.Path("/tests.py")))
    items = [item for item in collected if not any(map(_leaves_out, item.iter_markers()))]
    log.plan(len(items) + more)
    for item, following in zip(items, [*items[1:], None], strict=False):
        caught.clear()
        with log.inside():
            outcomes = {report.outcome for report in runtestprotocol(item, log=False, nextitem=following)}
        for error in caught:
            if isinstance(error, pytest.FixtureLookupError):
                missing = [name for name in item.fixturenames if name not in item._fixtureinfo.name2fixturedefs]
                raise CannotJudge(f"{item.name} needs {', '.join(missing)}, which the tests do not define")
            if isinstance(error, CannotJudge | wire.ConnectionClosed):
                raise error
        if "failed" in outcomes or "skipped" not in outcomes:
            yield "failed" not in outcomes, caught[0] if caught else None


def _set_attribute(
    set_here: Callable[..., None], endings: contextlib.ExitStack, target: Any, *words: Any, **named: Any
) -> None:
    """`monkeypatch.setattr`. Of a class of the code it would look into the one that stands for it here."""
    if not isinstance(target, RemoteType):
        return set_here(target, *words, **named)
    endings.callback(setattr, target, words[0], getattr(target, words[0]))
    setattr(target, *words)


def _leaves_out(mark: Any) -> bool:
    """pytest's marks for tests that are not to be run, or whose failure is expected."""
    return mark.name in ("skip", "xfail") or (mark.name == "skipif" and any(argument is True for argument in mark.args))


def completed(value: Any) -> Any:
    """What a test function returned, run to its end where it only began."""
    if inspect.iscoroutine(value):
        import asyncio

        return asyncio.run(value)
    if inspect.isgenerator(value):
        for _ in value:
            pass
    return value
