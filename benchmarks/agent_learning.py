"""Agents that learn, on a real model: GSM8K with a calculator, with Python and without, search, BFCL, a game.

    python benchmarks/agent_learning.py --model qwen2.5-coder-0.5b.gguf --data DATA --jobs 3 --results
    python benchmarks/agent_learning.py --model FILE --data DATA --runs calculator,none --seeds 0,1,2 --results
    python benchmarks/agent_learning.py --data DATA --commands              # the command lines, and no run
    python benchmarks/agent_learning.py --tiny --data DATA --runs calculator    # two short steps of SmolLM2 on a CPU
    python benchmarks/agent_learning.py --from benchmarks/runs/agent_learning.jsonl.xz --results    # the table alone

DATA holds gsm8k/{train,test}.jsonl.gz and math/asdiv.jsonl.gz; `bfcl` needs bfcl-eval, `game` textarena, `search` bm25s.
Every run is one `whet train` command. A run that is there already in FOLDER is not repeated, and the results are
written from what is there, so that a cut sweep is a sweep. Several runs share the GPU: `seconds` are what they took
side by side. What is kept of every run lies in benchmarks/runs/agent_learning.jsonl.xz; the episodes that it showed are
FOLDER/NAME.samples.jsonl.

`none`, `calculator`, `python`   GSM8K, equal steps and prompts; reward: the boxed answer
`search`    questions of ASDiv whose stories are left out: they are the corpus. 895 questions whose story is the best
            match of the question's own words, 200 of them held out; reward: the boxed answer
`bfcl`      multi-turn tasks of the function-calling leaderboard: those with an even number to learn from, the others
            to test on; reward: the share of requests that are met before the first that is not
`game`      TextArena's GuessTheNumber, ten guesses between 1 and 20; reward: the game's own
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from results_file import ROOT, add_results_flag, write_results
from run_archive import ARCHIVES, PlannedRun, evaluations, make_runs, read_archive, write_archive

from whet.record.metrics.intervals import share_interval

STEPS = 50
EVAL_PROMPTS = 300
HELD_OUT = 200  # questions on stories
FAILED = ("malformed_calls", "unknown_tools", "tool_errors", "tool_timeouts")
FLAGS = {"data.source": "--data", "env.name": "--env", "env.tools": "--tool", "model.name": "--model"}
NUMBER = re.compile(r"(-?\d[\d,]*(?:\.\d+)?)\s*(?:\(.*\))?")

EXAMPLE = "Tom has 12 red and 3 blue boxes with 4 pens each. How many pens does he have?"
CALCULATOR = f"""Solve problems with a calculator. Reply with one block that holds the sum, and nothing else. You are \
then told its result. Then write the answer as \\boxed{{60}}.
An example. User: {EXAMPLE}
You:
```calculator
(12 + 3) * 4
```
User: 60
You: \\boxed{{60}}"""
PYTHON = f"""Solve problems with Python. Reply with one block of code that prints the answer, and nothing else. You are \
then told what it printed. Then write the answer as \\boxed{{60}}.
An example. User: {EXAMPLE}
You:
```python
boxes = 12 + 3
print(boxes * 4)
```
User: 60
You: \\boxed{{60}}"""
SEARCH = """Questions are about stories that you have to look up. Reply with one block of words to search for, and nothing \
else. You are then shown the stories that match. Then work out the answer and write it as \\boxed{12}.
An example. User: How many pens does Tom have now?
You:
```search
Tom pens now
```
User: [7] Tom had 15 pens. He gave away 3 of them.
You: 15 - 3 = 12, so the answer is \\boxed{12}."""
BLOCK_END = "\n```\n"  # ends a turn behind its call


def stories(data: Path, folder: Path) -> tuple[Path, Path, Path]:
    """(corpus, training questions, held-out questions) of ASDiv: what a question is about has to be searched for."""
    from whet.envs.tools.search import CorpusDocument, searcher

    with gzip.open(data / "math" / "asdiv.jsonl.gz", "rt", encoding="utf-8") as stream:
        problems = [json.loads(line) for line in stream]
    texts: dict[str, int] = {}  # to the number that the tool shows
    questions = []
    for problem in problems:
        text, answer = " ".join(problem["body"].split()), NUMBER.fullmatch(problem["answer"].strip())
        if answer is not None and len(text.split()) >= 5:
            number = texts.setdefault(text, len(texts) + 1)
            questions.append((number, problem["question"].strip(), answer[1].replace(",", "")))
    search = searcher([CorpusDocument(text) for text in texts], 1)
    answerable = [question for question in questions if search(question[1]).startswith(f"[{question[0]}] ")]
    folder.mkdir(parents=True, exist_ok=True)
    files = folder / "corpus.jsonl", folder / "stories_train.jsonl", folder / "stories_test.jsonl"
    # every question on a story that is tested is held out, so that no story is in both
    share = max(2, len(answerable) // HELD_OUT)
    held_out = [question for question in answerable if question[0] % share == 0]
    learned = [question for question in answerable if question[0] % share]
    _write(files[0], ({"text": text} for text in texts))
    for file, part in ((files[1], learned), (files[2], held_out)):
        _write(file, ({"prompt": question, "answer": answer} for _, question, answer in part))
    return files


def halves(folder: Path) -> tuple[Path, Path]:
    """BFCL's multi-turn tasks by name: the even ones, the odd ones. Neighbours are alike, so both halves are."""
    files = folder / "bfcl_even.jsonl", folder / "bfcl_odd.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    for file, first in zip(files, (0, 1), strict=True):
        _write(file, ({"prompt": "", "task": f"multi_turn_base_{number}"} for number in range(first, 200, 2)))
    return files


