"""The runs behind the default settings of RL on real models: learning rates by method, model and task.

    python benchmarks/defaults.py --model 0.5B=qwen2.5-coder-0.5b.gguf --data DATA --folder work --workers 5 --results
    python benchmarks/defaults.py --model 0.5B=A.gguf --model 1.5B=B.gguf --data DATA --folder work --seconds 900
    python benchmarks/defaults.py --tiny --folder work                # the built-in model on a CPU: does it work?
    python benchmarks/defaults.py --from benchmarks/runs/defaults.jsonl.xz --results     # the table alone

DATA holds gsm8k/{train,test}.jsonl.gz and code/mbpp.jsonl.gz. A run that is there already in FOLDER is not repeated;
the most telling ones come first, so that a cut sweep is a sweep. Several runs share the GPU: their seconds mean
nothing, their curves do. What is kept of every run lies in benchmarks/runs/defaults.jsonl.xz.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from real_run import mbpp_split
from results_file import ROOT, add_results_flag, write_results
from run_archive import ARCHIVES, PlannedRun, evaluations, make_runs, read_archive, write_archive

from whet.record.metrics.intervals import share_interval

STEPS, EVALS = 50, 2  # steps of a run, evaluations after its start
LONG_EVALS = 4  # of a run with more steps
LONG, FALL_EVERY = 200, 25  # from so many steps on a run is evaluated so often, which shows where it falls
PROMPTS, GROUP = 32, 8
EVAL_PROMPTS, MOST_TOKENS = 400, 512
PASS_TOKENS = 16384  # others have the same GPU's memory
RATES = (1e-6, 3e-6)
TEACHER = "1.5B"  # of the smaller one
TAUGHT_RATES = (1e-5, 3e-6, 3e-5)  # the default first
SFT_RATES = (9e-5, 2e-5)  # the default at 0.5B first
ALTERNATIVES: dict[str, dict[str, Any]] = {  # what else a default says, against the same run with the default
    "no warm-up": {"optimizer": {"warmup_steps": 0}},
    "16 x 16": {"batch": {"prompts_per_step": 16, "group_size": 16}},
    "temperature 0.7": {"sampling": {"temperature": 0.7}},
    "256 tokens": {"sampling": {"max_new_tokens": 256}},
    "no KL": {"objective": {"kl": "none"}},
}
GUARDED: dict[str, dict[str, Any]] = {  # long runs as a user has them: what they do about a fall is left to the default
    "half the rate on a fall": {"health": {"on_problem": {"evaluation_falls": "lower_rate"}}},
    "64 x 8": {"batch": {"prompts_per_step": 64}, "health": {"on_problem": {"evaluation_falls": "lower_rate"}}},
}


@dataclass(frozen=True)
class Plan:
    """One run of the sweep: what differs from a default run."""

    model: str
    task: str
    method: str
    rate: float
    lora: bool = False
    alternative: str = ""
    steps: int = 0  # 0: as many as the command says


def plans() -> Iterator[Plan]:
    """The most telling first."""
    for rate in TAUGHT_RATES:
        yield Plan("0.5B", "gsm8k", "opd_full", rate)
    for method in ("grpo", "dr_grpo"):
        for rate in RATES:
            yield Plan("0.5B", "gsm8k", method, rate)
    for rate in RATES:
        yield Plan("0.5B", "mbpp", "grpo", rate)
    for rate in (1e-5, 5e-5):
        yield Plan("0.5B", "gsm8k", "grpo", rate, lora=True)
    yield Plan("1.5B", "gsm8k", "grpo", 2e-5, lora=True)
    for method in ("rloo", "gspo", "reinforce_pp", "ppo", "dapo"):
        yield Plan("0.5B", "gsm8k", method, RATES[0])
    yield Plan("0.5B", "gsm8k", "dr_grpo", 1e-5)
    for alternative in ALTERNATIVES:
        yield Plan("0.5B", "gsm8k", "grpo", RATES[0], alternative=alternative)
    for method in ("rloo", "gspo", "reinforce_pp", "ppo", "dapo"):
        yield Plan("0.5B", "gsm8k", method, RATES[1])
    yield Plan("1.5B", "gsm8k", "grpo", RATES[0])
    yield Plan("1.5B", "mbpp", "grpo", 2e-5, lora=True)
    for rate in SFT_RATES:
        yield Plan("0.5B", "gsm8k", "sft", rate)
    yield Plan("0.5B", "gsm8k", "dr_grpo", RATES[1], steps=200)
    yield Plan("0.5B", "gsm8k", "opd_full", TAUGHT_RATES[0], steps=80)
    yield Plan("1.5B", "gsm8k", "dr_grpo", RATES[0], steps=80)
    yield Plan("1.5B", "gsm8k", "dr_grpo", 1e-5, lora=True)
    yield Plan("1.5B", "mbpp", "grpo", RATES[0])
    yield Plan("0.5B", "gsm8k", "dr_grpo", RATES[1], alternative="half the rate on a fall", steps=200)
    yield Plan("0.5B", "gsm8k", "dr_grpo", RATES[1], alternative="64 x 8", steps=250)
    yield Plan("0.5B", "gsm8k", "grpo", RATES[1], steps=200)


def planned(
    models: Mapping[str, str],
    data: Path,
    folder: Path,
    seeds: Sequence[int],
    usual_steps: int,
    prompts: int,
    keeps_models: bool,
    tiny: bool,
) -> list[PlannedRun]:
    """Every run of the sweep for the models that are given."""
    if not tiny:
        folder.mkdir(parents=True, exist_ok=True)
        code_train, code_test = mbpp_split(data, folder)
        files = {
            "gsm8k": (f"gsm8k:{data}/gsm8k/train.jsonl.gz", f"gsm8k:{data}/gsm8k/test.jsonl.gz"),
            "mbpp": (f"mbpp:{code_train}", f"mbpp:{code_test}"),
        }
    runs = []
    for seed in seeds:
        for plan in plans():
            model, task, method, rate = plan.model, plan.task, plan.method, plan.rate
            steps = usual_steps if tiny else plan.steps or usual_steps
            taught = method == "opd_full"
            if model not in models or (taught and TEACHER not in models):
                continue
            other = " ".join(filter(None, [plan.alternative, "" if steps == STEPS else f"{steps} steps"]))
            name = "-".join([model, task, method, *(["lora"] if plan.lora else []), f"{rate:g}", *other.split()])
            settings: dict[str, Any] = {
                "seed": seed,
                "steps": steps,
                "model": {"name": models[model], **({"lora": 16} if plan.lora else {})},
                "batch": {"prompts_per_step": PROMPTS, "group_size": GROUP, "micro_batch_tokens": PASS_TOKENS},
                "optimizer": {"learning_rate": rate},
                "sampling": {"max_new_tokens": 48 if tiny else MOST_TOKENS},
                "eval": {
                    "every": max(
                        1, steps // (EVALS if steps <= STEPS else LONG_EVALS if steps < LONG else steps // FALL_EVERY)
                    ),
                    "prompts": prompts,
                },
                "report": {"save": "weights", "save_every": 10**9, "samples_per_step": 0, "weights_dtype": "bf16"},
            }
            if taught:
                settings["teacher"] = {"name": models[TEACHER]}
            if method == "sft":
                settings["batch"] = {"micro_batch_tokens": PASS_TOKENS}
            if tiny:
                settings["eval"]["prompts"] = 20
                settings["batch"] = {"prompts_per_step": 4, "group_size": 4}
                settings["report"]["weights_dtype"] = "training"
                settings["model"] |= {"device": "cpu", "threads": 1}
            else:
                settings["data"] = {"source": files[task][0]}
                settings["eval"]["source"] = files[task][1]
            for section, values in {**ALTERNATIVES, **GUARDED}.get(plan.alternative, {}).items():
                settings[section] = {**settings.get(section, {}), **values}
            tags = {
                "model": model,
                "task": task,
                "method": method,
                "rate": rate,
                "lora": plan.lora,
                "other": other,
            }
            runs.append(PlannedRun(f"{name}-s{seed}", method, settings, {**tags, "seed": seed}, keeps_models))
    return runs


def summary(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """By model, task, method and rate: what happened, as means over the seeds."""
    groups: dict[tuple[str, float, str], list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        tags = record["tags"]
        row = f"{tags['model']}, {tags['task']}, {tags['method']}" + (" with LoRA" if tags["lora"] else "")
        groups[row, tags["rate"], tags["other"]].append(record)
    return {
        ", ".join([row, f"{rate:g}", *([other] if other else [])]): outcome(members)
        for (row, rate, other), members in sorted(groups.items())
    }


def outcome(members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One rate: before, best and last accuracy with their intervals, and what else moved."""
    curves = [curve for record in members if len(curve := evaluations(record)) > 1]
    failed = [record["error"] for record in members if record["error"]]
    steps = [[line for line in record["lines"] if "counts" in line] for record in members]
    divergence = {
        when: fmean(line["metrics"]["teacher_divergence"] for lines in steps for line in lines[part])
        for when, part in (("first", slice(1)), ("last", slice(-5, None)))
        if all("teacher_divergence" in line["metrics"] for lines in steps for line in lines[part])
    }
    taught = {"divergence": {"steps": len(steps[0]), **divergence}} if divergence else {}
    if not curves:
        return {"seeds": len(members), "failed": failed or ["no evaluation"], **taught}
    before, last = (fmean(curve[place][1] for curve in curves) for place in (0, -1))
    best = fmean(max(value for _, value in curve[1:]) for curve in curves)
    shared = sorted(set.intersection(*({at for at, _ in curve} for curve in curves)))  # steps evaluated by every seed
    sizes = [next(line.get("size") for line in record["lines"] if "eval" in line) for record in members]
    prompts = sizes[0] or members[0]["settings"]["eval"]["prompts"]  # older runs do not say how many there were
    trials = len(curves) * prompts
    low, high = share_interval(last, trials)
    last_steps = [
        line for lines in steps for line in lines[-5:] if "truncated" in line["counts"]
    ]  # SFT samples nothing
    sampled = (
        {
            "truncated": sum(line["counts"]["truncated"] for line in last_steps)
            / sum(line["counts"]["samples"] for line in last_steps),
            "entropy": fmean(line["metrics"]["entropy"] for line in last_steps),
        }
        if last_steps
        else {}
    )
    return {
        "seeds": len(curves),
        "steps": curves[0][-1][0],
        "prompts": prompts,
        "before": before,
        "cut_before": fmean(dict(evaluations(record, "truncated"))[0] for record in members if evaluations(record)),
        "last": last,
        "low": low,
        "high": high,
        "best": best,
        "gain": last - before,
        "curve": {str(at): fmean(dict(curve)[at] for curve in curves) for at in shared},
        **sampled,
        **taught,
        **(
            {
                "loss": {
                    name: fmean(evaluations(record, "loss")[at][1] for record in members)
                    for name, at in (("before", 0), ("last", -1))
                }
            }
            if all(evaluations(record, "loss") for record in members)
            else {}
        ),
        **({"failed": failed} if failed else {}),
    }


