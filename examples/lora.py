"""LoRA: a few added weights learn, the model stays as it is, and the base is the reference for free."""

from pathlib import Path

import whet

DATA = Path(__file__).with_name("problems.jsonl")


def main(folder: str | Path = "runs/lora", steps: int = 20) -> whet.Run:
    return whet.train(
        "grpo",
        data=DATA,
        reward="exact_answer",
        steps=steps,
        folder=str(folder),
        config={"model": {"lora": {"rank": 8}}},
    )


if __name__ == "__main__":
    run = main()
    model, tokenizer = run.load()
    print(type(model).__name__, run.model)
