"""Files of the user's: what is no file, or cannot be read, is one line with the fix and never a wait."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from whet.types import WhetError, nearest

KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)
MOST_SHOWN = 200  # characters of a path in an error line


def readable_file(source: str, expected: str, missing: str = "", hint: str = "") -> Path:
    """The path of a regular file; reading a pipe or a device might never end.

    `missing` is the fix for a path that leads nowhere, instead of a file with a similar name; `hint` follows it.
    """
    name = shown_source(source)
    try:
        path = Path(source).expanduser()
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise WhetError(f"{_missing(source, path, expected, missing)}{hint}") from None
    except (OSError, ValueError, RuntimeError) as error:  # too long a name, a null byte, the home of nobody
        raise WhetError(f"{name}: not a path ({reason(error)}); expected {expected}; correct the path") from error
    kind = next((words for test, words in KINDS if test(mode)), "")
    if kind:
        fix = "give the file itself" if kind == "a folder" else "save what it holds as a file, and give that"
        raise WhetError(f"{name}: is {kind}; expected {expected}; {fix}")
    return path


@contextmanager
def reading(source: str, fix: str = "check the file and its permissions") -> Iterator[None]:
    """The system's reason why a file cannot be read, in one line."""
    try:
        yield
    except OSError as error:
        raise WhetError(f"{shown_source(source)}: cannot be read ({reason(error)}); {fix}") from error


def names_in(folder: Path) -> list[str]:
    """The names in a folder; none where it may not be looked into."""
    try:
        return sorted(os.listdir(folder))
    except (OSError, ValueError):
        return []


def reason(error: BaseException) -> str:
    """Why an operation failed, as one line; of an OSError, without its number and path."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).partition("\n")[0]


def shown_source(source: str) -> str:
    """A path as an error line shows it: on one line, and not endless."""
    text = source if source.isprintable() else source.encode("unicode_escape", "backslashreplace").decode("ascii")
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def _missing(source: str, path: Path, expected: str, missing: str) -> str:
    name, fix = shown_source(source), missing or "correct the path"
    if missing or os.path.isdir(path.parent):
        close = None if missing else nearest(path.name, names_in(path.parent))
        fix = f"did you mean {path.parent / close}?" if close else fix
        problem = "no such file"
    else:
        problem = f"no such file, nor the folder {shown_source(str(path.parent))}"
    return f"{name}: {problem}; expected {expected}; {fix}"
