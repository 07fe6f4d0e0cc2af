"""Reinforcement learning of a small mixture of experts: ratios of tokens and of whole completions, with and without
replayed experts.

    python benchmarks/moe.py --folder moe --results                              # on the CPU, small
    python benchmarks/moe.py --device cuda --size small --steps 24 --prompts 16 --jobs 6 --results gpu_moe

A mixture in Qwen3's shape learns the built-in task from demonstrations, once, until it is right about half of the time.
Every run then starts from it: the same prompts, four updates per step, a sampler of its own whose weights and products
are bfloat16 while the trainer's are float32. So the two may route a token to different experts, and so may the policy
before and after an update. What differs between runs is the method, and whose experts
the trainer's passes use. A run that is there already in FOLDER is not repeated.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import time
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from results_file import add_results_flag, write_results
from transformers import AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM
from workers import run_all

import whet
from whet.model.causal_lm import CausalLM, causal_lm
from whet.record.log import read_metrics
from whet.rollout.torch_engine import TorchEngine

BUILTIN = Path(whet.__file__).parent / "model/builtin/whetstone"
METHODS = ("grpo", "gspo")
REPLAYS = ("none", "trainer", "sampler")
# of a step, averaged over the run; where a run has no such number it is left out
NOTED = (
    *("sampler_gap", "sampler_gap_max", "kl_old", "reweighted", "gradient_norm", "router_drift"),
    *("router_drift_layers", "router_shift", "router_shift_layers", "expert_load_max", "expert_load_evenness"),
    *("dead_experts", "replayed_experts"),
)
SIZES: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 64, "num_hidden_layers": 2, "num_experts": 8, "moe_intermediate_size": 64},
    "small": {"hidden_size": 128, "num_hidden_layers": 4, "num_experts": 16, "moe_intermediate_size": 128},
}


class HalfPrecisionEngine(TorchEngine):
    """Samples in bfloat16, so that routers choose other experts than the trainer's now and then."""

    dtype = torch.bfloat16


def half_precision_engine(policy: CausalLM, tokenizer: Any, end_tokens: Any, *, context: int) -> TorchEngine:
    """A sampler with weights of its own, in bfloat16, as an engine in another process has them."""
    twin = copy.deepcopy(policy.model).to(torch.bfloat16)
    lm = causal_lm(twin, torch.bfloat16)
    return HalfPrecisionEngine(lm, tokenizer, end_tokens, context=context, owns_weights=True)


