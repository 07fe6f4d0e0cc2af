"""Seconds of a step, phase by phase, from measured rates."""

from __future__ import annotations

from dataclasses import dataclass, replace

from whet.tools.planner.machines import Devices
from whet.tools.planner.measured import SOURCES, rates, rollout_seconds, scoring_seconds, training_seconds
from whet.tools.planner.memory import MemoryPlan
from whet.tools.planner.workload import Workload


@dataclass(frozen=True)
class Duration:
    """One phase."""

    name: str
    seconds: float
    formula: str


@dataclass(frozen=True)
class TimePlan:
    """A step. Empty where nothing was measured on such a device."""

    phases: tuple[Duration, ...]
    said: str  # where the rates are from, or why there are none
    sources: tuple[str, ...] = SOURCES

    @property
    def step(self) -> float:
        """Seconds of a whole step."""
        return sum(phase.seconds for phase in self.phases)


def time_plan(work: Workload, devices: Devices, memory: MemoryPlan) -> TimePlan:
    """The seconds of each phase of a step, from the device's rates; empty for a CPU."""
    if work.on_cpu:
        return TimePlan((), "a CPU's rates are its own: `whet bench` measures them", ())
    known, shape = rates(devices), work.shape
    rollout = replace(work.rollout, num_prompts=work.prompts_per_rank)  # of one rank: the others do theirs meanwhile
    phases = []
    if work.draws and work.engines:
        written = replace(work.rollout, num_prompts=-(-work.prompts_per_step // work.engines))
        rows = min(1024, written.num_sequences)
        seconds = rollout_seconds(shape, written, rows, known)
        formula = f"{work.engines} engines, {rows} rows at a time each; less where they write ahead"
        phases.append(Duration("rollout", seconds, formula))
    elif work.draws:
        rows = max(1, min(memory.rows, rollout.num_sequences))
        seconds = rollout_seconds(shape, rollout, rows, known)
        formula = f"{rollout.written:,} tokens, {rows} rows at a time: {rollout.written / seconds:,.0f} tokens/s"
        phases.append(Duration("rollout", seconds, formula))
    once, forward = training_seconds(shape, rollout, known), scoring_seconds(shape, rollout, known)
    tokens = f"{rollout.shared:,} tokens"
    if work.needs_reference and work.reference != "stored":
        phases.append(Duration("reference", forward, f"a forward pass over {tokens}"))
    if work.teacher is not None:
        asked = scoring_seconds(work.teacher, rollout, known)
        phases.append(Duration("teacher", asked, f"a forward pass over {tokens} of {work.teacher.name}"))
    if work.updates > 1:
        phases.append(Duration("log-probabilities before the first update", forward, f"a forward pass over {tokens}"))
    if work.has_critic and work.critic == "own":
        phases.append(Duration("values", forward, f"a forward pass over {tokens}"))
        phases.append(Duration("critic training", once * work.epochs, f"as the policy's, {work.epochs} epochs"))
    words = f"{work.epochs} x " if work.epochs > 1 else ""
    formula = f"{words}{tokens}: {rollout.shared / once:,.0f} tokens/s"
    phases.append(Duration("training", once * work.epochs, formula))
    return TimePlan(tuple(phases), known.said)
