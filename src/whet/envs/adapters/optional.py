"""Packages that not every environment needs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from whet.types import WhetError


@contextlib.contextmanager
def optional(environment: str, install: str) -> Iterator[None]:
    """Import a package in the block: a missing one is an error with the line that installs it.

    The log's root is left as it was: some packages set it up for the whole process when they are imported.
    """
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    except ImportError as error:
        missing = f"the package {error.name!r}" if error.name else "a package that is missing"
        raise WhetError(f"the environment {environment!r} needs {missing}; run {install}") from error
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def cannot_be_made(what: str, error: Exception, fix: str) -> WhetError:
    """The one line for an environment that its own package refuses."""
    reason = " ".join(str(error).split())[:200] or "no reason given"
    return WhetError(f"{what} cannot be made: {type(error).__name__}: {reason}; {fix}")
