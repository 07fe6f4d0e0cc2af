"""TRL's side of a real run: GRPO steps of the same model on the same prompts with the same reward, and their seconds.

    python benchmarks/sides/trl_real.py JOB.json OUT.json

`benchmarks/real_run.py --peer` writes the job, and evaluates the models that are left in the job's folder, one every
so many steps and one at the end; saving them is outside the clock. Completions end where the model ends them.
Settings are those that make TRL fastest at equal work: no gradient checkpointing, no logging, no checkpoints, no
second scoring of the completions.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import uuid
from pathlib import Path
from statistics import median
from typing import Any

import torch
import trl
from datasets import Dataset
from datasets.fingerprint import Hasher
from transformers import AutoTokenizer, TrainerCallback
from trl_side import WRITING
from vllm_side import USUAL

from whet.reward.mathematics.math_answer import math_answers
from whet.types import Prompt


class StepClock(TrainerCallback):
    """The wall seconds of each step, a model saved outside of them, and no more steps once the time is over."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.seconds: list[float] = []
        self.saved: list[int] = []  # after so many steps
        self.start_s = 0.0  # from the command to the first step
        self.trainer: Any = None
        self._job = job
        self._began = self._since = 0.0

    def save(self) -> None:
        """The model as it is now, named by the steps it has made."""
        self.trainer.save_model(f"{self._job['folder']}/{len(self.seconds)}")
        self.saved.append(len(self.seconds))

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        torch.cuda.synchronize()
        self.start_s = time.time() - self._job["began"]
        self._began = self._since = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        torch.cuda.synchronize()
        self.seconds.append(time.monotonic() - self._since)
        print(f"step {len(self.seconds)}: {self.seconds[-1]:.1f} s", flush=True)
        if len(self.seconds) % self._job["save_every"] == 0:
            self.save()
        self._since = time.monotonic()
        # the trainer itself stops after its steps
        control.should_training_stop |= self._since - self._began > self._job["seconds"]


def main() -> None:
    # names of files in a cache that nothing here reads; to find one, the data set would pickle all that TRL refers to
    Hasher.hash = classmethod(lambda kind, value: uuid.uuid4().hex)
    job = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    for name, value in USUAL.items():
        os.environ.setdefault(name, value)
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    # as plain text: TRL would render the conversations itself, and its data set cannot pickle how
    rows = [
        {**row, "prompt": tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)}
        for row in job["rows"]
    ]
    longest = max(len(tokenizer(row["prompt"])["input_ids"]) for row in rows)
    clock, rewards, tokens = StepClock(job), [], []

    def answers(prompts: Any, completions: Any, completion_ids: Any, gold: list[str], **_: Any) -> list[float]:
        asked = [Prompt(id=str(n), messages=(), answer=answer) for n, answer in enumerate(gold)]
        scores = [float(score or 0.0) for score in math_answers(asked, completions)]
        rewards.append(sum(scores) / len(scores))
        tokens.append(sum(len(ids) for ids in completion_ids))
        return scores

    with tempfile.TemporaryDirectory() as folder:
        settings = trl.GRPOConfig(
            output_dir=folder,
            bf16=True,
            per_device_train_batch_size=job["rows_per_pass"],
            gradient_accumulation_steps=job["prompts"] * job["group_size"] // job["rows_per_pass"],
            gradient_checkpointing=False,
            learning_rate=job["learning_rate"],
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=job["warmup_steps"],
            max_steps=job["steps"],
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=0,
            model_init_kwargs={"dtype": "float32"},
            num_generations=job["group_size"],
            max_completion_length=job["most_tokens"],
            temperature=1.0,
            beta=0.0,
            num_iterations=1,
            loss_type="dr_grpo",
            scale_rewards="none",
            **WRITING[job["writing"]],
            **({"vllm_max_model_length": longest + job["most_tokens"]} if job["writing"] == "vllm" else {}),
        )
        trainer = trl.GRPOTrainer(
            model=job["model"],
            reward_funcs=answers,
            args=settings,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[clock],
        )
        clock.trainer = trainer
        trainer.train()
    if clock.saved[-1:] != [len(clock.seconds)]:
        clock.save()
    record = {
        "trl": trl.__version__,
        "writing": job["writing"],
        "start_s": clock.start_s,
        "step_s": median(clock.seconds[1:] or clock.seconds),
        "steps_s": clock.seconds,
        "saved": clock.saved,
        "rewards": rewards,
        "tokens_per_step": sum(tokens) / max(1, len(tokens)),
        "peak_GiB": torch.cuda.max_memory_allocated() / 2**30,
    }
    Path(sys.argv[2]).write_text(json.dumps(record), "utf-8")


if __name__ == "__main__":
    main()
