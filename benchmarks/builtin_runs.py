"""The runs of the built-in model that README and docs quote, one CPU thread each.

    python benchmarks/builtin_runs.py --results                  # every part: results/builtin_PART.json
    python benchmarks/builtin_runs.py --parts demo,lora --results
    python benchmarks/builtin_runs.py --parts rerank --folder runs/builtin

A run that is there already in --folder is not repeated, and one that was interrupted goes on. Everything is seeded:
only the seconds depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from results_file import ROOT, add_results_flag, child_environment, write_results
from workers import run_all

sys.path.insert(0, str(ROOT / "src"))
sys.path.insert(0, str(ROOT / "recipes"))

import calculator_agent
import rlhf_smollm2

import whet
from whet.settings.layers import merged

THREAD = {"model": {"device": "cpu", "threads": 1}}
TASKS = ("arithmetic", "countdown", "lists")
LORA_STEPS = {"grpo": 20, "dpo": 15, "rm": 30}
REWARD_MODELS = ("rm", "orm", "prm")


ADAPTERS = {"model": {"lora": 16}}
ONLINE = {"preference": {"online": 8}, "batch": {"rows_per_step": 16}}
# (method, its steps or None for its own, settings)
RUNS: dict[str, tuple[str, int | None, dict[str, Any]]] = {
    "grpo": ("grpo", None, {}),
    **{f"{method}-full": (method, steps, {}) for method, steps in LORA_STEPS.items()},
    **{f"{method}-lora": (method, steps, ADAPTERS) for method, steps in LORA_STEPS.items()},
    "dpo": ("dpo", 20, {}),
    "dpo-online": ("dpo", 12, ONLINE),
    **{kind: (kind, None, {}) for kind in REWARD_MODELS},
}


def trained(folder: Path, name: str) -> Any:
    """The run of this name, trained now where it is not there yet."""
    method, steps, settings = RUNS[name]
    options = {} if steps is None else {"steps": steps}
    return trained_as(folder, name, method, merged(settings, options))


def trained_as(folder: Path, name: str, method: str, settings: Mapping[str, Any]) -> Any:
    """The run of that name: loaded where it is finished, else trained."""
    run_folder = folder / name
    if (run_folder / "run.json").is_file():
        run = whet.load(run_folder)
        return run if run.status == "finished" else whet.resume(run_folder, console=False)
    return whet.train(method, config=merged(THREAD, settings), folder=str(run_folder), console=False)


def evaluated(folder: Path, *words: str) -> dict[str, Any]:
    """What `whet eval WORDS --json` prints; its completions stay in the folder."""
    command = [sys.executable, "-m", "whet", "eval", *words, "--set", "model.threads=1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=child_environment())
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout))


def before_after(run: Any) -> dict[str, Any]:
    """Held-out metrics of a run at its ends."""
    return {"before": numbers(run.before), "after": numbers(run.after)}


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are numbers."""
    return {key: float(value) for key, value in metrics.items() if isinstance(value, int | float)}


def demo(folder: Path) -> dict[str, Any]:
    """`whet train grpo`, as in the README: the first and the last step, every evaluation, seconds of CPU time."""
    started = time.process_time()
    is_there = (folder / "grpo" / "run.json").is_file()
    run = trained(folder, "grpo")
    spent = {} if is_there else {"cpu_s": time.process_time() - started}
    steps = list(run.metrics().to_dict("records"))
    evals = {str(int(row["step"])): numbers(row) for row in run.evals().to_dict("records")}
    return {"evals": evals, "steps": {str(int(row["step"])): numbers(row) for row in (steps[0], steps[-1])}, **spent}


def lora(folder: Path) -> dict[str, Any]:
    """Every weight beside adapters of rank 16, at whet's own rates; and adapters at the rate of full training."""
    values: dict[str, Any] = {}
    for method, steps in LORA_STEPS.items():
        sides = {kind: before_after(trained(folder, f"{method}-{kind}")) for kind in ("full", "lora")}
        values[method] = {"steps": steps, **sides}
    rate = trained(folder, "grpo-full").config["optimizer"]["learning_rate"]
    settings = {**ADAPTERS, "steps": LORA_STEPS["grpo"], "optimizer": {"learning_rate": rate}}
    low = trained_as(folder, "grpo-lora-low", "grpo", settings)
    return {**values, "grpo at the rate of full training": before_after(low)}


