"""Make the corpus of runs that the doctor is measured on: real training runs, healthy ones and ones with a fault.

    python benchmarks/doctor/make_corpus.py --out corpus --workers 16                      # the built-in model, CPU
    python benchmarks/doctor/make_corpus.py --out corpus --device cuda --model smollm2 --workers 6
    python benchmarks/doctor/make_corpus.py --out corpus --quick --only healthy-grpo       # a few short ones

Every run is a process of its own with a time limit. A run that is there already is not repeated, so that an
interrupted command goes on; `--seconds` starts no run any more after so long. Each run becomes OUT/runs/NAME.json.xz
(see `compact`), and all of them OUT/corpus-PART.jsonl.xz, one line per run.
"""

from __future__ import annotations

import argparse
import json
import lzma
import multiprocessing
import os
import random
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import transformers.models.llama.modeling_llama
import transformers.models.qwen3_moe.modeling_qwen3_moe  # noqa: F401  once here, not in every process
from catalogue import HEALTHY, PlannedRun, faulty, healthy, real
from outside import OUT, outside_faulty, outside_healthy, write_outside_data
from outside_plants import ENGINES as OUTSIDE_ENGINES
from plants import ENGINES, STEP, is_right, repeated_share
from split_corpus import rounded

import whet
import whet.training.assembly.rl
from whet.api import training  # noqa: F401
from whet.data.tasks import TASKS
from whet.data.tasks.contrast import contrasts
from whet.record.log import METRICS
from whet.training.assembly import assembly
from whet.types import RunFailed

ROOT = Path(__file__).resolve().parents[2]
QUICK_STEPS = 4
DIGITS = 5  # of a number in the corpus
FEWEST = 6  # steps that a run must have to be one


class Watcher:
    """A callback: tells the plants which step it is, and writes down what the rewards do not say.

    Of every step: how often the completions are right, whatever pays; how much of them is repeated; how many differ.
    """

    def __init__(self) -> None:
        self.seen: dict[int, dict[str, Any]] = {}
        os.environ[STEP] = "0"

    def stepped(self, report: Any, samples: Sequence[Any]) -> None:
        os.environ[STEP] = str(report.step)
        if not samples:
            return
        texts = [sample.completion for _, sample in samples]
        self.seen[report.step] = {
            "right": fmean(is_right(prompt, sample.completion) for prompt, sample in samples),
            "repeated": fmean(map(repeated_share, texts)),
            "distinct": len({(prompt.id, text) for (prompt, _), text in zip(samples, texts, strict=True)}) / len(texts),
            "rewards": [None if sample.reward is None else rounded(sample.reward, DIGITS) for _, sample in samples],
            "tokens": [sample.num_actions for _, sample in samples],
        }


def train(planned: PlannedRun, out: Path, models: Mapping[str, str], quick: bool) -> None:
    """Train one run and write what is kept of it."""
    folder = out / "work" / file_name(planned.name)
    shutil.rmtree(folder, ignore_errors=True)
    settings: dict[str, Any] = json.loads(json.dumps(planned.settings).replace(f"{OUT}/", f"{out}/"))
    if quick:
        settings["steps"] = QUICK_STEPS
        for size, most in (("prompts_per_step", 3), ("group_size", 4), ("rows_per_step", 8)):
            if size in settings["batch"]:
                settings["batch"][size] = min(most, settings["batch"][size])
    if planned.model != "whetstone":
        settings["model"]["name"] = models[planned.model]
    if planned.data:
        settings.setdefault("data", {})
        settings["data"] = {key: settings["data"][key] for key in ("columns",) if key in settings["data"]}
        settings["data"]["source"] = str(out / "data" / f"{planned.data}.jsonl")
        if planned.data.startswith("pairs-"):
            settings["eval"]["source"] = str(out / "data" / "pairs-eval.jsonl")
    os.environ.update(planned.environment)
    torch.set_num_threads(1)
    for name, engine in {**ENGINES, **OUTSIDE_ENGINES}.items():
        whet.register("engine", engine, name=name)
    if planned.patch:
        patched(planned.patch)
    told = settings_told()
    settings.setdefault("health", {"on_problem": {"evaluation_falls": "report"}})  # a run to its end, whatever it does
    watcher, began, error = Watcher(), time.monotonic(), ""
    try:
        whet.train(planned.method, config=settings, folder=str(folder), callbacks=[watcher], console=False)
    except (whet.WhetError, RunFailed) as failure:  # a run that died of its fault is a run
        error = str(failure).replace(str(out), "OUT").replace(str(ROOT), "")[:300]
    lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()] if folder.exists() else []
    summary_file = folder / "run.json"
    summary = json.loads(summary_file.read_text()) if summary_file.exists() else {}
    record = {
        **asdict(planned),
        "settings": without_folders(settings),
        "status": "failed" if error else "finished",
        "error": error,
        "seconds": time.monotonic() - began,
        "dtype": summary.get("facts", {}).get("dtype", "float32"),
        "facts": without_folders(summary.get("facts", {})),
        "health_settings": without_folders(told),
        "objective": summary.get("objective", []),
        "lines": [compact(line, watcher.seen) for line in lines],
    }
    target = out / "runs" / f"{file_name(planned.name)}.json.xz"
    beside = target.with_suffix(".part")
    beside.write_bytes(lzma.compress(json.dumps(rounded(record, DIGITS)).encode()))
    beside.replace(target)
    if not os.environ.get("WHET_CORPUS_KEEP"):
        shutil.rmtree(folder, ignore_errors=True)