def _write(file: Path, rows: Iterator[Mapping[str, Any]]) -> None:
    file.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), "utf-8")


def settings_of(run: str, data: Path, folder: Path) -> dict[str, Any]:
    """A run's settings, without model, seed and steps."""
    told = {"call_format": "loose", "instructions": False}  # the system prompt says how to call
    if run in ("none", "calculator", "python"):
        gsm8k = {
            "data": {"source": f"gsm8k:{data}/gsm8k/train.jsonl.gz"},
            "eval": {"source": f"gsm8k:{data}/gsm8k/test.jsonl.gz"},
            "sampling": {"max_new_tokens": 400},
        }
        if run == "none":
            return gsm8k
        gsm8k["data"]["system_prompt"] = CALCULATOR if run == "calculator" else PYTHON
        gsm8k["sampling"]["stop"] = [BLOCK_END]
        return gsm8k | {"env": {"tools": [run], **told, "max_turns": 4, "max_tokens": 1000}}
    if run == "search":
        corpus, train, test = stories(data, folder)
        return {
            "data": {"source": str(train), "as_chat": True, "system_prompt": SEARCH},
            "eval": {"source": str(test)},
            "reward": {"parts": [{"reward": "math_answer"}]},
            "sampling": {"max_new_tokens": 250, "stop": [BLOCK_END]},
            "env": {
                "tools": ["search"],
                "tool_settings": {"search": {"corpus": str(corpus), "k": 3}},
                **told,
                "max_turns": 4,
                "max_tokens": 1000,
            },
        }
    if run == "bfcl":
        train, test = halves(folder)
        return {
            "data": {"source": str(train), "as_chat": True},
            "eval": {"source": str(test)},
            "batch": {"prompts_per_step": 8},
            "sampling": {"max_new_tokens": 200},
            "env": {
                "name": "bfcl",
                "settings": {"partial": True},
                "call_format": "loose",
                "max_turns": 16,
                "max_tokens": 4000,
            },
        }
    return {
        "data": {"source": "seeds:2000"},
        "sampling": {"max_new_tokens": 100},
        "env": {"name": "textarena", "settings": {"id": "GuessTheNumber-v0"}},
    }


RUNS = ("calculator", "none", "search", "game", "python", "bfcl")  # the most telling first


