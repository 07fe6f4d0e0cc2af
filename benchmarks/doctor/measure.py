"""How often each health rule is right: false alarms on healthy runs, misses and delays on runs with a planted fault.

    python benchmarks/doctor/measure.py                       # both halves of the corpus that is here
    python benchmarks/doctor/measure.py --half tune --details # every run with what was said of it
    python benchmarks/doctor/measure.py --results             # and write results/doctor.json

Every run is replayed: after each step the rules see what they would have seen then. A rule that speaks once in a run
has spoken. `kinds.py` says which rules are right for which fault. What counts for a user is the cause that the story of
the finished run tells: it names the fault, tells a true consequence, is wrong, or nothing is said.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kinds import KINDS
from results_file import add_results_flag, write_results
from rivals import is_rl
from slow_runs import slow_runs
from split_corpus import HALVES, part_of, read_runs

from whet.record.flat_rows import ThinnedLog
from whet.record.health.diagnosis import RULES, findings, lingers
from whet.record.health.finding import FindingSpan
from whet.record.health.story import story_of
from whet.record.log import eval_records, step_reports
from whet.record.metrics.intervals import share_interval

HERE = Path(__file__).resolve().parent
HEALTHY = "healthy"


@dataclass(frozen=True)
class ReplayedRun:
    """What the rules said of a run: for each that spoke of a problem, the steps in which it did."""

    name: str
    kind: str
    model: str
    start: int
    num_steps: int
    is_rl: bool
    part: str  # corpus: trained for it; outside: outside.py; archive, stream: slow_runs.py
    spoke: Mapping[str, Sequence[int]]
    cause: str  # that the story of the finished run tells; empty: it tells none
    change: str  # of a setting, that it advises first; empty: none
    advised: frozenset[str]  # settings that any step advised to raise (+NAME) or lower (-NAME)
    opposed: bool  # whether any step advised both

    @property
    def is_healthy(self) -> bool:
        return self.kind == HEALTHY

    def verdict(self) -> str:
        """What the story of the finished run comes to, measured by its fault."""
        if not self.cause:
            return "healthy" if self.is_healthy else "silent"
        if self.is_healthy:
            return "alarmed"
        kind = KINDS[self.kind]
        return "named" if self.cause in kind.names else "consequence" if self.cause in kind.follows else "wrong"

    def heard(self, names: Iterable[str]) -> int | None:
        """The first step at or after the fault's in which one of the rules spoke."""
        steps = [step for name in names for step in self.spoke.get(name, ()) if step >= self.start]
        return min(steps, default=None)

    def wrong(self) -> list[str]:
        """Rules that spoke of what is not there: any of a healthy run, of a faulty one those that do not belong."""
        if self.is_healthy:
            return sorted(self.spoke)
        kind = KINDS[self.kind]
        fitting = kind.names | kind.follows
        return sorted(
            name
            for name, steps in self.spoke.items()
            if name not in fitting or any(step < self.start for step in steps)
        )


def replayed(run: Mapping[str, Any]) -> ReplayedRun:
    log: ThinnedLog[Any] = ThinnedLog()
    spoke: dict[str, list[int]] = {}
    known: list[Any] = []
    dtype = str(run["dtype"]).split(" ")[0]
    steps: list[int] = []
    opposed = False
    advised: set[str] = set()
    spans: dict[str, FindingSpan] = {}
    lines = run["lines"]
    size = run["settings"].get("eval", {}).get("prompts", 0)
    for place, line in enumerate(lines):
        if "eval" in line:
            known += eval_records([{"size": size, **line}])
            if place + 1 < len(lines) or not steps:  # the last evaluation is looked at by itself
                continue
        else:
            (report,) = step_reports([{**line, "health": []}])
            log.append(replace(report, spread={}))
            steps.append(report.step)
        current = []
        for finding in findings(log.items(), dtype, run.get("health_settings"), known):
            if finding.is_problem:
                at = spoke.setdefault(finding.name, [])
                if at[-1:] != steps[-1:]:
                    at.append(steps[-1])
                current.append(FindingSpan(finding, at[0], steps[-1], len(at), True))
        step_advice = {
            f"{'+' if advice.direction > 0 else '-'}{advice.setting}"
            for span in current
            for advice in span.finding.advice
            if advice.direction
        }
        spans |= {span.finding.name: span for span in current}
        opposed = opposed or any(f"-{advice[1:]}" in step_advice for advice in step_advice if advice[0] == "+")
        advised |= step_advice
    holding = {span.finding.name for span in current}
    ended = [
        replace(span, holds=span.finding.name in holding, lingers=lingers(span, steps[-1])) for span in spans.values()
    ]
    cause = story_of(ended).cause
    return ReplayedRun(
        name=run["name"],
        kind=run["kind"],
        model=run["model"],
        start=run["start"],
        num_steps=len(steps),
        is_rl=is_rl(run),
        part=part_of(run),
        spoke=spoke,
        cause=cause.finding.name if cause else "",
        change=next(iter(cause.finding.changes), "") if cause else "",
        advised=frozenset(advised),
        opposed=opposed,
    )


