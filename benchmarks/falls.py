"""What a run should do by itself once its evaluation has fallen beyond noise: nothing, end, or go on at a lower rate.

    python benchmarks/falls.py --workers 2 --results
    python benchmarks/falls.py --from benchmarks/runs/falls.jsonl.xz --results

Runs of the built-in model that are pushed too hard: Dr. GRPO and RLOO at ten times their default rate, and GRPO
against a reward model at the weight of the KL of its paper, with the truth as evaluation. Each is made once with
nothing done about it; those that fell before their last evaluation are made again with each action. What `stop` does
needs no run: it is the first one up to the fall. A run that is there already in --folder is not repeated. The table
goes to results/falls.json, with what the other archives of benchmarks/runs say about runs that fell; the runs go to
benchmarks/runs/falls.jsonl.xz.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from other_defaults import SCORED, SPARE, located, prepare
from results_file import ROOT, add_results_flag, write_results
from run_archive import ARCHIVES, PlannedRun, make_runs, read_archive, write_archive

sys.path.insert(0, str(ROOT / "src"))

from whet.record.evaluations import Evaluations, evaluations_of
from whet.record.log import eval_records
from whet.settings.layers import merged
from whet.training.config import resolved

STEPS, EVERY = 80, 8
TIMES = {"dr_grpo": 10, "rloo": 10}  # by method, of its default rate
ACTIONS: dict[str, dict[str, Any]] = {
    "half the rate": {"on_problem": {"evaluation_falls": "lower_rate"}},
    "a tenth of the rate": {"on_problem": {"evaluation_falls": "lower_rate"}, "rate_factor": 0.1},
}
OFF = "nothing"
TITLES = {
    **{f"{method}-{times}": f"{method} at {times} times its rate" for method, times in TIMES.items()},
    "scored": "grpo against a reward model",
}


def planned(folder: Path, seeds: int) -> list[PlannedRun]:
    """The runs that do nothing about a fall."""
    usual = merged(SPARE, {"steps": STEPS, "eval": {"every": EVERY}})  # an archive's runs do nothing about a fall
    runs = []
    for seed in range(seeds):
        for method, times in TIMES.items():
            rate = resolved(method, dict(SPARE)).optimizer.learning_rate
            settings = merged(usual, {"seed": seed, "optimizer": {"learning_rate": times * rate}})
            runs.append(plan(f"{method}-{times}", method, settings, seed))
        scored = merged(merged(usual, located(SCORED, folder)), {"seed": seed})
        runs.append(plan("scored", "grpo", scored, seed))
    return runs


def plan(name: str, method: str, settings: Mapping[str, Any], seed: int) -> PlannedRun:
    """One run that does nothing about a fall."""
    return PlannedRun(f"{name}-s{seed}", method, settings, {"case": name, "seed": seed, "action": OFF})


def again(run: PlannedRun, action: str) -> PlannedRun:
    """The same run with an action."""
    settings = merged(run.settings, {"health": ACTIONS[action]})
    return PlannedRun(f"{run.name}-{action.replace(' ', '-')}", run.method, settings, {**run.tags, "action": action})


def looks(record: Mapping[str, Any]) -> Evaluations:
    """A run's evaluations by accuracy, or by reward where there is none."""
    return evaluations_of(eval_records([line for line in record["lines"] if "eval" in line]), ("accuracy", "reward"))


def fall(evaluations: Evaluations) -> int | None:
    """Evaluations up to the one at which the run was first below its best beyond noise; None where it never was."""
    counts = range(2, len(evaluations.measured) + 1)
    return next((count for count in counts if Evaluations(evaluations.measured[:count]).fell_from is not None), None)


def fell_early(record: Mapping[str, Any]) -> bool:
    """Whether a run fell while there was something left to do about it."""
    evaluations = looks(record)
    count = fall(evaluations)
    return count is not None and count < len(evaluations.measured)


def outcome(records: Iterable[Mapping[str, Any]], stops: bool = False) -> dict[str, Any]:
    """Means over runs: the best evaluation, the last, and the steps made; `stops`: as if each had ended at its fall."""
    ends = []
    for record in records:
        measured = looks(record).measured
        if stops:
            measured = measured[: fall(Evaluations(measured))]
        ends.append((max(one.value for one in measured), measured[-1].value, measured[-1].step))
    best, last, steps = (fmean(values) for values in zip(*ends, strict=True))
    return {"runs": len(ends), "best": best, "last": last, "steps": steps}


def by_case(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of each case and action: what became of the runs that fell."""
    rows: dict[str, Any] = {}
    for case in dict.fromkeys(record["tags"]["case"] for record in records):
        own = [record for record in records if record["tags"]["case"] == case]
        off = [record for record in own if record["tags"]["action"] == OFF]
        fallen = [record for record in off if fell_early(record)]
        if not fallen:
            continue
        rows[f"{TITLES[case]}, {OFF}"] = {"of": len(off), **outcome(fallen)}
        rows[f"{TITLES[case]}, stop"] = {"of": len(off), **outcome(fallen, stops=True)}
        for action in ACTIONS:
            if members := [record for record in own if record["tags"]["action"] == action]:
                rows[f"{TITLES[case]}, {action}"] = {"of": len(off), **outcome(members)}
    return rows


def recoveries(archives: Iterable[Path]) -> dict[str, int]:
    """Of all archived runs: how many fell with evaluations left, and how many of those had a new best later."""
    counts = {"runs": 0, "fell": 0, "better_later": 0}
    for archive in archives:
        for record in read_archive(archive):
            evaluations = looks(record)
            if len(evaluations.measured) < 3:
                continue
            counts["runs"] += 1
            count = fall(evaluations)
            if count is None or count == len(evaluations.measured):
                continue
            best = max(one.value for one in evaluations.measured[:count])
            counts["fell"] += 1
            counts["better_later"] += any(one.value > best for one in evaluations.measured[count:])
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1, help="runs at once, one thread each")
    parser.add_argument("--seconds", type=float, default=0.0, help="no run begins after so many; 0 is no limit")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("build/falls"), help="of everything")
    parser.add_argument("--from", dest="archive", type=Path, help="no runs: what this archive holds")
    add_results_flag(parser, "falls")
    chosen = parser.parse_args()
    folder = chosen.folder.resolve()
    if chosen.archive:
        records = list(read_archive(chosen.archive))
    else:
        prepare(folder, ["rlhf"], chosen.workers)
        runs = planned(folder, chosen.seeds)
        records = make_runs(runs, folder / "runs", chosen.workers, chosen.seconds)
        fallen = {record["name"] for record in records if fell_early(record)}
        repeated = [again(run, action) for run in runs if run.name in fallen for action in ACTIONS]
        records += make_runs(repeated, folder / "runs", chosen.workers, chosen.seconds)
    rows = by_case(records)
    for name, ends in rows.items():
        fell = f"{ends['runs']} of {ends['of']} fell"
        print(f"{name:60} {fell}  best {ends['best']:.1%}  last {ends['last']:.1%}  {ends['steps']:.0f} steps")
    if chosen.results:
        others = [path for path in sorted(ARCHIVES.glob("*.jsonl.xz")) if path.stem != f"{chosen.results}.jsonl"]
        write_results(chosen.results, {"rows": rows, "others": recoveries(others)}, archived=bool(chosen.archive))
        if not chosen.archive:
            write_archive(ARCHIVES / f"{chosen.results}.jsonl.xz", records)


if __name__ == "__main__":
    main()