def table(values: Mapping[str, Any]) -> str:
    """One line a rate."""
    lines = [f"{'run':44}{'before':>8}{'best':>8}{'last':>8}   95% of the last  truncated  entropy  seeds"]
    for name, result in values.items():
        if "last" not in result:
            lines.append(f"{name:44}  failed: {result['failed'][0]}")
            continue
        numbers = "".join(f"{result[key]:8.1%}" for key in ("before", "best", "last"))
        interval = f"{result['low']:.1%} to {result['high']:.1%}"
        lines.append(
            f"{name:44}{numbers}   {interval:15}  {result.get('truncated', 0):9.1%}  {result.get('entropy', 0):7.3f}"
            f"  {result['seeds']:5}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", default=[], metavar="SIZE=FILE", help="0.5B=FILE, 1.5B=FILE")
    parser.add_argument("--data", type=Path, help="the folder with gsm8k/ and code/")
    parser.add_argument("--folder", type=Path, default=Path("work"), help="where runs are kept while they are made")
    parser.add_argument("--workers", type=int, default=1, help="runs side by side")
    parser.add_argument("--seconds", type=float, default=0.0, help="start no run after so long; 0: no limit")
    parser.add_argument("--seeds", default="0", help="seeds, with commas between them")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--prompts", type=int, default=EVAL_PROMPTS, help="held-out ones, at most")
    parser.add_argument("--keep-models", action="store_true", help="leave the run folders, as FOLDER/NAME.run")
    parser.add_argument("--only", default="", help="runs whose name holds this, or one of these: A,B")
    parser.add_argument("--from", dest="archive", type=Path, action="append", help="no runs: what this archive holds")
    parser.add_argument("--tiny", action="store_true", help="six steps of the built-in model, three runs")
    add_results_flag(parser, "defaults")
    chosen = parser.parse_args()
    if chosen.archive:
        records = [record for file in chosen.archive for record in read_archive(file)]
    else:
        models = {"0.5B": "whetstone"} if chosen.tiny else dict(pair.split("=", 1) for pair in chosen.model)
        if not chosen.tiny and (not models or chosen.data is None):
            parser.error("--model SIZE=FILE and --data DATA, or --tiny")
        seeds = [int(seed) for seed in chosen.seeds.split(",")]
        folder = chosen.folder.resolve()
        steps = 6 if chosen.tiny else chosen.steps
        asked = steps, chosen.prompts, chosen.keep_models, chosen.tiny
        runs = planned(models, chosen.data, folder, seeds, *asked)
        runs = [run for run in runs if any(part in run.name for part in chosen.only.split(","))]
        runs = runs[:3] if chosen.tiny else runs
        records = make_runs(runs, folder, chosen.workers, chosen.seconds)
        write_archive(folder / "defaults.jsonl.xz", records)
    values = summary(records)
    print(table(values))
    if chosen.results:
        kinds: dict[str, dict[str, Any]] = {"runs": {}, "sft": {}, "without_evaluation": {}}
        for name, result in values.items():
            kind = "sft" if "loss" in result else "runs" if "last" in result else "without_evaluation"
            kinds[kind][name] = result
        write_results(chosen.results, {**kinds, "eval_prompts": EVAL_PROMPTS}, archived=bool(chosen.archive))
        if not chosen.archive and not chosen.tiny:
            archive = ARCHIVES / f"{chosen.results}.jsonl.xz"
            write_archive(archive, records)
            print(f"wrote {archive.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
