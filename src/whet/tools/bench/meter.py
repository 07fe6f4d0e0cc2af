"""How long work took, how much memory it needed, and how much of the machine others used meanwhile.

Standard library only: the peers' side of `benchmarks/` reads these instruments in an environment without whet's own
dependencies. A timing taken while others were busy says little, so every reading carries their share.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

QUIET = 0.08  # of all cores: what others may use while a timing still counts
STATUS, STAT = Path("/proc/self/status"), Path("/proc/stat")


@dataclass(frozen=True)
class Reading:
    """The timing of one stretch of work, and how busy others kept the machine meanwhile."""

    seconds: float  # by the wall
    own: float  # seconds of CPU time of this process and the children it has waited for
    others: float | None  # share of all cores that others used; None where the system does not tell

    @property
    def quiet(self) -> bool:
        """Whether others left the machine alone enough for the timing to count."""
        return self.others is None or self.others < QUIET


class Meter:
    """Starts when made; `read` may be called as often as wanted."""

    def __init__(self) -> None:
        self._start = (time.perf_counter(), _own_seconds(), _busy_seconds())

    def read(self) -> Reading:
        """The reading since the meter was made."""
        start, own_start, busy_start = self._start
        seconds, own = time.perf_counter() - start, _own_seconds() - own_start
        busy = _busy_seconds()
        if busy is None or busy_start is None or seconds <= 0:
            return Reading(seconds, own, None)
        return Reading(seconds, own, others_share(busy - busy_start, own, seconds, os.cpu_count() or 1))


def others_share(busy: float, own: float, seconds: float, cores: int) -> float:
    """Share of the machine that others used: all busy core seconds but one's own, of those there were."""
    return min(1.0, max(0.0, busy - own) / (seconds * cores))


def _own_seconds() -> float:
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


def _busy_seconds() -> float | None:
    """Core seconds since boot in which some process ran, or a neighbour on the same host took the core."""
    try:
        fields = [int(field) for field in STAT.read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return None
    user, nice, system, _idle, _waiting, interrupt, soft_interrupt, stolen = fields
    return (user + nice + system + interrupt + soft_interrupt + stolen) / os.sysconf("SC_CLK_TCK")


def quiet_indices(readings: Sequence[Reading]) -> tuple[list[int], bool]:
    """The places of the quiet readings and True; all places and False where none was quiet."""
    quiet = [index for index, reading in enumerate(readings) if reading.quiet]
    return (quiet, True) if quiet else (list(range(len(readings))), False)


def typical(values: Sequence[float], places: Sequence[int]) -> float:
    """The median of the values at these places."""
    return median(values[index] for index in places)


def wait_for_quiet(limit: float, look: float = 1.0) -> Reading:
    """Wait until others leave the machine alone for `look` seconds, at most `limit` seconds; the last look."""
    until = time.monotonic() + limit
    while True:
        meter = Meter()
        time.sleep(look)
        reading = meter.read()
        if reading.quiet or time.monotonic() >= until:
            return reading


def peak_bytes() -> int:
    """The most memory this process has held since its start, or since `forget_peak`."""
    # ru_maxrss begins at what the parent held when it started this process; the status file does not
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def resident_bytes() -> int:
    """The bytes this process holds now, or the peak where the system tells only that."""
    return _status("VmRSS") or peak_bytes()


def forget_peak() -> None:
    """Begin a new peak, where the system can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def free_bytes() -> int | None:
    """Memory that could be taken without swapping; None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _status(name: str) -> int | None:
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)


def machine_facts() -> dict[str, Any]:
    """What a number has to be read with: processor, cores, load, versions."""
    try:
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    except OSError:
        names = []
    name = names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": name,
        "architecture": platform.machine(),
        "cores": usable,
        "load": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
    }


def reading_record(reading: Reading) -> dict[str, float | None]:
    """The reading as rounded values, for JSON."""
    return {name: None if value is None else round(value, 4) for name, value in asdict(reading).items()}