def compact(line: Mapping[str, Any], seen: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """A line of metrics.jsonl as it was, but for `health`, which the measurement computes with today's rules.

    `seen` is what `Watcher` saw: it is beside the line, and no rule reads it.
    """
    kept = {key: value for key, value in line.items() if key != "health"}
    if "eval" not in line and line["step"] in seen:
        kept["seen"] = seen[line["step"]]
    return kept


def settings_told() -> dict[str, Any]:
    """Filled, when the run is put together, with the settings that health rules are told of it."""
    told: dict[str, Any] = {}
    made = assembly.health_settings

    def kept(*given: Any, **more: Any) -> dict[str, Any]:
        told.update(made(*given, **more))
        return dict(told)

    assembly.health_settings = kept
    return told


def patched(patch: str) -> None:
    """What no user could plant: a reference that is not the model the run starts from."""
    what, _, size = patch.partition(":")
    if what != "reference":
        raise ValueError(f"no patch is called {what}")
    from whet.model.reference import CopiedReference

    made = CopiedReference.__init__

    @torch.no_grad()
    def make(self: CopiedReference, *given: Any, **more: Any) -> None:
        made(self, *given, **more)
        stream = torch.Generator().manual_seed(0)
        for weight in self._copy.model.parameters():
            weight += float(size) * weight.std() * torch.randn(weight.shape, generator=stream)

    CopiedReference.__init__ = make  # type: ignore[method-assign]


def without_folders(value: Any) -> Any:
    """Texts without the folders of this machine."""
    if isinstance(value, Mapping):
        return {key: without_folders(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(each) for each in value]
    if isinstance(value, str) and "/" in value:
        return " ".join(word.rpartition("/")[2] if word.startswith("/") else word for word in value.split(" "))
    return value


def file_name(name: str) -> str:
    return name.replace(" ", "_")


# data and models that runs share


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def pair_rows(split: str, count: int) -> list[dict[str, Any]]:
    """Right and wrong completions to questions of the built-in task."""
    found = contrasts(TASKS["arithmetic"], split, count, 0, 2)
    return [{"prompt": list(each.prompt.messages), "chosen": each.right, "rejected": each.wrong} for each in found]


def write_data(folder: Path) -> None:
    write_outside_data(folder)
    if (folder / "done").exists():
        return
    sys.path.insert(0, str(ROOT / "recipes"))
    import calculator_agent

    stream = random.Random("corpus")
    clean = pair_rows("train", 2048)
    write_rows(folder / "pairs-eval.jsonl", pair_rows("eval", 200))

    def swapped(row: Mapping[str, Any]) -> dict[str, Any]:
        return {**row, "chosen": row["rejected"], "rejected": row["chosen"]}

    write_rows(folder / "pairs-random.jsonl", [swapped(row) if stream.random() < 0.5 else row for row in clean])
    write_rows(folder / "pairs-swapped.jsonl", map(swapped, clean))
    answers = "<answer>{}</answer>"
    bare = [{**row, "rejected": answers.format(stream.randint(0, 9))} for row in clean]
    write_rows(folder / "pairs-longer.jsonl", bare)  # the chosen one shows its working, the other never
    # both are right, and all but alike: what one loses takes the other with it
    near = [{**row, "rejected": row["chosen"].replace("<answer>", "<answer>0")} for row in clean]
    write_rows(folder / "pairs-near.jsonl", near)
    calculator_agent.write_data(folder / "calculator")
    shutil.copyfile(folder / "calculator" / "train.jsonl", folder / "sums.jsonl")
    plain = list(plain_sums(stream, 1200))
    write_rows(folder / "plain-sums.jsonl", plain)
    write_rows(folder / "sum-pairs.jsonl", (sum_pair(row, stream) for row in plain))
    (folder / "done").touch()


def plain_sums(stream: random.Random, count: int) -> Iterable[dict[str, Any]]:
    for _ in range(count):
        first, second = stream.randint(1, 9), stream.randint(1, 9)
        question = f"What is {first} + {second}?"
        message = {"role": "user", "content": question}
        yield {"prompt": [message], "answer": str(first + second), "set": "sums"}


def sum_pair(row: Mapping[str, Any], stream: random.Random) -> dict[str, Any]:
    wrong = int(row["answer"]) + stream.choice([-10, -2, -1, 1, 2, 10])
    return {"prompt": row["prompt"], "chosen": f"{row['answer']}", "rejected": f"{wrong}"}


def taught_calculator(out: Path, quick: bool) -> str:
    """The built-in model after demonstrations of calls (recipes/calculator_sft.toml, fewer steps)."""
    from whet.settings.layers import merged, read_toml

    folder = out / "models" / "calculator"
    if not (folder / "run.json").is_file():
        values = read_toml(ROOT / "recipes" / "calculator_sft.toml")
        less = {"steps": 20 if quick else 400, "model": {"device": "cpu", "threads": 1}}
        data = str(out / "data" / "calculator" / "demonstrations.jsonl")
        whet.train("sft", data=data, config=merged(values, less), folder=str(folder), console=False)
    return str(folder)


def taught_mixture(out: Path, quick: bool) -> str:
    """A small mixture of experts in Qwen3's shape after demonstrations of the built-in task (benchmarks/moe.py)."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from moe import fresh_mixture

    folder = out / "models" / "mixture"
    if not (folder / "run.json").is_file():
        start = fresh_mixture("tiny", out / "models" / "fresh")
        whet.train(
            "sft",
            model=str(start),
            folder=str(folder),
            console=False,
            steps=20 if quick else 260,
            config={
                "model": {"device": "cpu", "threads": 1, "precision": "fp32"},
                "data": {"source": "task:arithmetic", "difficulty": [1, 2], "count": 20000},
                "batch": {"rows_per_step": 48},
                "optimizer": {"learning_rate": 3e-3, "schedule": "cosine"},
                "eval": {"prompts": 0},
                "report": {"save_every": 100000},
            },
        )
    return str(folder)


TAUGHT: dict[str, Callable[[Path, bool], str]] = {"calculator": taught_calculator, "mixture": taught_mixture}


# processes


def in_child(function: Callable[..., Any], log: Path, *given: Any) -> None:
    """Run something in this process, which is its own, with what it says in a file."""
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            function(*given)
        except BaseException:
            traceback.print_exc()
            raise SystemExit(1) from None


class Job:
    """One process with a deadline."""

    def __init__(self, name: str, log: Path, seconds: float, function: Callable[..., Any], *given: Any) -> None:
        self.name, self.log = name, log
        self.process = multiprocessing.get_context("fork").Process(target=in_child, args=(function, log, *given))
        self.process.start()
        self.began, self.deadline = time.monotonic(), time.monotonic() + seconds

    def ended(self) -> str | None:
        """How it ended, None while it goes on."""
        if self.process.is_alive():
            if time.monotonic() < self.deadline:
                return None
            self.process.kill()
            self.process.join()
            return "out of time"
        self.process.join()
        return "done" if self.process.exitcode == 0 else f"failed, see {self.log.name}"


def interleaved(runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """One of each kind in turn, healthy ones three at a time: what is cut short is still a corpus of all kinds."""
    kinds: dict[str, list[PlannedRun]] = {}
    for run in runs:
        kinds.setdefault(run.kind, []).append(run)
    sides = [each for kind, each in kinds.items() if kind != HEALTHY]
    fine = kinds.get(HEALTHY, [])
    rounds = [[each for each in row if each is not None] for row in zip_longest(*sides)]
    each_round = -(-len(fine) // max(len(rounds), 1))
    ordered: list[PlannedRun] = []
    for place in range(max(len(rounds), 1)):
        ordered += fine[place * each_round : (place + 1) * each_round]
        ordered += rounds[place] if rounds else []
    return ordered


def make(options: argparse.Namespace) -> int:
    out: Path = options.out.resolve()
    for name in ("runs", "work", "logs", "models"):
        (out / name).mkdir(parents=True, exist_ok=True)
    write_data(out / "data")
    runs = planned_runs(options)
    waiting = [run for run in runs if not (out / "runs" / f"{file_name(run.name)}.json.xz").exists()]
    print(f"{len(runs)} runs, {len(runs) - len(waiting)} are there already", flush=True)
    models = {"smollm2": options.model} if options.model != "builtin" else {}
    teaching = sorted({run.model for run in waiting} & TAUGHT.keys())
    running: list[Job] = []
    failed, began, done = 0, time.monotonic(), 0
    while waiting or running or teaching:
        for job in list(running):
            ended = job.ended()
            if ended is None:
                continue
            running.remove(job)
            if job.name in TAUGHT:
                if ended != "done":
                    lost = [run for run in waiting if run.model == job.name]
                    waiting = [run for run in waiting if run.model != job.name]
                    print(f"{job.name} was not taught ({ended}); {len(lost)} runs are left out", flush=True)
                    failed += 1
                else:
                    models[job.name] = str(out / "models" / job.name)
                continue
            done += 1
            failed += ended != "done"
            took = time.monotonic() - job.began
            print(f"{done:4} {time.monotonic() - began:6.0f} s  {job.name}: {ended}, {took:.0f} s", flush=True)
        late = options.seconds and time.monotonic() - began > options.seconds
        if late and waiting:
            print(f"--seconds {options.seconds:g} are over: {len(waiting)} runs are left for the next call", flush=True)
            waiting, teaching = [], []
        while len(running) < options.workers and (teaching or waiting):
            if teaching:
                name = teaching.pop(0)
                log = out / "logs" / f"{name}.log"
                running.append(Job(name, log, 3 * options.timeout, TAUGHT[name], out, options.quick))
                continue
            place = next((i for i, run in enumerate(waiting) if run.model in ("whetstone", *models)), None)
            if place is None:
                break
            run = waiting.pop(place)
            log = out / "logs" / f"{file_name(run.name)}.log"
            running.append(Job(run.name, log, options.timeout, train, run, out, models, options.quick))
        time.sleep(0.05)
    gather(out, options.part)
    return failed


def gather(out: Path, part: str) -> None:
    """All runs in one file, one line each."""
    files = sorted((out / "runs").glob("*.json.xz"))
    target = out / f"corpus-{part}.jsonl.xz"
    with lzma.open(target, "wb", preset=6) as archive:
        for file in files:
            archive.write(lzma.decompress(file.read_bytes()) + b"\n")
    print(f"{len(files)} runs in {target.name}, {target.stat().st_size / 2**20:.1f} MiB", flush=True)


def planned_runs(options: argparse.Namespace) -> list[PlannedRun]:
    inside = [*healthy(), *faulty(), *outside_healthy(), *outside_faulty()]
    runs = interleaved(inside if options.model == "builtin" else list(real()))
    if options.shift:
        runs = [again(run, options.shift) for run in runs]
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        raise SystemExit(f"two runs are called {next(name for name in names if names.count(name) > 1)}")
    chosen = [run for run in runs if any(each in run.name for each in options.only.split(","))]
    if options.quick:
        kinds: dict[str, list[PlannedRun]] = {}
        for run in chosen:
            kinds.setdefault(run.kind, []).append(run)
        chosen = [run for each in kinds.values() for run in each[: options.each]]
    return chosen


def again(run: PlannedRun, shift: int) -> PlannedRun:
    """The same run under another seed and name."""
    seed = run.settings["seed"] + shift
    return replace(run, name=f"{run.name}-again{shift}", settings={**run.settings, "seed": seed})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("corpus"), help="folder of everything")
    parser.add_argument("--workers", type=int, default=1, help="runs side by side")
    parser.add_argument("--only", default="", help="runs whose name holds this, or one of these: A,B")
    parser.add_argument("--part", default="", help="of the file's name; empty: cpu or gpu")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS} steps of one run per kind: does it work?")
    parser.add_argument("--each", type=int, default=1, help="with --quick: runs of each kind")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--model", default="builtin", help="builtin, or a real model as whet --model takes it")
    parser.add_argument("--timeout", type=float, default=240.0, help="seconds of one run at most")
    parser.add_argument("--seconds", type=float, default=0.0, help="start no run after so long; 0: no limit")
    parser.add_argument("--shift", type=int, default=0, help="every run once more, its seed larger by so much")
    parser.add_argument("--list", action="store_true", help="only name the runs")
    options = parser.parse_args()
    options.part = options.part or ("cpu" if options.model == "builtin" else "gpu")
    if options.device == "cpu" and options.model != "builtin":
        import catalogue

        made = catalogue.sums
        catalogue.sums = lambda *given, **more: {**made(*given, **more), "model": {"device": "cpu"}}
    if options.list:
        for run in planned_runs(options):
            print(f"{run.kind:24} {run.name:60} {run.settings['steps']:4} steps  {run.strength}")
        return
    raise SystemExit(1 if make(options) else 0)


if __name__ == "__main__":
    main()
