"""Decoding on the CPU: whet's engine against transformers' generate. Same weights, lengths, temperature 1, float32.

    python benchmarks/decode_cpu.py                      # a small model with 49,152 tokens
    python benchmarks/decode_cpu.py smollm2 --results     # or any model folder, or whetstone
    python benchmarks/decode_cpu.py --ragged             # completions of very different length as well

The sides take turns in one process, so that whatever else the machine does meets both; the best and the middle
round are printed, with the load.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
import transformers
from results_file import add_results_flag, write_results

from whet.model.causal_lm import CausalLM, causal_lm
from whet.model.load import load_model
from whet.rollout.own_cache import OwnCacheBackend
from whet.rollout.scheduler import DecodeScheduler, StopRule, decode_job
from whet.rollout.torch_engine import TorchEngine
from whet.types import Request, Sampling

SMALL = {
    "vocab_size": 49152,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}


class Silent:
    """No text is wanted."""

    def decode(self, tokens: Any, skip_special_tokens: bool = False) -> str:
        return ""


def model_called(name: str | None) -> Any:
    """The model of that name, or a random one."""
    if name is not None:
        return load_model(name).model
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).eval()  # type: ignore[arg-type]


def requests_of(lm: CausalLM, prompts: int, group: int, length: int) -> list[Request]:
    """Random prompts, each asked for as many completions as the group has."""
    tokens = torch.randint(5, lm.vocabulary, (prompts, length), generator=torch.Generator().manual_seed(1))
    return [Request(tuple(row.tolist()), 100 * index + n) for index, row in enumerate(tokens) for n in range(group)]


def transformers_side(model: Any, requests: list[Request], group: int, budget: int) -> int:
    """Tokens that transformers' own generate writes."""
    rows = torch.tensor([request.tokens for request in requests[::group]])
    with torch.inference_mode():
        output = model.generate(
            rows,
            attention_mask=torch.ones_like(rows),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            num_return_sequences=group,
            max_new_tokens=budget,
            min_new_tokens=budget,
            pad_token_id=0,
        )
    return int(output[:, rows.shape[1] :].numel())


def own_cache(lm: CausalLM, requests: list[Request], sampling: Sampling, rows: int) -> int:
    """Tokens by the path for models that whet's buffers do not suit: their own cache."""
    job = decode_job(requests, sampling, StopRule(torch.tensor([], dtype=torch.long), lambda tokens: ""))
    return sum(len(drawn.tokens) for drawn in DecodeScheduler(OwnCacheBackend(lm, job, rows), job).run())


def taken(sides: dict[str, Callable[[], int]], rounds: int) -> dict[str, list[float]]:
    """Tokens per second of each side, round by round; a first round warms up."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, side in sides.items():
            start = time.perf_counter()
            tokens = side()
            if number:
                rates[name].append(tokens / (time.perf_counter() - start))
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a model folder or name; none: a small one with random weights")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--prompt-length", type=int, default=40)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--ragged", action="store_true", help="also completions that end early, four times as many as rows"
    )
    add_results_flag(parser, "decode_cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = model_called(options.model)
    lm = causal_lm(model)
    rows = options.prompts * options.group
    requests = requests_of(lm, options.prompts, options.group, options.prompt_length)
    sampling = Sampling(max_new_tokens=options.new)
    limit = options.prompt_length + options.new

    def written(engine: TorchEngine, wanted: list[Request]) -> int:
        return sum(sample.num_actions for sample in engine.generate(wanted, sampling))

    engine = TorchEngine(lm, Silent(), (), context=limit)
    sides: dict[str, Callable[[], int]] = {
        "transformers": lambda: transformers_side(model, requests, options.group, options.new),
        "whet, the model's own cache": lambda: own_cache(lm, requests, sampling, rows),
        "whet": lambda: written(engine, requests),
    }
    if options.ragged:
        many = requests_of(lm, 4 * options.prompts, options.group, options.prompt_length)
        fixed = TorchEngine(lm, Silent(), (), context=limit, rows_per_batch=rows)
        # of random weights every token is about equally likely: each step ends one row in fifty
        ends = tuple(range(lm.vocabulary // 50))
        ragged = TorchEngine(lm, Silent(), ends, context=limit, rows_per_batch=rows)
        sides["whet, a queue of fixed lengths"] = lambda: written(fixed, many)
        sides["whet, a queue of ragged lengths"] = lambda: written(ragged, many)
    rates = taken(sides, options.rounds)
    weights = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"{options.model or 'small'}: {weights / 1e6:.1f}M weights, {options.prompts} prompts x {options.group}, "
        f"{options.prompt_length} + {options.new} tokens, {options.threads} thread(s), load {os.getloadavg()[0]:.1f}"
    )
    base = rates["transformers"]
    if options.results:
        summary = {
            name: {"best": max(measured_rates), "middle": statistics.median(measured_rates)}
            for name, measured_rates in rates.items()
        }
        ratios = {key: summary["whet"][key] / summary["transformers"][key] for key in ("best", "middle")}
        write_results(options.results, {"tokens_per_s": summary, "whet over transformers": ratios})
    for name, measured_rates in rates.items():
        best, middle = max(measured_rates), statistics.median(measured_rates)
        print(
            f"  {name:34} best {best:8.0f} tokens/s ({best / max(base):.2f}x)   "
            f"middle {middle:8.0f} ({middle / statistics.median(base):.2f}x)"
        )


if __name__ == "__main__":
    main()
