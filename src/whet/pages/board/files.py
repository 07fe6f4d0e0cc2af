"""Opening what lies in a run folder that somebody else may have made: regular files of the folder itself, nothing else.

A link could lead out of the folder and a pipe would never end, so neither is opened.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MOST_SMALL = 4 << 20  # bytes of a file that is read whole


@dataclass(frozen=True)
class FileState:
    """What tells whether a file was changed."""

    size: int
    changed: int  # nanoseconds
    identity: tuple[int, int]  # device and inode


def file_state(path: Path | str) -> FileState | None:
    """None where there is no regular file."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return FileState(found.st_size, found.st_mtime_ns, (found.st_dev, found.st_ino))


def open_file(path: Path) -> BinaryIO | None:
    """A regular file for reading; None where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return os.fdopen(descriptor, "rb")


def read_small(path: Path, most: int = MOST_SMALL) -> bytes | None:
    """The content of a small file; None where it is missing, unreadable, or larger than that."""
    file = open_file(path)
    if file is None:
        return None
    with file:
        try:
            content = file.read(most + 1)
        except OSError:
            return None
    return content if len(content) <= most else None
