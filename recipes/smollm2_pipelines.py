"""Pipelines of reasoning on a real model: SmolLM2 through R1's four stages, and what comes of it into a smaller model.

    python recipes/smollm2_pipelines.py r1 --data $WHET_DATA --seeds 3 --jobs 3
    python recipes/smollm2_pipelines.py distill --data $WHET_DATA --teacher runs/smollm2/r1-1

Each is `whet pipeline NAME --config recipes/NAME_smollm2.toml`, once for each seed, on data that this script makes
first (recipes/word_problem_data.py). The same command again skips what is done. `--results
NAME` writes results/NAME.json: each eval of each seed, its mean and spread, and what each stage cost.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from run_stages import WholePipeline, run_stages
from split_pairs import split_pairs
from word_problem_data import general_rows, write_data, write_rows

HERE = Path(__file__).resolve().parent
FOLDERS = re.compile(r"(?<![\w.])/(?:[\w.-]+/)+")  # of this machine, in front of a file's name
PIPELINES = {"r1": "eval-final-rl", "distill": "comparison"}  # each with its last stage


def main() -> None:
    chosen = arguments()
    began = time.monotonic()
    folder: Path = chosen.folder
    files = make_questions(chosen)
    words = [chosen.pipeline, "--config", str(HERE / f"{chosen.pipeline}_smollm2.toml")]
    words += [word for setting in (*files, *chosen.set) for word in ("--set", setting)]
    if chosen.model:
        words += ["--model", chosen.model]
    if chosen.teacher:
        words += ["--set", f"teacher={last_policy(chosen.teacher)}"]
    name = chosen.pipeline
    runs = [
        WholePipeline(f"{name} seed {seed}", folder / f"{name}-{seed}", PIPELINES[name], (*words, "--seed", str(seed)))
        for seed in range(1, chosen.seeds + 1)
    ]

    def summarise() -> None:
        values = {"seconds": time.monotonic() - began, "data": about(chosen), **gathered(runs)}
        file = folder / f"{chosen.pipeline}.json"
        file.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
        if chosen.results:
            sys.path.insert(0, str(HERE.parent / "benchmarks"))
            from results_file import write_results

            write_results(chosen.results, values)

    deadline = began + chosen.budget_seconds if chosen.budget_seconds else None
    outcomes = run_stages(runs, folder / "logs", jobs=chosen.jobs, deadline=deadline, after_each=summarise)
    summarise()
    missing = [name for name, outcome in outcomes.items() if outcome != "finished"]
    if missing:
        raise SystemExit(f"not finished: {', '.join(missing)}; the same command goes on")


def arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipeline", choices=list(PIPELINES))
    parser.add_argument("--data", type=Path, required=True, help="folder with gsm8k/, math/, sft/ and preference/")
    parser.add_argument("--seeds", type=int, default=1, help="runs, with seeds 1, 2, ...")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, on the same device")
    parser.add_argument("--folder", type=Path, default=Path("runs/smollm2"), help="of everything")
    parser.add_argument("--model", default="", help="instead of SmolLM2, what --model of whet takes")
    parser.add_argument("--teacher", default="", help="of distill: a model, or a pipeline's folder")
    parser.add_argument("--limit", type=int, default=0, help="rows of each file at most, for a trial; 0 is all")
    parser.add_argument("--gsm8k-questions", type=int, default=1500, help="of GSM8K's training side, for RL")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="any setting of the pipeline")
    parser.add_argument("--budget-seconds", type=float, default=0.0, help="stop then; the same command goes on")
    parser.add_argument("--results", metavar="NAME", help="also write results/NAME.json of the repository")
    return parser.parse_args()


def make_questions(chosen: Any) -> list[str]:
    """Word problems, instructions of other kinds, human pairs; the settings that name the files."""
    place: Path = chosen.folder / "questions"
    if not (place / "about.json").is_file():
        write_data(chosen.data, place, ("gsm8k", "asdiv"), chosen.limit, chosen.gsm8k_questions)
        general = general_rows(chosen.data)[: chosen.limit or None]
        write_rows(place / "general.jsonl", general)
        write_rows(place / "general_prompts.jsonl", ({"prompt": row["prompt"]} for row in general))
        source = str(chosen.data / "preference" / "human_pairs_unified.jsonl.gz")
        most = {"train": chosen.limit, "held_out": 0}
        split_pairs(source, place / "human", only="", most_characters=2000, share=0.0, most=most)
        tests = {text.strip() for row in read_json_rows(place / "eval.jsonl") for text in sentences(row)}
        pairs = [row for row in read_json_rows(place / "human" / "train.jsonl") if question(row).strip() not in tests]
        write_rows(place / "pairs.jsonl", pairs)  # "How much money?" ends a test question and is a prompt of its own
    named = {"data.source": "train", "demonstrations": "demonstrations", "eval.source": "eval"}
    if chosen.pipeline == "r1":
        named |= {"general": "general", "general_prompts": "general_prompts", "pairs": "pairs"}
    return [f"{key}={place / name}.jsonl" for key, name in named.items()]


def read_json_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def question(row: Mapping[str, Any]) -> str:
    """The last thing that a row asks."""
    prompt = row["prompt"]
    return str(prompt if isinstance(prompt, str) else prompt[-1]["content"])


def sentences(row: Mapping[str, Any]) -> list[str]:
    """The question, and its last sentence alone."""
    text = question(row)
    return [text, re.split(r"(?<=[.?!])\s+", text.strip())[-1]]


def about(chosen: Any) -> Any:
    """The counts of the data."""
    return json.loads((chosen.folder / "questions" / "about.json").read_text(encoding="utf-8"))


def last_policy(teacher: str) -> str:
    """A model as it is; of a pipeline's folder the policy that its last training left."""
    found = sorted(Path(teacher).glob("*/run/run.json"))
    return str(found[-1].parent) if found else teacher


def gathered(runs: Sequence[WholePipeline]) -> dict[str, Any]:
    """What the stages of every run came to, and the mean and spread of their evals over the seeds."""
    seeds = [stage_results(run.folder) for run in runs]
    names = list(dict.fromkeys(name for stages in seeds for name in stages))
    evals: dict[str, Any] = {}
    for name in names:
        sets = [stages[name]["sets"] for stages in seeds if "sets" in stages.get(name, {})]
        if sets:
            evals[name.removeprefix("eval-")] = {each: over_seeds([one[each] for one in sets]) for each in sets[0]}
    return {"evals": evals, "runs": seeds}


def stage_results(folder: Path) -> dict[str, Any]:
    """The finished stages of a pipeline by name: summary, seconds, cost and what they measured."""
    found = {}
    for file in sorted(folder.glob("*/stage.json")):
        stage = json.loads(file.read_text(encoding="utf-8"))
        kept = {key: value for key, value in stage["result"].items() if key not in ("samples", "pairs")}
        text = str(kept.get("summary", ""))
        found[stage["name"]] = {**kept, "summary": FOLDERS.sub("", text), "seconds": stage["seconds"]}
    return found


def over_seeds(measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Each metric over the seeds: its mean, the standard deviation of the seeds, and the first seed's own interval."""
    found: dict[str, Any] = {"prompts": measured[0]["prompts"], "seeds": len(measured)}
    for name, value in measured[0].items():
        if name == "prompts":
            continue
        values = [each[name][0] for each in measured if name in each]
        spread = stdev(values) if len(values) > 1 else 0.0
        found[name.replace("@", "_at_")] = {"mean": fmean(values), "std": spread, "low": value[1], "high": value[2]}
    return found


if __name__ == "__main__":
    main()
