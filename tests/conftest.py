"""What every test leaves as it found it, and what this session collected."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.support.collection import note_collected

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.hookimpl(tryfirst=True)  # before markers deselect anything
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    note_collected(config, items)


@pytest.fixture(autouse=True)
def own_signal_handlers() -> Iterator[None]:
    """A command line that ends ignores signals from then on, and children would inherit that."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)
