"""Whether advice does harm: faulty runs once more, with the first setting that their story advises to change.

    python benchmarks/doctor/follow.py --work followed --seconds 1800           # begins, or goes on where it stopped
    python benchmarks/doctor/follow.py --work followed --only "rate too high"   # runs whose name holds this
    python benchmarks/doctor/follow.py --work followed --seconds 1 --results    # write results/doctor_advice.json

The runs are those of the tuned half, of the built-in model; the one of the corpus is the one before. Both are judged by
what is right and not by what the run pays for: right completions of the last steps, right pairs or answers of the
evaluation, for games the reward. Advice did harm where that is lower by `LEAST` or more, beyond noise (one-sided,
`LEVEL`): Welch's test over the last steps, Fisher's for an evaluation. Where it seems so, the run before is made again
by the code that is here, and harm is what is below both. Every run that was made is a file in the work folder; after a
change of the rules, only runs whose advice is another one are made. What results/doctor_advice.json has of the same
advice stands, with the commit that it was measured on.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from catalogue import PlannedRun, faulty
from make_corpus import Job, file_name, train, write_data
from measure import HERE, ReplayedRun, replayed, share
from outside import outside_faulty
from readings import evals_of, series
from results_file import RESULTS, add_results_flag, write_results
from split_corpus import part_of, read_runs

from whet.record.metrics.intervals import more_right_p, welch_p
from whet.settings.layers import from_settings, merged

LEAST = 0.05  # of the completions
LEVEL = 0.01
LAST_STEPS = 10
MOST_SECONDS = 30  # that a run took when the corpus was made: longer ones are left out
EVALUATED = ("pair_accuracy", "accuracy")
Run = Mapping[str, Any]


def advised(only: str) -> list[tuple[PlannedRun, Run, ReplayedRun]]:
    """Runs of the tuned half that are advised a setting, short ones first: as planned, as they went, what was said."""
    planned = {run.name: run for run in (*faulty(), *outside_faulty()) if run.model == "whetstone"}
    members: list[tuple[PlannedRun, Run, ReplayedRun]] = []
    for run in read_runs(HERE / "corpus-tune.jsonl.xz"):
        is_short = run["seconds"] <= MOST_SECONDS or part_of(run) == "outside"  # those shared their machine
        is_asked = run["name"] in planned and only in run["name"] and is_short
        if is_asked and truth(run)[0] and (said := replayed(run)).change:
            members.append((planned[run["name"]], run, said))
    return sorted(members, key=lambda member: member[1]["seconds"])


def published() -> dict[str, dict[str, Any]]:
    """What results/doctor_advice.json says of runs, each with the commit that it was measured on."""
    path = RESULTS / "doctor_advice.json"
    record = json.loads(path.read_text()) if path.exists() else {"values": {"runs": {}}}
    return {name: {"commit": record.get("commit"), **pair} for name, pair in record["values"]["runs"].items()}


def with_name(plan: PlannedRun, change: str) -> PlannedRun:
    """The run that follows advice, as it is called."""
    return replace(plan, name=f"{plan.name} {change}")


def run_file(plan: PlannedRun, work: Path) -> Path:
    return work / "runs" / f"{file_name(plan.name)}.json.xz"


def made(plan: PlannedRun, work: Path, options: argparse.Namespace) -> Run | None:
    """The run, trained now or before; None where it failed or may not begin any more."""
    file = run_file(plan, work)
    if not file.exists() and time.monotonic() < options.until:
        log = work / "logs" / f"{file_name(plan.name)}.log"
        job = Job(plan.name, log, options.timeout, train, plan, work, {}, False)
        while (ended := job.ended()) is None:
            time.sleep(0.1)
        if ended != "done":
            print(f"{plan.name}: {ended}", flush=True)
    return json.loads(lzma.decompress(file.read_bytes())) if file.exists() else None


def truth(run: Run) -> tuple[list[float], int]:
    """What is right in a run: shares by step, or the last evaluation and its number of rows."""
    if "env" in run["settings"]:
        return series(run, "reward/total")[-LAST_STEPS:], 0
    if right := series(run, "seen/right"):
        return right[-LAST_STEPS:], 0
    measured = next((values for name in EVALUATED if (values := evals_of(run, name))), [])
    # the corpus does not say how many rows were evaluated: a run that was made now does
    return measured[-1:], max((line.get("size", 0) for line in run["lines"] if "eval" in line), default=0)


def is_below(after: tuple[Sequence[float], int], before: tuple[Sequence[float], int]) -> bool:
    (new, size), (old, other_size) = after, before
    size = size or other_size
    if not new or not old or fmean(old) - fmean(new) < LEAST:
        return False
    if size:
        return more_right_p(round(old[0] * size), round(new[0] * size), size) <= LEVEL
    p = welch_p(list(old), list(new))
    return p is None or p / 2 <= LEVEL


def judged(plan: PlannedRun, before: Run, after: Run, work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Before and after, and whether it is better, the same or worse."""
    old, new = truth(before), truth(after)
    if is_below(new, old) and (again := made(plan, work, options)) is not None and not is_below(new, truth(again)):
        old = truth(again)
    outcome = "worse" if is_below(new, old) else "better" if is_below(old, new) else "same"
    return {"before": fmean(old[0]), "after": fmean(new[0]), "outcome": outcome}


