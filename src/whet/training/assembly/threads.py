"""How many CPU threads a process takes."""

from __future__ import annotations

import os

SMALL_MODEL = 2_000_000  # weights


def thread_choice(requested: int, num_weights: int) -> tuple[int, str]:
    """CPU threads and why. Every usable core, but one for a small model: waiting for the others would cost more."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if requested:
        return requested, f"model.threads={requested}; {cores} usable cores"
    if os.environ.get("OMP_NUM_THREADS", "").isdigit():
        return int(os.environ["OMP_NUM_THREADS"]), f"OMP_NUM_THREADS; {cores} usable cores"
    if num_weights < SMALL_MODEL:
        return 1, f"a model this small gains little from more; {cores} usable cores"
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    busy = f"; other jobs keep {load:.1f} busy, model.threads=1 may be faster" if load > 0.5 * cores > 0.5 else ""
    return cores, f"every usable core{busy}"
