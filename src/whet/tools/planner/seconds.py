"""Seconds of a step, phase by phase, from rates that were measured, each with the results file that holds it.

Everything was measured on one NVIDIA H200 (`results/`; tests compare). For another card, products are scaled by the
published rate of its matrix units and bytes by that of its memory: an estimate, and the plan says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from whet.record.speed import RolloutShape, attention_operations, rollout_operations, training_operations
from whet.tools.planner.memory import MemoryPlan
from whet.tools.planner.shapes import ModelShape
from whet.tools.planner.workload import MEASURED_ON, Devices, Workload

# results/gpu_train_1.5b.json, results/gpu_step_135m.json: useful operations per second of the training pass, by width
TRAINING_RATES = {576: 293.5e12, 1536: 347.9e12}
# results/gpu_rollout_135m.json, _1.5b.json, _7b.json and gpu_long_prompts_1.5b.json, fitted by least squares of the
# relative error: seconds = LAYER_STEP per layer and token position + bytes / DECODE_BYTES + operations / DECODE_RATE
LAYER_STEP, DECODE_BYTES, DECODE_RATE = 37.2e-6, 4.65e12, 687e12
FITS_WITHIN = 0.25  # the worst of the seven cases, relative
LONG_PROMPT = 256  # tokens from which the sampler reads a prompt once for all its rows
SOURCES = (
    "results/gpu_train_1.5b.json",
    "results/gpu_step_135m.json",
    "results/gpu_rollout_135m.json",
    "results/gpu_rollout_1.5b.json",
    "results/gpu_rollout_7b.json",
    "results/gpu_long_prompts_1.5b.json",
)


@dataclass(frozen=True)
class DeviceRates:
    """What a device does in a second, and where that is from."""

    scale_products: float = 1.0  # of the measured card's
    scale_bytes: float = 1.0
    said: str = ""


def rates(devices: Devices) -> DeviceRates:
    """The device's rates, scaled from the card they were measured on."""
    if devices.card is None:
        return DeviceRates(said=f"as measured on an {MEASURED_ON.name}: of this card only the memory is known")
    products = devices.card.matrix_rate / MEASURED_ON.matrix_rate
    by_bytes = devices.card.bytes_rate / MEASURED_ON.bytes_rate
    if (products, by_bytes) == (1.0, 1.0):
        return DeviceRates(said=f"measured on an {MEASURED_ON.name}")
    return DeviceRates(
        products,
        by_bytes,
        f"measured on an {MEASURED_ON.name}, scaled by published peaks: products x {products:.2g}, "
        f"bytes x {by_bytes:.2g}",
    )


def training_rate(shape: ModelShape, known: DeviceRates) -> float:
    """Useful operations per second: between the measured widths by the logarithm of the width, beyond them the last."""
    (narrow, slow), (wide, fast) = sorted(TRAINING_RATES.items())
    position = math.log(min(max(shape.hidden, 64), wide) / narrow) / math.log(wide / narrow)
    return known.scale_products * slow * (fast / slow) ** position


def training_seconds(shape: ModelShape, rollout: RolloutShape, known: DeviceRates) -> float:
    """One pass forward and backward over all rows of a step."""
    return training_operations(shape.anatomy, rollout) / training_rate(shape, known)


def scoring_seconds(shape: ModelShape, rollout: RolloutShape, known: DeviceRates) -> float:
    """One pass forward: a third of it."""
    return training_seconds(shape, rollout, known) / 3


def rollout_seconds(shape: ModelShape, rollout: RolloutShape, rows: int, known: DeviceRates) -> float:
    """Seconds for all completions of a step, at most `rows` side by side, each as long as its budget."""
    waves = -(-rollout.num_sequences // rows)
    total = 0.0
    for wave in range(waves):
        count = min(rows, rollout.num_sequences - wave * rows)
        total += decode_seconds(shape, count, rollout, known)
    prompts = rollout_operations(shape.anatomy, rollout) - _written_operations(shape, rollout)
    return total + max(prompts, 0.0) / (known.scale_products * DECODE_RATE)


def decode_seconds(shape: ModelShape, rows: int, rollout: RolloutShape, known: DeviceRates) -> float:
    """The positions of so many completions, one after another."""
    tokens = rollout.completion_tokens
    return tokens * step_seconds(shape, rows, rollout.prompt_tokens, (tokens + 1) / 2, rollout.group_size, known)


def step_seconds(shape: ModelShape, rows: int, prompt: int, written: float, group: int, known: DeviceRates) -> float:
    """One token for each row: weights, keys and values read, products computed."""
    anatomy = shape.anatomy
    prompts_read = prompt * (rows if prompt <= LONG_PROMPT else rows / max(1, group))
    numbers = anatomy.used_weights + anatomy.cache_width * (prompts_read + rows * written)
    numbers += 3 * rows * shape.vocabulary  # logits: written, read, read
    operations = 2 * anatomy.used_weights * rows + attention_operations(anatomy, round(rows * (prompt + written)), 2)
    return (
        LAYER_STEP * shape.layers
        + 2 * numbers / (known.scale_bytes * DECODE_BYTES)
        + operations / (known.scale_products * DECODE_RATE)
    )


def _written_operations(shape: ModelShape, rollout: RolloutShape) -> float:
    anatomy = shape.anatomy
    pairs = (
        rollout.num_sequences
        * rollout.completion_tokens
        * (rollout.prompt_tokens + (rollout.completion_tokens + 1) / 2)
    )
    return 2 * anatomy.used_weights * rollout.written + attention_operations(anatomy, round(pairs), 2)


@dataclass(frozen=True)
class Duration:
    """The duration of one phase."""

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
    policy = work.written_tokens or work.completion_tokens  # the rest of an episode answers it
    phases = []
    if work.draws and work.engines:
        written = replace(work.rollout, num_prompts=-(-work.prompts_per_step // work.engines), completion_tokens=policy)
        rows = min(1024, written.num_sequences)
        seconds = rollout_seconds(shape, written, rows, known)
        formula = f"{work.engines} engines, {rows} rows at a time each; less where they write ahead"
        phases.append(Duration("rollout", seconds, formula))
    elif work.draws:
        written = replace(rollout, completion_tokens=policy)
        rows = max(1, min(memory.rows, written.num_sequences))
        seconds = rollout_seconds(shape, written, rows, known)
        formula = f"{written.written:,} tokens, {rows} rows at a time: {written.written / seconds:,.0f} tokens/s"
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