def whetstone(folder: Path) -> dict[str, Any]:
    """What the built-in model can do before any training."""
    values = {}
    for task in TASKS:
        greedy = evaluated(folder, "whetstone", "--data", f"task:{task}")
        drawn = evaluated(folder, "whetstone", "--data", f"task:{task}", "--samples", "8", "--set", "eval.prompts=60")
        values[task] = {"greedy": numbers(greedy), "drawn": numbers(drawn)}
    return values


def preferences(folder: Path) -> dict[str, Any]:
    """Preference training on ready-made pairs and on the policy's own, and the three kinds of reward model."""
    values = {"dpo": before_after(trained(folder, "dpo")), "online": before_after(trained(folder, "dpo-online"))}
    return {**values, **{kind: before_after(trained(folder, kind)) for kind in REWARD_MODELS}}


def rerank(folder: Path) -> dict[str, Any]:
    """Sixteen completions per prompt: how well each way to choose among n of them does."""
    values: dict[str, Any] = {}
    for kind in REWARD_MODELS:
        trained(folder, kind)
        told = evaluated(folder, "whetstone", "--samples", "16", "--rerank", str(folder / kind))["rerank"]
        for line in told["lines"]:
            name = " ".join(filter(None, (kind if line["scorer"] else "", line["way"], line["aggregate"])))
            values[name] = {str(point["n"]): point["value"] for point in line["values_by_n"]}
        values["prompts"] = told["num_prompts"]
    return values


def overoptimization(folder: Path) -> dict[str, Any]:
    """`whet pipeline overoptimization`: what it found, and its figure."""
    from whet.tools.pipelines.overoptimization import FIGURE, VALUES

    (curves,) = piped("overoptimization", folder).glob("*-curves")
    shutil.copyfile(curves / FIGURE, ROOT / "docs" / "images" / FIGURE)
    findings = json.loads((curves / VALUES).read_text())["findings"]
    return {
        str(number): {key: finding[key] for key in finding if key != "points"}
        for number, finding in enumerate(findings)
    }


def rlhf(folder: Path) -> dict[str, Any]:
    """`whet pipeline rlhf`: the reward models, and every way against the imitating policy."""
    return rlhf_smollm2.seed_values(piped("rlhf", folder))


TIES = (0.04, 0.1, 0.2, 0.4, 1.0, 2.0, 4.0)


def rlhf_ties(folder: Path) -> dict[str, Any]:
    """`whet pipeline rlhf` with weights of the KL from the methods' own on: accuracy and KL of each way, over seeds."""
    values: dict[str, Any] = {}
    for beta in TIES:
        seeds = []
        for seed in AGENT_SEEDS:
            settings = {"compare": ["grpo", "ppo"], "kl_beta": beta, "seed": seed}
            found = rlhf_smollm2.seed_values(piped("rlhf", folder, f"rlhf-tie-{beta:g}-s{seed}", settings))
            ends = {"start": found["start"], **found["ways"]}
            measured = {
                way: {key: end[key]["value"] for key in ("accuracy", "kl") if end[key]} for way, end in ends.items()
            }
            seeds.append(measured)
        values[f"{beta:g}"] = spread(seeds)
    return {"seeds": len(AGENT_SEEDS), "ties": values}


def phased(folder: Path) -> dict[str, Any]:
    """`whet pipeline phased`: both metrics after each phase, and what was kept."""
    stages = rlhf_smollm2.results_of(piped("phased", folder))
    values: dict[str, Any] = {}
    for name, stage in stages.items():
        if name.endswith("-measured"):
            rates = {key: stage["measured"][key] for key in ("pair_accuracy", "win_rate", "kl")}
            task = {"value": stage["task_value"], "prompts": stage["eval_prompts"]}
            values[name.removesuffix("-measured").replace("-", "_")] = {**rates, stage["task_metric"]: task}
    values["judge"] = {**stages["judge-model"]["metrics"], "interval": stages["judge-model"]["interval"]}
    return {**values, "findings": stages["check"]["findings"]}


