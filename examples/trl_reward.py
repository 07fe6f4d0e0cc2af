"""A reward function written for TRL, unchanged: lists in, a list out, columns of the data as keyword arguments."""

import re
from pathlib import Path

import whet

DATA = Path(__file__).with_name("problems.jsonl")


def accuracy_reward(prompts, completions, answer, **kwargs):
    """As GRPOTrainer(reward_funcs=accuracy_reward) would call it."""
    found = [re.search(r"<answer>(.*?)</answer>", completion) for completion in completions]
    return [float(match is not None and match[1] == gold) for match, gold in zip(found, answer, strict=True)]


def main(folder: str | Path = "runs/trl-reward", steps: int = 20) -> whet.Run:
    return whet.train("grpo", data=DATA, reward=accuracy_reward, steps=steps, folder=str(folder))


if __name__ == "__main__":
    print(main().metrics())
