"""PPO with a critic of its own: credit for each token, several updates per batch."""

from pathlib import Path

import whet

DATA = Path(__file__).with_name("problems.jsonl")


def main(folder: str | Path = "runs/ppo", steps: int = 20) -> whet.Run:
    return whet.train(
        "ppo",
        data=DATA,
        reward="exact_answer",
        steps=steps,
        folder=str(folder),
        batch={"updates_per_step": 2},
        critic={"trunk": "own"},
    )


if __name__ == "__main__":
    print(main().metrics()[["step", "reward", "critic_explains"]])
