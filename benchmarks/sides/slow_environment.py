"""An environment whose every answer takes a while: `--env benchmarks/sides/slow_environment.py:SlowEnvironment`."""

from __future__ import annotations

import time

from whet.types import Completion, Prompt, StepResult

ANSWER = "no, try again: 7 + 12 = 20 - 1"


class SlowEnvironment:
    """Answers `turns` turns, each after `latency` seconds; the last one pays for a short episode."""

    def __init__(self, latency: float = 0.0, turns: int = 3) -> None:
        self._latency, self._left, self._written = latency, turns, 0

    def start(self, prompt: Prompt) -> None:
        return None

    def step(self, completion: Completion) -> StepResult | float:
        time.sleep(self._latency)
        self._left, self._written = self._left - 1, self._written + len(completion)
        return StepResult(({"role": "user", "content": ANSWER},)) if self._left else 1 / (1 + self._written)