def fresh_mixture(size: str, folder: Path, seed: int = 0) -> Path:
    """A mixture with random weights and the built-in tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(BUILTIN)
    torch.manual_seed(seed)
    settings = Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=SIZES[size]["hidden_size"] // 4,
        intermediate_size=128,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        initializer_range=0.05,
        **SIZES[size],
    )
    model = Qwen3MoeForCausalLM(settings)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def taught(options: argparse.Namespace, folder: Path) -> Path:
    """The mixture that every run starts from: it has seen demonstrations of the task."""
    done = folder / "taught.json"
    if not done.exists():
        start = fresh_mixture(options.size, folder / "fresh")
        run = whet.train(
            "sft",
            model=str(start),
            folder=str(folder / "sft"),
            console=False,
            steps=options.sft_steps,
            config={
                "model": {"device": options.device, "precision": "fp32"},
                "data": {"source": "task:arithmetic", "difficulty": [1, 2], "count": 20000},
                "sampling": {"max_new_tokens": options.tokens},
                "batch": {"rows_per_step": 64},
                "optimizer": {"learning_rate": 3e-3, "schedule": "cosine"},
                "eval": {"prompts": 64, "every": options.sft_every},
                "report": {"save_every": options.sft_every, "keep_checkpoints": 1000},
            },
        )
        # of the checkpoints the one that is right half of the time: there is something to learn, and something to lose
        scores = {line["step"]: line["result"]["accuracy"] for line in read_metrics(run.folder) if "eval" in line}
        best = min((step for step in scores if step), key=lambda step: abs(scores[step] - 0.5))
        model = run.folder / "checkpoints" / f"step-{best:06d}"
        done.write_text(json.dumps({"model": str(model), "accuracy": scores[best]}))
    return Path(json.loads(done.read_text())["model"])


def settings_of(options: argparse.Namespace, method: str, replay: str, seed: int) -> dict[str, Any]:
    """The config of one run."""
    return {
        "seed": seed,
        "steps": options.steps,
        "model": {"device": options.device, "precision": "fp32"},
        "data": {"source": "task:arithmetic", "difficulty": [1, 2]},
        "sampling": {"max_new_tokens": options.tokens, "engine": "half_precision"},
        "batch": {
            "prompts_per_step": options.prompts,
            "group_size": 8,
            "updates_per_step": 4,
            "routing_replay": replay,
        },
        "optimizer": {"learning_rate": options.rate},
        "eval": {"prompts": options.eval_prompts, "every": 0},
        "report": {"save_every": 100000, "samples_per_step": 0},
    }


def result(options: argparse.Namespace, method: str, replay: str, seed: int) -> dict[str, Any]:
    """What one run came to; read from its file where it is finished."""
    folder = Path(options.folder).resolve()
    saved = folder / f"{method}-{replay}-{seed}.json"
    if saved.exists():
        return dict(json.loads(saved.read_text()))
    torch.set_num_threads(1)
    whet.register("engine", half_precision_engine, name="half_precision")
    start = json.loads((folder / "taught.json").read_text())["model"]
    began = time.monotonic()
    name = f"{method}-{replay}-{seed}"
    run = whet.train(
        method, model=start, config=settings_of(options, method, replay, seed), folder=str(folder / name), console=False
    )
    steps = [line for line in read_metrics(run.folder) if "eval" not in line]
    record: dict[str, Any] = {
        "before": run.before["accuracy"],
        "after": run.after["accuracy"],
        "last": fmean([line["reward"]["total"] for line in steps[-3:]]),
        "seconds": time.monotonic() - began,
    }
    for metric in NOTED:
        values = [line["metrics"][metric] for line in steps if metric in line["metrics"]]
        if values:
            record[metric] = fmean(values)
    saved.write_text(json.dumps(record))
    return record


def summary(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Means over the seeds, and the spread of what was learned."""
    names = [name for name in runs[0] if all(name in run for run in runs)]
    means = {name: fmean([run[name] for run in runs]) for name in names}
    if len(runs) > 1:
        means |= {
            f"{name}_std": stdev([run[name] for run in runs])
            for name in ("after", "last", "kl_old", "sampler_gap_max")
            if name in names
        }
    return means


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--sft-steps", type=int, default=480)
    parser.add_argument("--sft-every", type=int, default=40, help="steps between the checkpoints of SFT")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--prompts", type=int, default=16, help="per step, 8 completions each")
    parser.add_argument("--eval-prompts", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=32, help="of a completion, at most")
    parser.add_argument("--rate", type=float, default=1e-4, help="learning rate")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--folder", default="build/moe")
    add_results_flag(parser, "moe_cpu")
    options = parser.parse_args()
    began = time.monotonic()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    folder = Path(options.folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    taught(options, folder)
    start = json.loads((folder / "taught.json").read_text())
    print(f"taught: accuracy {start['accuracy']:.3f} after {time.monotonic() - began:.0f} s", flush=True)
    tasks = [
        (options, method, replay, seed) for seed in range(options.seeds) for method in METHODS for replay in REPLAYS
    ]
    runs_by_kind: dict[str, list[dict[str, Any]]] = {}
    for (_, method, replay, seed), run in zip(tasks, run_all(result, tasks, options.jobs), strict=True):
        print(f"{method} {replay} {seed}: {json.dumps({k: round(v, 4) for k, v in run.items()})}", flush=True)
        runs_by_kind.setdefault(f"{method}_{replay}", []).append(run)
    values = {
        "taught": start["accuracy"],
        "weights": sum(
            parameter.numel() for parameter in Qwen3MoeForCausalLM.from_pretrained(folder / "fresh").parameters()
        ),
        **{name: getattr(options, name) for name in ("size", "steps", "seeds", "prompts", "tokens", "rate", "device")},
        "seconds": time.monotonic() - began,
        "runs": {name: summary(runs) for name, runs in runs_by_kind.items()},
    }
    print(json.dumps(values, indent=1))
    if options.results:
        write_results(options.results, values)


if __name__ == "__main__":
    main()
