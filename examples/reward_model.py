"""A reward model from pairs, and GRPO on what it has learnt. A reward model's run is a reward."""

from pathlib import Path

import whet

PROBLEMS = [(a, b, c) for a in range(2, 6) for b in range(2, 6) for c in range(2, 6)]


def prompt(a: int, b: int, c: int) -> str:
    return f"Left to right mod 10: {a}+{b}*{c}"


def answer(a: int, b: int, c: int) -> int:
    return (a + b) * c % 10


QUESTIONS = [{"prompt": prompt(*each), "answer": str(answer(*each))} for each in PROBLEMS]
PAIRS = [
    {
        "prompt": prompt(*each),
        "chosen": f"<answer>{answer(*each)}</answer>",
        "rejected": f"<answer>{(answer(*each) + 1) % 10}</answer>",
    }
    for each in PROBLEMS
]


def main(folder: str | Path = "runs/from-pairs", steps: int = 20) -> list[whet.Run]:
    model = whet.train("rm", data=PAIRS, steps=steps, folder=f"{folder}/reward-model")
    policy = whet.train("grpo", data=QUESTIONS, reward=model, steps=steps, folder=f"{folder}/policy")
    return [model, policy]


if __name__ == "__main__":
    for run in main():
        print(run.metrics())
