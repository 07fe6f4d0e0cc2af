"""What a run forgets: multiple choice that it was not trained on, asked of the model before and after.

    python benchmarks/forgetting.py --before qwen2.5-coder-0.5b.gguf --after maths=runs/maths --data DATA --results

DATA holds a file for each benchmark, in the columns of its authors: arc_easy.jsonl.gz, hellaswag.jsonl.gz and so on. Up
to 1,000 questions of each are asked, the same of all models; differences are paired, with McNemar's test.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from results_file import add_results_flag, write_results

import whet
from whet.record.metrics.intervals import mcnemar_p

BENCHMARKS = ("mmlu", "arc_easy", "arc_challenge", "hellaswag", "boolq", "piqa")
QUESTIONS = 1000


def main() -> None:
    """Ask every model every benchmark that there is a file for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, help="the model that the runs began with")
    parser.add_argument("--after", required=True, action="append", metavar="NAME=RUN", help="a run or a model folder")
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--questions", type=int, default=QUESTIONS)
    add_results_flag(parser, "forgetting")
    chosen = parser.parse_args()
    runs = dict(pair.split("=", 1) for pair in chosen.after)
    files = {name: chosen.data / f"{name}.jsonl.gz" for name in BENCHMARKS}
    values: dict[str, Any] = {}
    for name, file in files.items():
        if not file.is_file():
            continue
        settings = {"eval": {"prompts": chosen.questions}}
        before, *others = whet.evaluate([chosen.before, *runs.values()], f"{name}:{file}", settings=settings)
        values[name] = {"before": shown(before)}
        for run, after in zip(runs, others, strict=True):
            pairs = [(first[0] > 0, then[0] > 0) for first, then in zip(before.outcomes, after.outcomes, strict=True)]
            gained, lost = (sum(then != first == way for first, then in pairs) for way in (False, True))
            values[name][run] = {**shown(after), "gained": gained, "lost": lost, "p": mcnemar_p(gained, lost)}
        print(name, values[name], flush=True)
    if chosen.results:
        write_results(chosen.results, values)


def shown(result: Any) -> dict[str, float]:
    """Accuracy with its interval."""
    accuracy = result["accuracy"]
    low, high = accuracy.interval
    return {"accuracy": float(accuracy), "low": low, "high": high, "questions": len(result.outcomes)}


if __name__ == "__main__":
    main()
