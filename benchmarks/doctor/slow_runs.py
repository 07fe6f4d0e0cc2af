"""Slow runs for the corpus: real ones from the archives, and streams of numbers that are drawn, not trained.

`archived()` are the runs of benchmarks/runs (a model of 0.5B, and the built-in one). Those of an arm that a claim has
made faulty on purpose have that fault (`PLANTED`) where it took hold, or where nothing was learned. All others are
judged by their own evaluations: healthy where none is two standard errors below an earlier one and the last is not
below the first; "updates do harm" where the last is `FELL` standard errors below the best; neither, and left out,
otherwise. `streams()` are drawn: 200 to 400 steps with the noise of so many completions and eval prompts around a truth
that is known. Their author knew the rules; what they measure is alarms by chance, and whether a slow fault is seen at
all. Archived runs go to the halves by a hash of their names; those of 0.5B, which a test has shown before, are in the
tuned half.
"""

from __future__ import annotations

import hashlib
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kinds import took_hold
from readings import evals_of
from run_archive import ARCHIVES, read_archive
from split_corpus import HALVES
from streams import MOVING, PAIRS, SCORES, SETTINGS, Points, Stream, row_reports, through

from whet.training.assembly.health import health_settings
from whet.training.config import resolved
from whet.types import StepReport

FELL, HELD = 3.5, 2.0  # standard errors
HEALTHY_STREAMS, FAULTY_STREAMS = 12, 6  # of each, every other one in the tuned half
# Arms of claim_runs.py that are unsound by design, with their fault. Evaluations alone cannot judge them: the untrained
# model's surest completion is a short one that is right by chance, so accuracy begins at its bottom and cannot fall.
PLANTED = {
    **dict.fromkeys(("rm_alone", "rm_tied", "rm_with_rule", "rm_mean", "rm_lowest"), "proxy reward"),
    **dict.fromkeys(("wordy", "wordy_fined"), "pays for length"),
    **dict.fromkeys(("short", "short_shaped", "short_filtered"), "too few tokens"),
    "format_only": "pays for format",
    "fast": "rate too high",
    "cold": "no exploration",
    "hot": "sampled too hot",
    "tied_hard": "tie too strong",
    "ppo_from_rm": "broken critic",  # the reward model's scores are on another scale than what completions earn
}


def half_of(name: str) -> str:
    return HALVES[hashlib.sha256(name.encode()).digest()[0] % 2]


def slow_runs(half: str) -> Iterator[dict[str, Any]]:
    """The runs of this half, as those of the corpus are."""
    yield from (run for run in archived() if ("tune" if run["model"] == "0.5B" else half_of(run["name"])) == half)
    yield from streams(half)


# real runs


def in_errors(better: float, worse: float, size: int) -> float:
    """By how many standard errors one share of `size` prompts is above another."""
    error = math.sqrt((better * (1 - better) + worse * (1 - worse)) / size)
    return (better - worse) / error if error else math.copysign(math.inf, better - worse) if better != worse else 0.0


def judged(run: Mapping[str, Any], size: int) -> str:
    """healthy, updates do harm, or empty: neither."""
    values = evals_of(run, "accuracy")
    if len(values) < 2 or not size:
        return ""
    if in_errors(max(values), values[-1], size) >= FELL:
        return "updates do harm"
    falls = (in_errors(values[i], values[j], size) for j in range(len(values)) for i in range(j))
    return "healthy" if max(falls) <= HELD and values[-1] >= values[0] else ""


def planted(record: Mapping[str, Any]) -> str:
    """The fault that a run was given on purpose; empty: none, or it did nothing and the run learned all the same."""
    kind = PLANTED.get(record["tags"].get("arm", ""))
    if kind is None:
        return ""
    steps = [line if "eval" in line else {**line, "seen": {"right": _right(line)}} for line in record["lines"]]
    held, learned = (took_hold({**record, "kind": each, "lines": steps}) for each in (kind, "healthy"))
    return kind if held or not learned else ""


def _right(line: Mapping[str, Any]) -> float | None:
    return line["reward"].get("exact_answer")


