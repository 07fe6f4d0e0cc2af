"""Defaults of everything that is not a policy method on a real model: sweeps over two decades, three seeds.

    python benchmarks/other_defaults.py --workers 16 --seconds 1200 --results
    python benchmarks/other_defaults.py --only teacher-whole,critic --seeds 1

Every run is `whet train METHOD` on the built-in model as a user has it, except for one value, mostly its learning rate
(what holds a run back, and what its batches are made of, is tried at ten times the default rate, where it could go
astray; prompts become fewer as groups grow, and the ratio's clip has four updates per batch to act on);
methods with a teacher train the student of `whet pipeline distill`, and those with a reward model the policy of `whet
pipeline rlhf`. A run that is there already in --folder is not repeated. The table goes to results/other_defaults.json
and the runs to benchmarks/runs/other_defaults.jsonl.xz.

The rule that chooses: a value is *fine* where no seed ends below its start by more than noise, and where its mean is
within noise of the best mean. Methods of one group share a default: the value that loses for the fewest of them and is
fine for the most, and among equals the one nearest to today's, which stands where it is that one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, log10, sqrt
from pathlib import Path
from statistics import fmean, variance
from typing import Any

from results_file import ROOT, add_results_flag, write_results
from run_archive import ARCHIVES, PlannedRun, make_runs, write_archive

sys.path.insert(0, str(ROOT / "src"))

from whet.model.run_models import run_model
from whet.settings.layers import merged
from whet.training.config import resolved

STEPS = range(-3, 4)  # thirds of a decade on either side of the middle
ERRORS = 2.0  # standard errors that count as noise
PROMPTS = 200  # of an evaluation
RATE, CRITIC_RATE = "optimizer.learning_rate", "critic.learning_rate"
WARMUP, NORM = "optimizer.warmup_steps", "optimizer.max_gradient_norm"
BETA, NATS = "objective.kl.beta", "objective.control.nats"
TEMPERATURE, CLIP = "sampling.temperature", "objective.clip.high"
PROMPTS_PER_STEP, GROUP_SIZE = "batch.prompts_per_step", "batch.group_size"
COMPLETIONS = 128  # per step, by default
BUDGET = {"kind": "budget", "decay": 0.8}  # as `whet pipeline rlhf` has it
SPARE = {"model": {"device": "cpu", "threads": 1}, "eval": {"every": 0}, "report": {"save_every": 100_000}}
ADAPTERS = {"model": {"lora": 16}}
# models that stages of the pipelines make, by stage; they are run first, with next to nothing behind these stages
PREPARED = {
    "distill": {"compare": ["traces"], "traces": {"prompts": 8}, "imitate": {"epochs": 1.0}},
    "rlhf": {"compare": ["best_of_n"], "most_n": 1, "judged_prompts": 8},
}
TEACHER, LAYERS, STUDENT = "distill/teacher", "distill/student", "distill/warm-student"
IMITATING, SCORER = "rlhf/sft", "rlhf/reward-model"
# what the pipeline sets for a student, which has the settings of a model of the user's own otherwise
TASK = {"data": {"source": "task:arithmetic", "count": 512}, "sampling": {"max_new_tokens": 64}}
STUDYING = {"model": {"name": STUDENT}, "steps": 80, "batch": {"group_size": 1, "prompts_per_step": 32}}
TAUGHT = merged(merged(TASK, STUDYING), {"teacher": {"name": TEACHER}})
# ten times the default rate: what holds a run back shows where it could go astray
HURRIED = {"optimizer": {"learning_rate": 1e-3}}
SIBLINGS = {"batch": {"group_size": 8, "prompts_per_step": 4}}
READING = {"teacher": {"template": "{prompt}\n{text}"}}
WHOLE = {"objective": {"baseline": "none", "teacher": "reverse_kl"}, "teacher": {"top_k": 100}}
SCORED = {
    "model": {"name": IMITATING},
    # the first part is the truth, which is measured and not learned from
    "reward": {
        "parts": [{"reward": "exact_answer", "weight": 0.0}, {"reward": "learned", "settings": {"folder": SCORER}}]
    },
}
# three times the rate, and most of a batch's updates made on a policy that has moved since
FOUR_UPDATES = {"optimizer": {"learning_rate": 3e-4}, "batch": {"updates_per_step": 4}}


def fewer_prompts(group_size: float) -> dict[str, Any]:
    """As many completions per step, in groups of that size."""
    return nested(PROMPTS_PER_STEP, COMPLETIONS // int(group_size))


def below_alike(clip: float) -> dict[str, Any]:
    """The same clip where the ratio falls."""
    return nested("objective.clip.low", clip)


@dataclass(frozen=True)
class Group:
    """Methods that share a default, and the runs that it is measured on."""

    name: str
    methods: tuple[str, ...]
    middle: float  # of the values that are tried
    settings: Mapping[str, Any] = field(default_factory=dict)
    key: str = RATE
    today: float = 0.0  # the default; 0: as the config of the first method has it
    own_values: tuple[float, ...] = ()  # instead of those around the middle
    beside: Callable[[float], Mapping[str, Any]] = lambda value: {}  # settings that follow from the value

    def values(self) -> list[float]:
        """Seven values, a third of a decade apart, or the group's own."""
        return list(self.own_values) or [float(f"{self.middle * 10 ** (step / 3):.2g}") for step in STEPS]


