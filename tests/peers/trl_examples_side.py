"""TRL's documented examples, word for word, with whet behind TRL's trainers: `trl_examples_side.py FOLDER` prints JSON.

`trl.GRPOTrainer` and the others are stand-ins that give their arguments to `whet.from_trl`. Models and datasets are
those that the examples name, in a cache of the hub, with the hub switched off: a small model, a few rows.
The texts are those of TRL's documentation (docs/source of huggingface/trl, Apache 2.0), the page before each.
"""

import contextlib
import io
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import ClassVar

import trl
from datasets import load_dataset

import whet
from tests.peers.hub_cache import add_datasets, add_models

EXAMPLES = {
    "quickstart: SFT": """
from trl import SFTTrainer
from datasets import load_dataset

trainer = SFTTrainer(
    model="Qwen/Qwen2.5-0.5B",
    train_dataset=load_dataset("trl-lib/Capybara", split="train"),
)
trainer.train()
""",
    "quickstart: GRPO": """
from trl import GRPOTrainer
from datasets import load_dataset
from trl.rewards import accuracy_reward

trainer = GRPOTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    train_dataset=load_dataset("trl-lib/DeepMath-103K", split="train"),
    reward_funcs=accuracy_reward,
)
trainer.train()
""",
    "quickstart: DPO": """
from trl import DPOTrainer
from datasets import load_dataset

trainer = DPOTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    train_dataset=load_dataset("trl-lib/ultrafeedback_binarized", split="train"),
)
trainer.train()
""",
    "quickstart: reward model": """
from trl import RewardTrainer
from datasets import load_dataset

dataset = load_dataset("trl-lib/ultrafeedback_binarized", split="train")

trainer = RewardTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    train_dataset=dataset,
)
trainer.train()
""",
    "kto_trainer": """
from datasets import load_dataset
from trl import KTOConfig, KTOTrainer
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2-0.5B-Instruct")
tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2-0.5B-Instruct")
train_dataset = load_dataset("trl-lib/kto-mix-14k", split="train")

training_args = KTOConfig(output_dir="Qwen2-0.5B-KTO")
trainer = KTOTrainer(model=model, args=training_args, processing_class=tokenizer, train_dataset=train_dataset)
trainer.train()
""",
    "rloo_trainer": """
from datasets import load_dataset
from trl import RLOOTrainer
from trl.rewards import accuracy_reward

dataset = load_dataset("trl-lib/DeepMath-103K", split="train")

trainer = RLOOTrainer(
    model="Qwen/Qwen2-0.5B-Instruct",
    reward_funcs=accuracy_reward,
    train_dataset=dataset,
)
trainer.train()
""",
    "dpo_trainer: PEFT": """
from datasets import load_dataset
from trl import DPOTrainer
from peft import LoraConfig

dataset = load_dataset("trl-lib/ultrafeedback_binarized", split="train")

trainer = DPOTrainer(
    "Qwen/Qwen3-0.6B",
    train_dataset=dataset,
    peft_config=LoraConfig(),
)

trainer.train()
""",
    "grpo_trainer: several tasks": """
from datasets import Dataset
from trl import GRPOTrainer

# Define a dataset that contains both math and coding problems
dataset = Dataset.from_list(
    [
        {"prompt": "What is 2+2?", "task": "math"},
        {"prompt": "Write a function that returns the sum of two numbers.", "task": "code"},
        {"prompt": "What is 3*4?", "task": "math"},
        {"prompt": "Write a function that returns the product of two numbers.", "task": "code"},
    ]
)

# Math-specific reward function
def math_reward_func(prompts, completions, task, **kwargs):
    rewards = []
    for prompt, completion, t in zip(prompts, completions, task):
        if t == "math":
            # Calculate math-specific reward
            correct = check_math_solution(prompt, completion)
            reward = 1.0 if correct else -1.0
            rewards.append(reward)
        else:
            # Return None for non-math tasks
            rewards.append(None)
    return rewards

# Coding-specific reward function
def coding_reward_func(prompts, completions, task, **kwargs):
    rewards = []
    for prompt, completion, t in zip(prompts, completions, task):
        if t == "coding":
            # Calculate coding-specific reward
            works = test_code_solution(prompt, completion)
            reward = 1.0 if works else -1.0
            rewards.append(reward)
        else:
            # Return None for non-coding tasks
            rewards.append(None)
    return rewards

# Use both task-specific reward functions
trainer = GRPOTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    reward_funcs=[math_reward_func, coding_reward_func],
    train_dataset=dataset,
)

trainer.train()
""",
}
# rewards of the page grpo_trainer, which its trainer takes in one list
REWARDS = r'''
import asyncio
import re

def length_func(completion_ids, **kwargs):
    """Reward function that assigns higher scores to longer completions (in terms of token count)."""
    return [float(len(ids)) for ids in completion_ids]

def format_reward_func(completions, **kwargs):
    """Reward function that checks if the completion has a specific format."""
    pattern = r"^<think>.*?</think><answer>.*?</answer>$"
    completion_contents = [completion[0]["content"] for completion in completions]
    matches = [re.match(pattern, content) for content in completion_contents]
    return [1.0 if match else 0.0 for match in matches]

async def async_reward_func(prompts, completions, **kwargs):
    # Simulate an I/O-bound call (e.g., HTTP request, database lookup)
    await asyncio.sleep(0.01)
    # Simple toy reward: 1.0 if the completion is non-empty, else 0.0
    return [1.0 if completion else 0.0 for completion in completions]

def reward_func(completions, ground_truth, log_extra=None, log_metric=None, **kwargs):
    extracted = [re.search(r"\\boxed\{(.*?)\}", c[0]["content"]) for c in completions]
    extracted = [m.group(1) if m else None for m in extracted]
    rewards = [1.0 if e == gt else 0.0 for e, gt in zip(extracted, ground_truth)]

    if log_extra:
        log_extra("golden_answer", list(ground_truth))
        log_extra("extracted_answer", [e or "[none]" for e in extracted])

    if log_metric:
        log_metric("accuracy", sum(rewards) / len(rewards))

    return rewards

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

trainer = GRPOTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    args=GRPOConfig(num_generations=4, per_device_train_batch_size=4, max_steps=2, max_completion_length=8),
    reward_funcs=[length_func, format_reward_func, async_reward_func, reward_func],
    train_dataset=load_dataset("trl-lib/DeepMath-103K", split="train").rename_column("solution", "ground_truth"),
)
trainer.train()
'''


