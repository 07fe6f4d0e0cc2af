"""One training update of a model in shards (FSDP2) beside the same update of a whole model, on one device or on many.

    python benchmarks/sharded.py --gpu --results                            # 135M and 1.5B: results/gpu_sharded.json
    torchrun --nproc-per-node 8 benchmarks/sharded.py --gpu --model 1.5b    # shards only, over eight devices
    python benchmarks/sharded.py --tiny                                     # the same code on a CPU in seconds

On one device nothing travels: what sharding costs there is copying into and out of the buffers of its collectives, and
the fast paths that step aside. `sharded own layers` is what adapters, and models that whet has not written out, pay.
Weights are random, of a real model's shape.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from bench_models import SHAPES, random_machine
from results_file import add_results_flag, write_results

from whet.model import fused_trunk
from whet.model.causal_lm import CausalLM
from whet.model.fast_path import fast_path
from whet.objective import PRESETS, step_totals
from whet.tools.bench.benchmark import begin_peak, peak_memory, synchronize
from whet.training.distributed.ranks import ALONE, Ranks
from whet.training.distributed.shard import Sharding, sharded, sharding
from whet.training.distributed.shared_rollout import WholeCopyEngine
from whet.training.optimizer import adamw
from whet.training.sections import OptimizerSection
from whet.training.update import TrainState, update
from whet.types import TokenBatch

TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
WAYS = ("whole", "sharded", "sharded own layers", "lora whole", "lora sharded", "sharded offload")
LORA_RANK = 16


def random_batch(vocabulary: int, chosen: argparse.Namespace) -> TokenBatch:
    """Groups of equal prompts with advantages drawn at random."""
    stream = torch.Generator().manual_seed(0)
    rows, width = chosen.prompts * chosen.group_size, chosen.prompt + chosen.completion
    group = torch.arange(chosen.prompts).repeat_interleave(chosen.group_size)
    opening = torch.randint(vocabulary, (chosen.prompts, chosen.prompt), generator=stream)[group]
    tokens = torch.cat([opening, torch.randint(vocabulary, (rows, chosen.completion), generator=stream)], 1)
    action = (torch.arange(width) >= chosen.prompt).expand(rows, -1).contiguous()
    advantage = torch.randn(rows, 1, generator=stream, dtype=torch.float64).expand(rows, width) * action
    logp = torch.where(action, -torch.tensor(float(vocabulary)).log(), 0.0)
    return TokenBatch(
        tokens=tokens,
        action=action,
        group=group,
        reward=torch.zeros(rows, dtype=torch.float64),
        behavior_logp=logp,
        advantage=advantage.contiguous(),
        finished=torch.ones(rows, dtype=torch.bool),
        max_new_tokens=chosen.completion,
    )


@contextmanager
def own_layers(model: CausalLM, wanted: bool) -> Iterator[None]:
    """Inside, the written-out layers step aside for this model."""
    if wanted:
        fused_trunk._REFUSALS.setdefault(model.trunk, {})[model.dtype] = "asked for"
    yield


def measured(name: str, way: str, ranks: Ranks, device: torch.device, chosen: argparse.Namespace) -> dict[str, Any]:
    """Seconds and memory of one model trained one way."""
    family, settings = SHAPES[name]
    if chosen.tiny:
        settings = {**settings, **TINY, "num_key_value_heads": 2, "vocab_size": 512}
    lora = (4 if chosen.tiny else LORA_RANK) if way.startswith("lora") else 0
    in_shards = "sharded" in way
    weights_type = "float32" if in_shards else "auto"  # shards of adapters stand on a base of float32
    machine = random_machine(family, settings, device, chosen.precision, chosen.recompute, lora, weights_type)
    lm: CausalLM = machine.policy
    sync_seconds = None
    with own_layers(lm, way == "sharded own layers"):
        if in_shards:
            shards: Sharding = sharding(ranks, device, offload=way.endswith("offload"))
            copy = WholeCopyEngine(lm, lambda one: machine.engine) if way == "sharded" else None
            lm = sharded(lm, shards)
            if copy is not None:
                engine = copy
                sync_seconds = timed(lambda: engine.load(lm.model.state_dict(), 1), device, 3)
                del copy, engine
        path = str(fast_path(lm)) if lm.gathering is None else f"in shards; refused: {fused_trunk.fused_refusal(lm)}"
        lm.model.train()
        optimizer = adamw(lm.model, OptimizerSection(learning_rate=1e-6))
        state = TrainState(lm, optimizer, 1.0, chosen.micro_batch_tokens, 1.0, ranks=ranks)
        objective = PRESETS["dr_grpo"].objective
        batch = random_batch(settings["vocab_size"], chosen)
        totals = step_totals(batch, chosen.completion)
        metrics, _ = update(state, objective, batch, totals)
        synchronize(device)
        held = begin_peak(device)
        seconds = timed(lambda: update(state, objective, batch, totals), device, chosen.repeats)
    tokens = int(batch.action.sum()) + chosen.prompts * chosen.prompt
    return {
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "held_bytes": held,
        "peak_bytes": peak_memory(device),
        "gradient_norm": metrics["gradient_norm"],
        "sync_seconds": sync_seconds,
        "path": path,
    }


def timed(work: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """The median of several timings."""
    took = []
    for _ in range(repeats):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        took.append(time.perf_counter() - start)
    return median(took)


def joined(device: torch.device) -> Ranks:
    """The ranks of torchrun; alone, a group of one, which FSDP2 needs too."""
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        torch.distributed.init_process_group(backend)
        return Ranks(torch.distributed.get_rank(), torch.distributed.get_world_size())
    torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
    return ALONE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="on the CUDA device of this rank")
    parser.add_argument("--model", default="135m,1.5b", help="shapes of benchmarks/bench_models.py")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--completion", type=int, default=512)
    parser.add_argument("--micro-batch-tokens", type=int, default=16384)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--recompute", default="auto")
    parser.add_argument("--tiny", action="store_true", help="seconds on a CPU: does it run?")
    add_results_flag(parser, "gpu_sharded")
    chosen = parser.parse_args()
    if chosen.tiny:
        chosen.prompts, chosen.group_size, chosen.prompt, chosen.completion = 2, 2, 8, 8
        chosen.micro_batch_tokens, chosen.repeats = 40, 2
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if chosen.gpu else torch.device("cpu")
    if chosen.gpu:
        torch.cuda.set_device(device)
    ranks = joined(device)
    ways = [way for way in chosen.ways.split(",") if ranks.size == 1 or "sharded" in way]
    ways = [way for way in ways if chosen.gpu or "offload" not in way]  # a CPU has nowhere to move shards to
    values: dict[str, Any] = {"ranks": ranks.size}
    for name in chosen.model.split(","):
        for way in ways:
            try:
                values.setdefault(name, {})[way] = measured(name, way, ranks, device, chosen)
            except Exception as error:  # the other ways are still worth having
                values.setdefault(name, {})[way] = {"error": f"{type(error).__name__}: {error}"[:300]}
            gc.collect()
            if chosen.gpu:
                torch.cuda.empty_cache()
            if ranks.is_first:
                print(name, way, json.dumps(values[name][way]), flush=True)
        known = values[name]
        for way in ("sharded", "sharded own layers", "sharded offload"):
            if "seconds" in known.get("whole", {}) and "seconds" in known.get(way, {}):
                known[way]["times_whole"] = known[way]["seconds"] / known["whole"]["seconds"]
        if "seconds" in known.get("lora whole", {}) and "seconds" in known.get("lora sharded", {}):
            known["lora sharded"]["times_whole"] = known["lora sharded"]["seconds"] / known["lora whole"]["seconds"]
    if ranks.is_first:
        print(json.dumps(values))
        if chosen.results:
            write_results(chosen.results, values)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