# the most telling first: a sweep that runs out of time has these
GROUPS = (
    Group("teacher-whole", ("opd_full", "gkd"), 1e-3, TAUGHT),
    Group("teacher-sampled", ("opd",), 1e-3, TAUGHT),
    Group("teacher-self", ("sdft",), 1e-3, merged(merged(TASK, STUDYING), READING)),
    Group("teacher-self-whole", ("sdft",), 1e-3, merged(merged(merged(TASK, STUDYING), READING), WHOLE)),
    Group("teacher-sibling", ("sdpo",), 1e-3, merged(merged(merged(TASK, STUDYING), READING), SIBLINGS)),
    Group("rlhf-rate", ("grpo",), 1e-4, SCORED),
    Group("rlhf-beta", ("grpo",), 1e-1, SCORED, BETA, today=0.04),
    Group("rlhf-nats", ("grpo", "ppo"), 3.0, merged(SCORED, {"objective": {"control": BUDGET}}), NATS, 3.0),
    Group("preference", ("dpo", "ipo", "kto", "simpo", "orpo"), 1e-4),
    Group("reward-model", ("rm", "orm", "prm"), 1e-3),
    Group("critic", ("ppo",), 1e-3, key=CRITIC_RATE),
    Group("lora-policy", ("grpo",), 1e-3, ADAPTERS),
    Group("lora-preference", ("dpo",), 1e-3, ADAPTERS),
    Group("sft", ("sft",), 1e-3, merged(TASK, {"model": {"name": LAYERS}, "steps": 60})),
    Group("student-policy", ("grpo",), 1e-4, merged(TASK, {"model": {"name": STUDENT}, "steps": 80})),
    Group("warmup", ("grpo", "ppo"), 4, HURRIED, WARMUP, 4, (0, 1, 4, 10, 20, 40)),
    Group("gradient-norm", ("grpo", "ppo"), 1.0, HURRIED, NORM),
    Group("temperature", ("grpo", "dr_grpo"), 1.0, HURRIED, TEMPERATURE, 1.0, (0.3, 0.5, 0.7, 1.0, 1.4, 2.0)),
    Group("group-size", ("grpo", "dr_grpo"), 8, HURRIED, GROUP_SIZE, 8, (2, 4, 8, 16, 32), fewer_prompts),
    Group("prompts", ("grpo", "dr_grpo"), 16, HURRIED, PROMPTS_PER_STEP, 16, (2, 4, 8, 16, 32)),
    Group("kl", ("grpo",), 0.04, HURRIED, BETA, 0.04, (0.001, 0.004, 0.01, 0.04, 0.1, 0.4, 1.0)),
    Group("clip", ("grpo", "ppo"), 0.2, FOUR_UPDATES, CLIP, 0.2, (0.02, 0.05, 0.1, 0.2, 0.4, 0.8), below_alike),
    Group("teacher-unread", ("sdft", "sdpo"), 1e-3),  # the built-in model as it is: it cannot use what it reads
)


