"""From a plan to simulated clusters: who writes, who learns, what travels, with the constants that were measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from whet.tools.planner.machines import GIGA, Devices
from whet.tools.planner.memory import CONTEXT_BYTES, GPU_ROWS, SMALLEST, USED_SHARE, memory_plan
from whet.tools.planner.seconds import DECODE_RATE, DeviceRates, rates, scoring_seconds, step_seconds, training_seconds
from whet.tools.planner.simulate import ClusterModel, Lengths, Simulated, simulate
from whet.tools.planner.workload import Workload
from whet.types import WhetError

NODE = 8  # devices that a fast link joins
BETWEEN_NODES = 50e9  # bytes per second and device: a network of 400 Gb/s
LATENCY = 0.05  # seconds that a change of weights costs besides its bytes
SHARES = (0.25, 0.375, 0.5, 0.625, 0.75)  # of the devices that write, tried
SLICE = 32  # devices that are simulated one by one; of more, such a part with its part of the prompts
MEAN_SHARE = 0.4  # of the budget, that a completion takes on average unless said
ASSUMED = (
    "completions are lognormal in length (spread 0.7 of the logarithm), cut at the budget",
    "engines and trainer ranks reach the measured rates at any number of devices; ranks wait for the network only "
    "where it is slower than the products, which overlap with it",
    f"devices of a node ({NODE}) are joined at the card's link, nodes at {BETWEEN_NODES / 1e9:.0f} GB/s per device; "
    f"weights travel once per version in bf16, in a pipeline, and cost {LATENCY * 1000:.0f} ms besides; rows then read "
    "again what they hold",
    f"of more than {SLICE} devices a part of that size is simulated, with its part of the prompts",
    "no device fails, no prompt is refilled, nothing is evaluated or saved",
)


@dataclass(frozen=True)
class ClusterOptions:
    """What the user says besides the plan."""

    mean_length: float | None = None
    reward_seconds: float = 0.0
    reward_workers: int = 0
    max_staleness: int = 0
    window: float = 0.5
    engines: int = 0  # 0: the best share is searched
    steps: int = 6


@dataclass(frozen=True)
class Layout:
    """One way to use the devices, and what came out."""

    name: str
    engines: int
    trainers: int
    max_staleness: int
    simulated: Simulated


@dataclass(frozen=True)
class ClusterPlan:
    """The simulated layouts of one workload on one set of devices."""

    work: Workload
    devices: Devices
    layouts: tuple[Layout, ...]
    train_seconds: Callable[[int], float]
    sync_bytes: float
    sync_seconds: float
    said: str

    @property
    def best(self) -> Layout:
        """The layout with the most tokens per second."""
        return max(self.layouts, key=lambda layout: layout.simulated.tokens_per_second)


def cluster_plan(work: Workload, devices: Devices, options: ClusterOptions) -> ClusterPlan:
    """Everybody writes and learns in turn; and engines of their own, synchronous and ahead."""
    if not work.draws:
        raise WhetError(f"--simulate has nothing to simulate: {work.method} draws no completions; plan it without")
    if devices.is_cpu:
        raise WhetError("--simulate needs devices whose rates were measured; give --gpus such as 64xH100")
    known = rates(devices)
    every = [_layout("all devices write, then all learn", work, devices, options, known, 0, 0)]
    if devices.count > 1:
        levels = sorted({0, 1, options.max_staleness} if options.max_staleness else {0, 1, 4})
        every += [_best_split(work, devices, options, known, level) for level in levels]
    elif options.engines:
        raise WhetError(
            f"scale.engines is {options.engines} and {devices} leave no device to train on; give more devices"
        )
    return ClusterPlan(
        work,
        devices,
        tuple(every),
        lambda trainers: train_seconds(work, devices, known, trainers),
        2.0 * work.shape.weights,
        sync_seconds(work, devices),
        known.said,
    )


def _best_split(
    work: Workload, devices: Devices, options: ClusterOptions, known: DeviceRates, staleness: int
) -> Layout:
    counts = (
        [options.engines] if options.engines else sorted({max(1, round(share * devices.count)) for share in SHARES})
    )
    counts = [count for count in counts if count < devices.count]
    if not counts:
        raise WhetError(f"scale.engines is {options.engines} and {devices} leave no device to train on; give fewer")
    ranks = {count: replace(work, ranks=devices.count - count, samples=False) for count in counts}
    enough = [count for count in counts if memory_plan(ranks[count], devices).fits] or counts[:1]
    name = "engines of their own, each step waits" if not staleness else f"engines ahead, staleness {staleness}"
    tried = [_layout(name, work, devices, options, known, count, staleness) for count in enough]
    return max(tried, key=lambda layout: layout.simulated.tokens_per_second)


def _layout(
    name: str,
    work: Workload,
    devices: Devices,
    options: ClusterOptions,
    known: DeviceRates,
    engines: int,
    staleness: int,
) -> Layout:
    apart = engines > 0
    trainers = devices.count - engines if apart else devices.count
    mean = options.mean_length or MEAN_SHARE * work.completion_tokens
    writers = engines or devices.count
    per_engine = -(-(staleness + 1) * work.prompts_per_step * work.group_size // writers)
    rows = max(1, min(engine_rows(work, devices), per_engine))
    used = work.shape.anatomy.used_weights

    def token_seconds(busy: int) -> float:
        return step_seconds(work.shape, busy, work.prompt_tokens, mean / 2, work.group_size, known)

    slopes = token_seconds(1), token_seconds(2) - token_seconds(1)  # it is linear in the rows
    part = max(1.0, devices.count / SLICE)
    prompts = max(1, round(work.prompts_per_step / part))
    model = ClusterModel(
        engines=max(1, round(writers / part)),
        rows_per_engine=rows,
        prompts_per_step=prompts,
        group_size=work.group_size,
        lengths=Lengths(mean, work.completion_tokens),
        token_seconds=lambda busy: slopes[0] + (busy - 1) * slopes[1],
        train_seconds=train_seconds(work, devices, known, trainers, mean),
        max_staleness=staleness,
        window=options.window,
        sync_seconds=sync_seconds(work, devices) if apart else 0.0,
        reread_seconds=2 * used / (known.scale_products * DECODE_RATE) if staleness else 0.0,
        reward_seconds=options.reward_seconds,
        reward_workers=-(-options.reward_workers // ceil(part)),
    )
    simulated = simulate(model, options.steps)
    whole = replace(simulated, tokens_per_second=simulated.tokens_per_second * work.prompts_per_step / prompts)
    return Layout(name, engines, trainers, staleness, whole)


def engine_rows(work: Workload, devices: Devices) -> int:
    """Completions side by side on a device that holds the policy in bf16 and nothing else."""
    free = devices.memory - CONTEXT_BYTES - 2 * (work.shape.weights + work.shape.vocabulary_weights)
    bytes_per_row = 2 * work.shape.cache_width * (work.completion_tokens + 2 * work.prompt_tokens / work.group_size)
    return min(GPU_ROWS, int(USED_SHARE * max(free, 0) / bytes_per_row) // SMALLEST * SMALLEST)


def train_seconds(
    work: Workload, devices: Devices, known: DeviceRates, trainers: int, mean: float | None = None
) -> float:
    """Seconds of a training step on so many ranks: products, or the network where that is slower."""
    tokens = round(mean or MEAN_SHARE * work.completion_tokens)
    rollout = replace(work.rollout, completion_tokens=max(1, tokens))
    once, forward = training_seconds(work.shape, rollout, known), scoring_seconds(work.shape, rollout, known)
    models = 2 if work.has_critic and work.critic == "own" else 1
    forwards = work.needs_reference + (work.updates > 1) + (models - 1)
    products = (once * work.epochs * models + forward * forwards) / trainers
    if trainers == 1:
        return products
    share = rollout.shared / trainers
    passes = max(1.0, share / work.micro_batch_tokens)
    # each pass gathers the layers twice in bf16 and sums their gradients in fp32; forward passes gather once
    sent = work.shape.weights * (8.0 * work.epochs * models + 2.0 * forwards) * passes * (trainers - 1) / trainers
    return max(products, sent / link_rate(devices, trainers))


def link_rate(devices: Devices, count: int) -> float:
    """Bytes per second between devices; across nodes the slower network decides."""
    own = devices.card.link_rate if devices.card else 25e9
    return own if count <= NODE else min(own, BETWEEN_NODES)


def sync_seconds(work: Workload, devices: Devices) -> float:
    """Seconds until a version of the weights, at 2 bytes each, has reached the engines."""
    return 2.0 * work.shape.weights / link_rate(devices, devices.count) + LATENCY


def cluster_record(plan: ClusterPlan) -> dict[str, Any]:
    """The simulated layouts as plain values, for JSON."""
    return {
        "model": plan.work.shape.name,
        "devices": {"count": plan.devices.count, "bytes": plan.devices.memory},
        "sync": {"bytes": plan.sync_bytes, "seconds": plan.sync_seconds},
        "layouts": [
            {
                "name": layout.name,
                "engines": layout.engines,
                "trainers": layout.trainers,
                "max_staleness": layout.max_staleness,
                **vars(layout.simulated),
            }
            for layout in plan.layouts
        ],
        "rates": plan.said,
        "assumed": list(ASSUMED),
    }


def cluster_text(plan: ClusterPlan) -> str:
    """The simulated layouts as a table."""
    work = plan.work
    lines = [
        str(work.shape),
        f"{work.method}: {work.prompts_per_step} prompts x {work.group_size}, {work.prompt_tokens} + up to "
        f"{work.completion_tokens} tokens; {plan.devices}",
        f"a version of the weights is {plan.sync_bytes / GIGA:.3g} GB, {plan.sync_seconds:.2g} s on its way to engines",
        "",
        f"{'':36}{'engines':>8}{'ranks':>7}{'s/step':>9}{'tokens/s':>12}{'trainer':>9}{'engines':>9}{'staleness':>11}",
        f"{'':36}{'':>8}{'':>7}{'':>9}{'':>12}{'idle':>9}{'idle':>9}{'mean, most':>11}  limited by",
    ]
    for layout in plan.layouts:
        simulated = layout.simulated
        staleness = f"{simulated.staleness_mean:.1f}, {simulated.staleness_most}"
        lines.append(
            f"{layout.name:38}{layout.engines or layout.trainers:>6}{layout.trainers:>7}"
            f"{simulated.seconds_per_step:>9.1f}{simulated.tokens_per_second:>12,.0f}{simulated.trainer_idle:>9.0%}"
            f"{simulated.engine_idle + simulated.engine_paused:>9.0%}{staleness:>11}  {simulated.limit}"
        )
    best = plan.best
    lines += ["", f"most tokens per second: {best.name}", f"rates: {plan.said}", "assumed:"]
    return "\n".join([*lines, *(f"  - {assumption}" for assumption in ASSUMED)])
