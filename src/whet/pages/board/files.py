"""What lies in folders that somebody else may have made: what is found there, opened, read while it grows, and shown.

Only regular files of the folders themselves are opened: a link could lead out of them, and a pipe would never end. An
id is a digest of a place, and only ids of what was found lead anywhere. A log that was cut back (a resumed run does
that), replaced or deleted is read again from its start.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

MOST_SMALL = 4 << 20  # bytes of a file that is read whole
# controls but newline and tab; marks that change the direction of what follows, or are not seen at all
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
BLOCK = 1 << 20  # bytes that are read at once
LONGEST = 32 << 20  # bytes of a line that is read; longer ones are passed over
MARK = 64  # bytes before the end that must be the same
RUN, PIPELINE, COMPARISON, EVALUATION = "run", "pipeline", "comparison", "evaluation"
# the file that makes a folder what it is
SIGNS = {RUN: "config.toml", PIPELINE: "pipeline.toml", COMPARISON: "compare.json", EVALUATION: "eval.json"}
IN_RUNS = frozenset(("best", "final"))  # folders of a run that hold a model
HIDDEN = ("checkpoints", "start", "replaced", "node_modules", "__pycache__")  # folders that hold no runs
DEEPEST = 32  # folders below the board's
MOST_FOUND = 20_000


@dataclass(frozen=True)
class FileState:
    """The size, time and identity of a file, which tell whether it was changed."""

    size: int
    changed: int  # nanoseconds
    identity: tuple[int, int]  # device and inode


def file_state(path: Path | str) -> FileState | None:
    """The size, time and identity of a regular file; None where there is none."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return FileState(status.st_size, status.st_mtime_ns, (status.st_dev, status.st_ino))


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


def visible(text: str) -> str:
    """The text with such characters as their code, like <U+202E>."""
    return UNSEEN.sub(lambda match: f"<U+{ord(match[0]):04X}>", text)


@dataclass
class LogPart:
    """A part of a growing log: the lines that were read."""

    lines: list[tuple[int, bytes]] = field(default_factory=list)  # where each begins, and its text
    is_anew: bool = False  # what was read before no longer stands: these are the first lines
    is_end: bool = True  # there is no complete line after them, for now
    num_too_long: int = 0


