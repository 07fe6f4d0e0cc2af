"""Whether advice does harm: runs of the corpus once more, with the first setting that their story advises to change.

    python benchmarks/doctor/follow.py --out followed --workers 16            # every run that was advised a setting
    python benchmarks/doctor/follow.py --out followed --only "rate too high"  # those whose name holds this
    python benchmarks/doctor/follow.py --out followed --results               # and write results/doctor_advice.json

The run in the corpus is the one before. Both have the same seed; what is compared is the share of right completions of
the last steps, whatever the reward pays. Advice did harm where it is lower by more than `HARM`.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from catalogue import PlannedRun, faulty, healthy
from kinds import last, series
from make_corpus import Job, file_name, train, write_data
from measure import HERE, replayed
from results_file import add_results_flag, write_results
from split_corpus import HALVES, read_runs

from whet.settings.layers import from_settings, merged

HARM = 0.1  # of the completions


def advised(path: Path, only: str) -> dict[str, tuple[PlannedRun, Mapping[str, Any], str]]:
    """(the run to train, the run before, the change) of every run that is advised one."""
    planned = {run.name: run for run in (*healthy(), *faulty())}
    found = {}
    for before in read_runs(path):
        plan = planned.get(before["name"])
        if plan is None or plan.model != "whetstone" or only not in before["name"] or not series(before, "seen/right"):
            continue
        change = replayed(before).change
        if change:
            settings = merged(plan.settings, from_settings([change]))
            found[plan.name] = (replace(plan, name=f"{plan.name}-followed", settings=settings), before, change)
    return found


def in_turn(runs: Mapping[str, tuple[PlannedRun, Any, str]]) -> list[tuple[str, Any]]:
    """One of each kind after the other: what is cut short is of all kinds."""
    turns: Counter[str] = Counter()
    order = {}
    for name, (plan, _, _) in runs.items():
        order[name] = (turns[plan.kind], plan.kind)
        turns[plan.kind] += 1
    return sorted(runs.items(), key=lambda item: order[item[0]])


def right(run: Mapping[str, Any]) -> float:
    return last(series(run, "seen/right"))


def follow(runs: Mapping[str, tuple[PlannedRun, Mapping[str, Any], str]], options: argparse.Namespace) -> None:
    """Train those that are not there yet."""
    out: Path = options.out.resolve()
    for name in ("runs", "work", "logs"):
        (out / name).mkdir(parents=True, exist_ok=True)
    write_data(out / "data")
    waiting = [plan for plan, _, _ in runs.values() if not record_of(out, plan).exists()]
    running: list[Job] = []
    while waiting or running:
        running = [job for job in running if job.ended() is None]
        while waiting and len(running) < options.workers:
            plan = waiting.pop(0)
            log = out / "logs" / f"{file_name(plan.name)}.log"
            running.append(Job(plan.name, log, options.timeout, train, plan, out, {}, False))
        time.sleep(0.05)


def record_of(out: Path, plan: PlannedRun) -> Path:
    return out / "runs" / f"{file_name(plan.name)}.json.xz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("followed"), help="folder of the new runs")
    parser.add_argument("--half", choices=HALVES, default="tune")
    parser.add_argument("--only", default="", help="runs whose name holds this")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--most", type=int, default=0, help="so many runs at most; 0: all")
    parser.add_argument("--timeout", type=float, default=240.0, help="seconds of one run at most")
    add_results_flag(parser, "doctor_advice")
    options = parser.parse_args()
    runs = advised(HERE / f"corpus-{options.half}.jsonl.xz", options.only)
    runs = dict(in_turn(runs)[: options.most or None])
    follow(runs, options)
    compared: dict[str, Any] = {}
    for name, (plan, before, change) in runs.items():
        file = record_of(options.out.resolve(), plan)
        if file.exists():
            after = json.loads(lzma.decompress(file.read_bytes()))
            compared[name] = {"change": change, "before": right(before), "after": right(after)}
            print(f"{name:50} {change:40} {right(before):.2f} -> {right(after):.2f}", flush=True)
    harmed = [name for name, pair in compared.items() if pair["after"] < pair["before"] - HARM]
    helped = [name for name, pair in compared.items() if pair["after"] > pair["before"] + HARM]
    print(f"{len(compared)} followed: {len(helped)} better, {len(harmed)} worse {harmed}")
    if options.results:
        write_results(options.results, {"runs": compared, "better": len(helped), "worse": len(harmed)})


if __name__ == "__main__":
    main()