def replay_all(runs: Sequence[Mapping[str, Any]], workers: int) -> list[ReplayedRun]:
    if workers <= 1:
        return [replayed(run) for run in runs]
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(replayed, runs, chunksize=4))


def share(count: int, total: int) -> dict[str, float]:
    """A count with its share and the Wilson interval of it (95%)."""
    if not total:
        return {"count": 0, "of": 0}
    low, high = share_interval(count / total, total)
    return {"count": count, "of": total, "share": count / total, "low": low, "high": high}


def by_rule(runs: Sequence[ReplayedRun]) -> dict[str, Any]:
    """Of each rule: alarms on healthy runs, alarms on runs with another fault, and how many of its own it found."""
    healthy = [run for run in runs if run.is_healthy]
    steps = sum(run.num_steps for run in healthy)
    found = {}
    for name in (name for name, rule in RULES.items() if not rule.is_note):
        mine = [run for run in runs if not run.is_healthy and name in KINDS[run.kind].names]
        fitting = [
            run for run in runs if not run.is_healthy and name in KINDS[run.kind].names | KINDS[run.kind].follows
        ]
        others = [run for run in runs if not run.is_healthy and run not in fitting]
        spoke = sum(len(run.spoke.get(name, ())) for run in healthy)
        found[name] = {
            "healthy": share(sum(name in run.spoke for run in healthy), len(healthy)),
            "per 1,000 healthy steps": 1000 * spoke / steps if steps else 0.0,
            "other faults": share(sum(name in run.spoke for run in others), len(others)),
            "its faults": share(sum(run.heard([name]) is not None for run in mine), len(mine)),
        }
    return found


def by_fault(runs: Sequence[ReplayedRun]) -> dict[str, Any]:
    """Of each fault: how often a fitting rule spoke, how often one named it, after how many steps, and confusions."""
    found: dict[str, Any] = {}
    for name, kind in KINDS.items():
        members = [run for run in runs if run.kind == name]
        if not members:
            continue
        delays = [at - run.start for run in members if (at := run.heard(kind.names | kind.follows)) is not None]
        named = [at - run.start for run in members if (at := run.heard(kind.names)) is not None]
        wrong = Counter(rule for run in members for rule in run.wrong())
        found[name] = {
            "found": share(len(delays), len(members)),
            "named": share(len(named), len(members)),
            "delay": median(delays) if delays else None,
            "named after": median(named) if named else None,
            "named by": dict(Counter(rule for run in members for rule in kind.names if run.heard([rule]) is not None)),
            "wrong": share(sum(bool(run.wrong()) for run in members), len(members)),
            "wrong by": dict(wrong),
        }
    return found


def summary(runs: Sequence[ReplayedRun]) -> dict[str, Any]:
    healthy = [run for run in runs if run.is_healthy]
    faulty = [run for run in runs if not run.is_healthy]
    steps = sum(run.num_steps for run in healthy)
    alarms = Counter(rule for run in healthy for rule in run.spoke)
    found = [run.heard(KINDS[run.kind].names | KINDS[run.kind].follows) for run in faulty]
    named = [run.heard(KINDS[run.kind].names) for run in faulty]
    delays = [at - run.start for run, at in zip(faulty, found, strict=True) if at is not None]
    return {
        "runs": len(runs),
        "steps": sum(run.num_steps for run in runs),
        "healthy": {
            "alarmed": share(sum(bool(run.spoke) for run in healthy), len(healthy)),
            "per 1,000 steps": 1000
            * sum(len({s for at in r.spoke.values() for s in at}) for r in healthy)
            / max(steps, 1),
            "by": dict(alarms.most_common()),
        },
        "stories": {
            verdict: share(sum(run.verdict() == verdict for run in faulty), len(faulty))
            for verdict in ("named", "consequence", "wrong", "silent")
        },
        "advice": {
            "opposite settings": share(sum(run.opposed for run in runs), len(runs)),
            "a higher rate for a healthy run": share(
                sum("+optimizer.learning_rate" in run.advised for run in healthy), len(healthy)
            ),
            "a higher rate for another fault": share(
                sum("+optimizer.learning_rate" in run.advised for run in faulty if run.kind != "rate too low"),
                sum(run.kind != "rate too low" for run in faulty),
            ),
        },
        "faulty": {
            "found": share(sum(at is not None for at in found), len(faulty)),
            "named": share(sum(at is not None for at in named), len(faulty)),
            "delay": median(delays) if delays else None,
            "wrong": share(sum(bool(run.wrong()) for run in faulty), len(faulty)),
        },
        "parts": {
            part: {
                "alarmed": share(sum(bool(run.spoke) for run in healthy if run.part == part), count),
                "told right": share(
                    sum(run.verdict() in ("named", "consequence") for run in faulty if run.part == part),
                    sum(run.part == part for run in faulty),
                ),
                "kinds of faults": len({run.kind for run in faulty if run.part == part}),
            }
            for part, count in sorted(Counter(run.part for run in healthy).items())
        },
        "rules": by_rule(runs),
        "faults": by_fault(runs),
    }


