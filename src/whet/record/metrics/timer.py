"""Seconds of a step by phase."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class PhaseTimer:
    """Adds up the seconds of named phases; a phase may run more than once."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the seconds of the `with` block under this name."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add({name: time.perf_counter() - start})

    def add(self, seconds: Mapping[str, float]) -> None:
        """Count what was measured elsewhere."""
        for name, number in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + number
