"""Agents that learn, on a real model: GSM8K with a calculator, with Python and without, search, BFCL, a game.

    python benchmarks/agent_learning.py --model qwen2.5-coder-0.5b.gguf --data DATA --jobs 3 --results
    python benchmarks/agent_learning.py --model FILE --data DATA --runs calculator,none --seeds 0,1,2 --results
    python benchmarks/agent_learning.py --data DATA --commands              # the command lines, and no run
    python benchmarks/agent_learning.py --tiny --data DATA --runs calculator    # two short steps of SmolLM2 on a CPU
    python benchmarks/agent_learning.py --from benchmarks/runs/agent_learning.jsonl.xz --results    # the table alone

DATA holds gsm8k/{train,test}.jsonl.gz and math/asdiv.jsonl.gz; `bfcl` needs bfcl-eval, `game` textarena, `search`
bm25s. Every run is one `whet train` command with a recipe, which --commands prints. A run that is there already in
FOLDER is not repeated, and the results are written from what is there, so that a cut sweep is a sweep. Several runs
share the GPU: `seconds` are what they took side by side. What is kept of every run lies in
benchmarks/runs/agent_learning.jsonl.xz; the episodes that it showed are FOLDER/NAME.samples.jsonl.

`none`, `calculator`, `python`   GSM8K, equal steps and prompts; reward: the boxed answer
`search`    questions of ASDiv whose stories have to be searched for; reward: the boxed answer
`bfcl`      multi-turn tasks of the function-calling leaderboard, one half to learn from, the other to test on; reward:
            the share of requests that are met before the first that is not
`game`      TextArena's GuessTheNumber, ten guesses between 1 and 20; reward: the game's own
recipes/agent_data.py makes the rows; all but `none` show one worked example before the question.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "recipes"))

import agent_data
from results_file import ROOT, add_results_flag, write_results
from run_archive import ARCHIVES, PlannedRun, evaluations, make_runs, read_archive, write_archive

from whet.record.metrics.intervals import share_interval
from whet.settings.layers import flattened, merged, read_toml

STEPS, EVALS = 50, 2  # of a run, and evaluations after its start
EVAL_PROMPTS = 300
PASS_TOKENS = 16384  # where runs share a GPU
RECIPES = {
    run: read_toml(ROOT / "recipes" / f"agent_{run}.toml") for run in ("calculator", "python", "search", "bfcl", "game")
}
FAILED = ("malformed_calls", "unknown_tools", "tool_errors", "tool_timeouts")
FLAGS = {"data.source": "--data", "env.name": "--env", "env.tools": "--tool", "model.name": "--model"}


def settings_of(run: str, data: Path, folder: Path) -> dict[str, Any]:
    """What a run is given beside its recipe, model, seed and steps."""
    if run == "none":
        files = [f"gsm8k:{data / 'gsm8k' / part}.jsonl.gz" for part in agent_data.PARTS]
    else:
        agent_data.write_data(data, folder, [run])
        files = [str(folder / f"{run}_{part}.jsonl") for part in agent_data.PARTS]
    given: dict[str, Any] = {"data": {"source": files[0]}, "eval": {"source": files[1]}}
    if run == "none":
        given |= {key: RECIPES["calculator"][key] for key in ("batch", "optimizer")}
        given["sampling"] = {"max_new_tokens": RECIPES["calculator"]["sampling"]["max_new_tokens"]}
    if run == "search":
        given["env"] = {"tool_settings": {"search": {"corpus": str(folder / "corpus.jsonl")}}}
    return given


SMALL = {  # --tiny
    "model": {"device": "cpu"},
    "batch": {"prompts_per_step": 2, "group_size": 2},
    "sampling": {"max_new_tokens": 32},
    "eval": {"prompts": 2},
    "report": {"weights_dtype": "training"},
}
RUNS = ("calculator", "none", "search", "game", "python", "bfcl")  # the most telling first


def planned(
    chosen: Sequence[str],
    model: str,
    data: Path,
    folder: Path,
    seeds: Sequence[int],
    steps: int,
    tiny: bool,
    shared: bool = False,
) -> list[PlannedRun]:
    """Every run, seed by seed; `shared`: others have the same GPU's memory."""
    plans = []
    for seed in seeds:
        for run in chosen:
            given: dict[str, Any] = {
                "model": {"name": model},
                "steps": steps,
                "seed": seed,
                "eval": {"every": -(-steps // EVALS), "prompts": EVAL_PROMPTS},
                "report": {"save": "weights", "save_every": 10**9, "weights_dtype": "bf16"},
            }
            given = merged(given, settings_of(run, data, folder / "data"))
            given = merged(given, SMALL) if tiny else given
            given = merged(given, {"batch": {"micro_batch_tokens": PASS_TOKENS}}) if shared else given
            plans.append(PlannedRun(f"{run}-s{seed}", "grpo", given, {"run": run, "seed": seed}))
    return plans


def command_line(plan: PlannedRun) -> str:
    """The `whet train` command of a run."""
    run = plan.tags["run"]
    words = ["whet", "train", plan.method, *(["--config", f"recipes/agent_{run}.toml"] if run in RECIPES else [])]
    for key, value in flattened(plan.settings).items():
        if key in FLAGS:
            for member in value if isinstance(value, list) else [value]:
                words += [FLAGS[key], str(member)]
        elif key in ("steps", "seed"):
            words += [f"--{key}", str(value)]
        else:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            words += ["--set", f"{key}={text}"]
    return shlex.join(words)


def summary(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """By run: what was held out before and after, and what the episodes of the first and last steps did."""
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        groups[record["tags"]["run"]].append(record)
    return {run: outcome(groups[run]) for run in RUNS if run in groups}


def outcome(members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over the seeds; intervals are of the prompts of all seeds together."""
    made = [record for record in members if len(evaluations(record, "reward")) > 1]
    failed = [record["error"] for record in members if record["error"]]
    if not made:
        return {"seeds": 0, "failed": failed or ["no evaluation"]}
    values: dict[str, Any] = {"seeds": len(made), "steps": evaluations(made[0], "reward")[-1][0]}
    # a reward in fractions is an accuracy only where every episode happened to get all or nothing
    is_share = all(len(evaluations(record)) == len(evaluations(record, "reward")) for record in made)
    prompts = sum(next(line["size"] for line in record["lines"] if line.get("eval") == "eval") for record in made)
    for when, position in (("before", 0), ("after", -1)):
        values[when] = {}
        if is_share:
            accuracy = fmean(evaluations(record)[position][1] for record in made)
            low, high = share_interval(accuracy, prompts)
            values[when] = {"accuracy": accuracy, "low": low, "high": high}
        for metric in ("reward", "tool_calls", "turns", "truncated", "requests_met"):
            curves = [evaluations(record, metric) for record in made]
            if all(curves):
                values[when][metric] = fmean(curve[position][1] for curve in curves)
    values["prompts"] = prompts
    values["each_seed"] = [[value for _, value in evaluations(record, "reward")] for record in made]
    for when, part in (("first_steps", slice(0, 5)), ("last_steps", slice(-5, None))):
        values[when] = episodes([line for record in made for line in _steps(record)[part]])
    values["seconds"] = fmean(record["wall_s"] for record in made)
    return values | ({"failed": failed} if failed else {})


def _steps(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [line for line in record["lines"] if "counts" in line]


def episodes(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of sampled episodes: reward, and turns, calls, calls that failed and cut turns of one episode."""
    counts: dict[str, float] = defaultdict(float)
    for line in lines:
        for name, count in line["counts"].items():
            counts[name] += count
    samples = counts["samples"] or 1.0
    return {
        "reward": fmean(line["reward"]["total"] for line in lines) if lines else 0.0,
        "calls": counts["tool_calls"] / samples,
        "failed_calls": sum(counts[name] for name in FAILED) / samples,
        "turns": counts["turns"] / samples,
        "truncated": counts["truncated"] / samples,
    }


def table(values: Mapping[str, Any]) -> str:
    """One line a run."""
    lines = [
        f"{'run':11}{'before':>8}{'after':>8}  {'95%':15}{'reward':>16}{'calls':>14}{'failed':>14}"
        f"{'cut':>14}{'steps':>7}{'seconds':>9}  seeds"
    ]
    for run, result in values.items():
        if "after" not in result:
            lines.append(f"{run:11} failed: {result['failed'][0]}")
            continue
        before, after, first, last = (result[key] for key in ("before", "after", "first_steps", "last_steps"))
        shares = [f"{result[when]['accuracy']:.1%}" if "accuracy" in after else "-" for when in ("before", "after")]
        interval = f"{after['low']:.1%} to {after['high']:.1%}" if "accuracy" in after else ""
        moved = [f"{first[key]:.2f} -> {last[key]:.2f}" for key in ("calls", "failed_calls", "truncated")]
        reward = f"{before['reward']:.3f} -> {after['reward']:.3f}"
        lines.append(
            f"{run:11}{shares[0]:>8}{shares[1]:>8}  {interval:15}{reward:>16}"
            f"{''.join(f'{text:>14}' for text in moved)}{result['steps']:7}{result['seconds']:9.0f}  {result['seeds']}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a .gguf file or a model folder")
    parser.add_argument("--data", type=Path, help="the folder with gsm8k/ and math/")
    parser.add_argument("--runs", default=",".join(RUNS), help=f"with commas between them: {', '.join(RUNS)}")
    parser.add_argument("--seeds", default="0", help="with commas between them")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--seconds", type=float, default=0.0, help="start no run after so long; 0: no limit")
    parser.add_argument("--timeout", type=float, default=0.0, help="end a run after so long; 0: no limit")
    parser.add_argument("--folder", type=Path, default=Path("work"), help="where runs are kept while they are made")
    parser.add_argument("--commands", action="store_true", help="print the command lines, and end")
    parser.add_argument("--from", dest="archive", type=Path, help="no runs: what this archive holds")
    parser.add_argument("--tiny", action="store_true", help="two short steps on a CPU: does it run?")
    add_results_flag(parser, "agent_learning")
    chosen = parser.parse_args()
    runs = chosen.runs.split(",")
    unknown = [run for run in runs if run not in RUNS]
    if unknown:
        parser.error(f"--runs {unknown[0]}: no such run; there are {', '.join(RUNS)}")
    if chosen.archive:
        records = list(read_archive(chosen.archive))
    else:
        if chosen.data is None or not (chosen.model or chosen.tiny or chosen.commands):
            parser.error("--model FILE and --data DATA, or --tiny or --commands with --data DATA")
        seeds = [int(seed) for seed in chosen.seeds.split(",")]
        folder, model = chosen.folder.resolve(), chosen.model or ("smollm2" if chosen.tiny else "MODEL")
        steps = 2 if chosen.tiny else chosen.steps
        plans = planned(runs, model, chosen.data.resolve(), folder, seeds, steps, chosen.tiny, chosen.jobs > 1)
        for plan in plans if chosen.commands else ():
            print(command_line(plan))
        if chosen.commands:
            return
        plans = [replace(plan, settings=merged(RECIPES.get(plan.tags["run"], {}), plan.settings)) for plan in plans]
        records = make_runs(plans, folder, chosen.jobs, chosen.seconds, chosen.timeout)
        write_archive(folder / "agent_learning.jsonl.xz", records)
    values = summary(records)
    print(table(values))
    if chosen.results:
        write_results(
            chosen.results, {"runs": values, "model": Path(chosen.model or "").name}, archived=bool(chosen.archive)
        )
        if not chosen.archive and not chosen.tiny:
            archive = ARCHIVES / f"{chosen.results}.jsonl.xz"
            write_archive(archive, records)
            print(f"wrote {archive.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