def archived() -> Iterator[dict[str, Any]]:
    for name in ("defaults", "claims", "real_run"):
        for record in read_archive(ARCHIVES / f"{name}.jsonl.xz"):
            settings = record["settings"]
            stated = next((line.get("size") for line in record["lines"] if "eval" in line), None)
            size = int(settings.get("eval", {}).get("prompts") or stated or 0)
            if not (kind := planted(record) or judged(record, size)) or record["status"] != "finished":
                continue
            known = {key: value for key, value in settings.items() if key != "model"}
            yield {
                "name": f"{name}-{record['name']}",
                "kind": kind,
                "method": record["method"],
                "model": record["tags"].get("model", "whetstone"),
                "start": 1,
                "settings": settings,
                "dtype": record["facts"]["dtype"],
                "health_settings": {
                    **health_settings(resolved(record["method"], known)),
                    "reward.parts": {part["reward"]: [part.get("weight", 1.0)] for part in reward_parts(known)},
                },
                "status": record["status"],
                "lines": record["lines"],
                "part": "archive",
            }


def reward_parts(settings: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The parts of the reward, as a run states them."""
    parts: Sequence[Mapping[str, Any]] = settings.get("reward", {}).get("parts", ())
    return parts


# drawn ones


UNMOVED = {**MOVING, "entropy": ((1, 0.3), (2, 0.3)), "kl": ((1, 1e-6), (200, 1e-5))}


def drawn(stream: Stream, truth: Points, every: int, chance: random.Random, seed: int) -> list[dict[str, Any]]:
    """The lines of a stream: evaluations are of other prompts each time, as many right as chance has it."""
    at = through(truth)
    lines = [step_line(report) for report in stream.reports(seed)]
    size = stream.eval_size
    for step in range(0, stream.steps + 1, every):
        share = at(step)
        right = sum(chance.random() < share for _ in range(size)) / size
        lines.append(eval_line(step, size, accuracy=right))
    return sorted(lines, key=lambda line: (line["step"], "eval" in line))


def step_line(report: StepReport) -> dict[str, Any]:
    return {
        "step": report.step,
        "policy_version": report.policy_version,
        "counts": dict(report.counts),
        "reward": dict(report.reward),
        "metrics": dict(report.metrics),
        "seconds": {"rollout": 1.0, "train": 1.0},
    }


def eval_line(step: int, size: int, **result: float) -> dict[str, Any]:
    return {"step": step, "eval": "eval", "result": result, "size": size, "seconds": {"evaluate": 1.0}}


def streams(half: str) -> Iterator[dict[str, Any]]:
    """Several of each for this half, with their own lengths, levels, sizes and noise."""
    for name, (kind, make) in STREAMS.items():
        for number in range(HALVES.index(half), HEALTHY_STREAMS if kind == "healthy" else FAULTY_STREAMS, len(HALVES)):
            chance = random.Random(f"{name} {number}")
            steps = chance.choice((200, 300, 400))
            yield {
                "name": f"stream-{name}-{number}",
                "kind": kind,
                "method": "stream",
                "model": "none",
                "start": 1,
                "settings": {},
                "dtype": "float32",
                "health_settings": SETTINGS,
                "status": "finished",
                "lines": make(steps, chance, number),
                "part": "stream",
            }


Maker = Callable[[int, random.Random, int], list[dict[str, Any]]]


def course(
    *points: tuple[float, float], truth: Sequence[tuple[float, float]] = (), cut: float = 0.05, **metrics: Points
) -> Maker:
    """A stream whose reward goes through (share of the run, level); `truth` is what evaluation measures, as reward."""

    def make(steps: int, chance: random.Random, seed: int) -> list[dict[str, Any]]:
        scale = chance.uniform(0.8, 1.2)

        def placed(at: Sequence[tuple[float, float]]) -> Points:
            return [(round(share * steps), min(0.98, level * scale)) for share, level in at]

        stream = Stream(
            placed(points),
            steps,
            eval_size=chance.choice((100, 200, 500)),
            truncated=((1, 0.05), (steps, cut)),
            metrics={
                name: [(round(x / 200 * steps), y) for x, y in line] for name, line in {**MOVING, **metrics}.items()
            },
            samples=chance.choice((64, 128, 256)),
        )
        return drawn(stream, placed(truth or points), chance.choice((20, 25, 50)), chance, seed)

    return make


def rows(courses: Mapping[str, Points], metric: str = "", measured: Points = (), size: int = 200) -> Maker:
    """A stream of a run on rows, with evaluations of one metric: a share of `size`, or a loss."""

    def make(steps: int, chance: random.Random, seed: int) -> list[dict[str, Any]]:
        scaled = {name: [(round(x / 200 * steps), y) for x, y in line] for name, line in courses.items()}
        lines = [step_line(report) for report in row_reports(seed, steps, **scaled)]
        at = through([(round(x / 200 * steps), y) for x, y in measured]) if measured else None
        for step in range(0, steps + 1, 25) if at else ():
            right = sum(chance.random() < at(step) for _ in range(size)) / size
            value = at(step) * (1 + chance.gauss(0, 0.01)) if metric == "loss" else right
            lines.append(eval_line(step, size, **{metric: value}))
        return sorted(lines, key=lambda line: (line["step"], "eval" in line))

    return make


def gradients(after: float) -> Points:
    return ((1, 0.4), (100, 0.4), (110, after), (200, after))


def refused(share: float) -> dict[str, Points]:
    return {"agreed_groups": ((1, 0.3), (200, 0.4)), "refused_majorities": ((1, share), (200, share))}


# name of the stream: the kind of run it is, and how its lines are drawn
STREAMS: dict[str, tuple[str, Maker]] = {
    "rises": ("healthy", course((0, 0.2), (1, 0.5))),
    "rises a little": ("healthy", course((0, 0.3), (1, 0.42))),
    "rises and holds": ("healthy", course((0, 0.15), (0.5, 0.6), (1, 0.6))),
    "waits and rises": ("healthy", course((0, 0.1), (0.12, 0.1), (1, 0.5))),
    "near its top": ("healthy", course((0, 0.8), (1, 0.86))),
    "rises and dips": ("healthy", course((0, 0.2), (0.5, 0.5), (0.6, 0.46), (1, 0.6))),
    "with gold refused as it should be": ("healthy", course((0, 0.2), (1, 0.5), **refused(0.08))),
    "demonstrations": ("healthy", rows({"loss": ((1, 1.4), (60, 1.1), (200, 1.05))}, "loss", ((0, 1.4), (200, 1.1)))),
    "pairs": ("healthy", rows(PAIRS, "pair_accuracy", ((0, 0.5), (200, 0.7)))),
    "scores": ("healthy", rows(SCORES, "accuracy", ((0, 0.5), (200, 0.7)))),
    "rises and falls": (
        "updates do harm",
        course((0, 0.2), (0.5, 0.35), (1, 0.12), cut=0.3, entropy=((1, 0.27), (200, 0.12))),
    ),
    "falls from the start": ("updates do harm", course((0, 0.4), (1, 0.15), entropy=((1, 0.3), (200, 0.6)))),
    "evaluation falls alone": ("pays for another thing", course((0, 0.3), (1, 0.7), truth=((0, 0.4), (1, 0.2)))),
    "evaluation stands still": ("learned by heart", course((0, 0.3), (1, 0.8), truth=((0, 0.3), (1, 0.3)))),
    "moves and learns nothing": ("nothing to learn from", course((0, 0.3), (1, 0.3))),
    "does not move": ("rate too low", course((0, 0.3), (1, 0.3), **UNMOVED)),
    "gold is wrong": ("wrong gold", course((0, 0.2), (1, 0.3), **refused(0.45))),
    "gradients explode": (
        "gradients explode",
        course((0, 0.3), (0.5, 0.3), (1, 0.05), gradient_norm=gradients(2000.0)),
    ),
    "no gradient": ("frozen weights", course((0, 0.3), (1, 0.3), gradient_norm=((1, 0.0), (200, 0.0)), **UNMOVED)),
    "pairs with wrong labels": (
        "noisy labels",
        rows(
            {**PAIRS, "accuracy": ((1, 0.5), (60, 0.6), (200, 0.6))},
            "pair_accuracy",
            ((0, 0.5), (60, 0.9), (200, 0.92)),
        ),
    ),
    "demonstrations by heart": (
        "rows learned by heart",
        rows({"loss": ((1, 1.4), (200, 0.3))}, "loss", ((0, 1.4), (60, 1.1), (200, 1.7))),
    ),
}
