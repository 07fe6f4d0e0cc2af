"""What people preferred, learned twice: SmolLM2 as a policy (DPO) and as a reward model, on the same human pairs.

    python recipes/human_pairs.py --data $WHET_DATA --jobs 2
    python recipes/human_pairs.py --data $WHET_DATA --most-characters 400 --train 256 --steps 16 --rows 16

The first is for a GPU, the second for a CPU. Pairs come from preference/human_pairs_unified.jsonl.gz of the folder,
split by prompt (recipes/split_pairs.py); both trainings are `whet train` with recipes/smollm2_dpo.toml and
recipes/smollm2_rm.toml. The same command again keeps what is finished and goes on with the rest. summary.md and
summary.json hold the outcome.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from run_stages import Training, eval_lines, run_stages, step_lines
from split_pairs import split_pairs

HERE = Path(__file__).resolve().parent
RATES = {"dpo": 1e-5, "rm": 2e-5}
ACCURACY = {"dpo": "pair_accuracy", "rm": "accuracy"}


def main() -> None:
    chosen = arguments()
    folder: Path = chosen.folder
    deadline = time.monotonic() + chosen.budget_seconds if chosen.budget_seconds else None
    pairs = folder / "pairs"
    about = pairs / "about.json"
    if not about.is_file():
        source = str(chosen.data / "preference" / "human_pairs_unified.jsonl.gz")
        most = {"train": chosen.train, "held_out": chosen.held_out}
        counts = split_pairs(
            source, pairs, only=chosen.only, most_characters=chosen.most_characters, share=0.17, most=most
        )
        about.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")
    print(f"pairs: {about.read_text()}", flush=True)
    runs = trainings(chosen)

    def summarise() -> None:
        values = {"pairs": json.loads(about.read_text()), "runs": [run_values(run) for run in runs]}
        write_summary(chosen, {**values, "table": table(values)})

    outcomes = run_stages(runs, folder / "logs", jobs=chosen.jobs, deadline=deadline, after_each=summarise)
    summarise()
    print((folder / "summary.md").read_text(encoding="utf-8"))
    missing = [name for name, outcome in outcomes.items() if outcome != "finished"]
    if missing:
        raise SystemExit(f"not finished: {', '.join(missing)}; the same command goes on")


def arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with preference/human_pairs_unified.jsonl.gz")
    parser.add_argument("--model", default="smollm2", help="what --model of whet takes")
    parser.add_argument("--folder", type=Path, default=Path("runs/human_pairs"), help="of everything")
    parser.add_argument("--only", default="", help="COLUMN=VALUE of the rows to take")
    parser.add_argument("--most-characters", type=int, default=4000, help="of prompt and longer completion")
    parser.add_argument("--train", type=int, default=0, help="pairs at most; 0 is all")
    parser.add_argument("--held-out", type=int, default=0, help="pairs at most; 0 is all")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--rows", type=int, default=32, help="pairs per step")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once")
    parser.add_argument("--budget-seconds", type=float, default=0.0, help="stop after this time; 0 is no limit")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--results", metavar="NAME", help="also write results/NAME.json of the repository")
    return parser.parse_args()


def trainings(chosen: Any) -> list[Training]:
    pairs = chosen.folder / "pairs"
    found = []
    for method, rate in RATES.items():
        words = (method, "--config", str(HERE / f"smollm2_{method}.toml"), "--model", chosen.model)
        words += ("--data", str(pairs / "train.jsonl"))
        settings = {
            "eval.source": pairs / "held_out.jsonl",
            "batch.rows_per_step": chosen.rows,
            "batch.micro_batch_tokens": 16384,
            "optimizer.learning_rate": rate,
            "optimizer.warmup_steps": max(1, chosen.steps // 10),
            "report.save_every": max(1, chosen.steps // 2),
            "report.keep_checkpoints": 1,
        }
        for setting in (*(f"{path}={value}" for path, value in settings.items()), *chosen.settings):
            words += ("--set", setting)
        found.append(Training(method, chosen.folder / method, chosen.steps, words))
    return found


def run_values(run: Training) -> dict[str, Any]:
    """The evaluations before and after, and where the time went."""
    evals, steps = eval_lines(run.folder), step_lines(run.folder)
    found: dict[str, Any] = {"method": run.name, "finished": run.is_finished(), "steps": len(steps)}
    if len(evals) > 1:
        found |= {"before": evals[0]["result"], "after": evals[-1]["result"]}
    found["seconds"] = sum(sum(step["seconds"].values()) for step in steps)
    if found["finished"]:
        found["memory_bytes"] = json.loads((run.folder / "run.json").read_text(encoding="utf-8")).get("memory")
    return found


def write_summary(chosen: Any, values: Mapping[str, Any]) -> None:
    folder: Path = chosen.folder
    (folder / "summary.json").write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    (folder / "summary.md").write_text(summary_text(values), encoding="utf-8")
    if chosen.results:
        sys.path.insert(0, str(HERE.parent / "benchmarks"))
        from results_file import write_results

        write_results(chosen.results, values)


def table(values: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """What a page shows, as text: a row for each finished training."""
    from whet.record.metrics.intervals import share_interval

    rows = {}
    for run in values["runs"]:
        if not run["finished"]:
            continue
        texts = []
        for when in ("before", "after"):
            share = run[when][ACCURACY[run["method"]]]
            low, high = share_interval(share, values["pairs"]["held_out"])
            texts.append(f"{share:.1%} ({100 * low:.1f} to {100 * high:.1f})")
        losses = " to ".join(f"{run[when]['loss']:.3f}" for when in ("before", "after"))
        cells = {"accuracy": " to ".join(texts), "loss": losses, "seconds": f"{run['seconds']:.0f}"}
        rows[f"`{run['method']}`, {run['steps']} steps"] = cells
    return rows


def summary_text(values: Mapping[str, Any]) -> str:
    """The table, in Markdown."""
    count = values["pairs"]["held_out"]
    lines = [f"| | accuracy on {count} held-out pairs, 95% interval | loss | seconds |", "|---|---|---|---|"]
    for name, cells in values["table"].items():
        lines.append(f"| {name} | {cells['accuracy']} | {cells['loss']} | {cells['seconds']} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where it was")
        raise SystemExit(130) from None
