"""How much a job may use."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from whet.types import WhetError

MOST = 1 << 30  # of any limit: what the kernel can count


@dataclass(frozen=True)
class Limits:
    """Bounds of one job. Processor time is the one that decides; the wall clock only catches what sleeps."""

    cpu_seconds: float = 5  # of one process
    wall_seconds: float = 15.0  # of the whole job
    memory_mb: int = 1024  # of one process, and of all together where the kernel lets a worker look
    file_mb: int = 16  # of one file, and of all together
    processes: int = 16  # threads count
    output_kb: int = 1024  # standard output of a program
    open_files: int = 64

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (math.isfinite(value) and 0 < value <= MOST):
                raise WhetError(f"the sandbox's {name} is {value}; give a number above 0, at most {MOST}")
        if self.open_files < 8:
            raise WhetError(f"the sandbox's open_files is {self.open_files}; the interpreter needs at least 8")
        if self.memory_mb < 16:
            raise WhetError(f"the sandbox's memory_mb is {self.memory_mb}; the interpreter needs at least 16")

    def counts(self) -> dict[str, Any]:
        """The limits the kernel takes, as they are sent to a worker; whole numbers but for the processor time."""
        whole = {name: int(value) for name, value in asdict(self).items() if name != "wall_seconds"}
        return {**whole, "cpu_seconds": self.cpu_seconds}
