"""`whet bench`: the user's own model on the user's own machine, beside what the machine can do at best.

Steps are real ones of the loop, on random prompts and with completions that never end early, so that every step is the
same work. Nothing is saved.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import torch

from whet.objective import PRESETS
from whet.record.metrics.timer import PhaseTimer
from whet.record.speed import Anatomy, Ceilings, RolloutShape, Speed, rollout_limit, training_operations
from whet.rollout.collect import PromptDataset, RewardContext
from whet.rollout.engines import build_engine
from whet.rollout.episodes import EnvironmentRunner
from whet.rollout.seed import request_seed
from whet.settings.layers import merged
from whet.tools.bench import meter
from whet.tools.bench.meter import Meter, Reading
from whet.training.assembly.rl import build_objective, build_rl_trainer
from whet.training.assembly.runtime import Runtime, load_runtime, sized_passes
from whet.training.config import PolicyConfig, resolved
from whet.training.rl_trainer import RLTrainer
from whet.types import Prompt, Request, Sample, Sampling, WhetError

LARGEST = {"cpu": 2048, "cuda": 8192}  # rows of the square matrices that the product rate is measured on
COPIED = {"cpu": 1 << 26, "cuda": 1 << 30}  # bytes
MOST_STEPS = 50
STATES = 12  # bytes a trained weight: its gradient and AdamW's two moments in float32
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


@dataclass(frozen=True)
class TimedStep:
    """One step of the loop: all of it, and its phases."""

    reading: Reading
    seconds: Mapping[str, float]  # rollout, reward, train


def benchmark(
    model: str = "whetstone",
    shape: RolloutShape | None = None,
    *,
    seconds: float = 3.0,
    settings: Mapping[str, Any] | None = None,
) -> Speed:
    """Measure ceilings, rollout and training, about `seconds` each. `settings` are config values: model, batch, ..."""
    shape = shape or RolloutShape()
    config = bench_config(model, shape, settings)
    batch = config.batch
    shape = RolloutShape(batch.prompts_per_step, batch.group_size, shape.prompt_tokens, config.sampling.max_new_tokens)
    runtime = unending(load_runtime(config), config.sampling.engine)
    config = sized_passes(config, runtime.policy)
    device, dtype = runtime.policy.device, runtime.policy.dtype
    kinds = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.bfloat16)}
    rates = {name: matrix_rate(device, kind, seconds / 4) for name, kind in kinds.items()}
    name = str(dtype).removeprefix("torch.")
    bytes_rate = copy_rate(device, seconds / 4)
    trainer = bench_trainer(config, runtime, random_prompts(runtime, shape, config.seed))
    held = begin_peak(device)
    trainer.step(1, PhaseTimer())  # the first step also makes gradients and the optimizer's states
    states = sum(
        STATES * parameter.numel() for parameter in runtime.policy.model.parameters() if parameter.requires_grad
    )
    working = max(peak_memory(device) - held - states, 0)
    around = Meter()
    steps = timed_steps(trainer, seconds, device)
    others = around.read().others
    peak = peak_memory(device)
    chosen = [steps[index] for index in meter.quiet_indices([step.reading for step in steps])[0]]
    rollout = {
        "total": median(step.seconds["rollout"] for step in chosen),
        "prefill": prefill_seconds(runtime, shape, seconds / 8),
        "sampling": sampling_seconds(runtime, shape, seconds / 8),
    }
    threads = torch.get_num_threads()
    anatomy = model_anatomy(runtime.policy.model)
    ceilings = Ceilings(rates[name], bytes_rate)
    in_a_pass = min(config.batch.micro_batch_tokens, shape.separate)
    return Speed(
        title="\n".join(runtime.facts[key] for key in ("model", "device", "dtype")),
        shape=shape,
        dtype=name,
        rates=rates,
        bytes_rate=bytes_rate,
        rollout=rollout,
        rollout_ceiling=rollout_limit(anatomy, shape, ceilings, dtype.itemsize),
        train=median(step.seconds["train"] for step in chosen),
        operations=training_operations(anatomy, shape),
        peak=peak,
        bytes_per_token=working / in_a_pass,
        free=free_memory(device),
        micro_batch_tokens=config.batch.micro_batch_tokens,
        threads=threads,
        by_threads={
            threads: median(step.reading.seconds for step in chosen),
            **other_threads(trainer, device, threads),
        },
        others=others,
    )


def speed_record(speed: Speed) -> dict[str, Any]:
    """Everything that was measured, as JSON."""
    values = asdict(speed)
    values["rollout_ceiling"] = {"tokens_per_second": speed.rollout_ceiling[0], "limit": speed.rollout_ceiling[1]}
    values["rollout_tokens_per_second"] = speed.shape.written / speed.rollout["total"]
    values["training_tokens_per_second"] = speed.shape.shared / speed.train
    values["training_share"] = speed.train_share
    return {**values, "machine": {**meter.machine_facts(), "torch": torch.__version__}}


def bench_config(
    model: str, shape: RolloutShape, settings: Mapping[str, Any] | None = None, method: str | None = None
) -> PolicyConfig:
    """The config of a run of this shape, by the plainest method there is unless one is named."""
    plain = method or next(name for name, preset in PRESETS.items() if preset.objective.needs() <= {"old_logp"})
    values = {
        "model": {"name": model},
        "steps": 1000,
        "sampling": {"max_new_tokens": shape.completion_tokens},
        "batch": {"prompts_per_step": shape.num_prompts, "group_size": shape.group_size},
        "optimizer": {"learning_rate": 1e-6},
    }
    config = resolved(plain, merged(values, settings or {}))
    assert isinstance(config, PolicyConfig)
    return config


def unending(runtime: Runtime, engine: str = "torch") -> Runtime:
    """The runtime with an engine that no token stops: every completion takes its whole budget."""
    loaded = runtime.loaded
    built = build_engine(engine, runtime.policy, loaded.tokenizer, (), loaded.context)
    return replace(runtime, engine=built, runner=EnvironmentRunner(built))


def random_prompts(runtime: Runtime, shape: RolloutShape, seed: int) -> list[tuple[int, ...]]:
    """`num_prompts` prompts of random tokens, none of which ends a completion."""
    if shape.prompt_tokens + shape.completion_tokens > runtime.loaded.context:
        raise WhetError(
            f"{shape.prompt_tokens} prompt tokens and {shape.completion_tokens} of a completion exceed the model's "
            f"context of {runtime.loaded.context}; give fewer"
        )
    usable = torch.tensor(
        [token for token in range(runtime.policy.vocabulary) if token not in runtime.loaded.end_tokens]
    )
    stream = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(usable), (shape.num_prompts, shape.prompt_tokens), generator=stream)
    return [tuple(row) for row in usable[drawn].tolist()]


def bench_trainer(config: PolicyConfig, runtime: Runtime, prompts: Sequence[tuple[int, ...]]) -> RLTrainer:
    """The loop's own trainer over these prompts; the reward is the share of even tokens in a completion."""
    dataset = PromptDataset([Prompt(f"bench/{number}", (), text="") for number in range(len(prompts))], list(prompts))
    config = sized_passes(config, runtime.policy)
    return build_rl_trainer(
        config, build_objective(config), runtime, dataset, lambda _: RewardContext(_even_share), None
    )