def beside_rivals(runs: Sequence[ReplayedRun], rivals: Mapping[str, Any]) -> dict[str, Any]:
    """whet in the counts of rivals.py: RL runs alone, any alarm at all."""
    same = [run for run in runs if run.is_rl and run.part == "corpus"]
    healthy = [run for run in same if run.is_healthy]
    faulty = [run for run in same if not run.is_healthy]
    ours = {
        "healthy": {"runs": len(healthy), "alarmed": sum(bool(run.spoke) for run in healthy), "critical": None},
        "faulty": {
            "runs": len(faulty),
            "alarmed": sum(run.heard(run.spoke) is not None for run in faulty),
            "named": sum(run.heard(KINDS[run.kind].names) is not None for run in faulty),
        },
    }
    return {"whet": ours, **rivals}


def cell(of: Mapping[str, Any]) -> str:
    return f"{of['count']}/{of['of']}" if of["of"] else "-"


def told(half: str, found: Mapping[str, Any]) -> str:
    lines = [
        f"{half}: {found['runs']} runs, {found['steps']} steps",
        f"  healthy runs with an alarm {cell(found['healthy']['alarmed'])} {found['healthy']['by']}",
        f"  faults found {cell(found['faulty']['found'])}, named {cell(found['faulty']['named'])}, median delay "
        f"{found['faulty']['delay']}, another rule spoke too {cell(found['faulty']['wrong'])}",
        f"  stories of faults: {', '.join(f'{name} {cell(of)}' for name, of in found['stories'].items())}",
        *(
            f"  {name}: healthy runs with an alarm {cell(of['alarmed'])}, faults told right {cell(of['told right'])}"
            for name, of in found["parts"].items()
        ),
        f"  advice: {', '.join(f'{name} {cell(of)}' for name, of in found['advice'].items())}",
        f"  {'fault':26}{'found':>8}{'named':>8}{'delay':>7}{'wrong':>8}",
    ]
    for name, each in found["faults"].items():
        lines.append(
            f"  {name:26}{cell(each['found']):>8}{cell(each['named']):>8}{each['delay'] or 0:7.0f}"
            f"{cell(each['wrong']):>8}  {each['wrong by']}"
        )
    lines.append(f"  {'rule':30}{'healthy':>9}{'others':>9}{'its own':>9}")
    for name, each in found["rules"].items():
        columns = [cell(each[key]) for key in ("healthy", "other faults", "its faults")]
        lines.append(f"  {name:30}" + "".join(f"{column:>9}" for column in columns))
    return "\n".join(lines)


def details(runs: Sequence[ReplayedRun]) -> str:
    lines = []
    for run in runs:
        said = ", ".join(f"{name} {steps[0]}-{steps[-1]} ({len(steps)})" for name, steps in run.spoke.items())
        missed = "" if run.is_healthy or run.heard(KINDS[run.kind].names | KINDS[run.kind].follows) else "MISSED "
        told = f"{run.verdict()}{f' ({run.cause})' if run.cause else ''}"
        lines.append(f"{run.name} (from {run.start} of {run.num_steps}): {told}: {missed}{said or 'nothing'}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--corpus", type=Path, default=HERE, help="folder with corpus-tune.jsonl.xz, corpus-sealed.jsonl.xz"
    )
    parser.add_argument("--half", choices=HALVES, action="append")
    parser.add_argument("--only", default="", help="runs whose name holds this")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--details", action="store_true", help="every run with what was said of it")
    parser.add_argument("--rivals", type=Path, help="what rivals.py wrote")
    add_results_flag(parser, "doctor")
    options = parser.parse_args()
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for half in options.half or HALVES:
        path = options.corpus / f"corpus-{half}.jsonl.xz"
        runs = [run for run in (*read_runs(path), *slow_runs(half)) if options.only in run["name"]]
        done = replay_all(runs, options.workers)
        values[half] = summary(done)
        origins |= {run.kind: run.part for run in done if not run.is_healthy}
        if options.rivals:
            found = json.loads(options.rivals.read_text())
            values[half]["rivals"] = beside_rivals(done, found.get(half, {}))
        print(told(half, values[half]), flush=True)
        if options.details:
            print(details(done), flush=True)
    values["outside"] = {"kinds": list(origins.values()).count("outside"), "all kinds": len(origins)}
    if options.results:
        write_results(options.results, values, measured=("record",))


if __name__ == "__main__":
    main()