def said(role, content):
    return {"role": role, "content": content}


SUMS = [(f"What is {a}+4?", str(a + 4)) for a in range(3)]
PAIRS = [
    {
        "chosen": [said("user", question), said("assistant", answer)],
        "rejected": [said("user", question), said("assistant", "no")],
    }
    for question, answer in SUMS
]
DATASETS = {
    "trl-lib/Capybara": [{"messages": pair["chosen"]} for pair in PAIRS],
    "trl-lib/DeepMath-103K": [{"prompt": [said("user", q)], "solution": f"${a}$"} for q, a in SUMS],
    "trl-lib/ultrafeedback_binarized": PAIRS,
    "trl-lib/kto-mix-14k": [
        {"prompt": [said("user", q)], "completion": [said("assistant", a)], "label": n % 2 == 0}
        for n, (q, a) in enumerate(SUMS)
    ],
}
MODELS = ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2-0.5B-Instruct", "Qwen/Qwen3-0.6B")
TRAINERS = ("SFT", "GRPO", "DPO", "Reward", "KTO", "RLOO")


class WhetTrainer:
    """In the place of a TRL trainer: the same arguments, and `train` is whet's."""

    made: ClassVar[list["WhetTrainer"]] = []

    def __init__(self, default, model=None, args=None, **others):
        self.migrated = whet.from_trl(args or default(), model=model, **others)
        WhetTrainer.made.append(self)

    def train(self):
        self.run = self.migrated.train(console=False)


def trained(text, folder):
    """What became of an example."""
    folder.mkdir()
    names = {"check_math_solution": lambda prompt, text: "4" in text, "test_code_solution": lambda prompt, text: True}
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        exec(compile(text, "example", "exec"), names)
        made = WhetTrainer.made.pop()
        run = whet.load(made.run.folder.absolute())
    return {
        **{"method": run.method, "status": run.status, "steps": run.steps, "folder": str(run.folder)},
        "unmapped": dict(made.migrated.unmapped),
        "recorded": sorted({key for row in run.rows() for key in row if key.startswith(("reward/", "logged/"))}),
        "lora": run.config["model"]["lora"]["rank"],
    }


def as_peft(folder):
    """PEFT's model of the adapter that whet exports, and its base: a name, as TRL's own would have."""
    from peft import AutoPeftModelForCausalLM

    saved = whet.load(folder).save_model(Path(folder).parent / "adapter", what="adapter")
    model = AutoPeftModelForCausalLM.from_pretrained(saved)
    return [type(model).__name__, json.loads((saved / "adapter_config.json").read_text())["base_model_name_or_path"]]


if __name__ == "__main__":
    work, home = Path(sys.argv[1]), Path(os.environ["HF_HOME"])
    add_models(home, MODELS)
    add_datasets(home, DATASETS)
    for name in TRAINERS:
        config = partial(getattr(trl, f"{name}Config"), use_cpu=True, bf16=False)
        setattr(trl, f"{name}Config", config)
        setattr(trl, f"{name}Trainer", partial(WhetTrainer, config))
    answers = {name: trained(text, work / str(n)) for n, (name, text) in enumerate(EXAMPLES.items())}
    answers["rewards"] = trained(REWARDS, work / "rewards")
    answers["peft"] = as_peft(answers["dpo_trainer: PEFT"]["folder"])
    answers["hub rows"] = len(load_dataset("trl-lib/Capybara", split="train"))
    print(json.dumps(answers))
