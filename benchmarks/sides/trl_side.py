"""TRL's side of a comparison: reads a job, trains with its own trainer, writes what its steps took.

Runs in an environment of its own. Settings are those that make TRL fastest at equal work: gradient checkpointing off,
logging and saving off, no second scoring of the replies (one update per batch, no reference). A job's `peer` holds
choices that only this side has: how replies are written, how rows are laid out, the number type of the weights.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from stopwatch import Stopwatch
from transformers import AutoTokenizer, TrainerCallback

# paged replies may end before their length, at the end token: `counts` tells how many tokens a step had
WRITING: dict[str, dict[str, Any]] = {
    "plain": {},
    "static": {"cache_implementation": "static"},
    "paged": {"use_transformers_continuous_batching": True},
    # the correction for the sampler's log-probs costs a second scoring of the replies, which the others do not make
    "vllm": {
        **{"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3},
        "vllm_importance_sampling_correction": False,
    },
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "padded": {"packing": False, "padding_free": False},
    "grouped": {"packing": False, "padding_free": False, "train_sampling_strategy": "group_by_length"},
    "packed": {"packing": True, "packing_strategy": "bfd"},
    "flex": {"packing": True, "packing_strategy": "bfd"},
}


class Steps(TrainerCallback):
    """From the end of one step to the end of the next."""

    def __init__(self, watch: Stopwatch) -> None:
        self.watch = watch

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.watch.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.watch.end()
        control.should_training_stop = self.watch.enough
        self.watch.begin()


def common_settings(job: dict[str, Any], folder: str, passes: int) -> dict[str, Any]:
    return {
        "output_dir": folder,
        "use_cpu": job.get("device", "cpu") == "cpu",
        "bf16": job["precision"] == "bf16",
        "per_device_train_batch_size": job["batch_rows"],
        "gradient_accumulation_steps": passes,
        "gradient_checkpointing": False,
        "learning_rate": 1e-6,
        "max_steps": job["most"],
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": job["seed"],
        "model_init_kwargs": {"dtype": peer_choice(job, "weights", "float32")},
    }


def peer_choice(job: dict[str, Any], name: str, usual: Any) -> Any:
    return job.get("peer", {}).get(name, usual)


def policy_trainer(job: dict[str, Any], folder: str, watch: Stopwatch) -> Any:
    num_prompts, group_size, prompt_tokens, reply_tokens = job["shape"]
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    lengths = {len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in job["texts"]}
    assert lengths == {prompt_tokens}, lengths

    def even_share(completion_ids: list[list[int]], **_: Any) -> list[float]:
        watch.count("trained", sum(len(each) for each in completion_ids))
        return [sum(token % 2 == 0 for token in each) / max(1, len(each)) for each in completion_ids]

    writing = peer_choice(job, "writing", "plain")
    endless: dict[str, Any] = {"min_new_tokens": reply_tokens}
    longest: dict[str, Any] = {}
    if writing == "vllm":
        endless, longest = {"ignore_eos": True}, {"vllm_max_model_length": prompt_tokens + reply_tokens + 16}
    settings = trl.GRPOConfig(
        **common_settings(job, folder, num_prompts * group_size // job["batch_rows"]),
        **WRITING[writing],
        **longest,
        num_generations=group_size,
        max_completion_length=reply_tokens,
        generation_kwargs=endless,
        temperature=1.0,
        beta=0.0,
        num_iterations=1,
        loss_type="grpo",
        shuffle_dataset=False,
    )
    trainer = trl.GRPOTrainer(
        model=job["model"],
        reward_funcs=even_share,
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": job["texts"]}),
        processing_class=tokenizer,
    )
    trainer._generate = watch.timed("rollout", trainer._generate)
    return trainer


def agent_trainer(job: dict[str, Any], folder: str, watch: Stopwatch) -> Any:
    """Episodes with the tools of an environment; every turn takes its whole budget."""
    from look_up import LookUp

    num_prompts, group_size, _, turn_tokens = job["shape"]
    settings = trl.GRPOConfig(
        **common_settings(job, folder, num_prompts * group_size // job["batch_rows"]),
        **WRITING[peer_choice(job, "writing", "plain")],
        num_generations=group_size,
        max_completion_length=job["growth"],
        max_tool_calling_iterations=job["turns"] - 1,
        # one limit for a turn and one for the episode: the first is generate's own
        generation_kwargs={"max_new_tokens": turn_tokens, "min_new_tokens": turn_tokens},
        temperature=1.0,
        beta=0.0,
        num_iterations=1,
        loss_type="grpo",
        shuffle_dataset=False,
    )
    trainer = trl.GRPOTrainer(
        model=job["model"],
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": text}] for text in job["texts"]]}),
        processing_class=AutoTokenizer.from_pretrained(job["model"]),
        environment_factory=LookUp,
    )
    write, play = trainer._generate_single_turn, watch.timed("rollout", trainer._generate)

    def counted_turn(prompt_ids: list[list[int]], *given: Any, **named: Any) -> Any:
        watch.count("prefilled", sum(len(each) for each in prompt_ids))
        return write(prompt_ids, *given, **named)

    def counted_play(*given: Any) -> Any:
        played = play(*given)
        prompt_ids, completion_ids, tool_mask = played[:3]
        watch.count("trained", sum(map(sum, tool_mask)))
        watch.count("context", sum(len(each) for each in (*prompt_ids, *completion_ids)))
        watch.count("episodes", len(completion_ids))
        return played

    trainer._generate_single_turn, trainer._generate = counted_turn, counted_play
    return trainer


def supervised_trainer(job: dict[str, Any], folder: str, watch: Stopwatch) -> Any:
    rows = json.loads(Path(job["encoded"]).read_text())
    layout = peer_choice(job, "layout", "padded")
    lengths = [len(row["input_ids"]) for row in rows]
    if LAYOUTS[layout]["packing"]:
        # a pass is one pack: attention over several in one masked sequence would cost the square of their tokens
        longest = peer_choice(job, "pack_tokens", max(lengths))
        passes = max(1, round(job["rows_per_step"] * sum(lengths) / len(lengths) / longest))
        shared = common_settings({**job, "batch_rows": 1}, folder, passes)
    else:
        longest = max(lengths)
        shared = common_settings(job, folder, job["rows_per_step"] // job["batch_rows"])
    if layout == "flex":
        shared["model_init_kwargs"]["attn_implementation"] = "flex_attention"
    settings = trl.SFTConfig(**shared, **LAYOUTS[layout], max_length=longest, completion_only_loss=True)
    return trl.SFTTrainer(
        model=job["model"],
        args=settings,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(job["model"]),
    )


class EncodedPairs(trl.DPOTrainer):
    """Takes pairs that are tokens already, as its sibling for reward models does."""

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        return dataset


def pair_trainer(job: dict[str, Any], folder: str, watch: Stopwatch) -> Any:
    rows = json.loads(Path(job["encoded"]).read_text())
    shared = common_settings(job, folder, job["rows_per_step"] // job["batch_rows"])
    grouped = peer_choice(job, "layout", "padded") == "grouped"
    shared["train_sampling_strategy"] = "group_by_length" if grouped else "sequential"
    shared["remove_unused_columns"] = not grouped  # the lengths are read from the rows themselves
    shared["max_length"] = max(row["length"] for row in rows)
    given = {"model": job["model"], "processing_class": AutoTokenizer.from_pretrained(job["model"])}
    given["train_dataset"] = Dataset.from_list(rows).remove_columns(["shared", "lengths"])
    if job["kind"] == "rm":
        return trl.RewardTrainer(args=trl.RewardConfig(**shared), **given)
    return EncodedPairs(args=trl.DPOConfig(**shared, precompute_ref_log_probs=job["stored"]), **given)


TRAINERS = {
    **{"grpo": policy_trainer, "agents": agent_trainer, "sft": supervised_trainer},
    **{"dpo": pair_trainer, "rm": pair_trainer},
}


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    # where vLLM writes the completions, it lives in this process and needs no kernels of other packages
    for name in ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_USE_FLASHINFER_SAMPLER", "VLLM_USE_DEEP_GEMM"):
        os.environ.setdefault(name, "0")
    torch.set_num_threads(job["threads"])
    watch = Stopwatch(job["steps"], job["most"], job.get("warm_up", 1), job.get("device", "cpu"))
    with tempfile.TemporaryDirectory(prefix="whet-bench-") as folder:
        trainer = TRAINERS[job["kind"]](job, folder, watch)
        inner = watch.timed("forward", trainer.compute_loss)

        def counted_loss(model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
            if job["kind"] in ("dpo", "rm"):
                watch.count("trained", inputs["attention_mask"].sum())
                watch.count("padded", inputs["attention_mask"].numel())
            elif "labels" in inputs:
                watch.count("trained", (inputs["labels"] != -100).sum())
                watch.count("padded", inputs["input_ids"].numel())
            return inner(model, inputs, *given, **named)

        trainer.compute_loss = counted_loss
        trainer.add_callback(Steps(watch))
        trainer.train()
    Path(sys.argv[2]).write_text(json.dumps({**watch.record(), "trl": trl.__version__}))


if __name__ == "__main__":
    main()
