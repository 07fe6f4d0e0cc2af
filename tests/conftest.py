"""What every test leaves as it found it, what this session collected, and the run that its tests share."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from functools import cache

import pytest
import typer.main
import typer.testing

from tests.support.collection import note_collected
from tests.support.shared_runs import (
    draw_prompts_once,
    made_once,
    read_builtin_models_once,
    train_imitator,
    try_equal_models_once,
)
from tests.support.workers import Workers, number_of_workers

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a background shell starts its commands so; ours must end by it
    signal.signal(signal.SIGINT, signal.default_int_handler)


os.fsync = lambda file: None  # what a killed process wrote is there without it; the disk would take a third of a run


gc.disable()  # hundreds of modules are imported to stay: a third of collecting would go into looking for garbage


typer.testing._get_command = cache(typer.main.get_command)  # else all commands are built anew for each call


LONG = {"trust", "distributed", "pipelines"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", default="1", help="processes that run the tests, or auto: one more than cores")


WORKERS = pytest.StashKey[Workers]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[WORKERS] = Workers()
    if number_of_workers(config.getoption("workers")) > 1:  # threads that a library has begun are lost in a fork: its
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # next operation would wait for them, for ever
        import torch

        torch.set_num_threads(1)
    config.pluginmanager.register(config.stash[WORKERS])


def pytest_collection_finish(session: pytest.Session) -> None:
    read_builtin_models_once()
    try_equal_models_once(is_patched)
    draw_prompts_once(is_patched)
    gc.freeze()  # what is there by now is never garbage
    gc.set_threshold(20_000, 10, 40)  # tests drop thousands of objects: to look through all that is left rarely pays
    gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around what pytest does to logs and warnings while tests run
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    commands = sys.modules.get("tests.support.commands")  # of tests that start commands
    serves = commands is not None and sys.platform == "linux" and not session.config.option.collectonly
    count = min(number_of_workers(session.config.option.workers), len(session.items))
    if count > 1 and not session.config.option.collectonly and not session.testsfailed:
        if serves:
            commands.warm_up()
        session.config.stash[WORKERS].fork(session, count, commands.fork_server if serves else lambda: None)
    elif serves:
        commands.fork_server()
    return (yield)


@pytest.hookimpl(tryfirst=True)  # before markers deselect anything
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # the order of every worker; long tests first, else one worker is left alone with the last of them
    items.sort(key=lambda item: (LONG.isdisjoint(item.path.parts), item.path.parts))
    note_collected(config, items)


@pytest.fixture(scope="session")
def imitator(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a finished SFT run of the built-in model."""
    return str(made_once(tmp_path_factory, "sft", train_imitator))


PATCHES: list[pytest.MonkeyPatch] = []  # of the test that runs


def is_patched() -> bool:
    """Whether the test that runs has replaced anything but environment variables."""
    return any(patch._setattr or any(changed is not os.environ for changed, *_ in patch._setitem) for patch in PATCHES)


@pytest.fixture(autouse=True)
def noted_patches(request: pytest.FixtureRequest) -> Iterator[None]:
    if "monkeypatch" in request.fixturenames:
        PATCHES.append(request.getfixturevalue("monkeypatch"))
    yield
    PATCHES.clear()


@pytest.fixture(autouse=True)
def own_signal_handlers() -> Iterator[None]:
    """A command line that ends ignores signals from then on, and children would inherit that."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)
