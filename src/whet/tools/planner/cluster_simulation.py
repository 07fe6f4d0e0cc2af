"""From a plan to simulated clusters: engines that write, workers that score, a trainer that learns, as events in time.

Engines advance all their rows together, the slower the more rows they have. Groups are admitted, passed and trained on
by the window of the real collector (`whet.rollout.window`). A trained step makes a version; with staleness 0 everybody
waits for it, else engines go on writing, take the new weights in between and read again what their rows hold. Where a
writer and the trainer share a device, each goes on at `both_busy` of its own speed while the other works too.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from whet.rollout.window import GroupWindow
from whet.tools.planner.memory import CONTEXT_BYTES, GPU_ROWS, SMALLEST, USED_SHARE, memory_plan
from whet.tools.planner.seconds import DECODE_RATE, DeviceRates, rates, scoring_seconds, step_seconds, training_seconds
from whet.tools.planner.workload import GIGA, Devices, Workload
from whet.types import WhetError

WARM_UP = 2  # steps besides the staleness that are not counted
BUSY = 0.9  # share of the time from which something is the limit
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
class Lengths:
    """Tokens of completions: a lognormal distribution, cut at the budget."""

    mean: float
    most: int
    spread: float = 0.7  # of the logarithm; 0: all alike

    def draw(self, stream: random.Random) -> int:
        """The length of one completion, in tokens."""
        if self.spread == 0:
            return max(1, min(self.most, round(self.mean)))
        middle = math.log(self.mean) - self.spread**2 / 2
        return max(1, min(self.most, round(stream.lognormvariate(middle, self.spread))))


@dataclass(frozen=True)
class ClusterModel:
    """What is simulated. Times in seconds."""

    engines: int
    rows_per_engine: int  # that write side by side
    prompts_per_step: int
    group_size: int
    lengths: Lengths
    token_seconds: Callable[[int], float]  # one token for each of so many rows
    train_seconds: float  # of a step
    max_staleness: int = 0
    window: float = 0.5
    sync_seconds: float = 0.0  # engines stand still while weights arrive
    reread_seconds: float = 0.0  # and per token that a row holds, where rows go on under newer weights
    reward_seconds: float = 0.0  # of a completion
    reward_workers: int = 0  # 0: no queue for rewards, all are scored at once
    both_busy: float = 1.0  # speed of writing and of training while both go on
    seed: int = 0

    def __post_init__(self) -> None:
        if self.engines < 1 or self.rows_per_engine < 1:
            raise WhetError(
                f"a cluster of {self.engines} engines of {self.rows_per_engine} rows; give 1 or more of each"
            )
        if not 0 < self.both_busy <= 1:
            raise WhetError(f"both_busy is {self.both_busy}; give a share of the speed, above 0 and at most 1")


@dataclass(frozen=True)
class Simulated:
    """What came out, over the steps that were counted."""

    seconds_per_step: float
    tokens_per_second: float
    trainer_idle: float  # share of the time
    engine_idle: float  # share of the engines' time without a row
    engine_paused: float  # share that went to weights and reading again
    occupancy: float  # rows that write, of those there is room for
    reward_busy: float
    staleness_mean: float
    staleness_most: int
    passed_most: int  # how often a straggler was passed
    limit: str


@dataclass
class _Machine:
    clock: float = 0.0  # tokens that a row present since the beginning would have written
    at: float = 0.0  # time of the clock
    resumes: float = 0.0  # no progress before this time
    # heap: clock at its end, completion, at its start
    rows: list[tuple[float, int, float]] = field(default_factory=list)
    waiting: deque[tuple[int, int]] = field(default_factory=deque)  # (completion, tokens)
    epoch: int = 0
    idle: float = 0.0
    paused: float = 0.0
    row_seconds: float = 0.0


class _Simulation:
    def __init__(self, model: ClusterModel, steps: int) -> None:
        self._model, self._steps = model, steps
        self._stream = random.Random(model.seed)
        self._engines = [_Machine() for _ in range(model.engines)]
        self._window = GroupWindow(model.prompts_per_step, model.max_staleness, model.window)
        self._events: list[tuple[float, int, str, int, int]] = []
        self._order = 0
        self._version = 0
        self._now = 0.0
        self._admitted: dict[int, int] = {}  # group: version
        self._open: dict[int, int] = {}  # group: completions that are not scored
        self._owner: dict[int, int] = {}  # completion: group
        self._tokens: dict[int, int] = {}  # of a completion
        self._next = 0
        self._training = False
        self._left, self._left_at, self._pace = 0.0, 0.0, 1.0  # of a step's training: seconds at full speed, when known
        self._train_epoch = 0
        self._taken: list[int] = []
        self._workers = [0.0] * model.reward_workers
        self._reward_busy = 0.0
        self._counts = [0] * model.engines
        self._loads = [(0, number) for number in range(model.engines)]
        self._written = 0
        self.done: list[tuple[float, float]] = []  # (end, seconds that the trainer waited before it)
        self._free_since = 0.0
        self.staleness: list[list[int]] = []
        self.passed = 0
        self.marks: list[tuple[int, float, float, float, float]] = []  # at each step's end: sums over the engines

    def run(self) -> None:
        self._admit()
        while len(self.done) < self._steps and self._events:
            self._now, _, kind, who, epoch = heapq.heappop(self._events)
            if kind == "trained" and epoch != self._train_epoch:
                continue
            self._advance_training()
            if kind == "engine":
                engine = self._engines[who]
                if epoch == engine.epoch:
                    self._finish_rows(who)
            elif kind == "scored":
                self._scored(who)
            else:
                self._trained()
            self._pace_training()

    def _advance_training(self) -> None:
        """What is left of the step's training, now."""
        self._left -= (self._now - self._left_at) * self._pace
        self._left_at = self._now

    def _pace_training(self) -> None:
        """Reschedule the end of training, since the engine has begun or stopped."""
        busy = any(engine.rows for engine in self._engines)
        pace = self._model.both_busy if busy else 1.0
        if self._training and pace != self._pace:
            self._pace = pace
            self._train_epoch += 1
            self._push(self._now + max(0.0, self._left) / pace, "trained", 0, self._train_epoch)

    def _pace_engines(self, training: bool) -> None:
        """Begin or end the training; on a shared device everybody's speed changes with it."""
        if self._model.both_busy == 1.0:
            self._training = training
            return
        for number in range(len(self._engines)):
            self._advance(number)
        self._training = training
        for number in range(len(self._engines)):
            self._fill(number)

    def _token_seconds(self, engine: _Machine) -> float:
        share = self._model.both_busy if self._training else 1.0
        return self._model.token_seconds(len(engine.rows)) / share

    def _push(self, time: float, kind: str, who: int, epoch: int = 0) -> None:
        self._order += 1
        heapq.heappush(self._events, (time, self._order, kind, who, epoch))

    def _admit(self) -> None:
        """Ask for as many groups as the window has room for; each completion goes to the engine with the fewest."""
        model, touched = self._model, set()
        while self._window.room > 0:
            number = self._window.admit()
            self._admitted[number], self._open[number] = self._version, model.group_size
            for _ in range(model.group_size):
                completion, self._next = self._next, self._next + 1
                tokens = model.lengths.draw(self._stream)
                self._owner[completion], self._tokens[completion] = number, tokens
                least = self._least_loaded()
                self._load(least, 1)
                self._engines[least].waiting.append((completion, tokens))
                touched.add(least)
        for engine in touched:
            self._advance(engine)
            self._fill(engine)

    def _advance(self, number: int) -> None:
        """The engine's clock up to now."""
        engine = self._engines[number]
        start = max(engine.at, min(engine.resumes, self._now))
        paused, ran = start - engine.at, self._now - start
        if engine.rows:
            engine.clock += ran / self._token_seconds(engine)
            engine.paused += paused
            engine.row_seconds += ran * len(engine.rows)
        else:
            engine.idle += paused + ran
        engine.at = self._now

    def _fill(self, number: int) -> None:
        """Give free rows to waiting completions, then schedule when the next row ends."""
        engine = self._engines[number]
        while engine.waiting and len(engine.rows) < self._model.rows_per_engine:
            completion, tokens = engine.waiting.popleft()
            heapq.heappush(engine.rows, (engine.clock + tokens, completion, engine.clock))
        engine.epoch += 1
        if engine.rows:
            left = max(0.0, engine.rows[0][0] - engine.clock)
            wait = left * self._token_seconds(engine)
            self._push(max(self._now, engine.resumes) + wait, "engine", number, engine.epoch)

    def _finish_rows(self, number: int) -> None:
        self._advance(number)
        engine = self._engines[number]
        while engine.rows and engine.rows[0][0] <= engine.clock + 1e-6:
            _, completion, _ = heapq.heappop(engine.rows)
            self._load(number, -1)
            self._written += self._tokens.pop(completion)
            self._score(completion)
        self._fill(number)

    def _load(self, number: int, more: int) -> None:
        """Completions that an engine has; entries of the heap that are no longer true are skipped."""
        self._counts[number] += more
        heapq.heappush(self._loads, (self._counts[number], number))

    def _least_loaded(self) -> int:
        while self._loads[0][0] != self._counts[self._loads[0][1]]:
            heapq.heappop(self._loads)
        return self._loads[0][1]

    def _score(self, completion: int) -> None:
        seconds = self._model.reward_seconds
        if not seconds:
            self._scored(completion)
        elif not self._workers:
            self._push(self._now + seconds, "scored", completion)
        else:
            free = max(heapq.heappop(self._workers), self._now)
            heapq.heappush(self._workers, free + seconds)
            self._reward_busy += seconds
            self._push(free + seconds, "scored", completion)

    def _scored(self, completion: int) -> None:
        group = self._owner.pop(completion)
        self._open[group] -= 1
        if not self._open[group]:
            del self._open[group]
            self._window.finish(group)
            self._start_training()

    def _start_training(self) -> None:
        if self._training:
            return
        while len(self._taken) < self._model.prompts_per_step:
            batch = self._window.take()
            if batch is None:
                return
            self._taken.append(batch.number)
            self.passed = max(self.passed, batch.passed)
        self._pace_engines(training=True)
        self.staleness.append([self._version - self._admitted.pop(group) for group in self._taken])
        self.done.append((math.inf, self._now - self._free_since))
        self._left, self._left_at, self._pace = self._model.train_seconds, self._now, 1.0
        self._train_epoch += 1
        self._push(self._now + self._left, "trained", 0, self._train_epoch)

    def _trained(self) -> None:
        model = self._model
        self._version += 1
        self._pace_engines(training=False)
        self._taken = []
        self._window.trained()
        self.done[-1] = (self._now, self.done[-1][1])
        self._free_since = self._now
        for number, engine in enumerate(self._engines):
            self._advance(number)
            held = sum(engine.clock - start for _, _, start in engine.rows) if model.reread_seconds else 0.0
            engine.resumes = self._now + model.sync_seconds + held * model.reread_seconds
            self._fill(number)
        self.marks.append(
            (
                self._written,
                sum(engine.idle for engine in self._engines),
                sum(engine.paused for engine in self._engines),
                sum(engine.row_seconds for engine in self._engines),
                self._reward_busy,
            )
        )
        self._admit()
        self._start_training()


