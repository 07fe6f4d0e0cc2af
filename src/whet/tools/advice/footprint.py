"""Whether a situation's model fits its device: the planner's answer for a model of which only the size is known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from whet.tools.planner.machines import GIGA, Devices
from whet.tools.planner.plan import Plan, plan_for
from whet.tools.planner.shapes import LEAST_BILLIONS, MOST_BILLIONS, shape_of_size
from whet.tools.planner.workload import Workload

UNLIMITED = 1e18  # bytes
USUAL_COMPLETION = 512  # tokens, where nobody said


@dataclass(frozen=True)
class MemoryEstimate:
    """The memory that a run needs on one device, in gigabytes (10^9 bytes)."""

    gigabytes: float
    parts: tuple[str, ...]
    fits: bool | None  # None: the machine's memory is not known
    verdict: str


@dataclass(frozen=True)
class Footprint:
    """What decides about memory, of what the guide asks for."""

    billions: float
    gigabytes: float | None
    needs: frozenset[str]
    samples: bool = True
    completion_tokens: int | None = None


@lru_cache(maxsize=512)
def memory_estimate(asked: Footprint) -> MemoryEstimate:
    """The estimate, and what to do where it does not fit."""
    plan = _plan(asked)
    lines = sorted(plan.memory.lines, key=lambda line: -line.bytes)
    parts = [f"{line.name}: {line.gigabytes:.3g} GB" for line in lines if line.bytes >= 0.02 * plan.memory.total]
    total = plan.memory.total / GIGA
    if asked.gigabytes is None:
        return MemoryEstimate(total, tuple(parts), None, "give --memory to hear whether it fits")
    return MemoryEstimate(total, tuple(parts), plan.fits, plan.verdict)


def fits(asked: Footprint) -> bool | None:
    """None where the memory is not known."""
    return memory_estimate(asked).fits


def _plan(asked: Footprint) -> Plan:
    memory = UNLIMITED if asked.gigabytes is None else asked.gigabytes * GIGA
    shape = replace(shape_of_size(min(max(asked.billions, LEAST_BILLIONS), MOST_BILLIONS)), context=0)
    length = asked.completion_tokens or USUAL_COMPLETION
    work = Workload(shape, needs=asked.needs, completion_tokens=length, samples=asked.samples, draws=asked.samples)
    return plan_for(work, Devices(1, memory))