def composed(name: str, folder: Path) -> dict[str, Any]:
    """A pipeline of library stages: what each eval measured (value, low, high), what votes were worth, what it said."""
    stages = rlhf_smollm2.results_of(piped(name, folder))
    values: dict[str, Any] = {}
    for stage, result in stages.items():
        if "sets" in result:
            measured = {key: list(value) for key, value in result["sets"]["all"].items() if key != "prompts"}
            values[stage.replace("-", "_")] = {"prompts": result["eval_prompts"], **measured}
        elif result.get("metrics"):
            values[stage.replace("-", "_")] = result["metrics"]
        elif result.get("counts"):
            values[stage.replace("-", "_")] = result["counts"]
    return values


def distill(folder: Path) -> dict[str, Any]:
    """`whet pipeline distill`."""
    return composed("distill", folder)


# a model that keeps its layers and sees next to nothing but demonstrations beside their prompts
READING = {"teacher": "whetstone", "student": {"layers": 3}, "warm_rows": 1, "compare": ["traces"]}
READING |= {"traces": {"prompts": 8}, "imitate": {"epochs": 1.0}}
SELF_TAUGHT = {
    "steps": 40,
    "data": {"source": "task:arithmetic", "count": 512},
    "sampling": {"max_new_tokens": 64},
    "batch": {"group_size": 1, "prompts_per_step": 32},
    "optimizer": {"learning_rate": 1e-3},
    "objective": {"baseline": "none", "teacher": "reverse_kl"},
    "teacher": {"top_k": 100, "template": "{prompt}\n{text}"},
}


def self_teaching(folder: Path) -> dict[str, Any]:
    """`sdft` on the built-in model as it is, and on one that has learned to use a demonstration that it reads."""
    reader = next(piped("distill", folder, "reading", READING).glob("*-warm-student/run"))
    values = {}
    for name, model in (("as_it_is", "whetstone"), ("reading", str(reader))):
        run = trained_as(folder, f"sdft-{name}", "sdft", merged(SELF_TAUGHT, {"model": {"name": model}}))
        said = json.loads((Path(run.folder) / "run.json").read_text())["facts"]["teacher"]
        read, unread = (float(nats) for nats in re.findall(r"(-[\d.]+)(?: nats per token| unread)", said))
        values[name] = {**before_after(run), "nats_read": read, "nats_unread": unread}
    return values


def r1(folder: Path) -> dict[str, Any]:
    """`whet pipeline r1`."""
    return composed("r1", folder)


def r1_zero(folder: Path) -> dict[str, Any]:
    """`whet pipeline r1_zero`."""
    return composed("r1_zero", folder)


def rejection(folder: Path) -> dict[str, Any]:
    """`whet pipeline rejection`."""
    return composed("rejection", folder)


def ttrl(folder: Path) -> dict[str, Any]:
    """`whet pipeline ttrl`."""
    return composed("ttrl", folder)


RATES = tuple(float(f"{1e-4 * 10 ** (third / 3):.2g}") for third in range(-3, 4))
HELD_UP = ("dpop", "rpo", "rpo_iterative", "simpo")  # against likelihood displacement, or without a reference
COMPARED = ("dpo", "rpo_iterative")
THREE_ROUNDS = {"rounds": 3, "stop": False}


def self_rewarding(folder: Path) -> dict[str, Any]:
    """`whet pipeline self_rewarding` over three rounds: rates over two decades, and methods that hold the chosen up."""
    first = piped("self_rewarding", folder, settings=merged(THREE_ROUNDS, {"method": "dpo"}))
    values = {"dpo, seed 0": by_round(first)}
    others: dict[str, dict[str, Any]] = {f"{method}, seed 0": {"method": method} for method in HELD_UP}
    others |= {f"{method}, seed {seed}": {"method": method, "seed": seed} for method in COMPARED for seed in (1, 2)}
    others |= {
        f"dpo, rate {rate:g}": {"method": "dpo", "train": {"optimizer": {"learning_rate": rate}}} for rate in RATES
    }
    for name, changes in others.items():
        own_name = f"self_rewarding-{name}".replace(", ", "-").replace(" ", "-")
        if not (folder / own_name).exists():  # what comes before the first training is taken over
            shutil.copytree(first, folder / f"{own_name}.part", dirs_exist_ok=True)
            (folder / f"{own_name}.part").rename(folder / own_name)
        values[name] = by_round(piped("self_rewarding", folder, own_name, merged(THREE_ROUNDS, changes)))
    return values


