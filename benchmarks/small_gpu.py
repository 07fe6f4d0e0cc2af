"""What fits a GPU of 24 GB: real GRPO steps under a cap on the device's memory, and what the savings cost.

    python benchmarks/small_gpu.py --results       # results/gpu_small.json; under four minutes on an H200
    python benchmarks/small_gpu.py --tiny          # the same code on a CPU in seconds: does it run?

Weights are random, of a real model's shape, made on the device in the type they are kept in. `lora_7b`, `full_1.5b` and
`lora_4bit_7b` run under the cap: a run that needs more ends in an error. `adapters` compares a base of bfloat16, whose
adapters work beside it, with one of float32 that they are merged into, without a cap.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from bench_models import SHAPES, random_machine
from results_file import add_results_flag, write_results

from whet.model.fast_path import fast_path
from whet.record.metrics.timer import PhaseTimer
from whet.record.speed import RolloutShape
from whet.rollout.seed import request_seed
from whet.tools.bench.benchmark import (
    begin_peak,
    bench_config,
    bench_trainer,
    peak_memory,
    random_prompts,
    synchronize,
    unending,
)
from whet.training.assembly.runtime import decode_facts
from whet.types import Request, Sampling

TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
HAS_BITS = importlib.util.find_spec("bitsandbytes") is not None


@dataclass(frozen=True)
class Part:
    """A model, how its weights are kept, and how it is trained."""

    model: str
    weights_type: str  # float32, bfloat16 or 4bit
    rank: int
    states: str = "float32"
    recompute: str = "layers"
    micro_batch_tokens: int = 2048
    most_tokens: int = 4096  # of a completion


PARTS = {
    "lora_7b": Part("7b", "bfloat16", 16),
    "full_1.5b": Part("1.5b", "bfloat16", 0, "int8"),
    "lora_4bit_7b": Part("7b", "4bit", 16, most_tokens=128),  # each token unpacks every matrix
}
COMPARED = {
    "1.5b": RolloutShape(32, 8, 128, 256),
    "135m": RolloutShape(32, 8, 128, 512),
}


def machine_for(part: Part, device: torch.device, tiny: bool) -> Any:
    """A runtime around a random model of the part's shape."""
    family, settings = SHAPES[part.model]
    if tiny:
        settings = {**settings, **TINY, "num_key_value_heads": 2, "vocab_size": 512}
    return random_machine(family, settings, device, "bf16", part.recompute, part.rank, part.weights_type)


def trained(machine: Any, part: Part, shape: RolloutShape, device: torch.device, steps: int) -> dict[str, Any]:
    """Whole steps: completions, reference, update. The first compiles and is timed apart."""
    lora = {"lora": {"rank": part.rank, "base": part.weights_type}} if part.rank else {"weights": part.weights_type}
    settings = {
        "model": {"name": "whetstone", "precision": "bf16", **lora},
        "batch": {"micro_batch_tokens": part.micro_batch_tokens},
        "optimizer": {"states": part.states, "learning_rate": 1e-5},
    }
    config = bench_config("whetstone", shape, settings, method="grpo")
    endless = unending(machine)
    prompts = random_prompts(machine, shape, 0)
    trainer = bench_trainer(config, endless, prompts)
    seconds, gaps, phases = [], [], {}
    for number in range(1, steps + 2):
        timer, start = PhaseTimer(), time.perf_counter()
        report, _ = trainer.step(number, timer)
        synchronize(device)
        seconds.append(time.perf_counter() - start)
        gaps.append(report.metrics.get("sampler_gap"))
        phases = dict(timer.seconds)
    return {
        "shape": str(shape),
        "first_step_s": seconds[0],
        "step_s": min(seconds[1:]),
        **{f"{phase}_s": value for phase, value in phases.items()},
        "sampler_gap": gaps,
        "training path": str(fast_path(machine.policy)),
        **decode_facts(endless, Sampling(shape.completion_tokens), prompts),
    }