@dataclass(frozen=True)
class Outcome:
    """What the seeds of one method came to at one value."""

    value: float
    before: tuple[float, ...]  # by seed
    after: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return fmean(self.after)

    @property
    def error(self) -> float:
        """Standard error of the mean: over the seeds or over the prompts, whichever is larger."""
        between = variance(self.after) if len(self.after) > 1 else 0.0
        return sqrt(max(between, fmean(share_variance(value) for value in self.after)) / len(self.after))

    def loses(self) -> bool:
        """True where a seed ended below its start by more than noise."""
        return any(
            start - end > ERRORS * sqrt(share_variance(start) + share_variance(end))
            for start, end in zip(self.before, self.after, strict=True)
        )


@dataclass(frozen=True)
class Choice:
    """What a group's runs say about its default."""

    today: float  # the default of the code that ran this, which need not be one of those tried
    nearest: float  # the value tried that is closest to it
    stands: bool
    chosen: float  # the value tried that the rule takes; today's where it stands
    best: dict[str, float]  # by method
    fine: dict[str, list[float]]
    losing: dict[str, list[float]]


def share_variance(share: float) -> float:
    """Of a share of `PROMPTS` answers; never 0, as a share of 0 or 1 is not known exactly either."""
    likely = (share * PROMPTS + 1) / (PROMPTS + 2)
    return likely * (1 - likely) / PROMPTS


def decades(one: float, other: float) -> float:
    """Between two values; a value of 0 is endlessly far from any other."""
    return 0.0 if one == other else abs(log10(one / other)) if one and other else inf


def fine_values(outcomes: Sequence[Outcome]) -> tuple[list[float], float]:
    """The values that never lose and are within noise of the best of them, and the best; none and 0 where all lose."""
    safe = [outcome for outcome in outcomes if not outcome.loses()]
    if not safe:
        return [], 0.0
    best = max(safe, key=lambda outcome: outcome.mean)
    within = [
        outcome.value for outcome in safe if best.mean - outcome.mean <= ERRORS * sqrt(best.error**2 + outcome.error**2)
    ]
    return within, best.value


def choose(by_method: Mapping[str, Sequence[Outcome]], today: float) -> Choice:
    """One default for all methods of a group: fine for as many as possible, losing for as few, then near to today's."""
    values = sorted({outcome.value for outcomes in by_method.values() for outcome in outcomes})
    found = {method: fine_values(outcomes) for method, outcomes in by_method.items()}
    losing = {method: [one.value for one in outcomes if one.loses()] for method, outcomes in by_method.items()}
    nearest = min(values, key=lambda value: decades(value, today))

    def standing(value: float) -> tuple[int, int, float]:
        lost = sum(value in of_method for of_method in losing.values())
        fine = sum(value in within for within, _ in found.values())
        return -lost, fine, -decades(value, nearest)

    chosen = max(values, key=standing)
    return Choice(
        today,
        nearest,
        chosen == nearest,
        chosen,
        {method: best for method, (_, best) in found.items()},
        {method: within for method, (within, _) in found.items()},
        losing,
    )


