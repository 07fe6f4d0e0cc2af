"""SmolLM2 learns to use a calculator on real word problems, and is compared with itself without one.

    python recipes/agents_smollm2.py --data $WHET_DATA --seeds 3 --jobs 6

1. `whet eval` measures the model as it is, asked with the tool and without it.
2. `whet train sft` imitates demonstrations of both ways (recipes/agents_smollm2_data.py makes them from the formulas of
   ASDiv and MAWPS): calls of the calculator, whose answers carry no loss, and sums worked out in words.
3. `whet train grpo` goes on from there with ASDiv's and MAWPS's questions, twice for each seed: with the calculator,
   in episodes of several turns, and as a control without it. Reward: the last number that is stated is right.

Every stage is measured, greedy, with the tool and without it, on SVAMP and on held-out ASDiv and MAWPS; nothing like
them is trained on. Each seed has its own SFT. The same command again keeps what is finished and goes on with the rest.

The folder then holds a run folder per training, summary.md and summary.json, which are there from the first stage on.
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

from agents_smollm2_data import write_data
from run_stages import Evaluation, Outcome, Training, eval_lines, run_stages, step_lines
from word_problems import accuracies, count_lines, finish, half_width, phase_seconds, share_text

HERE = Path(__file__).resolve().parent
SETS = {"svamp": "SVAMP", "held_out": "held-out ASDiv and MAWPS"}
WAYS = {"with": "with the calculator", "without": "without it"}
ARMS = {"calculator": "with", "control": "without"}  # how each is trained
# of an episode in the metrics of a step
COUNTS = ("turns", "tool_calls", "malformed_calls", "unknown_tools", "tool_errors", "tool_timeouts")
STEP_METRICS = ("entropy", "sampler_gap", "uniform_groups")
# what must be equal for finished runs to be kept
FIXED = ("model", "sft_steps", "sft_rows", "prompts_per_step", "learning_rate", "limit", "settings")


def main() -> None:
    chosen = arguments()
    began = time.monotonic()
    deadline = began + chosen.budget_seconds if chosen.budget_seconds else None
    folder: Path = chosen.folder
    check_settings(folder, chosen)
    data = folder / "data"
    if not (data / "about.json").is_file():
        write_data(chosen.data, data, chosen.model, chosen.limit)
    print(f"data: {json.dumps(json.loads((data / 'about.json').read_text()))}", flush=True)
    steps_per_epoch = -(-count_lines(data / "train.jsonl") // chosen.prompts_per_step)
    plan = Plan(chosen, steps_per_epoch)

    def summarise() -> None:
        write_summary(chosen, summary(chosen, plan, time.monotonic() - began))

    def run(stages: Sequence[Evaluation | Training], until: float | None) -> dict[str, Outcome]:
        return run_stages(stages, folder / "logs", jobs=chosen.jobs, deadline=until, after_each=summarise)

    outcomes = run([*plan.sft, *plan.before], deadline)
    begun = [each for each in plan.training if outcomes[f"sft seed {seed_of(each)}"] == "finished"]
    outcomes |= run(begun, None if deadline is None else deadline - chosen.final_seconds)
    outcomes |= run(plan.missing_evaluations(), deadline)
    summarise()
    print((folder / "summary.md").read_text(encoding="utf-8"))
    finish(outcomes, time.monotonic() - began)


def arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with math/")
    parser.add_argument("--model", default="smollm2", help="what --model of whet takes")
    parser.add_argument("--seeds", type=int, default=1, help="chains of SFT and GRPO, with seeds 1, 2, ...")
    parser.add_argument("--epochs", type=int, default=2, help="passes over the questions")
    parser.add_argument("--arms", default="calculator,control", help="calculator, control or both")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, on the same device")
    parser.add_argument("--folder", type=Path, default=Path("runs/agents_smollm2"), help="of everything")
    parser.add_argument("--sft-steps", type=int, default=180)
    parser.add_argument("--sft-rows", type=int, default=64, help="demonstrations per step")
    parser.add_argument("--prompts-per-step", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-5, help="of stage 3")
    parser.add_argument("--max-steps", type=int, default=0, help="of each run of stage 3, for a trial; 0 is no limit")
    parser.add_argument(
        "--budget-seconds", type=float, default=0.0, help="stop and summarise after this time; 0 is no limit"
    )
    parser.add_argument(
        "--final-seconds", type=float, default=60.0, help="of the budget, kept for the last measurements"
    )
    parser.add_argument("--limit", type=int, default=0, help="rows of each file at most, for a trial; 0 is all")
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="PATH=VALUE", help="any setting of stage 3"
    )
    parser.add_argument("--results", metavar="NAME", help="also write results/NAME.json of the repository")
    chosen = parser.parse_args()
    unknown = sorted(set(chosen.arms.split(",")) - ARMS.keys())
    if unknown:
        parser.error(f"--arms {unknown[0]}: no such arm; expected {' or '.join(ARMS)}")
    return chosen


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


class Plan:
    """Every stage of the recipe."""

    def __init__(self, chosen: Any, steps_per_epoch: int) -> None:
        self.steps_per_epoch = steps_per_epoch
        self.steps = chosen.epochs * steps_per_epoch
        self.steps = min(self.steps, chosen.max_steps) if chosen.max_steps else self.steps
        self._chosen, self._folder = chosen, chosen.folder
        self._data: Path = chosen.folder / "data"
        self.before = [self.evaluation("before", chosen.model, way) for way in WAYS]
        seeds = range(1, chosen.seeds + 1)
        self.sft = [self._sft(seed) for seed in seeds]
        self.training = [self._grpo(arm, seed) for seed in seeds for arm in chosen.arms.split(",")]

    def evaluation(self, name: str, model: str, way: str) -> Evaluation:
        """Of a model, with the tool or without it."""
        words: tuple[str, ...] = (model, "--data", str(self._data / "eval.jsonl"), *reward_words())
        settings = ["eval.by=set", "eval.prompts=100000", *shared_settings(self._chosen.settings, way)]
        words += tool_words(way) or ("--env", "none")  # a run would play with its own tools
        for setting in settings:
            words += ("--set", setting)
        file = self._folder / "evals" / f"{name.replace(' ', '-')}-{way}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        return Evaluation(f"{name}, {WAYS[way]}", file, words)

    def missing_evaluations(self) -> list[Evaluation]:
        """Those that a run did not make at its end: the other way, or both where it was stopped."""
        missing = []
        for run in self.training:
            if not (run.folder / "checkpoints").is_dir():
                continue
            for way in WAYS:
                if way != ARMS[arm_of(run)] or not run.is_finished():
                    missing.append(self.evaluation(run.name, str(run.folder), way))
        return missing

    def _sft(self, seed: int) -> Training:
        words = ("sft", "--config", str(HERE / "agents_smollm2_sft.toml"), "--model", self._chosen.model)
        words += ("--data", str(self._data / "demonstrations.jsonl"), "--seed", str(seed))
        words += ("--set", f"batch.rows_per_step={self._chosen.sft_rows}")
        return Training(f"sft seed {seed}", self._folder / f"sft-seed{seed}", self._chosen.sft_steps, words)

    def _grpo(self, arm: str, seed: int) -> Training:
        words: tuple[str, ...] = ("grpo", "--config", str(HERE / "agents_smollm2_rl.toml"))
        words += ("--model", str(self._folder / f"sft-seed{seed}"), "--data", str(self._data / "train.jsonl"))
        words += (*reward_words(), "--seed", str(seed), *tool_words(ARMS[arm]))
        settings = [
            f"eval.source={self._data / 'eval.jsonl'}",
            f"eval.every={self.steps_per_epoch}",
            f"batch.prompts_per_step={self._chosen.prompts_per_step}",
            f"optimizer.learning_rate={self._chosen.learning_rate}",
            *(each for each in self._chosen.settings if not each.startswith(("env.", "sampling."))),
            *shared_settings(self._chosen.settings, ARMS[arm]),
        ]
        for setting in settings:
            words += ("--set", setting)
        return Training(f"{arm} seed {seed}", self._folder / f"{arm}-seed{seed}", self.steps, words)


def reward_words() -> tuple[str, ...]:
    return ("--reward", f"{HERE / 'last_number.py'}:stated_number")


def tool_words(way: str) -> tuple[str, ...]:
    return ("--tool", "calculator") if way == "with" else ()


def shared_settings(given: Sequence[str], way: str) -> list[str]:
    """What holds for training and measuring: the limits of a turn and of an episode."""
    limits = {"sampling.max_new_tokens": "128"}
    if way == "with":
        limits |= {"env.max_turns": "4", "env.max_tokens": "256"}
    prefixes = ("sampling.", "env.") if way == "with" else ("sampling.",)
    ours = [each.partition("=") for each in given if each.startswith(prefixes)]
    limits |= {path: value for path, _, value in ours}
    return [f"{path}={value}" for path, value in limits.items()]


def arm_of(run: Training) -> str:
    return run.name.partition(" seed ")[0]


def seed_of(run: Training) -> int:
    return int(run.name.partition(" seed ")[2])


def summary(chosen: Any, plan: Plan, seconds: float) -> dict[str, Any]:
    """Everything that is finished, as plain values."""
    runs = [run_values(plan, run) for run in plan.training if eval_lines(run.folder)]
    before = {way: measured(stage) for way, stage in zip(WAYS, plan.before, strict=True) if stage.is_finished()}
    after_sft = {way: [run["stages"][0] for run in runs if ARMS[run["arm"]] == way] for way in WAYS}
    stages = {"after SFT": {way: over_seeds(found) for way, found in after_sft.items() if found}}
    for arm in chosen.arms.split(","):
        done = [run["after"] for run in runs if run["arm"] == arm]
        found = {way: [each[way] for each in done if way in each] for way in WAYS}
        stages[arm] = {way: over_seeds(each) for way, each in found.items() if each}
    values = {
        "data": json.loads((chosen.folder / "data" / "about.json").read_text(encoding="utf-8")),
        "model": Path(chosen.model).name,
        "seeds": chosen.seeds,
        "epochs": round(plan.steps / plan.steps_per_epoch, 2),
        "steps": plan.steps,
        "steps_per_epoch": plan.steps_per_epoch,
        "prompts_per_step": chosen.prompts_per_step,
        "learning_rate": chosen.learning_rate,
        "jobs_at_once": chosen.jobs,
        "seconds": round(seconds, 1),
        "sft": {"steps": chosen.sft_steps, "seconds": [phase_seconds(step_lines(each.folder)) for each in plan.sft]},
        "before": before,
        "stages": stages,
        "runs": runs,
        "unfinished": [run.name for run in plan.training if not run.is_finished()],
    }
    return {**values, "table": table(values)}


def measured(stage: Evaluation) -> dict[str, float]:
    metrics = json.loads(stage.file.read_text(encoding="utf-8"))
    return {**accuracies(metrics), **{key: metrics[key] for key in ("completion_tokens",) if key in metrics}}


def run_values(plan: Plan, run: Training) -> dict[str, Any]:
    """Each evaluation of a run, with the means of the steps before it, and the last one both ways."""
    steps, found = step_lines(run.folder), []
    for line in eval_lines(run.folder):
        epoch = [each for each in steps if line["step"] - plan.steps_per_epoch < each["step"] <= line["step"]]
        values: dict[str, Any] = {"step": line["step"], **accuracies(line["result"])}
        values["completion_tokens"] = line["result"].get("completion_tokens")
        values["evaluate_seconds"] = line["seconds"]["evaluate"]
        found.append({**values, **(step_means(epoch) if epoch else {})})
    arm, is_finished = arm_of(run), run.is_finished()
    after: dict[str, Any] = {}
    for way in WAYS:
        stage = plan.evaluation(run.name, str(run.folder), way)
        if stage.is_finished():
            after[way] = measured(stage)
        elif way == ARMS[arm] and is_finished:
            after[way] = {name: found[-1][name] for name in SETS if name in found[-1]}
    return {
        "arm": arm,
        "seed": seed_of(run),
        "finished": is_finished,
        "steps": len(steps),
        "seconds": {"all": round(sum(sum(each["seconds"].values()) for each in steps), 1), **phase_seconds(steps)},
        "stages": found,
        "after": after,
    }


def step_means(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of an epoch: reward, tokens and, of an episode, its turns and calls."""
    samples = sum(each["counts"]["samples"] for each in steps)
    values: dict[str, Any] = {
        "reward": fmean(each["reward"]["total"] for each in steps),
        "tokens_per_episode": sum(each["counts"]["tokens"] for each in steps) / samples,
        "seconds": phase_seconds(steps),
    }
    for name in COUNTS:
        known = [each["counts"][name] for each in steps if name in each["counts"]]
        values |= {f"{name}_per_episode": sum(known) / samples} if known else {}
    for name in STEP_METRICS:
        known = [each["metrics"][name] for each in steps if each["metrics"].get(name) is not None]
        values |= {name: fmean(known)} if known else {}
    return values


