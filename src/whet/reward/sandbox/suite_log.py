"""The results of tests, as they come.

Runs inside the sandbox's own processes: only the standard library may be imported here.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from whet.reward.sandbox import wire
from whet.reward.sandbox.remote import Remote

MOST_TESTS = 10_000
NOTE = 200  # characters
NOT_REACHED = "no assertion was reached"


class ResultLog:
    """The results so far, written down as they come: a hang loses none of them.

    As a context it is one test: it notes how its body ended. Inside another test it is a part of that one.
    """

    def __init__(self, output: int) -> None:
        self.output = output
        self.count = 0
        self.depth = 0
        self.is_muted = False  # nothing is written: the tests only show whether they can judge
        self.reached = 0  # assertions that were begun
        self.inside_try: list[bool] = []  # of assertions that the tests themselves may catch

    def note(self, passed: bool, error: BaseException | None = None) -> None:
        """Record one result."""
        self.count += 1
        if self.count > MOST_TESTS:
            raise OverflowError(f"more than {MOST_TESTS} assertions")
        kind = "" if error is None else type(error).__name__
        if not self.is_muted:
            wire.send(self.output, {"passed": passed, "note": kind[:NOTE]})

    def plan(self, more: int) -> None:
        """Say how many results there will be at least."""
        if not self.is_muted and not self.depth and more > 0:
            wire.send(self.output, {"planned": self.count + more})

    @contextlib.contextmanager
    def assertion(self) -> Iterator[None]:
        """An assertion: a test of its own, or a step of the test around it."""
        self.reached += 1
        with self:
            yield

    @contextlib.contextmanager
    def tried_assertion(self) -> Iterator[None]:
        """An assertion inside `try`: how it ended is kept, and the program goes on as it is written."""
        self.reached += 1
        try:
            yield
        except wire.ConnectionClosed:
            raise
        except BaseException:
            self.inside_try.append(False)
            raise
        self.inside_try.append(True)

    @contextlib.contextmanager
    def asserting(self, must_reach: bool) -> Iterator[None]:
        """The body of a test function: where none of its assertions held, nothing was tested, whatever `try` hid.

        `must_reach` where it holds an assertion that can pass; `assert False` passes by not being reached.
        """
        reached, tried = self.reached, len(self.inside_try)
        yield
        hidden = self.inside_try[tried:]
        if not any(hidden) and self.reached - reached == len(hidden) and (hidden or must_reach):
            raise AssertionError(NOT_REACHED)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """A test of a framework, which says itself how it ended: what is inside of it is no test."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        self.depth -= 1
        if self.depth or isinstance(error, wire.ConnectionClosed):
            return False
        if error is not None and _is_skip(error):
            return True
        if error is not None and not isinstance(error, Exception | SystemExit) and not _is_outcome(error):
            return False
        self.note(error is None, error)
        return True


def _is_skip(error: BaseException) -> bool:
    """pytest's and unittest's way to leave a test out, which is the tests' own."""
    is_named_so = type(error).__name__ in ("Skipped", "SkipTest") and not isinstance(error, Remote)
    return is_named_so and (_is_outcome(error) or isinstance(error, Exception))


def _is_outcome(error: BaseException) -> bool:
    """True for pytest's own failures and skips, which are no ordinary exceptions."""
    outcomes = sys.modules.get("_pytest.outcomes")
    return outcomes is not None and isinstance(error, outcomes.OutcomeException)
