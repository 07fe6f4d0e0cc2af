"""Python's parser in several threads."""

from __future__ import annotations

import gc
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from whet.data.tool_syntax import expression, statements


class Slow:
    """Garbage in a cycle whose end lets other threads run."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        time.sleep(0)


@pytest.fixture
def often_interrupted():
    """Garbage is collected within the parser, and threads change all the time."""
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(20)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*thresholds)


def test_many_threads_parse_at_once(often_interrupted):
    """Plain `ast.parse` raises SystemError here about once in a hundred calls, with Python 3.11.7."""
    text = "+".join(f"f(a={number}, b=[{number}, ({number}, 'x')])" for number in range(20))

    def parse(number: int) -> int:
        Slow()
        return len(statements(f"{text}\n" * 2)) + isinstance(expression(text), object)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(parse, range(400))) == {3}


def test_what_is_no_python_is_a_syntax_error():
    for text in ("f(", "1 +", "x = = 2"):
        with pytest.raises(SyntaxError):
            statements(text)
    with pytest.raises(SyntaxError):
        expression("x = 1")