def planned(
    chosen: Sequence[str], model: str, data: Path, folder: Path, seeds: Sequence[int], steps: int, tiny: bool
) -> list[PlannedRun]:
    """Every run, seed by seed."""
    plans = []
    for seed in seeds:
        for run in chosen:
            settings = settings_of(run, data, folder / "data")
            settings = {"model": {"name": model}, "steps": steps, "seed": seed, **settings}
            settings["batch"] = {"prompts_per_step": 16, "group_size": 8, **settings.get("batch", {})}
            settings["eval"] = {"every": -(-steps // 2), "prompts": EVAL_PROMPTS, **settings.get("eval", {})}
            settings["optimizer"] = {"learning_rate": 3e-6}
            settings["report"] = {
                "save": "weights",
                "save_every": 10**9,
                "weights_dtype": "training" if tiny else "bf16",
            }
            if tiny:
                settings["eval"]["prompts"] = 4
                settings["batch"] |= {"prompts_per_step": 2, "group_size": 2}
                settings["sampling"]["max_new_tokens"] = 32
                settings["model"]["device"] = "cpu"
            plans.append(PlannedRun(f"{run}-s{seed}", "grpo", settings, {"run": run, "seed": seed}))
    return plans


def command_line(plan: PlannedRun) -> str:
    """The `whet train` command of a run."""
    words = ["whet", "train", plan.method]
    for key, value in _flat(plan.settings):
        if key in FLAGS:
            for member in value if isinstance(value, list) else [value]:
                words += [FLAGS[key], str(member)]
        elif key == "reward.parts":
            words += [word for part in value for word in ("--reward", part["reward"])]
        elif key in ("steps", "seed"):
            words += [f"--{key}", str(value)]
        else:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            words += ["--set", f"{key}={text}"]
    return shlex.join(words)


def _flat(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def summary(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """By run: what was held out before and after, and what the episodes of the first and last steps did."""
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        groups[record["tags"]["run"]].append(record)
    return {run: outcome(groups[run]) for run in RUNS if run in groups}


def outcome(members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over the seeds; intervals are of the prompts of all seeds together."""
    made = [record for record in members if len(evaluations(record)) > 1]
    failed = [record["error"] for record in members if record["error"]]
    if not made:
        return {"seeds": 0, "failed": failed or ["no evaluation"]}
    values: dict[str, Any] = {"seeds": len(made), "steps": evaluations(made[0])[-1][0]}
    prompts = sum(next(line["size"] for line in record["lines"] if line.get("eval") == "eval") for record in made)
    for when, position in (("before", 0), ("after", -1)):
        accuracy = fmean(evaluations(record)[position][1] for record in made)
        low, high = share_interval(accuracy, prompts)
        values[when] = {"accuracy": accuracy, "low": low, "high": high}
        for metric in ("reward", "tool_calls", "turns", "truncated", "requests_met"):
            curves = [evaluations(record, metric) for record in made]
            if all(curves):
                values[when][metric] = fmean(curve[position][1] for curve in curves)
    values["prompts"] = prompts
    values["each_seed"] = [[value for _, value in evaluations(record)] for record in made]
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
        f"{'cut':>14}{'seconds':>9}  seeds"
    ]
    for run, result in values.items():
        if "after" not in result:
            lines.append(f"{run:11} failed: {result['failed'][0]}")
            continue
        before, after, first, last = (result[key] for key in ("before", "after", "first_steps", "last_steps"))
        interval = f"{after['low']:.1%} to {after['high']:.1%}"
        moved = [f"{first[key]:.2f} -> {last[key]:.2f}" for key in ("calls", "failed_calls", "truncated")]
        reward = f"{before['reward']:.3f} -> {after['reward']:.3f}"
        lines.append(
            f"{run:11}{before['accuracy']:8.1%}{after['accuracy']:8.1%}  {interval:15}{reward:>16}"
            f"{''.join(f'{text:>14}' for text in moved)}{result['seconds']:9.0f}  {result['seeds']}"
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
        plans = planned(runs, model, chosen.data.resolve(), folder, seeds, steps, chosen.tiny)
        for plan in plans if chosen.commands else ():
            print(command_line(plan))
        if chosen.commands:
            return
        records = make_runs(plans, folder, chosen.jobs, chosen.seconds, chosen.timeout)
        write_archive(folder / "agent_learning.jsonl.xz", records)
    values = summary(records)
    print(table(values))
    if chosen.results:
        write_results(chosen.results, {"runs": values, "model": Path(chosen.model or "").name})
        if not chosen.archive and not chosen.tiny:
            write_archive(ARCHIVES / "agent_learning.jsonl.xz", records)
            print(f"wrote {(ARCHIVES / 'agent_learning.jsonl.xz').relative_to(ROOT)}")


if __name__ == "__main__":
    main()
