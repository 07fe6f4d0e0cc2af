"""whet on one GPU: a GRPO step, rollouts of many kinds, the training pass beside the matrix rate.

    python benchmarks/gpu_step.py --results                        # all: results/gpu_PART_MODEL.json
    python benchmarks/gpu_step.py --parts rollout,settings --model 1.5b,7b
    python benchmarks/gpu_step.py --tiny                           # the same code on a CPU in seconds: does it run?

Weights are random, of a real model's shape. Only whet runs here; benchmarks/gpu_duel.py runs peers beside it.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from bench_models import SHAPES, random_machine
from results_file import add_results_flag, write_results

from whet.model.fast_path import fast_path
from whet.model.token_logp import token_logp
from whet.record.metrics.timer import PhaseTimer
from whet.record.speed import RolloutShape, training_operations
from whet.rollout.episodes import EnvironmentRunner
from whet.rollout.seed import request_seed
from whet.rollout.torch_engine import TorchEngine
from whet.tools.bench.benchmark import (
    begin_peak,
    bench_config,
    bench_trainer,
    matrix_rate,
    model_anatomy,
    peak_memory,
    random_prompts,
    synchronize,
    timed_steps,
    unending,
)
from whet.training.assembly.runtime import Runtime, decode_facts, sized_passes
from whet.types import Request, Sample, Sampling, StopReason

TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
ENDING = 1.5  # over the longest completion, the share of all tokens that end one: 1,024 are then cut to 530 on average


STEP = RolloutShape(32, 8, 128, 512)
PASSES = RolloutShape(8, 8, 128, 512)
LONG_PROMPTS = RolloutShape(16, 16, 4096, 512)


@dataclass(frozen=True)
class Sizes:
    """What each part works on."""

    step: RolloutShape = STEP
    micro_batch_tokens: int = 0  # as it comes
    rollout: tuple[int, ...] = (256, 1024)  # sequences
    group_size: int = 8
    prompt_tokens: int = 128
    completion_tokens: int = 512
    ragged: int = 1024  # sequences
    longest: int = 1024  # completion tokens
    train: RolloutShape = PASSES
    pack: int = 8192
    seconds: float = 8.0  # of timed steps, besides the warm-up
    slots: int = 256  # rows that write side by side in the ragged part
    prefix: tuple[int, int, int] = (2048, 64, 16)  # tokens of the prompt, of a completion, completions
    long: int = 32768
    long_prompts: RolloutShape = LONG_PROMPTS


SMALL = Sizes(
    RolloutShape(2, 2, 8, 8),
    64,
    (4, 8),
    2,
    8,
    8,
    8,
    24,
    RolloutShape(2, 2, 8, 8),
    32,
    0.2,
    4,
    (32, 4, 4),
    64,
    RolloutShape(2, 2, 32, 8),
)


class RandomWriter:
    """An engine that writes random tokens at once: what is left of a step is training."""

    shares_weights = True  # nothing to check: its tokens are no policy's

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        pass

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Sample]:
        count = sampling.max_new_tokens
        seconds = []
        for request in requests:
            stream = torch.Generator().manual_seed(request.seed % 2**63)
            completion = torch.randint(self._vocabulary, (count,), generator=stream)
            tokens = torch.cat([torch.tensor(request.tokens), completion])
            action = torch.arange(len(tokens)) >= len(request.tokens)
            logp = torch.where(action, -torch.tensor(float(self._vocabulary)).log(), torch.tensor(0.0))
            seconds.append(Sample(tokens, action, logp, (0, 0), StopReason.LENGTH, ""))
        return seconds


def machine_for(name: str, device: torch.device, chosen: argparse.Namespace, rank: int = 0) -> Runtime:
    """A runtime around a random model of this name."""
    family, settings = SHAPES[name]
    if chosen.tiny:
        settings = {**settings, **TINY, "num_key_value_heads": 2, "vocab_size": 512}
    machine: Runtime = random_machine(family, settings, device, chosen.precision, chosen.recompute, rank)
    return machine


def part_step(machine: Runtime, name: str, sizes: Sizes, settings: dict[str, Any]) -> dict[str, Any]:
    """Whole training steps, phase by phase."""
    device, shape = machine.policy.device, sizes.step
    values = {**settings, "batch": {"micro_batch_tokens": sizes.micro_batch_tokens}, "objective": {"kl": "none"}}
    config = bench_config("whetstone", shape, values, method="grpo")
    trainer = bench_trainer(config, unending(machine), random_prompts(machine, shape, 0))
    start = time.perf_counter()
    trainer.step(1, PhaseTimer())
    synchronize(device)
    first = time.perf_counter() - start
    begin_peak(device)
    steps = timed_steps(trainer, sizes.seconds, device, least=1)
    return {
        "shape": str(shape),
        "micro_batch_tokens": sized_passes(config, machine.policy).batch.micro_batch_tokens,
        "first_step_s": first,
        "step_s": median(step.reading.seconds for step in steps),
        **{f"{phase}_s": median(step.seconds[phase] for step in steps) for phase in ("rollout", "reward", "train")},
        "steps": len(steps),
        "peak_GiB": peak_memory(device) / 2**30,
    }


def part_lora(machine: Runtime, name: str, sizes: Sizes, settings: dict[str, Any]) -> dict[str, Any]:
    """The step of a machine with adapters; `step` of the same model is its full training."""
    return part_step(machine, name, sizes, settings)


def part_rollout(machine: Runtime, name: str, sizes: Sizes, settings: dict[str, Any]) -> dict[str, Any]:
    """Rollouts of several sizes."""
    records = {}
    for count in sizes.rollout:
        shape = RolloutShape(count // sizes.group_size, sizes.group_size, sizes.prompt_tokens, sizes.completion_tokens)
        records[str(count)] = rollout_record(machine, shape)
    return records


def part_long_prompts(machine: Runtime, name: str, sizes: Sizes, settings: dict[str, Any]) -> dict[str, Any]:
    """Prompts much longer than their completions."""
    return rollout_record(machine, sizes.long_prompts)


def part_settings(machine: Runtime, name: str, sizes: Sizes, settings: dict[str, Any]) -> dict[str, Any]:
    """A rollout under each common setting, as a share of the plain one's rate."""
    count, budget = sizes.rollout[0], sizes.completion_tokens
    shape = RolloutShape(count // sizes.group_size, sizes.group_size, sizes.prompt_tokens, budget)
    kinds = {
        "plain": Sampling(budget),
        "top_k": Sampling(budget, top_k=50),
        "top_p": Sampling(budget, top_p=0.95),
        "stop": Sampling(budget, stop=("no token of these models spells this",)),
    }
    records = {kind: rollout_record(machine, shape, sampling) for kind, sampling in kinds.items()}
    for record in records.values():
        record["share_of_plain"] = record["tokens_per_s"] / records["plain"]["tokens_per_s"]
    return {"shape": str(shape), **records}


def rollout_record(machine: Runtime, shape: RolloutShape, sampling: Sampling | None = None) -> dict[str, Any]:
    """Tokens per second and peak memory of one rollout."""
    sampling, endless = sampling or Sampling(shape.completion_tokens), unending(machine)
    samples, seconds, peak = written(machine, endless.engine, shape, sampling)
    return {
        "shape": str(shape),
        "tokens_per_s": sum(sample.num_actions for sample in samples) / seconds,
        "seconds": seconds,
        "peak_GiB": peak / 2**30,
        **decode_facts(endless, sampling, random_prompts(machine, shape, 0)),
    }


def part_ragged(machine: Runtime, name: str, sizes: Sizes, settings: dict[str, Any]) -> dict[str, Any]:
    """More completions than slots, of random length up to `longest`; beside them, as many of the mean length."""
    stream = torch.Generator().manual_seed(1)
    vocabulary = machine.policy.vocabulary
    ends = torch.randperm(vocabulary, generator=stream)[: max(1, round(ENDING / sizes.longest * vocabulary))].tolist()
    loaded, slots = machine.loaded, sizes.slots
    engine = TorchEngine(machine.policy, loaded.tokenizer, ends, context=loaded.context, rows_per_batch=slots)
    steady = TorchEngine(machine.policy, loaded.tokenizer, (), context=loaded.context, rows_per_batch=slots)
    shape = RolloutShape(sizes.ragged // sizes.group_size, sizes.group_size, sizes.prompt_tokens, sizes.longest)
    samples, seconds, peak = written(machine, engine, shape)
    lengths = sorted(sample.num_actions for sample in samples)
    mean = sum(lengths) / len(lengths)
    fixed = replace(shape, completion_tokens=max(1, round(mean)))
    _, fixed_seconds, _ = written(machine, steady, fixed)
    ragged_rate, fixed_rate = sum(lengths) / seconds, fixed.written / fixed_seconds
    return {
        "sequences": sizes.ragged,
        "slots": slots,
        "lengths": {"shortest": lengths[0], "median": lengths[len(lengths) // 2], "longest": lengths[-1], "mean": mean},
        "tokens_per_s": ragged_rate,
        "fixed_tokens_per_s": fixed_rate,
        "share_of_fixed": ragged_rate / fixed_rate,
        "peak_GiB": peak / 2**30,
    }


def written(
    machine: Runtime, engine: Any, shape: RolloutShape, sampling: Sampling | None = None
) -> tuple[list[Sample], float, int]:
    """The samples of one rollout, its seconds and peak memory; a rollout of the same kind warms up."""
    device = machine.policy.device
    sampling = sampling or Sampling(max_new_tokens=shape.completion_tokens)

    def requests(seed: int) -> list[Request]:
        prompts = random_prompts(machine, shape, seed)
        return [
            Request(tokens, request_seed(seed, row, number))
            for row, tokens in enumerate(prompts)
            for number in range(shape.group_size)
        ]

    engine.generate(requests(0), sampling)
    asked = requests(1)
    begin_peak(device)
    synchronize(device)
    start = time.perf_counter()
    samples = engine.generate(asked, sampling)
    synchronize(device)
    return samples, time.perf_counter() - start, peak_memory(device)


def part_train(machine: Runtime, name: str, sizes: Sizes, settings: dict[str, Any]) -> dict[str, Any]:
    """The training phase alone, on full rows."""
    device, shape = machine.policy.device, sizes.train
    values = {**settings, "batch": {"micro_batch_tokens": sizes.pack}, "objective": {"kl": "none"}}
    config = bench_config("whetstone", shape, values, method="grpo")
    # any engine will do for the loop; this one costs next to nothing
    writer: Any = RandomWriter(machine.policy.vocabulary)
    trainer = bench_trainer(
        config, replace(machine, engine=writer, runner=EnvironmentRunner(writer)), random_prompts(machine, shape, 0)
    )
    trainer.step(1, PhaseTimer())
    begin_peak(device)
    steps = timed_steps(trainer, sizes.seconds, device)
    seconds = median(step.reading.seconds - step.seconds["rollout"] - step.seconds["reward"] for step in steps)
    rate = matrix_rate(device, machine.policy.dtype, 2.0 if device.type == "cuda" else 0.3)
    operations = training_operations(model_anatomy(machine.policy.model), shape)
    return {
        "shape": f"{shape}, {sizes.pack} tokens per micro-batch",
        "seconds": seconds,
        "tokens_per_s": shape.shared / seconds,
        "useful_TFLOP_per_s": operations / seconds / 1e12,
        "matrix_TFLOP_per_s": rate / 1e12,
        "share_of_matrix_rate": operations / seconds / rate,
        "peak_GiB": peak_memory(device) / 2**30,
    }


def part_prefix(machine: Runtime, name: str, sizes: Sizes, settings: dict[str, Any]) -> dict[str, Any]:
    """A pass over completions that share a long prompt, beside as many full rows of their own."""
    prompt, completion, group = sizes.prefix
    device, seconds = machine.policy.device, {}
    stream = torch.Generator().manual_seed(0)
    for kind in ("shared", "separate"):
        tokens = torch.randint(machine.policy.vocabulary, (group, prompt + completion), generator=stream)
        if kind == "shared":
            tokens[:, :prompt] = tokens[0, :prompt]
        action = (torch.arange(prompt + completion) >= prompt).expand(group, -1)
        taken = []
        for _ in range(6):
            machine.policy.model.zero_grad(set_to_none=True)
            synchronize(device)
            start = time.perf_counter()
            token_logp(machine.policy, tokens, action).logp.sum().backward()
            synchronize(device)
            taken.append(time.perf_counter() - start)
        seconds[kind] = median(taken[2:])
    return {
        "shape": f"{group} completions of {completion} tokens to one prompt of {prompt}",
        **{f"{kind}_s": value for kind, value in seconds.items()},
        "separate_over_shared": seconds["separate"] / seconds["shared"],
    }


def part_long(machine: Runtime, name: str, sizes: Sizes, settings: dict[str, Any]) -> dict[str, Any]:
    """Forward and backward of one long row: plain logits of all its tokens would not be small."""
    device, vocabulary = machine.policy.device, machine.policy.vocabulary
    tokens = torch.randint(vocabulary, (1, sizes.long), generator=torch.Generator().manual_seed(0))
    action = torch.arange(sizes.long)[None] >= 8
    begin_peak(device)
    start = time.perf_counter()
    token_logp(machine.policy, tokens, action).logp.mean().backward()
    synchronize(device)
    return {
        "shape": f"one row of {sizes.long} tokens, vocabulary {vocabulary}",
        "seconds": time.perf_counter() - start,
        "peak_GiB": peak_memory(device) / 2**30,
        "weights_and_gradients_GiB": 2
        * sum(parameter.nbytes for parameter in machine.policy.model.parameters())
        / 2**30,
        "plain_fp32_logits_GiB": sizes.long * vocabulary * 4 / 2**30,
    }


PARTS = {
    "step": part_step,
    "lora": part_lora,
    "rollout": part_rollout,
    "settings": part_settings,
    "ragged": part_ragged,
    "long_prompts": part_long_prompts,
    "train": part_train,
    "prefix": part_prefix,
    "long": part_long,
}
MODELS = {
    "step": "135m",
    "lora": "135m",
    "rollout": "135m,1.5b,7b",
    "settings": "135m,1.5b",
    "ragged": "135m",
    "long_prompts": "1.5b",
    "train": "1.5b",
    "prefix": "1.5b",
    "long": "1.5b",
}
LORA_RANK = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help=", ".join(PARTS))
    parser.add_argument("--model", help=f"some of {', '.join(SHAPES)}; default: the usual ones of each part")
    parser.add_argument("--sequences", help="of the rollout, e.g. 256 or 256,1024")
    parser.add_argument("--precision", default="auto", choices=("auto", "fp32", "bf16"))
    parser.add_argument("--recompute", default="auto", choices=("auto", "none", "wide", "layers"))
    parser.add_argument("--micro-batch-tokens", type=int, help="of the steps; default: as it comes")
    parser.add_argument("--tiny", action="store_true", help="small shapes, on the CPU where there is no GPU")
    add_results_flag(parser, "gpu")
    chosen = parser.parse_args()
    for option, known in (("parts", PARTS), ("model", SHAPES)):
        unknown = [name for name in (getattr(chosen, option) or next(iter(known))).split(",") if name not in known]
        if unknown:
            raise SystemExit(f"--{option} {unknown[0]}: give some of {', '.join(known)}, with commas between them")
    if not torch.cuda.is_available() and not chosen.tiny:
        raise SystemExit("no CUDA device is here; --tiny shows on a CPU that the script runs")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sizes = SMALL if chosen.tiny else Sizes()
    if chosen.sequences:
        sizes = replace(sizes, rollout=tuple(int(count) for count in chosen.sequences.split(",")))
    if chosen.micro_batch_tokens:
        sizes = replace(sizes, micro_batch_tokens=chosen.micro_batch_tokens)
    for part in chosen.parts.split(","):
        for name in (chosen.model or MODELS[part]).split(","):
            begun = time.perf_counter()
            gc.collect()  # what an earlier part left behind would count as memory of this one
            if device.type == "cuda":
                torch.cuda.empty_cache()
            held = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
            machine = machine_for(name, device, chosen, LORA_RANK if part == "lora" else 0)
            record = {"model": machine.facts["model"], "dtype": machine.facts["dtype"]}
            record["training path"] = str(fast_path(machine.policy))
            record["held_before_GiB"] = held / 2**30
            record.update(PARTS[part](machine, name, sizes, {"model": {"device": str(device)}}))
            print("\n".join([f"{part} {name}", *told(record)]), flush=True)
            print(f"  took {time.perf_counter() - begun:.0f} s with building the model", flush=True)
            if chosen.results:
                write_results(f"{chosen.results}_{part}_{name}", record)
            del machine


def told(result: Mapping[str, Any], indent: str = "  ") -> list[str]:
    """The result as indented lines."""
    lines = []
    for key, value in result.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key}", *told(value, f"{indent}  ")]
        else:
            lines.append(f"{indent}{key:22} {value:,.3f}" if isinstance(value, float) else f"{indent}{key:22} {value}")
    return lines


if __name__ == "__main__":
    main()
