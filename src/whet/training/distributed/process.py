"""A process that others on its machine can find and end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

POLL = 0.05


@dataclass(frozen=True)
class ProcessPlace:
    """Where a process runs. A number alone does not name it: machines and containers count anew, numbers come back."""

    machine: str  # boot of the machine and the namespace of process numbers; empty where the system does not say
    number: int
    started: str  # in ticks since the boot

    @classmethod
    def here(cls) -> ProcessPlace:
        """The place of this process."""
        return cls(_machine(), os.getpid(), _started(os.getpid()))

    @classmethod
    def from_words(cls, words: Sequence[str]) -> ProcessPlace:
        """The place that `words` wrote."""
        return cls(words[0], int(words[1]), words[2])

    def words(self) -> list[str]:
        """The place as strings, to be sent to other processes."""
        return [self.machine, str(self.number), self.started]

    def is_running(self) -> bool:
        """False for a process of another machine, too: nothing is known of it."""
        return self._is_here() and _started(self.number) == self.started

    def has_ended(self) -> bool:
        """False for a process of another machine, too."""
        return self._is_here() and not self.is_running()

    def _is_here(self) -> bool:
        return bool(self.machine) and self.machine == _machine()

    def end(self, patience: float) -> bool:
        """Kill it, unless it ends by itself in time; whether that was needed."""
        until = time.monotonic() + patience
        while self.is_running() and time.monotonic() < until:
            time.sleep(POLL)
        if not self.is_running():
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.number, signal.SIGKILL)
            return True
        return False


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(number: int) -> str:
    """Empty for a process that is gone or only waits to be collected by its parent."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
