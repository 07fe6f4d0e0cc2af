"""A tracker as a callback: any methods of `whet.Callback`, called in addition to the console. Here it writes one JSON
line per event; put the calls of your tracker (TensorBoard, a database) in the same places."""

import json
from pathlib import Path

import whet

DATA = Path(__file__).with_name("problems.jsonl")


class JsonlTracker:
    """Scalars by step, one line each."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def stepped(self, report, samples):
        scalars = {f"reward/{name}": value for name, value in report.reward.items()}
        scalars |= {f"train/{name}": value for name, value in report.metrics.items()}
        self.write(report.step, scalars)

    def evaluated(self, step, name, result, seconds):
        self.write(step, {f"eval/{metric}": value for metric, value in result.items()})

    def write(self, step: int, scalars: dict[str, float]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **scalars}) + "\n")


def main(folder: str | Path = "runs/tracked", steps: int = 20, path: str | Path = "tracked.jsonl") -> whet.Run:
    tracker = JsonlTracker(path)
    return whet.train("grpo", data=DATA, reward="exact_answer", steps=steps, folder=str(folder), callbacks=[tracker])


if __name__ == "__main__":
    main()
