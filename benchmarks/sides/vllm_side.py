"""vLLM's side of a comparison of rollouts: reads a job, writes completions, tells tokens per second.

Runs in a process of its own, one model each, with the settings that make it fastest: CUDA graphs up to the largest
batch, prefix caching, asynchronous scheduling, no text made of the tokens. Weights are random numbers of its own
(`load_format="dummy"`), so that nothing has to be written and read. Where `ready` and `turn` name files, it says by the
one that the engine stands and waits for the other before it uses the GPU: several may start at the same time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

USUAL = {
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # a plain draw from the softmax needs neither it nor its package
    "VLLM_USE_DEEP_GEMM": "0",  # products in 8 bits only
    "VLLM_HOST_IP": "127.0.0.1",  # one GPU: a machine without a network will do
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
PATIENCE = 900.0  # seconds to wait for the turn


def capture_sizes(largest: int) -> list[int]:
    """Batch sizes with a graph of their own: fine steps where a batch is small, 64 apart beyond 256."""
    sizes = [1, 2, 4, 8, 16, *range(32, 257, 32), *range(320, largest + 1, 64), largest]
    return sorted({size for size in sizes if size <= largest})


def engine_settings(job: dict[str, Any]) -> dict[str, Any]:
    largest = max(case["sequences"] for case in job["cases"])
    longest = max(case["prompt_tokens"] + case["completion_tokens"] for case in job["cases"])
    settings = {
        "model": job["model"],
        "load_format": "dummy",
        "dtype": "bfloat16",
        "max_model_len": longest + 16,
        "max_num_seqs": largest,
        "kv_cache_memory_bytes": round(1.1 * largest * (longest + 32) * job["cache_bytes_per_token"]),
        "gpu_memory_utilization": 0.1,  # only asked for at the start: the cache's size is given
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        "cudagraph_capture_sizes": capture_sizes(largest),
        "seed": job["seed"],
    }
    return {**settings, **job.get("peer", {}).get("engine", {})}


def completed(llm: Any, case: dict[str, Any], seed: int, logprobs: int | None, budget: int | None = None) -> list[int]:
    """Tokens of each completion of one rollout, on prompts that no earlier rollout had."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    prompts = [TokensPrompt(prompt_token_ids=each) for each in random_tokens(case, seed)]
    shared = {"temperature": 1.0, "ignore_eos": True, "logprobs": logprobs, "detokenize": False}
    if case.get("lengths") and budget is None:  # each completion ends where a draw beforehand said
        repeated = [prompt for prompt in prompts for _ in range(case["group_size"])]
        given = [SamplingParams(max_tokens=length, **shared) for length in case["lengths"]]
        found = llm.generate(repeated, given, use_tqdm=False)
    else:
        whole = SamplingParams(n=case["group_size"], max_tokens=budget or case["completion_tokens"], **shared)
        found = llm.generate(prompts, whole, use_tqdm=False)
    return [len(each.token_ids) for request in found for each in request.outputs]


def random_tokens(case: dict[str, Any], seed: int) -> list[list[int]]:
    import random

    draw = random.Random(seed)
    count = case["sequences"] // case["group_size"]
    return [[draw.randrange(case["vocabulary"]) for _ in range(case["prompt_tokens"])] for _ in range(count)]


def timed(llm: Any, case: dict[str, Any], seed: int, logprobs: int | None, rounds: int) -> dict[str, Any]:
    completed(llm, case, seed, logprobs, budget=16)
    seconds, tokens = [], []
    for number in range(rounds):
        start = time.perf_counter()
        lengths = completed(llm, case, seed + 1 + number, logprobs)
        seconds.append(time.perf_counter() - start)
        tokens.append(sum(lengths))
    best = max(range(rounds), key=lambda number: tokens[number] / seconds[number])
    return {"tokens_per_s": tokens[best] / seconds[best], "seconds": seconds[best], "tokens": tokens[best]}


def take_turn(job: dict[str, Any]) -> None:
    """Say that the engine stands, and wait to be let onto the GPU."""
    if "turn" not in job:
        return
    Path(job["ready"]).touch()
    until = time.monotonic() + PATIENCE
    while not Path(job["turn"]).exists():
        if time.monotonic() > until:
            raise SystemExit(f"no turn came within {PATIENCE:.0f} s")
        time.sleep(0.05)


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    for name, value in {**USUAL, **job.get("peer", {}).get("environment", {})}.items():
        os.environ.setdefault(name, value)
    start = time.perf_counter()
    import vllm

    imported = time.perf_counter() - start
    llm = vllm.LLM(**engine_settings(job))
    answer: dict[str, Any] = {"vllm": vllm.__version__, "import_s": imported, "cases": {}}
    answer["start_s"] = time.perf_counter() - start
    take_turn(job)
    for number, case in enumerate(job["cases"]):
        found: dict[str, Any] = {}
        # what training needs, and what it could be without
        for kind, logprobs in (("with_logp", 0), ("tokens_only", None)):
            if kind in case["kinds"]:
                try:
                    found[kind] = timed(llm, case, 1000 * (2 * number + (logprobs is None)), logprobs, job["rounds"])
                except Exception as error:
                    found[kind] = {"error": f"{type(error).__name__}: {error}"[:500]}
        answer["cases"][case["name"]] = found
        Path(sys.argv[2]).write_text(json.dumps(answer))  # what is measured stays, whatever comes next
    os._exit(0)  # taking the engine down takes seconds that nobody waits for; whoever started this ends its processes


if __name__ == "__main__":
    main()
