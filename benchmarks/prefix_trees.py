"""One update on episodes that branch, as a tree, with shared prompts alone, and as separate padded rows.

    python benchmarks/prefix_trees.py --results                            # small, on the CPU
    python benchmarks/prefix_trees.py --device cuda --dtype bfloat16 --model 135m --turn 256 --results prefix_trees_135m

Every state has `--branching` continuations, `--depth` times behind the prompt; in a turn the environment writes the
first half and the policy the second. Each side runs in a fresh process, which gives the memory that an update adds at
its peak. Operations are those of matrix products and attention, causal attention counted as a whole; seconds are those
of the clock on a device, and of the processor on a CPU, which others may be using.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench_models import SHAPES
from results_file import add_results_flag, write_results

SIDES = ("tree", "prompts", "rows")


def main() -> None:
    """Measure all sides, each in its own process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="byte", choices=SHAPES)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--branching", type=int, default=4)
    parser.add_argument("--turn", type=int, default=16, help="tokens of a turn, and of the prompt")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--micro-batch-tokens", type=int, default=16384)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    add_results_flag(parser, "prefix_trees_cpu")
    chosen = parser.parse_args()
    if chosen.side:
        print(json.dumps(measured(chosen)))
        return
    found: dict[str, Any] = {}
    for side in SIDES:
        command = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:], "--side", side]
        told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        found[side] = json.loads(told.splitlines()[-1])
        print(side, found[side], flush=True)
    for other in SIDES[1:]:
        found[f"{other} over tree"] = {
            name: found[other][name] / found["tree"][name] for name in ("tokens", "operations", "step_s", "memory_mb")
        }
        print(f"{other} over tree", found[f"{other} over tree"], flush=True)
    norms = [found[side].pop("gradient") for side in SIDES]
    if max(norms) > 1.01 * min(norms):
        raise SystemExit(f"the sides' gradients differ: {norms}")
    found["shape"] = {name: getattr(chosen, name) for name in ("model", "depth", "branching", "turn", "dtype")}
    if chosen.results:
        write_results(chosen.results, found)


def measured(chosen: argparse.Namespace) -> dict[str, float]:
    """One side: tokens through the trunk, operations, seconds and memory of an update."""
    import torch
    import transformers
    from torch.utils.flop_counter import FlopCounterMode

    from whet.data import prefix_tree
    from whet.model import token_logp
    from whet.model.causal_lm import causal_lm
    from whet.objective import PRESETS, step_totals
    from whet.training import update as updates

    if chosen.side == "prompts":
        prefix_tree.LEAST_SHARED = 1 << 40
    if chosen.side == "rows":
        token_logp.packs = lambda lm: False
    computed: list[int] = []

    def watched(*arguments: Any, **more: Any) -> Any:
        scores = token_logp.token_logp(*arguments, **more)
        computed.append(scores.computed)
        return scores

    updates.token_logp = watched
    torch.manual_seed(0)
    family, settings = SHAPES[chosen.model]
    context = chosen.turn * (chosen.depth + 1)
    vocabulary = settings["vocab_size"] or 260
    sizes = {**settings, "vocab_size": vocabulary, "max_position_embeddings": context}
    with torch.device(chosen.device):  # a billion random weights take a CPU minutes
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family, **sizes))
    lm = causal_lm(model.to(chosen.device), getattr(torch, chosen.dtype))
    objective = PRESETS["rloo"].objective
    batch, _ = objective.advantage(branching_batch(chosen, vocabulary), {})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    state, totals = updates.TrainState(lm, optimizer, 1.0, chosen.micro_batch_tokens, 1e30), step_totals(batch, context)
    aten = torch.ops.aten
    counted = {
        aten._scaled_dot_product_flash_attention_for_cpu: lambda *shapes, **_: attention_operations(*shapes[:2]),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda *shapes, **_: (
            5 * attention_operations(*shapes[1:3]) // 2
        ),
        **{
            getattr(aten, f"_scaled_dot_product_{kind}_attention"): lambda *shapes, **_: attention_operations(
                *shapes[:2]
            )
            for kind in ("flash", "efficient", "cudnn")
        },
        **{
            getattr(aten, f"_scaled_dot_product_{kind}_attention_backward"): lambda *shapes, **_: (
                5 * attention_operations(*shapes[1:3]) // 2
            )
            for kind in ("flash", "efficient", "cudnn")
        },
        aten._flash_attention_forward: raw(lambda *tensors, **_: ragged_operations(tensors[0], *tensors[3:5])),
        aten._flash_attention_backward: raw(
            lambda *tensors, **_: 5 * ragged_operations(tensors[1], *tensors[6:8]) // 2
        ),
    }
    seconds: list[float] = []
    metrics: dict[str, float] = {}
    clock = time.process_time if chosen.device == "cpu" else time.perf_counter
    token_logp.shared_by(lm)  # tries the model, once
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with FlopCounterMode(display=False, custom_mapping=counted) as counter:  # also warms up
        updates.update(state, objective, batch, totals)
    for _ in range(chosen.repeats):
        computed.clear()
        start = clock()
        metrics, _ = updates.update(state, objective, batch, totals)
        if chosen.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(clock() - start)
    if chosen.device == "cuda":
        memory = torch.cuda.max_memory_allocated() / 2**20
    else:
        memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10
    return {
        "tokens": float(sum(computed)),
        "operations": float(counter.get_total_flops()),
        "step_s": statistics.median(seconds),
        "memory_mb": memory,
        "gradient": metrics["gradient_norm"],
    }


def attention_operations(query: Sequence[int], key: Sequence[int]) -> int:
    """Of the two products of an attention: queries [B, H, Q, E] and keys [B, K, L, E], as shapes."""
    batch, heads, queries, size = query
    return 4 * batch * heads * queries * key[2] * size


def ragged_operations(query: Any, queries: Any, keys: Any) -> int:
    """The same for segments one after another: queries [T, H, E], where segments begin and end."""
    return int(4 * (queries.diff().long() * keys.diff().long()).sum()) * query.shape[-2] * query.shape[-1]


def raw(count: Any) -> Any:
    """A count that is given tensors instead of their shapes."""
    count._get_raw = True
    return count


def branching_batch(chosen: argparse.Namespace, vocabulary: int) -> Any:
    """Every path through the tree as a row, all of one group, with random rewards."""
    import torch

    from whet.types import TokenBatch

    stream = torch.Generator().manual_seed(0)

    def turns(count: int) -> torch.Tensor:
        return torch.randint(3, vocabulary, (count, chosen.turn), generator=stream)

    rows = turns(1)
    for _ in range(chosen.depth):
        rows = rows.repeat_interleave(chosen.branching, 0)
        rows = torch.cat([rows, turns(len(rows))], 1)
    place = torch.arange(rows.shape[1])
    action = ((place >= chosen.turn) & (place % chosen.turn >= chosen.turn // 2)).expand(rows.shape).clone()
    reward = torch.rand(len(rows), generator=stream, dtype=torch.float64)
    zeros = torch.zeros(rows.shape)
    return TokenBatch(rows, action, torch.zeros(len(rows), dtype=torch.long), reward, zeros, ref_logp=zeros)


if __name__ == "__main__":
    main()
