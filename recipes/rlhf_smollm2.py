"""RLHF on SmolLM2 with human pairs: reward-model accuracy, then PPO, DPO, GRPO and best-of-n at equal cost.

    python recipes/rlhf_smollm2.py --data $WHET_DATA --seeds 3 --jobs 3
    python recipes/rlhf_smollm2.py --data $WHET_DATA --train 48 --held-out 24 --set steps=1 ...   # a trial on a CPU

Pairs come from preference/human_pairs_unified.jsonl.gz of the folder, split by prompt (recipes/split_pairs.py); each
seed is `whet pipeline rlhf` with recipes/rlhf_smollm2.toml in a folder of its own. The same command again keeps what is
finished and goes on with the rest. summary.md and summary.json hold the outcome.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from run_stages import WholePipeline, run_stages
from split_pairs import split_pairs

HERE = Path(__file__).resolve().parent
RATES = {
    "win_rate": "win rate by the judge",
    "win_rate_same_length": "at equal length",
    "win_rate_reward_model": "by the reward model",
}


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
            source, pairs, only="", most_characters=2000, share=0.2, most=most, most_completion=chosen.most_completion
        )
        about.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")
    print(f"pairs: {about.read_text()}", flush=True)
    runs = [seed_run(chosen, seed) for seed in range(chosen.seeds)]

    def summarise() -> None:
        values = outcome(json.loads(about.read_text()), runs)
        (folder / "summary.json").write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
        (folder / "summary.md").write_text(summary_text(values), encoding="utf-8")
        if chosen.results and values["seeds"]:
            sys.path.insert(0, str(HERE.parent / "benchmarks"))
            from results_file import write_results

            write_results(chosen.results, values)

    outcomes = run_stages(runs, folder / "logs", jobs=chosen.jobs, deadline=deadline, after_each=summarise)
    summarise()
    print((folder / "summary.md").read_text(encoding="utf-8"))
    missing = [name for name, ended in outcomes.items() if ended != "finished"]
    if missing:
        raise SystemExit(f"not finished: {', '.join(missing)}; the same command goes on")


def arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with preference/human_pairs_unified.jsonl.gz")
    parser.add_argument("--model", default="smollm2", help="what --model of whet takes")
    parser.add_argument("--folder", type=Path, default=Path("runs/rlhf_smollm2"), help="of everything")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="seeds at once")
    parser.add_argument("--train", type=int, default=0, help="pairs at most; 0 is all")
    parser.add_argument("--held-out", type=int, default=0, help="pairs at most; 0 is all")
    parser.add_argument("--most-completion", type=int, default=500, help="characters of the longer completion")
    parser.add_argument("--budget-seconds", type=float, default=0.0, help="stop after this time; 0 is no limit")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--results", metavar="NAME", help="also write results/NAME.json of the repository")
    return parser.parse_args()


def seed_run(chosen: Any, seed: int) -> WholePipeline:
    pairs = chosen.folder.resolve() / "pairs"
    words = ("rlhf", "--config", str(HERE / "rlhf_smollm2.toml"), "--model", chosen.model, "--seed", str(seed))
    settings = [f"pairs={pairs / 'train.jsonl'}", f"held_out={pairs / 'held_out.jsonl'}", *chosen.settings]
    words += tuple(word for setting in settings for word in ("--set", setting))
    return WholePipeline(f"seed {seed}", chosen.folder / f"seed-{seed}", "compare", words)


def outcome(pairs: Mapping[str, Any], runs: Sequence[WholePipeline]) -> dict[str, Any]:
    """Each finished seed, and the ways over all of them."""
    seeds = {run.name.split()[-1]: seed_values(run.folder) for run in runs if run.is_finished()}
    ways = list(next(iter(seeds.values()))["ways"]) if seeds else []
    return {"pairs": dict(pairs), "seeds": seeds, "ways": {way: over_seeds(way, seeds) for way in ways}}


def results_of(folder: Path) -> dict[str, dict[str, Any]]:
    """stage -> what it came to, in its order."""
    found = {}
    for file in sorted(folder.glob("*/stage.json")):
        saved = json.loads(file.read_text(encoding="utf-8"))
        found[saved["name"]] = {**saved["result"], "seconds": saved["seconds"]}
    return found


def seed_values(folder: Path) -> dict[str, Any]:
    stages = results_of(folder)
    start, compared = stages["sft-judged"], stages["compare"]
    ways = {}
    for name, steps in compared["steps"].items():
        judged, training = stages[f"{name}-judged"], stages.get(f"{name}-train")
        spent = (training or judged)["spent"] / compared["budget"]
        seconds = judged["seconds"] + (training["seconds"] if training else 0.0)
        ways[name] = {"steps": steps, "spent": spent, "seconds": seconds, **judged["measured"]}
        if "curve" in judged:
            ways[name]["curve"] = {
                n: {key: each[key]["value"] for key in RATES if each[key]} for n, each in judged["curve"].items()
            }
    models = {}
    for name, stage in (("reward_model", "reward-model"), ("judge", "judge-model")):
        models[name] = {**stages[stage]["metrics"], "interval": stages[stage]["interval"]}
    return {
        **models,
        "budget_forward_tokens": compared["budget"],
        "start": start["measured"],
        "seconds": sum(each["seconds"] for each in stages.values()),
        "ways": ways,
        "findings": compared["findings"],
    }


def over_seeds(way: str, seeds: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Means over the seeds, with the lowest and the highest."""
    found: dict[str, Any] = {}
    each = [seed["ways"][way] for seed in seeds.values()]
    for key in RATES:
        values = [one[key]["value"] for one in each if one[key]]
        if values:
            found[key] = {"mean": fmean(values), "low": min(values), "high": max(values)}
    found["kl"] = fmean(one["kl"]["value"] for one in each)
    for key in ("tokens", "truncated", "spent", "steps", "seconds"):
        found[key] = fmean(one[key] for one in each)
    return found


def summary_text(values: Mapping[str, Any]) -> str:
    """The table, in Markdown."""
    if not values["seeds"]:
        return "no seed is finished yet\n"
    lines = [f"{len(values['seeds'])} seeds; means (lowest to highest)", ""]
    lines += [f"| | spent | {' | '.join(RATES.values())} | KL | tokens | cut off | seconds |", "|---" * 9 + "|"]
    for way, each in values["ways"].items():
        rates = [
            f"{each[key]['mean']:.1%} ({100 * each[key]['low']:.1f} to {100 * each[key]['high']:.1f})" for key in RATES
        ]
        rest = (f"{each['kl']:.2f}", f"{each['tokens']:.1f}", f"{each['truncated']:.1%}", f"{each['seconds']:.0f}")
        lines.append(f"| {way} | {each['spent']:.0%} | {' | '.join((*rates, *rest))} |")
    for seed, found in values["seeds"].items():
        accuracy = ", ".join(
            f"{name.replace('_', ' ')} {found[name]['accuracy']:.1%}" for name in ("reward_model", "judge")
        )
        lines += [
            "",
            f"seed {seed}: accuracy on held-out pairs: {accuracy}; {'; '.join(found['findings']) or 'no finding'}",
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where it was")
        raise SystemExit(130) from None