def _even_share(prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[Sample]:
    scores = [float((sample.tokens[sample.action] % 2 == 0).float().mean()) for sample in samples]
    return [sample.scored({"even": score}, score) for sample, score in zip(samples, scores, strict=True)]


def timed_steps(trainer: RLTrainer, seconds: float, device: torch.device, least: int = 2) -> list[TimedStep]:
    """Steps of the trainer until `seconds` are spent, at least `least`; the first is number 2."""
    timed: list[TimedStep] = []
    until = time.monotonic() + seconds
    while len(timed) < least or (time.monotonic() < until and len(timed) < MOST_STEPS):
        watch, timer = Meter(), PhaseTimer()
        trainer.step(2 + len(timed), timer)
        synchronize(device)
        timed.append(TimedStep(watch.read(), timer.seconds))
    return timed


def other_threads(trainer: RLTrainer, device: torch.device, chosen: int) -> dict[int, float]:
    """Seconds of a step with one thread and with all cores, where that is not what was chosen anyway."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    seconds_by_count = {}
    if device.type == "cpu":
        for count in sorted({1, cores} - {chosen}):
            torch.set_num_threads(count)
            seconds_by_count[count] = min(step.reading.seconds for step in timed_steps(trainer, 0.0, device))
        torch.set_num_threads(chosen)
    return seconds_by_count


def prefill_seconds(runtime: Runtime, shape: RolloutShape, seconds: float) -> float:
    """Seconds of a rollout that writes one token: reading the prompts and little else."""
    requests = [
        Request(tokens, request_seed(row, number))
        for row, tokens in enumerate(random_prompts(runtime, shape, 0))
        for number in range(shape.group_size)
    ]
    sampling = Sampling(max_new_tokens=1)
    return best_seconds(lambda: runtime.engine.generate(requests, sampling), runtime.policy.device, seconds)


def sampling_seconds(runtime: Runtime, shape: RolloutShape, seconds: float) -> float:
    """Seconds of drawing all tokens of a rollout, measured apart from the model."""
    from whet.rollout.sampling import draw

    device = runtime.policy.device
    logits = torch.randn(shape.num_sequences, runtime.policy.vocabulary, device=device)
    uniform = torch.rand(shape.num_sequences, device=device)
    sampling = Sampling()
    return shape.completion_tokens * best_seconds(lambda: draw(logits, uniform, sampling), device, seconds)


def matrix_rate(device: torch.device, dtype: torch.dtype, seconds: float) -> float:
    """Operations a second of the best square matrix product that fits in the time."""
    size, best = 128, 0.0
    until = time.monotonic() + seconds
    while True:
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        took = best_seconds(lambda left=left, right=right: left @ right, device, seconds / 8)  # type: ignore[misc]
        best = max(best, 2.0 * size**3 / took)
        # the next size takes eight times as long: a type that this machine emulates stops early
        if size >= LARGEST.get(device.type, 2048) or time.monotonic() + 16 * took > until:
            return best
        size *= 2


def copy_rate(device: torch.device, seconds: float) -> float:
    """Bytes a second that a copy reads and writes, each counted."""
    size = COPIED.get(device.type, 1 << 26)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / best_seconds(lambda: target.copy_(source), device, seconds)


@torch.no_grad()
def best_seconds(work: Callable[[], Any], device: torch.device, seconds: float) -> float:
    """The fastest of as many repetitions as fit in the time, at least two after one to warm up."""
    work()
    timings: list[float] = []
    until = time.monotonic() + seconds
    while len(timings) < 2 or time.monotonic() < until:
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        timings.append(time.perf_counter() - start)
    return min(timings)


def model_anatomy(model: Any) -> Anatomy:
    """The weights of a model by use; of experts only those that a token is sent to count."""
    settings = model.config.get_text_config()
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    outside = {id(module.weight) for module in (embedding, head) if module is not None}
    experts = next((count for name in EXPERTS if (count := getattr(settings, name, None))), 1)
    used = (getattr(settings, "num_experts_per_tok", None) or experts) / experts
    trunk = 0.0
    for name, parameter in model.named_parameters():
        if id(parameter) not in outside and parameter.ndim >= 2:
            trunk += parameter.numel() * (used if ".experts." in name else 1.0)
    layers = getattr(settings, "num_hidden_layers", 0)
    heads = getattr(settings, "num_attention_heads", 0) or 0
    size = getattr(settings, "head_dim", None) or (settings.hidden_size // heads if heads else 0)
    cached = getattr(settings, "num_key_value_heads", None) or heads
    return Anatomy(
        trunk_weights=round(trunk),
        head_weights=int(settings.vocab_size) * int(settings.hidden_size),
        attention_width=layers * heads * size,
        cache_width=2 * layers * cached * size,
    )


def synchronize(device: torch.device) -> None:
    """Wait for a CUDA device; nothing to wait for on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def begin_peak(device: torch.device) -> int:
    """Forget the memory peak so far; bytes held now."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    meter.forget_peak()
    return meter.resident_bytes()


def peak_memory(device: torch.device) -> int:
    """The most bytes held: of the CUDA allocator, or of the process."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else meter.peak_bytes()


def free_memory(device: torch.device) -> int | None:
    """Free bytes of the device, or of the machine; None where the system does not tell."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else meter.free_bytes()
