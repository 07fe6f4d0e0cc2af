"""pass@k: how often one of k completions is right, with the completions to look at."""

from pathlib import Path

import whet

DATA = Path(__file__).with_name("problems.jsonl")


def main(model: str | Path | whet.Run = "whetstone", samples: int = 8) -> whet.EvalResult:
    return whet.evaluate(model, DATA, reward="exact_answer", samples=samples)


if __name__ == "__main__":
    result = main()
    for name, value in result.metrics.items():
        print(f"{name:18} {value:.3f}")
    wrong = [each for each in result.completions if each["reward"] == 0]
    print(wrong[0]["prompt"], wrong[0]["completion"])
