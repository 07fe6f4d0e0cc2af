"""SFT, then DPO on pairs, then GRPO on rewards: each run starts from the one before."""

from pathlib import Path

import whet

PROBLEMS = [(a, b, c) for a in range(2, 6) for b in range(2, 6) for c in range(2, 6)]


def prompt(a: int, b: int, c: int) -> str:
    return f"Left to right mod 10: {a}+{b}*{c}"


def answer(a: int, b: int, c: int) -> int:
    return (a + b) * c % 10


QUESTIONS = [{"prompt": prompt(*each), "answer": str(answer(*each))} for each in PROBLEMS]
DEMONSTRATIONS = [{"prompt": prompt(*each), "completion": f"<answer>{answer(*each)}</answer>"} for each in PROBLEMS]
PAIRS = [
    {
        "prompt": prompt(*each),
        "chosen": f"<answer>{answer(*each)}</answer>",
        "rejected": f"<answer>{(answer(*each) + 1) % 10}</answer>",
    }
    for each in PROBLEMS
]


def main(folder: str | Path = "runs/chain", steps: int = 20) -> list[whet.Run]:
    imitated = whet.train("sft", data=DEMONSTRATIONS, steps=steps, folder=f"{folder}/sft")
    preferred = whet.train("dpo", model=imitated, data=PAIRS, steps=steps, folder=f"{folder}/dpo")
    rewarded = whet.train(
        "grpo", model=preferred, data=QUESTIONS, reward="exact_answer", steps=steps, folder=f"{folder}/grpo"
    )
    return [imitated, preferred, rewarded]


if __name__ == "__main__":
    for run in main():
        print(run.folder, run.status, run.model)