def simulate(model: ClusterModel, steps: int = 12) -> Simulated:
    """Simulate `steps` steps after a warm-up."""
    warm = model.max_staleness + WARM_UP
    run = _Simulation(model, warm + steps + 1)
    run.run()
    ended = [end for end, _ in run.done if end < math.inf]
    first, last = warm - 1, min(len(ended), warm + steps) - 1
    span, count = ended[last] - ended[first], last - first
    before, after = run.marks[first], run.marks[last]
    written, idle, paused, row_seconds, reward_busy = (b - a for a, b in zip(before, after, strict=True))
    waited = sum(wait for _, wait in run.done[first + 1 : last + 1])
    staleness = [versions for step in run.staleness[first + 1 : last + 1] for versions in step]
    engines = model.engines * span
    rates = {
        "seconds_per_step": span / count,
        "tokens_per_second": written / span,
        "trainer_idle": waited / span,
        "engine_idle": idle / engines,
        "engine_paused": paused / engines,
        "occupancy": row_seconds / (engines * model.rows_per_engine),
        "reward_busy": reward_busy / (span * model.reward_workers) if model.reward_workers else 0.0,
    }
    return Simulated(
        **rates,
        staleness_mean=sum(staleness) / len(staleness),
        staleness_most=max(staleness),
        passed_most=run.passed,
        limit=_limit(rates, model),
    )


def _limit(rates: dict[str, float], model: ClusterModel) -> str:
    if rates["trainer_idle"] < 1 - BUSY:
        return "training"
    if rates["reward_busy"] > BUSY:
        return "rewards"
    if rates["engine_paused"] > 0.2:
        return "weights on their way to the engines"
    if rates["engine_idle"] < 0.1 and rates["occupancy"] > 0.6:
        return "writing"
    if model.max_staleness == 0:
        return "waiting for each other: nobody writes while the trainer learns"
    return "the longest completions of a step"


@dataclass(frozen=True)
class ClusterOptions:
    """The user's options for a cluster plan."""

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
