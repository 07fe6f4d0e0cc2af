"""Runs side by side, each in a process of its own: results do not depend on how many."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def run_all(function: Callable[..., Any], jobs: Iterable[tuple[Any, ...]], workers: int) -> list[Any]:
    """What the function gives for each job, in order; the first error ends it."""
    if workers <= 1:
        return [function(*job) for job in jobs]
    # not forked: torch's threads would not survive it
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        return [future.result() for future in [pool.submit(function, *job) for job in jobs]]
