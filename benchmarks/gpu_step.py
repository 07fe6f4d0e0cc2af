"""whet on one GPU: a GRPO step, rollouts of fixed and ragged length, the training pass beside the matrix rate.

    python benchmarks/gpu_step.py --parts step,rollout,ragged,train --json gpu.json
    python benchmarks/gpu_step.py --parts rollout --model 7b --sequences 256
    python benchmarks/gpu_step.py --tiny                  # the same code on a CPU in seconds: does it run?

Weights are random, of a real model's shape. Only whet runs here. The peers' numbers printed beside are not of this run:
they were measured on another H200, with the shapes, lengths and dtype of this script.
"""

from __future__ import annotations

import argparse
import json
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

from whet.bench.benchmark import (
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
from whet.bench.meter import machine_facts
from whet.build.runtime import Runtime
from whet.metrics.timer import PhaseTimer
from whet.model.token_logp import token_logp
from whet.report.speed import RolloutShape, training_operations
from whet.rollout.seed import request_seed
from whet.rollout.torch_engine import TorchEngine
from whet.types import Request, Sample, Sampling, StopReason

ELSEWHERE = "measured elsewhere (another H200, bf16, the same shapes), not in this run"
PEERS: dict[str, dict[str, Any]] = {
    "step 135m": {"TRL 1.16": "13.3 s, 15.8 GiB", "TRL 1.16 + vLLM colocated": "7.5 s, 72 GiB"},
    "rollout 135m 256": {"vLLM 0.24": "29,000 to 34,000 tokens/s"},
    "rollout 135m 1024": {"vLLM 0.24": "24,000 to 27,000 tokens/s"},
    "rollout 1.5b 1024": {"vLLM 0.24": "23,000 to 25,000 tokens/s"},
    "rollout 7b 256": {"vLLM 0.24": "17,000 to 22,000 tokens/s"},
    "rollout 7b 1024": {"vLLM 0.24": "15,000 tokens/s"},
}
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
ENDING = 1.5  # over the longest completion, the share of all tokens that end one: 1,024 are then cut to 530 on average


STEP = RolloutShape(32, 8, 128, 512)
PASSES = RolloutShape(8, 8, 128, 512)


@dataclass(frozen=True)
class Sizes:
    """What each part works on."""

    step: RolloutShape = STEP
    micro_batch_tokens: int = 32 * 640  # what the peers had in a pass
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


SMALL = Sizes(
    RolloutShape(2, 2, 8, 8), 64, (4, 8), 2, 8, 8, 8, 24, RolloutShape(2, 2, 8, 8), 32, 0.2, 4, (32, 4, 4), 64
)


class RandomWriter:
    """An engine that writes random tokens at once: what is left of a step is training."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        pass

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Sample]:
        count = sampling.max_new_tokens
        found = []
        for request in requests:
            stream = torch.Generator().manual_seed(request.seed % 2**63)
            completion = torch.randint(self._vocabulary, (count,), generator=stream)
            tokens = torch.cat([torch.tensor(request.tokens), completion])
            action = torch.arange(len(tokens)) >= len(request.tokens)
            logp = torch.where(action, -torch.tensor(float(self._vocabulary)).log(), torch.tensor(0.0))
            found.append(Sample(tokens, action, logp, (0, 0), StopReason.LENGTH, ""))
        return found


def machine_for(name: str, device: torch.device, chosen: argparse.Namespace) -> Runtime:
    family, settings = SHAPES[name]
    if chosen.tiny:
        settings = {**settings, **TINY, "num_key_value_heads": 2, "vocab_size": 512}
    machine: Runtime = random_machine(family, settings, device, chosen.precision, chosen.recompute)
    return machine


def part_step(machine: Runtime, name: str, sizes: Sizes, settings: dict[str, Any]) -> dict[str, Any]:
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
        "name": f"step {name}",
        "shape": str(shape),
        "first_step_s": first,
        "step_s": median(step.reading.seconds for step in steps),
        **{f"{phase}_s": median(step.seconds[phase] for step in steps) for phase in ("rollout", "reward", "train")},
        "steps": len(steps),
        "peak_GiB": peak_memory(device) / 2**30,
    }


def part_rollout(machine: Runtime, name: str, sizes: Sizes, settings: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for count in sizes.rollout:
        shape = RolloutShape(count // sizes.group_size, sizes.group_size, sizes.prompt_tokens, sizes.completion_tokens)
        samples, seconds, peak = written(machine, unending(machine).engine, shape)
        tokens = sum(each.num_actions for each in samples)
        found.append(
            {
                "name": f"rollout {name} {count}",
                "shape": str(shape),
                "tokens_per_s": tokens / seconds,
                "seconds": seconds,
                "peak_GiB": peak / 2**30,
            }
        )
    return found


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
    lengths = sorted(each.num_actions for each in samples)
    mean = sum(lengths) / len(lengths)
    fixed = replace(shape, completion_tokens=max(1, round(mean)))
    _, fixed_seconds, _ = written(machine, steady, fixed)
    ragged_rate, fixed_rate = sum(lengths) / seconds, fixed.written / fixed_seconds
    return {
        "name": f"ragged {name} {sizes.ragged}",
        "slots": slots,
        "lengths": {"shortest": lengths[0], "median": lengths[len(lengths) // 2], "longest": lengths[-1], "mean": mean},
        "tokens_per_s": ragged_rate,
        "fixed_tokens_per_s": fixed_rate,
        "share_of_fixed": ragged_rate / fixed_rate,
        "peak_GiB": peak / 2**30,
    }


def written(machine: Runtime, engine: TorchEngine, shape: RolloutShape) -> tuple[list[Sample], float, int]:
    """The samples of one rollout, its seconds and peak memory; a rollout of the same kind warms up."""
    device = machine.policy.device
    sampling = Sampling(max_new_tokens=shape.completion_tokens)

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
    device, shape = machine.policy.device, sizes.train
    values = {**settings, "batch": {"micro_batch_tokens": sizes.pack}, "objective": {"kl": "none"}}
    config = bench_config("whetstone", shape, values, method="grpo")
    # any engine will do for the loop; this one costs next to nothing
    writer: Any = RandomWriter(machine.policy.vocabulary)
    trainer = bench_trainer(config, replace(machine, engine=writer), random_prompts(machine, shape, 0))
    trainer.step(1, PhaseTimer())
    begin_peak(device)
    steps = timed_steps(trainer, sizes.seconds, device)
    seconds = median(step.reading.seconds - step.seconds["rollout"] - step.seconds["reward"] for step in steps)
    rate = matrix_rate(device, machine.policy.dtype, 2.0 if device.type == "cuda" else 0.3)
    operations = training_operations(model_anatomy(machine.policy.model), shape)
    return {
        "name": f"train {name}",
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
        "name": f"shared prefix {name}",
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
        "name": f"long {name}",
        "shape": f"one row of {sizes.long} tokens, vocabulary {vocabulary}",
        "seconds": time.perf_counter() - start,
        "peak_GiB": peak_memory(device) / 2**30,
        "weights_and_gradients_GiB": 2 * sum(each.nbytes for each in machine.policy.model.parameters()) / 2**30,
        "plain_fp32_logits_GiB": sizes.long * vocabulary * 4 / 2**30,
    }


PARTS = {
    "prefix": part_prefix,
    "long": part_long,
    "step": part_step,
    "rollout": part_rollout,
    "ragged": part_ragged,
    "train": part_train,
}
MODELS = {"step": "135m", "rollout": "135m", "ragged": "135m", "train": "1.5b", "prefix": "1.5b", "long": "1.5b"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="step,rollout,ragged,train,prefix,long")
    parser.add_argument("--model", choices=sorted(SHAPES), help="default: 135m, and 1.5b for the training pass")
    parser.add_argument("--sequences", help="of the rollout, e.g. 256 or 256,1024")
    parser.add_argument("--precision", default="auto", choices=("auto", "fp32", "bf16"))
    parser.add_argument("--recompute", default="auto", choices=("auto", "none", "wide", "layers"))
    parser.add_argument("--tiny", action="store_true", help="small shapes, on the CPU where there is no GPU")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    if not torch.cuda.is_available() and not chosen.tiny:
        raise SystemExit("no CUDA device is here; --tiny shows on a CPU that the script runs")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sizes = SMALL if chosen.tiny else Sizes()
    if chosen.sequences:
        sizes = replace(sizes, rollout=tuple(int(each) for each in chosen.sequences.split(",")))
    about = {"torch": torch.__version__, **machine_facts()}
    about["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    results: list[dict[str, Any]] = []
    for part in chosen.parts.split(","):
        name = chosen.model or MODELS[part]
        begun = time.perf_counter()
        machine = machine_for(name, device, chosen)
        found = PARTS[part](machine, name, sizes, {"model": {"device": str(device)}})
        for each in found if isinstance(found, list) else [found]:
            peers = {} if chosen.tiny else PEERS.get(each["name"], {})
            results.append({**each, "peers": {**peers, "note": ELSEWHERE} if peers else {}})
            print(told(each, machine.facts, peers), flush=True)
        print(f"  part {part} took {time.perf_counter() - begun:.0f} s with building the model", flush=True)
        del machine
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if chosen.json:
        command = " ".join(["python", *sys.argv])
        chosen.json.write_text(json.dumps({"command": command, "machine": about, "results": results}, indent=1))


def told(result: Mapping[str, Any], facts: Mapping[str, str], peers: Mapping[str, str]) -> str:
    values = [
        f"  {key:22} {value:,.3f}" if isinstance(value, float) else f"  {key:22} {value}"
        for key, value in result.items()
        if key != "name"
    ]
    others = [f"  {name:22} {said}    {ELSEWHERE}" for name, said in peers.items()]
    return "\n".join([f"{result['name']}: {facts['model']}, {facts['dtype']}", *values, *others])


if __name__ == "__main__":
    main()
