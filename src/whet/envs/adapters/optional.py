"""Packages that not every environment needs."""

from __future__ import annotations

import contextlib
import io
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

from whet.registry import error_text, imported
from whet.types import WhetError

NLTK_DATA = re.compile(r"Resource '?(\w+)'? not found")


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
    if data := NLTK_DATA.search(str(error)):
        fetch = f"run python -m nltk.downloader {data[1]} (it needs the network), or choose another"
        return WhetError(f"{what} needs nltk's data {data[1]!r}; {fetch}")
    return WhetError(f"{what} cannot be made: {error_text(error)}; {fix}")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nothing is printed in the block: some packages try to download word lists when a game is made, and say so."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def function_of(given: Any, setting: str) -> Callable[..., Any]:
    """A setting that is a function: itself, or `file.py:function` as a config has it."""
    function = imported(given, setting) if isinstance(given, str) else given
    if not callable(function):
        raise WhetError(f"{setting} is {function!r}; give a function, or file.py:function")
    return function