def planned(groups: Iterable[Group], seeds: int, folder: Path) -> list[PlannedRun]:
    """The runs of every group, in order."""
    return [
        PlannedRun(
            f"{group.name}-{method}-{value:g}-s{seed}",
            method,
            merged(
                merged(settings_of(group, folder), merged(nested(group.key, value), group.beside(value))),
                {"seed": seed},
            ),
            {"group": group.name, "key": group.key, "value": value, "seed": seed},
        )
        for group in groups
        for method in group.methods
        for seed in range(seeds)
        for value in group.values()
    ]


def settings_of(group: Group, folder: Path) -> dict[str, Any]:
    """The settings of a group's runs, with the folders of the models that `prepare` made."""
    return dict(merged(SPARE, located(group.settings, folder)))


def nested(key: str, value: Any) -> dict[str, Any]:
    """A setting as a table in tables."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def located(value: Any, folder: Path) -> Any:
    """Settings in which the names of stages are their run folders."""
    if isinstance(value, Mapping):
        return {key: located(member, folder) for key, member in value.items()}
    if isinstance(value, list):
        return [located(member, folder) for member in value]
    return run_of(value, folder) if value in (TEACHER, LAYERS, STUDENT, IMITATING, SCORER) else value


def run_of(stage: str, folder: Path) -> str:
    """The run folder of PIPELINE/STAGE; of a reward model its newest weights."""
    pipeline, name = stage.split("/")
    [run] = [path for path in (folder / pipeline).glob("*/run") if path.parent.name.partition("-")[2] == name]
    return str(run_model(run) or run) if stage == SCORER else str(run)


def prepare(folder: Path, names: Iterable[str], workers: int) -> None:
    """Run the pipelines whose models are needed; what is there already is kept."""
    code = (
        "import json, sys; from whet.tools.pipelines.runner import run_pipeline; run_pipeline(*json.loads(sys.argv[1]))"
    )
    running = []
    for name in names:
        settings = {**PREPARED[name], "folder": str(folder / name), "model": SPARE["model"]}
        command = [sys.executable, "-c", code, json.dumps([name, settings])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        running.append((name, subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)))
        if workers == 1:
            running[-1][1].wait()
    for name, process in running:
        if process.wait():
            raise SystemExit(f"whet pipeline {name} ended with {process.returncode}")


def share_right(metrics: Mapping[str, float]) -> float:
    """Held-out accuracy: of completions, of a reward model's pairs or outcomes, or of its steps."""
    return float(next((metrics[name] for name in ("accuracy", "step_accuracy") if name in metrics), 0.0))


def outcomes_of(records: Iterable[Mapping[str, Any]]) -> list[Outcome]:
    """One method's records, by value. A run that failed, or whose loss is not a number, ended at 0."""
    ends: dict[float, list[tuple[float, float]]] = {}
    for record in records:
        before, after = (share_right(record[end] or {}) for end in ("before", "after"))
        ends.setdefault(record["tags"]["value"], []).append((before, after if isfinite(after) else 0.0))
    return [
        Outcome(value, tuple(before for before, _ in pairs), tuple(after for _, after in pairs))
        for value, pairs in sorted(ends.items())
    ]


def todays_default(group: Group, folder: Path) -> float:
    """The default of the group's first method, by the code that is measured."""
    if group.today:
        return group.today
    section, key = group.key.split(".")
    return float(getattr(getattr(resolved(group.methods[0], settings_of(group, folder)), section), key))


def judged(group: Group, records: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, Any]:
    """A group's table and choice, as results/other_defaults.json has them."""
    by_method = {
        method: outcomes
        for method in group.methods
        if (outcomes := outcomes_of(record for record in records if record["method"] == method))
    }
    choice = choose(by_method, todays_default(group, folder))
    return {
        "key": group.key,
        "today": choice.today,
        "nearest": choice.nearest,
        "stands": choice.stands,
        "chosen": choice.chosen,
        "methods": {
            method: {
                "start": fmean(outcomes[0].before),
                "best": choice.best[method],
                "fine": choice.fine[method],
                "losing": choice.losing[method],
                "values": {
                    f"{outcome.value:g}": {
                        "mean": outcome.mean,
                        "low": min(outcome.after),
                        "high": max(outcome.after),
                        "seeds": len(outcome.after),
                    }
                    for outcome in outcomes
                },
            }
            for method, outcomes in by_method.items()
        },
    }


