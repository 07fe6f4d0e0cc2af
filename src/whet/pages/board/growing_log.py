"""The complete lines of a log while somebody appends to it, each once, in bounded memory.

A log that was cut back (a resumed run does that), replaced or deleted is noticed and read again from its start: by its
identity, its size, and the bytes before the place where reading had stopped.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from whet.pages.board.files import FileState, file_state, open_file

BLOCK = 1 << 20  # bytes that are read at once
LONGEST = 32 << 20  # bytes of a line that is read; longer ones are passed over
MARK = 64  # bytes before the end that must be the same


@dataclass
class LogPart:
    """What was read."""

    lines: list[tuple[int, bytes]] = field(default_factory=list)  # where each begins, and its text
    is_anew: bool = False  # what was read before no longer stands: these are the first lines
    is_end: bool = True  # there is no complete line behind them, for now
    num_too_long: int = 0


class GrowingLog:
    """Remembers how far a log was read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._forget()

    def _forget(self) -> None:
        self.position = 0  # behind the last complete line
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
            found = os.fstat(file.fileno())
            identity, size = (found.st_dev, found.st_ino), found.st_size
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
            lines = content.split(b"\n")[:-1]  # behind the last newline is nothing, or a torn line
            if start == 0 or len(lines) > count or block >= LONGEST:
                break
            block *= 4
    place, found = start, []
    for line in lines:
        found.append((place, line))
        place += len(line) + 1
    return (found[1:] if start else found)[-count:]


def spaced_lines(path: Path, count: int, block: int = 1 << 13) -> list[tuple[int, bytes]]:
    """About `count` complete lines at evenly spaced places, in order, without reading what is between."""
    file = open_file(path)
    if file is None or count < 1:
        return []
    found: dict[int, bytes] = {}
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
                found[max(0, start - 1) + begin] = content[begin:end]
    return sorted(found.items())