def by_round(run_folder: Path) -> dict[str, Any]:
    """Greedy accuracy before the first round and after each, and what the last check says."""
    stages = rlhf_smollm2.results_of(run_folder)
    evals = {"0": "eval0"} | {str(number): f"round{number}-eval" for number in (1, 2, 3)}
    rounds = {key: list(stages[stage]["sets"]["all"]["accuracy"]) for key, stage in evals.items() if stage in stages}
    return {"rounds": rounds, "collapsed": "COLLAPSE" in stages["round3-collapse"]["summary"]}


def piped(name: str, folder: Path, own_name: str = "", settings: Mapping[str, Any] | None = None) -> Path:
    """The folder of a finished pipeline, with its own settings unless others are given; what is done in it is kept."""
    from whet.tools.pipelines.runner import run_pipeline

    run_folder = folder / (own_name or name)
    run_pipeline(name, merged(THREAD, settings or {}), {"folder": str(run_folder)})
    return run_folder


SHARED = "shared_tokens"
AGENT_SEEDS = (0, 1, 2)
GAME = {
    "env": {"name": f"{ROOT / 'examples' / 'guessing.py'}:Guessing", "max_tokens": 64},
    "data": {"source": "seeds:1000"},
    "sampling": {"max_new_tokens": 8},
    "batch": {"prompts_per_step": 32},
    "objective": {"kl": "none"},
    "optimizer": {"learning_rate": 5e-4},
    "eval": {"every": 0, "prompts": 100},
    "steps": 40,
}


def agents(folder: Path) -> dict[str, Any]:
    """Episodes of several turns: a calculator that is needed, the same without it (one seed), and a game."""
    run_folder = folder / "calculator_agent"
    imitated = calculator_agent.imitation(run_folder, console=False)
    values: dict[str, Any] = {"sft": {"steps": imitated.steps}}
    for kind, seeds in (("plain", AGENT_SEEDS), ("no_tool", AGENT_SEEDS[:1])):
        values[kind] = over_seeds(
            [calculator_agent.reinforcement(run_folder, seed, kind, console=False) for seed in seeds]
        )
    game = [trained_as(folder, f"guessing-seed{seed}", "grpo", merged(GAME, {"seed": seed})) for seed in AGENT_SEEDS]
    return {**values, "game": over_seeds(game)}


def calls(folder: Path) -> dict[str, Any]:
    """A model that calls twice where once is enough: right answers alone, and efficiency too."""
    run_folder = folder / "calculator_agent"
    calculator_agent.wasteful_imitation(run_folder, console=False)
    return {
        kind: over_seeds(
            [calculator_agent.reinforcement(run_folder, seed, kind, console=False) for seed in AGENT_SEEDS]
        )
        for kind in ("wasteful", "efficient")
    }


# as many leaves for each prompt: 8 episodes, or 4 that branch once; all else is equal
TREES: dict[str, tuple[str, dict[str, Any]]] = {
    "separate": ("rloo_turns", {"batch": {"group_size": 8, "prompts_per_step": 16}}),
    "branching": ("rloo_tree", {"batch": {"group_size": 4, "prompts_per_step": 16}, "env": {"leaves": 2}}),
}


def trees(folder: Path) -> dict[str, Any]:
    """The game with separate episodes and with episodes that branch: what they learn, and the tokens it takes."""
    values: dict[str, Any] = {}
    for name, (method, settings) in TREES.items():
        game = merged({key: part for key, part in GAME.items() if key != "objective"}, settings)
        runs = [
            trained_as(folder, f"trees-{name}-seed{seed}", method, merged(game, {"seed": seed})) for seed in AGENT_SEEDS
        ]
        values[name] = {**over_seeds(runs), "written": spread([written(run) for run in runs])}
    separate, branching = (values[name]["written"]["tokens_per_leaf"]["mean"] for name in TREES)
    return {**values, "tokens_per_leaf": branching / separate}


def written(run: Any) -> dict[str, float]:
    """Over all steps: leaves, tokens that were written, and of all tokens of the leaves the share that was not."""
    steps = [numbers(step) for step in run.metrics().to_dict("records")]
    leaves, tokens, shared = (sum(step.get(name, 0.0) for step in steps) for name in ("samples", "tokens", SHARED))
    return {
        "leaves": leaves,
        "tokens": tokens,
        "tokens_per_leaf": tokens / leaves,
        "shared": shared / (tokens + shared),
    }


def over_seeds(runs: list[Any]) -> dict[str, Any]:
    """Greedy metrics before and after each run, the drawn episodes of its first and last step, and means over the runs.

    The first step's episodes are drawn from the model that was never rewarded.
    """
    seeds = {}
    for run in runs:
        steps = [numbers(step) for step in run.metrics().to_dict("records")]
        ends = {"first_step": episode_means(steps[0]), "last_step": episode_means(steps[-1])}
        seeds[str(run.config["seed"])] = {**before_after(run), **ends, "seconds": seconds_of(run)}
    return {"steps": runs[0].steps, "runs": len(runs), "seeds": seeds, **spread(list(seeds.values()))}


def episode_means(step: Mapping[str, float]) -> dict[str, float]:
    """Means over the episodes of a step: reward, turns and calls."""
    rewarded = step.get("reward.exact_answer", step["reward"])
    counted = {name: step[name] / step["samples"] for name in ("turns", "tool_calls") if name in step}
    return {"accuracy": rewarded, **counted}


def spread(values: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean, least and most over seeds, of every number that all of them have."""
    spreads: dict[str, Any] = {}
    for key in values[0]:
        if not all(key in value for value in values):
            continue
        inner = [value[key] for value in values]
        if isinstance(inner[0], Mapping):
            spreads[key] = spread([dict(inner_values) for inner_values in inner])
        else:
            spreads[key] = {"mean": fmean(inner), "least": min(inner), "most": max(inner)}
    return spreads


def seconds_of(run: Any) -> float:
    """What the steps of a run took."""
    return float(sum(step["seconds"] for step in run.metrics().to_dict("records")))


PARTS = {
    "demo": demo,
    "lora": lora,
    "whetstone": whetstone,
    "preferences": preferences,
    "rerank": rerank,
    "overoptimization": overoptimization,
    "rlhf": rlhf,
    "rlhf_ties": rlhf_ties,
    "phased": phased,
    "distill": distill,
    "self_teaching": self_teaching,
    "self_rewarding": self_rewarding,
    "r1": r1,
    "r1_zero": r1_zero,
    "rejection": rejection,
    "ttrl": ttrl,
    "agents": agents,
    "calls": calls,
    "trees": trees,
}
NEEDS = {
    "lora": [name for name in RUNS if name.endswith(("-full", "-lora"))],
    "preferences": ["dpo", "dpo-online", *REWARD_MODELS],
    "rerank": REWARD_MODELS,
}


def prepare(folder: Path, name: str) -> None:
    """Train a run that others start from."""
    trained(folder, name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help=", ".join(PARTS))
    parser.add_argument("--folder", type=Path, default=Path("runs/builtin"))
    parser.add_argument("--workers", type=int, default=1, help="runs side by side")
    add_results_flag(parser, "builtin")
    chosen = parser.parse_args()
    unknown = [part for part in chosen.parts.split(",") if part not in PARTS]
    if unknown:
        raise SystemExit(f"--parts {unknown[0]}: give some of {', '.join(PARTS)}, with commas between them")
    parts, folder = chosen.parts.split(","), chosen.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if chosen.workers > 1:
        names = dict.fromkeys(name for part in parts for name in NEEDS.get(part, ()))
        run_all(prepare, [(folder, name) for name in names], chosen.workers)
    for part in parts:
        values = PARTS[part](folder)
        print(f"{part}\n{json.dumps(values, indent=1)}", flush=True)
        if chosen.results:
            write_results(f"{chosen.results}_{part}", values)


if __name__ == "__main__":
    main()