def over_seeds(stages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean of each test set over the seeds with half of its 95% interval."""
    found: dict[str, Any] = {"seeds": len(stages)}
    for name in SETS:
        values = [stage[name] for stage in stages if name in stage]
        found |= {name: {"mean": fmean(values), "interval": half_width(values), "values": values}} if values else {}
    return found


def table(values: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """What a page shows, as text: a row for each stage, a column for each test set and way to ask."""
    from whet.record.metrics.intervals import share_interval

    columns = [f"{name} {way}" for name in SETS for way in WAYS]
    rows: dict[str, dict[str, str]] = {"before": {}}
    for way, found in values["before"].items():
        for name in SETS.keys() & found.keys():
            low, high = share_interval(found[name], values["data"]["eval"][name])
            rows["before"][f"{name} {way}"] = f"{found[name]:.1%} ({100 * low:.1f} to {100 * high:.1f})"
    titles = {"calculator": "after GRPO with the calculator", "control": "after GRPO without it"}
    for stage, ways in values["stages"].items():
        cells = {f"{name} {way}": share_text(each[name]) for way, each in ways.items() for name in SETS if name in each}
        rows[titles.get(stage, stage)] = cells
    return {stage: {column: cells.get(column, "") for column in columns} for stage, cells in rows.items()}


def summary_text(values: Mapping[str, Any]) -> str:
    """The table, in Markdown."""
    counts = values["data"]["eval"]
    heads = [f"{title}, {counts[name]}, {asked}" for name, title in SETS.items() for asked in WAYS.values()]
    lines = [f"| | {' | '.join(heads)} |", f"|{'---|' * (len(heads) + 1)}"]
    for name, cells in values["table"].items():
        lines.append(f"| {name} | {' | '.join(cells.values())} |")
    if values["unfinished"]:
        lines += ["", f"not finished: {', '.join(values['unfinished'])}"]
    return "\n".join(lines) + "\n"


def write_summary(chosen: Any, values: Mapping[str, Any]) -> None:
    """summary.json, summary.md, and the results file where one is asked for."""
    folder: Path = chosen.folder
    (folder / "summary.json").write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    (folder / "summary.md").write_text(summary_text(values), encoding="utf-8")
    if chosen.results:
        sys.path.insert(0, str(HERE.parent / "benchmarks"))
        from results_file import write_results

        write_results(chosen.results, values)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where it was")
        raise SystemExit(130) from None