def capped_part(part: Part, shape: RolloutShape, device: torch.device, chosen: argparse.Namespace) -> dict[str, Any]:
    """Steps of a part while CUDA may take no more memory than the small card has."""
    cap = chosen.gigabytes * 1e9
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, cap / total), torch.cuda.current_device())
    begin_peak(device)
    start = time.perf_counter()
    machine = machine_for(part, device, chosen.tiny)
    built = peak_memory(device)
    model = machine.policy.model
    facts = {
        "weights": sum(parameter.numel() for parameter in model.parameters()),
        "kept": part.weights_type,
        "rank": part.rank,
        "states": part.states,
        "built_s": time.perf_counter() - start,
        "built_GB": built / 1e9,
        **trained(machine, part, shape, device, 2),
        "peak_GB": peak_memory(device) / 1e9,
        "cap_GB": chosen.gigabytes,
    }
    if device.type == "cuda":
        facts["peak_reserved_GB"] = torch.cuda.max_memory_reserved(device) / 1e9
        torch.cuda.set_per_process_memory_fraction(1.0, torch.cuda.current_device())
    return facts


def adapters_part(name: str, shape: RolloutShape, device: torch.device, chosen: argparse.Namespace) -> dict[str, Any]:
    """Completions and a step with a base of either type."""
    record: dict[str, Any] = {"shape": str(shape)}
    for weights_type in ("float32", "bfloat16"):
        part = Part(name, weights_type, 16, recompute="wide", micro_batch_tokens=20480)
        machine = machine_for(part, device, chosen.tiny)
        begin_peak(device)
        record[weights_type] = {
            **trained(machine, part, shape, device, 2),
            "tokens_per_s": decode_rate(machine, shape, device),
        }
        record[weights_type]["peak_GB"] = peak_memory(device) / 1e9
        del machine
        free(device)
    for key in ("step_s", "train_s", "rollout_s"):
        if record["float32"].get(key):
            record[f"bfloat16 over float32, {key}"] = record["bfloat16"][key] / record["float32"][key]
    return record


def decode_rate(machine: Any, shape: RolloutShape, device: torch.device) -> float:
    """Tokens per second of rollouts."""
    engine = unending(machine).engine
    taken = []
    for seed in range(3):
        asked = [
            Request(tokens, request_seed(seed, row, number))
            for row, tokens in enumerate(random_prompts(machine, shape, seed))
            for number in range(shape.group_size)
        ]
        synchronize(device)
        start = time.perf_counter()
        engine.generate(asked, Sampling(max_new_tokens=shape.completion_tokens))
        synchronize(device)
        taken.append(time.perf_counter() - start)
    return shape.written / min(taken[1:])


def free(device: torch.device) -> None:
    """Give memory back to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join((*PARTS, "adapters")))
    parser.add_argument("--gigabytes", type=float, default=24.0, help="of the device that is played, in 10^9 bytes")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--completion-tokens", type=int, default=512)
    parser.add_argument("--tiny", action="store_true", help="tiny models and lengths")
    parser.add_argument("--out", type=Path, help="write the values as JSON there as well")
    add_results_flag(parser, "gpu_small")
    chosen = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = RolloutShape(chosen.prompts, chosen.group, chosen.prompt_tokens, chosen.completion_tokens)
    small = RolloutShape(2, 2, 8, 8)
    values: dict[str, Any] = {}
    for name in chosen.parts.split(","):
        start = time.perf_counter()
        try:
            if name == "adapters":
                values[name] = {
                    model: adapters_part(model, small if chosen.tiny else compared, device, chosen)
                    for model, compared in COMPARED.items()
                }
            elif (PARTS[name].weights_type == "4bit" or PARTS[name].states == "int8") and not HAS_BITS:
                values[name] = {"skipped": "bitsandbytes is not installed"}
            else:
                tokens = min(shape.completion_tokens, PARTS[name].most_tokens)
                own = small if chosen.tiny else replace(shape, completion_tokens=tokens)
                values[name] = capped_part(PARTS[name], own, device, chosen)
        except torch.OutOfMemoryError as error:
            values[name] = {"out of memory": str(error).partition(". GPU")[0]}
        values[name]["seconds"] = time.perf_counter() - start
        free(device)
        print(json.dumps({name: values[name]}, indent=1), flush=True)
    if chosen.out:
        chosen.out.write_text(json.dumps(values, indent=1) + "\n")
    if chosen.results:
        write_results(chosen.results, values)


if __name__ == "__main__":
    main()
