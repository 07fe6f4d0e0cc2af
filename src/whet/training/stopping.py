"""Why a run ends before its last step although nothing broke. It is evaluated and saved then, and is finished."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from whet.record.evaluations import Evaluations

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class EarlyEnd:
    """What ended a run early, and in words."""

    by: Literal["method", "health", "evaluations", "hours", "callback"]
    text: str


class TimeBudget:
    """The wall-clock hours of a run, start-up included; those of the processes that it was resumed from count too."""

    def __init__(self, hours: float, spent: float = 0.0, begun: float | None = None) -> None:
        """`hours` 0: no limit. `spent`: seconds of earlier processes. `begun`: when this one began, by the monotonic
        clock; None: now."""
        self._hours, self._spent = hours, spent
        self._begun = time.monotonic() if begun is None else begun

    def end(self, reserve: float) -> EarlyEnd | None:
        """The end of the run where another step, the last evaluation and the last save (`reserve` seconds) would not
        fit any more."""
        elapsed = self._spent + time.monotonic() - self._begun
        if not self._hours or elapsed + reserve <= self._hours * SECONDS_PER_HOUR:
            return None
        return EarlyEnd("hours", f"its budget of {hours_text(self._hours)} is spent")


def hours_text(hours: float) -> str:
    """1 hour, 2.5 hours."""
    return "1 hour" if hours == 1 else f"{hours:g} hours"


def no_new_best(evaluations: Evaluations, stop_after: int) -> EarlyEnd | None:
    """The end of the run where so many evaluations in a row were no new best beyond noise; `stop_after` 0: never."""
    if not stop_after or evaluations.since_new_best < stop_after:
        return None
    looks = "the last evaluation was" if stop_after == 1 else f"the last {stop_after} evaluations were"
    return EarlyEnd("evaluations", f"{looks} no new best beyond noise (eval.stop_after={stop_after})")
