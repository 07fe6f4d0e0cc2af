"""The check of an engine's policy: false alarms of sound engines, and how far faults are beyond the limit.

    python benchmarks/policy_identity.py --batches 20 --results
    python benchmarks/policy_identity.py --model smollm2 --device cuda --precision bf16 --results gpu_identity

A policy takes steps of `--step` in every weight (Adam's size at that learning rate); an engine with a copy of it gets
each version, or fails to. All numbers are shares of the limit: above 1 is an alarm. JSON on standard output.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from results_file import add_results_flag, write_results

from whet.model.causal_lm import CausalLM, causal_lm
from whet.model.load import load_model
from whet.rollout.torch_engine import TorchEngine
from whet.rollout.weight_sync_check import replay
from whet.types import Request, Sampling

PRECISION = {"fp32": torch.float32, "bf16": torch.bfloat16}
Weights = dict[str, torch.Tensor]


def sound(weights: Weights, before: Weights) -> Weights:
    """The weights arrive as they are."""
    return weights


def not_loaded(weights: Weights, before: Weights) -> Weights:
    """No weight arrives."""
    return {}


def half_loaded(weights: Weights, before: Weights) -> Weights:
    """Half of the weights arrive."""
    return {name: weights[name] for name in list(weights)[: len(weights) // 2]}


def one_behind(weights: Weights, before: Weights) -> Weights:
    """The weights of the step before arrive."""
    return before


FAULTS: Mapping[str, Callable[[Weights, Weights], Weights]] = {
    "not_loaded": not_loaded,
    "half_loaded": half_loaded,
    "one_behind": one_behind,
}


def kept(policy: CausalLM) -> Weights:
    """A copy of the policy's weights."""
    return {name: value.clone() for name, value in policy.model.state_dict().items()}


def move(policy: CausalLM, step: float, seed: int) -> None:
    """Add noise of a step's size to every weight."""
    stream = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_((step * torch.randn(weight.shape, generator=stream).sign()).to(weight.device))


def shares(arguments: argparse.Namespace, engine_dtype: torch.dtype, take: Any, batches: int) -> list[float]:
    """gap / limit of each batch, after each step of the policy."""
    loaded = load_model(arguments.model, torch.float32, arguments.device)
    policy = causal_lm(loaded.model, PRECISION[arguments.precision])
    own = causal_lm(copy.deepcopy(loaded.model), engine_dtype)
    engine = TorchEngine(own, loaded.tokenizer, loaded.end_tokens, context=loaded.context)
    sampling = Sampling(arguments.new)
    shares_of_batches, before = [], kept(policy)
    for batch in range(batches):
        move(policy, arguments.step, batch)
        now = kept(policy)
        own.model.load_state_dict(take(now, before), strict=False)
        before = now
        engine.load({}, 0)
        requests = [Request((5, 6, 7, 8 + number), 100 * batch + number) for number in range(arguments.samples)]
        result = replay(policy, engine.generate(requests, sampling), 0, 1.0, engine_dtype)
        shares_of_batches.append(result.gap / result.limit)
    return shares_of_batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="whetstone")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32", choices=list(PRECISION), help="of the trainer")
    parser.add_argument("--batches", type=int, default=20, help="of sound engines; faults get a fifth")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--new", type=int, default=24)
    parser.add_argument("--step", type=float, default=1e-4)
    add_results_flag(parser, "policy_identity")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    began = time.monotonic()
    mine = PRECISION[arguments.precision]
    values: dict[str, Any] = {"model": arguments.model, "precision": arguments.precision, "step": arguments.step}
    for name in dict.fromkeys((arguments.precision, "bf16")):
        measured = shares(arguments, PRECISION[name], sound, arguments.batches)
        values[f"sound_{name}"] = {
            "batches": len(measured),
            "largest": max(measured),
            "alarms": sum(f > 1 for f in measured),
        }
    for name, take in FAULTS.items():
        measured = shares(arguments, mine, take, max(2, arguments.batches // 5))
        values[name] = {"batches": len(measured), "smallest": min(measured), "missed": sum(f <= 1 for f in measured)}
    values["seconds"] = time.monotonic() - began
    print(json.dumps(values, indent=1))
    if arguments.results:
        write_results(arguments.results, values, measured=("model", "rollout"))


if __name__ == "__main__":
    main()
