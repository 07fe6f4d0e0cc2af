"""Seconds of a step by phase, and when each phase ran."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

Span = tuple[str, float, float]
"""(phase, start, end), in seconds of `time.perf_counter`."""


class PhaseTimer:
    """Adds up the seconds of named phases; a phase may run more than once."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.spans: list[Span] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the seconds of the `with` block under this name."""
        start = time.perf_counter()
        try:
            yield
        finally:
            end = time.perf_counter()
            self.add({name: end - start}, [(name, start, end)])

    def add(self, seconds: Mapping[str, float], spans: Iterable[Span] = ()) -> None:
        """Count what was measured elsewhere, and when it was; spans of what ran behind a phase add no seconds."""
        for name, number in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + number
        self.spans += spans
