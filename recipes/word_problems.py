"""A real model learns to solve word problems: SmolLM2, first from written solutions, then from right and wrong alone.

    python recipes/word_problems.py --data $WHET_DATA
    python recipes/word_problems.py --data $WHET_DATA --methods grpo,dr_grpo,dapo,gspo,rloo,ppo --seeds 3 --jobs 4

1. `whet eval` measures the model as it is.
2. `whet train sft` imitates GSM8K's solutions and ASDiv's formulas (recipes/word_problems_sft.toml).
3. `whet train METHOD` learns from ASDiv's and MAWPS's questions, once for each method and seed
   (recipes/word_problems_rl.toml). Reward: the last number of the completion is right.

After each epoch the run is measured, greedy, on SVAMP, on held-out ASDiv and MAWPS, and on GSM8K's test questions; none
of them, nor a question like them, is trained on (recipes/word_problem_data.py). The same command again keeps what is
finished and goes on with the rest; `--methods` and `--seeds` can be added to, and `--epochs` raised.

The folder then holds a run folder per training, summary.md, summary.json and curve.svg.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from run_stages import Evaluation, Outcome, Training, eval_lines, run_stages, step_lines
from word_problem_data import write_data

HERE = Path(__file__).resolve().parent
SETS = {"svamp": "SVAMP", "held_out": "held-out ASDiv and MAWPS", "gsm8k": "GSM8K test"}
# what a method needs besides recipes/word_problems_rl.toml
OWN_SETTINGS = {
    # the reward comes at the end, all of it; the critic begins at zero and has to keep up
    "ppo": ("critic.learning_rate=2e-5", "objective.baseline.lam=1.0"),
}
# 97.5% point of Student's t by degrees of freedom
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
STEP_METRICS = ("entropy", "sampler_gap", "sampler_gap_max", "uniform_groups")


def main() -> None:
    chosen = arguments()
    if chosen.draw:
        record = json.loads((HERE.parent / "results" / f"{chosen.results}.json").read_text(encoding="utf-8"))
        chosen.draw.write_text(curve_svg(record["values"]), encoding="utf-8")
        return
    began = time.monotonic()
    deadline = began + chosen.budget_seconds if chosen.budget_seconds else None
    folder: Path = chosen.folder
    check_settings(folder, chosen)
    data = folder / "data"
    if not (data / "about.json").is_file():
        write_data(chosen.data, data, chosen.demonstrations.split(","), chosen.limit)
    print(f"data: {json.dumps(json.loads((data / 'about.json').read_text()))}", flush=True)
    steps_per_epoch = -(-count_lines(data / "train.jsonl") // chosen.prompts_per_step)
    start, sft, runs = stages(chosen, steps_per_epoch)

    def summarise() -> None:
        write_summary(chosen, summary(chosen, steps_per_epoch, start, sft, runs))

    outcomes = run_stages([start, sft], folder / "logs", jobs=min(chosen.jobs, 2), deadline=deadline)
    if outcomes[sft.name] == "finished":
        outcomes |= run_stages(runs, folder / "logs", jobs=chosen.jobs, deadline=deadline, after_each=summarise)
    summarise()
    print((folder / "summary.md").read_text(encoding="utf-8"))
    finish(outcomes, time.monotonic() - began)


def arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with gsm8k/ and math/")
    parser.add_argument("--model", default="smollm2", help="what --model of whet takes")
    parser.add_argument("--methods", default="grpo", help="methods of `whet algorithms`, with commas between them")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each method, with seeds 1, 2, ...")
    parser.add_argument("--epochs", type=int, default=3, help="passes over the questions")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, on the same device")
    parser.add_argument("--folder", type=Path, default=Path("runs/word_problems"), help="of everything")
    parser.add_argument("--demonstrations", default="gsm8k,asdiv", help="gsm8k, asdiv or both")
    parser.add_argument("--sft-steps", type=int, default=400)
    parser.add_argument("--prompts-per-step", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-5, help="of stage 3")
    parser.add_argument(
        "--budget-seconds", type=float, default=0.0, help="stop and summarise after this time; 0 is no limit"
    )
    parser.add_argument("--limit", type=int, default=0, help="rows of each file at most, for a trial; 0 is all")
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="PATH=VALUE", help="any setting of stage 3"
    )
    parser.add_argument("--results", metavar="NAME", help="also write results/NAME.json of the repository")
    parser.add_argument("--draw", type=Path, help="only draw the figure of results/NAME.json into this file")
    chosen = parser.parse_args()
    if not (chosen.results if chosen.draw else chosen.data):
        parser.error("give --data FOLDER, or --draw FILE with --results NAME")
    return chosen


# what must be equal for finished runs to be kept
FIXED = ("model", "demonstrations", "sft_steps", "prompts_per_step", "learning_rate", "limit", "settings")


def check_settings(folder: Path, chosen: Any) -> None:
    """Refuse to mix runs of different settings in one folder."""
    now = {name: getattr(chosen, name) for name in FIXED}
    file = folder / "recipe.json"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
        return
    before = json.loads(file.read_text(encoding="utf-8"))
    differing = [
        f"--{name.replace('_', '-')} was {before.get(name)!r}" for name in FIXED if before.get(name) != now[name]
    ]
    if differing:
        raise SystemExit(f"{folder} holds runs of other settings ({', '.join(differing)}); give another --folder")


def stages(chosen: Any, steps_per_epoch: int) -> tuple[Evaluation, Training, list[Training]]:
    """The model as it is, the imitation, and every run of reinforcement learning, seed by seed."""
    folder: Path = chosen.folder
    data = folder / "data"
    reward = f"{HERE / 'last_number.py'}:last_number"
    tokens = next((each for each in chosen.settings if each.startswith("sampling.max_new_tokens=")), None)
    measured = ("--data", str(data / "eval.jsonl"), "--reward", reward, "--set", "eval.by=set")
    measured += ("--set", "eval.prompts=100000", "--set", tokens or "sampling.max_new_tokens=200")
    start = Evaluation("before", folder / "before.json", (chosen.model, *measured))
    words = ("sft", "--config", str(HERE / "word_problems_sft.toml"), "--model", chosen.model)
    words += ("--data", str(data / "demonstrations.jsonl"))
    sft = Training("sft", folder / "sft", chosen.sft_steps, words)
    runs = []
    for seed in range(1, chosen.seeds + 1):
        for method in filter(None, chosen.methods.split(",")):
            words = (method, "--config", str(HERE / "word_problems_rl.toml"), "--model", str(sft.folder))
            words += ("--data", str(data / "train.jsonl"), "--reward", reward, "--seed", str(seed))
            settings = {
                "eval.source": data / "eval.jsonl",
                "eval.every": steps_per_epoch,
                "report.save_every": steps_per_epoch,
                "batch.prompts_per_step": chosen.prompts_per_step,
                "optimizer.learning_rate": chosen.learning_rate,
            }
            given = [f"{path}={value}" for path, value in settings.items()]
            for setting in (*given, *OWN_SETTINGS.get(method, ()), *chosen.settings):
                words += ("--set", setting)
            place = folder / f"{method}-seed{seed}"
            runs.append(Training(f"{method} seed {seed}", place, chosen.epochs * steps_per_epoch, words))
    return start, sft, runs


def summary(
    chosen: Any, steps_per_epoch: int, start: Evaluation, sft: Training, runs: Sequence[Training]
) -> dict[str, Any]:
    """Everything that is finished, as plain values."""
    folder: Path = chosen.folder
    before = json.loads(start.file.read_text(encoding="utf-8")) if start.is_finished() else {}
    told = [run_values(run, steps_per_epoch) for run in runs if eval_lines(run.folder)]
    after_sft = next((run["stages"][0] for run in told), {})
    methods = {}
    for method in chosen.methods.split(","):
        done = [run for run in told if run["method"] == method and run["finished"]]
        if done:
            methods[method] = method_values(done)
    unfinished = [run.name for run in runs if not run.is_finished()]
    values = {
        "data": json.loads((folder / "data" / "about.json").read_text(encoding="utf-8")),
        "model": Path(chosen.model).name,
        "steps_per_epoch": steps_per_epoch,
        "epochs": chosen.epochs,
        "jobs_at_once": chosen.jobs,
        "learning_rate": chosen.learning_rate,
        "prompts_per_step": chosen.prompts_per_step,
        "before": accuracies(before),
        "sft": {**accuracies(after_sft), "steps": chosen.sft_steps, "seconds": phase_seconds(step_lines(sft.folder))},
        "methods": methods,
        "runs": told,
        "unfinished": unfinished,
    }
    return {**values, "best": best(methods), "table": table(values)}


def best(methods: Mapping[str, Any]) -> dict[str, str]:
    """The method with the highest mean on the first test set, for a sentence."""
    if not methods:
        return {}
    name = next(iter(SETS))
    method = max(methods, key=lambda each: methods[each][name]["mean"])
    return {"method": method, **{each: share_text(methods[method][each]) for each in SETS}}


def run_values(run: Training, steps_per_epoch: int) -> dict[str, Any]:
    """Each evaluation of a run, with the means of the steps before it."""
    steps, found = step_lines(run.folder), []
    for line in eval_lines(run.folder):
        epoch = [each for each in steps if line["step"] - steps_per_epoch < each["step"] <= line["step"]]
        values: dict[str, Any] = {"step": line["step"], **accuracies(line["result"])}
        values["completion_tokens"] = line["result"]["completion_tokens"]
        values["evaluate_seconds"] = line["seconds"]["evaluate"]
        for name in STEP_METRICS:
            known = [each["metrics"][name] for each in epoch if each["metrics"].get(name) is not None]
            values |= {name: fmean(known)} if known else {}
        if epoch:
            values["reward"] = fmean(each["reward"]["total"] for each in epoch)
            values["completion_length"] = fmean(each["counts"]["tokens"] / each["counts"]["samples"] for each in epoch)
            values["seconds"] = phase_seconds(epoch)
        found.append(values)
    method, _, seed = run.name.partition(" seed ")
    seconds = {"all": round(sum(sum(each["seconds"].values()) for each in steps), 1), **phase_seconds(steps)}
    return {
        "method": method,
        "seed": int(seed),
        "finished": run.is_finished(),
        "steps": len(steps),
        "stages": found,
        "seconds": seconds,
    }


def accuracies(metrics: Mapping[str, Any]) -> dict[str, float]:
    names = {name: f"accuracy_{name}" for name in SETS}
    return {
        name: metrics[key if key in metrics else name] for name, key in names.items() if {key, name} & metrics.keys()
    }


def phase_seconds(steps: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    phases = sorted({name for step in steps for name in step["seconds"]})
    return {name: round(sum(step["seconds"].get(name) or 0.0 for step in steps), 2) for name in phases}


def method_values(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The last stage of a method's finished runs: mean over the seeds with its 95% interval."""
    last = [run["stages"][-1] for run in runs]
    found: dict[str, Any] = {"seeds": len(runs), "seconds": fmean(run["seconds"]["all"] for run in runs)}
    for name in SETS:
        values = [stage[name] for stage in last if name in stage]
        if values:
            found[name] = {"mean": fmean(values), "interval": half_width(values)}
    for name in ("completion_tokens", "completion_length", *STEP_METRICS):
        known = [stage[name] for stage in last if name in stage]
        found |= {name: fmean(known)} if known else {}
    return found


