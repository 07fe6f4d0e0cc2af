"""What each step takes of the machine. Equal runs differ in it, as they do in seconds."""

from __future__ import annotations

import resource
import time
from importlib.util import find_spec
from pathlib import Path

import torch

GIB = 2**30
OWN_MEMORY = Path("/proc/self/statm")


class MachineMeter:
    """Reads, from one step to the next, the cores and memory of this process and the memory and use of its GPU."""

    def __init__(self, device: torch.device) -> None:
        self._gpu = device if device.type == "cuda" else None
        self._can_tell_use = find_spec("pynvml") is not None
        self._before = self._clocks()

    def read(self) -> dict[str, float]:
        """`cores` that were busy on average since the last reading, `memory` and `gpu_memory` in GiB, `gpu_use` as a
        share; what the system does not tell is left out."""
        wall, spent = (now - before for now, before in zip(self._clocks(), self._before, strict=True))
        self._before = self._clocks()
        values = {"cores": spent / wall} if wall > 0 else {}
        try:
            pages = int(OWN_MEMORY.read_text().split()[1])
        except (OSError, ValueError, IndexError):
            pages = 0
        if pages:
            values["memory"] = pages * resource.getpagesize() / GIB
        if self._gpu is not None:
            free, total = torch.cuda.mem_get_info(self._gpu)
            values["gpu_memory"] = (total - free) / GIB
            if self._can_tell_use:
                values["gpu_use"] = torch.cuda.utilization(self._gpu) / 100
        return values

    @staticmethod
    def _clocks() -> tuple[float, float]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return time.perf_counter(), usage.ru_utime + usage.ru_stime
