"""Seconds of a step by phase, and when each phase ran."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

Span = tuple[str, float, float]
"""(phase, start, end), in seconds of `time.perf_counter`."""


NEARLY = 0.02  # of a step: spans of a phase that are no further apart are one


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
        """Count what was measured elsewhere, and when it was; spans of what ran during a phase add no seconds."""
        for name, number in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + number
        self.spans += spans

    def timeline(self) -> tuple[Span, ...]:
        """The spans from the first phase on, those of a phase that nearly touch as one, to the millisecond."""
        began = min((start for name, start, _ in self.spans if name in self.seconds), default=0.0)
        last = max((end for _, _, end in self.spans), default=0.0)
        joined: dict[str, list[tuple[float, float]]] = {}
        for name, start, end in sorted(self.spans, key=lambda span: span[1]):
            spans = joined.setdefault(name, [])
            if spans and start - spans[-1][1] < NEARLY * (last - began):
                spans[-1] = (spans[-1][0], max(spans[-1][1], end))
            else:
                spans.append((start, end))
        rounded = [
            (name, round(start - began, 3), round(end - began, 3))
            for name, spans in joined.items()
            for start, end in spans
        ]
        return tuple((name, start, end) for name, start, end in rounded if end > start)
