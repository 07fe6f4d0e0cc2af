"""Where a step's time goes, told from outside: hooks that work on any code that trains through torch.

Used by both sides of a comparison, so nothing here may need whet's dependencies beyond torch. The instruments are
`whet/meter.py`, which needs the standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from whet.meter import Meter, Reading, peak_bytes, reading_record


class Stopwatch:
    """Seconds by phase of the step that is running, and every finished step."""

    def __init__(self, wanted: int, most: int, warm_up: int = 1) -> None:
        self._wanted, self._most, self._warm_up = wanted, most, warm_up
        self._phases: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._readings: list[Reading] = []
        self._steps: list[dict[str, Any]] = []
        self._meter = Meter()
        self._watch_torch()

    def _watch_torch(self) -> None:
        torch.autograd.backward = self.timed("backward", torch.autograd.backward)
        started: list[float] = []
        register_optimizer_step_pre_hook(lambda *_: started.append(time.perf_counter()))
        register_optimizer_step_post_hook(lambda *_: self.add("optimizer", time.perf_counter() - started.pop()))

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time counted under `phase`."""

        def watched(*given: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*given, **named)
            finally:
                self.add(phase, time.perf_counter() - start)

        return watched

    def add(self, phase: str, seconds: float) -> None:
        self._phases[phase] = self._phases.get(phase, 0.0) + seconds

    def count(self, what: str, number: int) -> None:
        self._counts[what] = self._counts.get(what, 0) + number

    def begin(self) -> None:
        self._phases, self._counts, self._meter = {}, {}, Meter()

    def end(self) -> None:
        reading = self._meter.read()
        self._readings.append(reading)
        self._steps.append({**reading_record(reading), "phases": self._phases, "counts": self._counts})

    @property
    def enough(self) -> bool:
        """Enough quiet steps behind the warm-up, or no patience left."""
        quiet = sum(reading.quiet for reading in self._readings[self._warm_up :])
        return quiet >= self._wanted or len(self._readings) >= self._most

    def record(self) -> dict[str, Any]:
        return {
            "steps": self._steps[self._warm_up :],
            "first_step": self._steps[0]["seconds"],
            "peak_bytes": peak_bytes(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }
