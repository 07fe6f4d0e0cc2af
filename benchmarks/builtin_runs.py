"""The runs of the built-in model that README and docs quote, one CPU thread each.

    python benchmarks/builtin_runs.py --results                  # every part: results/builtin_PART.json
    python benchmarks/builtin_runs.py --parts demo,lora --results
    python benchmarks/builtin_runs.py --parts rerank --folder runs/builtin

A run that is there already in --folder is not repeated. Everything is seeded: only the seconds depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from results_file import ROOT, add_results_flag, write_results

sys.path.insert(0, str(ROOT / "src"))

import whet
from whet.config.config import merged

THREAD = {"model": {"device": "cpu", "threads": 1}}
TASKS = ("arithmetic", "countdown", "lists")


def trained(folder: Path, name: str, method: str, steps: int | None = None, **settings: Any) -> Any:
    """The run of this name, trained now where it is not there yet."""
    found = folder / name
    if not (found / "run.json").is_file():
        given = {} if steps is None else {"steps": steps}
        whet.train(method, config=merged(merged(THREAD, settings), given), folder=str(found), console=False)
    return whet.load(found)


def evaluated(*words: str) -> dict[str, Any]:
    """What `whet eval WORDS --json` prints."""
    command = [sys.executable, "-m", "whet", "eval", *words, "--set", "model.threads=1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout))


def before_after(run: Any) -> dict[str, Any]:
    """Held-out metrics of a run at its ends."""
    return {"before": numbers(run.before), "after": numbers(run.after)}


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in metrics.items() if isinstance(value, int | float)}


def demo(folder: Path) -> dict[str, Any]:
    """`whet train grpo`, as in the README: the first and the last step, every evaluation, seconds of CPU time."""
    started = time.process_time()
    is_there = (folder / "grpo" / "run.json").is_file()
    run = trained(folder, "grpo", "grpo")
    spent = {} if is_there else {"cpu_s": time.process_time() - started}
    steps = list(run.metrics().to_dict("records"))
    evals = {str(int(row["step"])): numbers(row) for row in run.evals().to_dict("records")}
    return {"evals": evals, "steps": {str(int(row["step"])): numbers(row) for row in (steps[0], steps[-1])}, **spent}


def lora(folder: Path) -> dict[str, Any]:
    """Every weight beside adapters of rank 16, at whet's own rates; and adapters at the rate of full training."""
    adapters = {"model": {"lora": 16}}
    found: dict[str, Any] = {}
    for method, steps in (("grpo", 20), ("dpo", 15), ("rm", 30)):
        full = trained(folder, f"{method}-full", method, steps)
        found[method] = {"steps": steps, "full": before_after(full)}
        found[method]["lora"] = before_after(trained(folder, f"{method}-lora", method, steps, **adapters))
    rate = trained(folder, "grpo-full", "grpo", 20).config["optimizer"]["learning_rate"]
    low = trained(folder, "grpo-lora-low", "grpo", 20, **adapters, optimizer={"learning_rate": rate})
    return {**found, "grpo at the rate of full training": before_after(low)}


def whetstone(folder: Path) -> dict[str, Any]:
    """What the built-in model can do before any training."""
    found = {}
    for task in TASKS:
        greedy = evaluated("whetstone", "--data", f"task:{task}")
        drawn = evaluated("whetstone", "--data", f"task:{task}", "--samples", "8", "--set", "eval.prompts=60")
        found[task] = {"greedy": numbers(greedy), "drawn": numbers(drawn)}
    return found


def preferences(folder: Path) -> dict[str, Any]:
    """Preference training on ready-made pairs and on the policy's own, and the three kinds of reward model."""
    pairs = trained(folder, "dpo", "dpo", 20)
    online = {"preference": {"online": 8}, "batch": {"rows_per_step": 16}}
    found = {"dpo": before_after(pairs), "online": before_after(trained(folder, "dpo-online", "dpo", 12, **online))}
    found["dpo"]["greedy"] = {"before": evaluated("whetstone"), "after": evaluated(str(folder / "dpo"))}
    found.update({kind: before_after(trained(folder, kind, kind)) for kind in ("rm", "orm", "prm")})
    return found


def rerank(folder: Path) -> dict[str, Any]:
    """Sixteen completions per prompt: how well each way to choose among n of them does."""
    for kind in ("rm", "orm", "prm"):
        trained(folder, kind, kind)
    found: dict[str, Any] = {}
    for kind in ("rm", "orm", "prm"):
        told = evaluated("whetstone", "--samples", "16", "--rerank", str(folder / kind))["rerank"]
        for line in told["lines"]:
            name = " ".join(filter(None, (kind if line["scorer"] else "", line["way"], line["aggregate"])))
            found[name] = {str(each["n"]): each["value"] for each in line["values_by_n"]}
        found["prompts"] = told["num_prompts"]
    return found


PARTS = {"demo": demo, "lora": lora, "whetstone": whetstone, "preferences": preferences, "rerank": rerank}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help=", ".join(PARTS))
    parser.add_argument("--folder", type=Path, default=Path("runs/builtin"))
    add_results_flag(parser, "builtin")
    chosen = parser.parse_args()
    unknown = [each for each in chosen.parts.split(",") if each not in PARTS]
    if unknown:
        raise SystemExit(f"--parts {unknown[0]}: give some of {', '.join(PARTS)}, with commas between them")
    for part in chosen.parts.split(","):
        found = PARTS[part](chosen.folder)
        print(f"{part}\n{json.dumps(found, indent=1)}", flush=True)
        if chosen.results:
            write_results(f"{chosen.results}_{part}", found)


if __name__ == "__main__":
    main()
