"""Where a step's time goes, measured from outside: hooks that work on any code that trains through torch.

Used by both sides of a comparison, so nothing here may need whet's dependencies beyond torch. The instruments are
`whet/bench/meter.py`, which needs the standard library only. On a GPU phases are timed by events on its stream:
waiting for it at every phase would slow down the very code that is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from whet.tools.bench.meter import Meter, Reading, peak_bytes, reading_record


class Stopwatch:
    """Seconds by phase of the step that is running, and every finished step."""

    def __init__(self, wanted: int, most: int, warm_up: int = 1, device: str = "cpu") -> None:
        self._wanted, self._most, self._warm_up = wanted, most, warm_up
        self._cuda = torch.device(device).type == "cuda"
        self._phases: dict[str, float] = {}
        self._spans: list[tuple[str, Any, Any]] = []
        self._counts: dict[str, Any] = {}
        self._readings: list[Reading] = []
        self._steps: list[dict[str, Any]] = []
        self._meter = Meter()
        self.facts: dict[str, Any] = {}  # that a side tells besides
        self._watch_torch()

    def _watch_torch(self) -> None:
        torch.autograd.backward = self.timed("backward", torch.autograd.backward)
        started: list[Any] = []
        register_optimizer_step_pre_hook(lambda *_: started.append(self._mark()))
        register_optimizer_step_post_hook(lambda *_: self._spans.append(("optimizer", started.pop(), self._mark())))

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time counted under `phase`."""

        def watched(*given: Any, **named: Any) -> Any:
            start = self._mark()
            try:
                return function(*given, **named)
            finally:
                self._spans.append((phase, start, self._mark()))

        return watched

    def _mark(self) -> Any:
        """Now: a time, or an event on the GPU's stream."""
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _elapsed(self, start: Any, stop: Any) -> float:
        return start.elapsed_time(stop) / 1000 if self._cuda else stop - start

    def _wait(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()

    def add(self, phase: str, seconds: float) -> None:
        self._phases[phase] = self._phases.get(phase, 0.0) + seconds

    def count(self, what: str, number: Any) -> None:
        """Add a number, or a tensor of one, which is not read before the step has ended."""
        self._counts[what] = self._counts.get(what, 0) + number

    def begin(self) -> None:
        self._wait()
        self._phases, self._spans, self._counts, self._meter = {}, [], {}, Meter()

    def end(self) -> None:
        self._wait()
        reading = self._meter.read()
        for phase, start, stop in self._spans:
            self.add(phase, self._elapsed(start, stop))
        counts = {what: int(number) for what, number in self._counts.items()}
        self._readings.append(reading)
        self._steps.append({**reading_record(reading), "phases": self._phases, "counts": counts})

    @property
    def enough(self) -> bool:
        """Enough quiet steps behind the warm-up, or no patience left."""
        quiet = sum(reading.quiet for reading in self._readings[self._warm_up :])
        return quiet >= self._wanted or len(self._readings) >= self._most

    def record(self) -> dict[str, Any]:
        return {
            "steps": self._steps[self._warm_up :],
            "first_step": self._steps[0]["seconds"],
            "peak_bytes": torch.cuda.max_memory_allocated() if self._cuda else peak_bytes(),
            # what graphs keep between their replays is reserved but not allocated
            "reserved_bytes": torch.cuda.max_memory_reserved() if self._cuda else None,
            "device": torch.cuda.get_device_name() if self._cuda else "cpu",
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            **self.facts,
        }