def page_rows(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """A line of docs/defaults.md for each group and method."""
    rows = {}
    for name, group in groups.items():
        for method, measured in group["methods"].items():
            by_value = {float(value): of_value["mean"] for value, of_value in measured["values"].items()}
            best = measured["best"] or max(by_value, key=lambda value: by_value[value])
            rows[f"{method}, {name}"] = {
                "key": group["key"],
                "start": measured["start"],
                "today": f"{group['today']:g}",
                "at_today": by_value.get(group["nearest"], 0.0),
                "best": f"{best:g}",
                "at_best": by_value[best],
                "fine": ", ".join(f"{value:g}" for value in measured["fine"]) or "none",
                "losing": ", ".join(f"{value:g}" for value in measured["losing"]) or "none",
                "chosen": f"{group['today'] if group['stands'] else group['chosen']:g}",
            }
    return rows


def table_text(name: str, group: Mapping[str, Any]) -> str:
    """A group as text: a line per method, a column per value; * is fine, ! loses against the start."""
    values = sorted({float(value) for method in group["methods"].values() for value in method["values"]})
    said = "stands" if group["stands"] else f"does not stand: {group['chosen']:g} would be chosen"
    lines = [f"\n{name}: today's {group['key']} is {group['today']:g}, which {said}"]
    lines.append(f"{'':10}{'start':>7}" + "".join(f"{value:>9g}" for value in values))
    for method, measured in group["methods"].items():
        cells = []
        for value in values:
            mark = "!" if value in measured["losing"] else "*" if value in measured["fine"] else " "
            mean = measured["values"].get(f"{value:g}", {}).get("mean")
            cells.append(f"{'':>9}" if mean is None else f"{mean:>8.1%}{mark}")
        lines.append(f"{method:10}{measured['start']:>7.1%}" + "".join(cells))
    return "\n".join(lines)


def main() -> None:
    names = ",".join(group.name for group in GROUPS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1, help="runs at once, one thread each")
    parser.add_argument("--seconds", type=float, default=0.0, help="no run begins after so many; 0 is no limit")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds of one run at most")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default=names, help="groups, with commas between them")
    parser.add_argument("--folder", type=Path, default=Path("build/other_defaults"), help="of everything")
    add_results_flag(parser, "other_defaults")
    chosen = parser.parse_args()
    wanted = chosen.only.split(",")
    if unknown := [name for name in wanted if name not in names.split(",")]:
        raise SystemExit(f"--only: no group is called {', '.join(unknown)}; there are {names}")
    groups = [group for group in GROUPS if group.name in wanted]
    folder = chosen.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    wanted_stages = json.dumps([group.settings for group in groups])
    prepare(folder, [name for name in PREPARED if f'"{name}/' in wanted_stages], chosen.workers)
    plans = planned(groups, chosen.seeds, folder)
    left = max(1.0, chosen.seconds - (time.monotonic() - began)) if chosen.seconds else 0.0
    records = make_runs(plans, folder / "runs", chosen.workers, left, chosen.timeout)
    values = {}
    for group in groups:
        if own := [record for record in records if record["tags"]["group"] == group.name]:
            values[group.name] = judged(group, own, folder)
            print(table_text(group.name, values[group.name]), flush=True)
    if chosen.results and values:
        write_archive(ARCHIVES / f"{chosen.results}.jsonl.xz", records)
        write_results(
            chosen.results, {"seeds": chosen.seeds, "prompts": PROMPTS, "rows": page_rows(values), "groups": values}
        )


if __name__ == "__main__":
    main()