class GrowingLog:
    """Remembers how far a log was read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._forget()

    def _forget(self) -> None:
        self.position = 0  # after the last complete line
        self._identity: tuple[int, int] | None = None
        self._mark = b""
        self._is_skipping = False  # inside a line that is too long
        self._read_state: FileState | None = None

    @property
    def is_changed(self) -> bool:
        """Whether the file is another than when it was last read."""
        return file_state(self.path) != self._read_state

    @property
    def size(self) -> int:
        """Bytes of the log now; 0 where there is none."""
        state = file_state(self.path)
        return 0 if state is None else state.size

    def read(self, most: int = BLOCK) -> LogPart:
        """The next lines, about `most` bytes of them."""
        state = file_state(self.path)
        file = open_file(self.path)
        if file is None:
            was_read = self._identity is not None
            self._forget()
            return LogPart(is_anew=was_read)
        with file:
            status = os.fstat(file.fileno())
            identity, size = (status.st_dev, status.st_ino), status.st_size
            part = LogPart()
            if not self._still_stands(file.fileno(), identity, size):
                part.is_anew = self._identity is not None
                self._forget()
            self._identity, self._read_state = identity, state
            while True:
                content = os.pread(file.fileno(), most, self.position)
                end = content.rfind(b"\n") + 1
                if end:
                    break
                if len(content) < most:  # the last line is not whole yet
                    return part
                if most >= LONGEST:
                    self._is_skipping = True
                    self.position += len(content)
                    self._mark = content[-MARK:]
                    part.is_end = False
                    return part
                most = min(most * 4, LONGEST)
            self._take(part, content[:end])
            part.is_end = self.position >= size
            return part

    def _take(self, part: LogPart, content: bytes) -> None:
        start = self.position
        self.position += len(content)
        self._mark = content[-MARK:]
        for line in content.split(b"\n")[:-1]:
            if self._is_skipping:
                self._is_skipping = False
                part.num_too_long += 1
            else:
                part.lines.append((start, line))
            start += len(line) + 1

    def _still_stands(self, descriptor: int, identity: tuple[int, int], size: int) -> bool:
        if self._identity is None:
            return True
        if identity != self._identity or size < self.position:
            return False
        return os.pread(descriptor, len(self._mark), self.position - len(self._mark)) == self._mark


def line_at(path: Path, start: int) -> bytes | None:
    """The complete line that begins at a place; None where there is none."""
    file = open_file(path)
    if file is None:
        return None
    with file:
        if start > 0 and os.pread(file.fileno(), 1, start - 1) != b"\n":
            return None
        file.seek(start)
        line = file.readline(LONGEST + 1)
    return line[:-1] if line.endswith(b"\n") else None


def last_lines(path: Path, count: int, block: int = 1 << 16) -> list[tuple[int, bytes]]:
    """The last complete lines of a log with their places, read from its end."""
    file = open_file(path)
    if file is None or count < 1:
        return []
    with file:
        size = os.fstat(file.fileno()).st_size
        while True:
            start = max(0, size - block)
            content = os.pread(file.fileno(), size - start, start)
            lines = content.split(b"\n")[:-1]  # after the last newline is nothing, or a torn line
            if start == 0 or len(lines) > count or block >= LONGEST:
                break
            block *= 4
    offset, offset_lines = start, []
    for line in lines:
        offset_lines.append((offset, line))
        offset += len(line) + 1
    return (offset_lines[1:] if start else offset_lines)[-count:]


def spaced_lines(path: Path, count: int, block: int = 1 << 13) -> list[tuple[int, bytes]]:
    """About `count` complete lines at evenly spaced places, in order, without reading what is between."""
    file = open_file(path)
    if file is None or count < 1:
        return []
    by_offset: dict[int, bytes] = {}
    with file:
        size = os.fstat(file.fileno()).st_size
        for number in range(count):
            start = size * number // count
            content, begin = b"", 0
            for length in (block, 8 * block, 64 * block):
                # one byte earlier: a line that begins right here counts
                content = os.pread(file.fileno(), length, max(0, start - 1))
                begin = content.find(b"\n") + 1 if start else 0
                if (begin or not start) and b"\n" in content[begin:]:
                    break
            end = content.find(b"\n", begin)
            if (begin or not start) and end >= 0:
                by_offset[max(0, start - 1) + begin] = content[begin:end]
    return sorted(by_offset.items())


@dataclass(frozen=True)
class FoundFolder:
    """A folder on the board: a run, a pipeline or a comparison."""

    id: str
    kind: str
    path: Path
    place: str  # from the board's folder on, with slashes
    parent: str = ""  # id of the pipeline or comparison that it lies in

    @property
    def name(self) -> str:
        """The name of the folder itself."""
        return self.path.name or str(self.path)

    @property
    def group(self) -> str:
        """The folder that holds this one, relative to the board's; empty in the board's own."""
        return self.place.rpartition("/")[0]


def folder_id(kind: str, relative: str) -> str:
    """An opaque id for a folder, made of its kind and its path below the board's."""
    return hashlib.sha256(f"{kind}\n{relative}".encode("utf-8", "surrogateescape")).hexdigest()[:14]


def found_folders(root: Path) -> dict[str, FoundFolder]:
    """Everything below the root, by id, in the order of its place."""
    folders: dict[str, FoundFolder] = {}
    for folder in _walk(root):
        folders[folder.id] = folder
        if len(folders) >= MOST_FOUND:
            break
    return folders


def _walk(root: Path) -> Iterator[FoundFolder]:
    owners: dict[str, str] = {}  # place of a pipeline or comparison -> its id
    start = len(os.path.join(root, ""))
    for path, names, files in os.walk(root):  # links to folders are not followed
        relative = path[start:].replace(os.sep, "/") or "."
        deep = 0 if relative == "." else relative.count("/") + 1
        hidden = IN_RUNS if SIGNS[RUN] in files else frozenset()
        names[:] = (
            sorted(name for name in names if name not in HIDDEN and name not in hidden and not name.startswith("."))
            if deep < DEEPEST
            else []
        )
        present = set(files)
        parent = _owner(owners, relative)
        for kind, sign in SIGNS.items():
            if sign in present:
                folder = FoundFolder(folder_id(kind, relative), kind, Path(path), relative, parent)
                if kind in (PIPELINE, COMPARISON):
                    owners[relative] = folder.id
                yield folder


def _owner(owners: Mapping[str, str], relative: str) -> str:
    """The nearest pipeline or comparison around a place."""
    while "/" in relative:
        relative = relative.rpartition("/")[0]
        if relative in owners:
            return owners[relative]
    return owners.get(".", "")