def half_width(values: Sequence[float]) -> float | None:
    """Half of the 95% interval of the mean, by Student's t; None for one value."""
    if len(values) < 2:
        return None
    return STUDENT.get(len(values) - 1, 1.96) * stdev(values) / len(values) ** 0.5


def write_summary(chosen: Any, values: Mapping[str, Any]) -> None:
    """summary.json, summary.md, curve.svg, and the results file where one is asked for."""
    folder: Path = chosen.folder
    (folder / "summary.json").write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    (folder / "summary.md").write_text(summary_text(values), encoding="utf-8")
    if values["runs"]:
        (folder / "curve.svg").write_text(curve_svg(values), encoding="utf-8")
    if chosen.results:
        sys.path.insert(0, str(HERE.parent / "benchmarks"))
        from results_file import write_results

        write_results(chosen.results, values)


COLUMNS = {
    **SETS,
    "tokens": "tokens",
    "entropy": "entropy",
    "gap": "sampler gap",
    "minutes": "minutes",
    "seeds": "seeds",
}


def table(values: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """What a page shows, as text: a row for each stage, all with the same columns."""
    from whet.record.metrics.intervals import share_interval

    rows = {}
    for name, title in (("before", "before"), ("sft", "after SFT")):
        found = values[name]
        if SETS.keys() <= found.keys():
            cells = {}
            for each in SETS:
                low, high = share_interval(found[each], values["data"]["eval"][each])
                cells[each] = f"{found[each]:.1%} ({100 * low:.1f} to {100 * high:.1f})"
            seconds = sum(found.get("seconds", {}).values())
            rows[title] = {**dict.fromkeys(COLUMNS, ""), **cells, "minutes": f"{seconds / 60:.1f}" if seconds else ""}
    for method, found in values["methods"].items():
        cells = {each: share_text(found[each]) for each in SETS}
        cells |= {"tokens": f"{found['completion_tokens']:.0f}", "entropy": f"{found['entropy']:.2f}"}
        cells |= {"gap": f"{found['sampler_gap']:.2g}", "minutes": f"{found['seconds'] / 60:.1f}"}
        rows[f"`{method}`, {values['epochs']} epochs"] = {**cells, "seeds": str(found["seeds"])}
    return rows


def summary_text(values: Mapping[str, Any]) -> str:
    """The table, in Markdown."""
    counts = values["data"]["eval"]
    heads = [f"{title}, {counts[name]}" if name in counts else title for name, title in COLUMNS.items()]
    lines = [f"| | {' | '.join(heads)} |", f"|{'---|' * (len(heads) + 1)}"]
    for name, cells in values["table"].items():
        lines.append(f"| {name} | {' | '.join(cells[each] for each in COLUMNS)} |")
    if values["unfinished"]:
        lines += ["", f"not finished: {', '.join(values['unfinished'])}"]
    return "\n".join(lines) + "\n"


def share_text(found: Mapping[str, Any]) -> str:
    around = "" if found["interval"] is None else f" ± {100 * found['interval']:.1f}"
    return f"{found['mean']:.1%}{around}"


def curve_svg(values: Mapping[str, Any]) -> str:
    """Accuracy on each test set against the step: a line per method, the mean over its seeds."""
    from whet.pages.chart_specs import QUIET, chart, curve
    from whet.pages.chart_svg import figure_file

    finished = {run["method"] for run in values["runs"] if run["finished"]}
    runs = [run for run in values["runs"] if run["finished"] or run["method"] not in finished]
    methods = list(dict.fromkeys(run["method"] for run in runs))
    highest = max(stage[name] for run in runs for stage in run["stages"] for name in SETS)
    steps = max(stage["step"] for run in runs for stage in run["stages"])
    panels = []
    for name, title in SETS.items():
        curves = []
        for place, method in enumerate(methods):
            points = mean_curve([run["stages"] for run in runs if run["method"] == method], name)
            curves.append(curve(method, (points,), place % QUIET, dashed=place >= QUIET))
        if name in values["before"]:
            level = 100 * values["before"][name]
            curves.append(curve("before SFT", (((0.0, level), (float(steps), level)),), QUIET, dashed=True))
        panels.append(
            chart(
                curves,
                x={"label": "step", "min": 0.0, "max": float(max(steps, 1))},
                y={"label": "right, %", "min": 0.0, "max": 100 * highest * 1.1 + 1.0},
                smooth=False,
                title=f"{title}, {values['data']['eval'][name]} questions",
            )
        )
    return figure_file(
        panels,
        "Word problems solved, greedy, by step of reinforcement learning",
        f"{values['model']}; step 0 is the model after SFT; means over seeds",
        size=(300, 220),
    )


def mean_curve(runs: Sequence[Sequence[Mapping[str, Any]]], name: str) -> tuple[tuple[float, float], ...]:
    """The mean over runs, in percent, at the steps at which all of them were measured."""
    at = [{stage["step"]: stage[name] for stage in stages} for stages in runs]
    shared = sorted(set.intersection(*(set(each) for each in at)))
    return tuple((float(step), 100 * fmean(each[step] for each in at)) for step in shared)


def count_lines(path: Path) -> int:
    with path.open(encoding="utf-8") as stream:
        return sum(1 for _ in stream)


def finish(outcomes: Mapping[str, Outcome], seconds: float) -> None:
    """Say what is missing, and leave with the exit code for it."""
    print(f"{seconds:.0f} s in all")
    for outcome in ("failed", "interrupted", "left out"):
        names = [name for name, each in outcomes.items() if each == outcome]
        if names:
            print(f"{outcome}: {', '.join(names)}")
    if "failed" in outcomes.values():
        raise SystemExit(1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where it was")
        raise SystemExit(130) from None