def compared(work: Path, options: argparse.Namespace) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    known = published()
    waiting = []
    for plan, before, said in advised(options.only):
        stands = known.get(plan.name, {}).get("change") == said.change
        if stands and not run_file(with_name(plan, said.change), work).exists():
            pairs[plan.name] = known[plan.name]
        else:
            waiting.append((plan, before, said))
    turn, turns = map(int, options.turn.split("/"))
    for plan, before, said in waiting[turn::turns]:
        settings = merged(plan.settings, from_settings([said.change]))
        if series(before, "seen/right"):  # what is judged is in the steps
            settings = merged(settings, {"eval": {"prompts": 0}})
        after = made(replace(with_name(plan, said.change), settings=settings), work, options)
        if after is None or not truth(after)[0]:
            continue
        outcome = judged(plan, before, after, work, options)
        pairs[plan.name] = {"fault": plan.kind, "cause": said.cause, "change": said.change, **outcome}
        print(
            "{:48} {:24} {:36} {:.2f} -> {:.2f} {}".format(plan.name, *list(pairs[plan.name].values())[1:]), flush=True
        )
    return pairs


def withdrawn(pairs: Mapping[str, Any], work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Runs in the work folder that followed what today's rules do not advise any more."""
    planned = {run.name: run for run in (*faulty(), *outside_faulty())}
    runs = {run["name"]: run for run in read_runs(HERE / "corpus-tune.jsonl.xz")}
    found: dict[str, Any] = {}
    for file in sorted((work / "runs").glob("*=*.json.xz")):
        after = json.loads(lzma.decompress(file.read_bytes()))
        name, _, change = after["name"].rpartition(" ")
        if pairs.get(name, {}).get("change") != change and name in runs and truth(after)[0]:
            found[after["name"]] = {"change": change, **judged(planned[name], runs[name], after, work, options)}
            print(f"no longer advised: {after['name']}: {found[after['name']]['outcome']}", flush=True)
    return found


def counted(pairs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    outcomes = Counter(pair["outcome"] for pair in pairs)
    return {name: share(outcomes[name], outcomes.total()) for name in ("better", "same", "worse")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("followed"), help="folder of the runs")
    parser.add_argument("--only", default="", help="runs whose name holds this")
    parser.add_argument("--seconds", type=float, default=0.0, help="begin no run after so long; 0: no limit")
    parser.add_argument(
        "--turn", default="0/1", help="1/3: every third run, from the second on, beside other processes"
    )
    parser.add_argument("--timeout", type=float, default=240.0, help="seconds of one run at most")
    add_results_flag(parser, "doctor_advice")
    options = parser.parse_args()
    options.until = time.monotonic() + (options.seconds or float("inf"))
    work: Path = options.work.resolve()
    for name in ("runs", "work", "logs"):
        (work / name).mkdir(parents=True, exist_ok=True)
    write_data(work / "data")
    pairs = compared(work, options)
    settings: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for pair in pairs.values():
        settings[pair["change"].partition("=")[0]].append(pair)
    values = {
        "all": counted(pairs.values()),
        "settings": {name: counted(settings[name]) for name in sorted(settings)},
        "runs": pairs,
        "withdrawn": withdrawn(pairs, work, options),
    }
    for name, of in {"all": values["all"], **values["settings"]}.items():
        print(f"{name:32}" + "".join(f"{outcome} {of[outcome]['count']:3}  " for outcome in of))
    if options.results:
        write_results(options.results, values)


if __name__ == "__main__":
    main()
