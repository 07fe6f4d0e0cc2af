"""GRPO on your own JSONL with your own reward.

A reward takes the prompt, the completion and any column of your data by its name, and returns a number.
"""

from pathlib import Path

import whet

DATA = Path(__file__).with_name("problems.jsonl")  # {"prompt": "Left to right mod 10: 5*7+3*3", "answer": "4"}


def right_and_short(completion: str, answer: str) -> float:
    right = completion.endswith(f"<answer>{answer}</answer>")
    return float(right) - 0.002 * len(completion)


def main(folder: str | Path = "runs/own-reward", steps: int = 20) -> whet.Run:
    return whet.train("grpo", data=DATA, reward=right_and_short, steps=steps, folder=str(folder))


if __name__ == "__main__":
    run = main()
    print(run.metrics())
    print(run.samples(step=-1, sort="-reward")[0]["completion"])
