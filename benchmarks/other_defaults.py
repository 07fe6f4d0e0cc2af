"""Learning rates of everything that is not a policy method on a real model: a sweep over two decades, three seeds.

    python benchmarks/other_defaults.py --workers 16 --seconds 1200 --folder build/other_defaults --results
    python benchmarks/other_defaults.py --only teacher-whole,critic --seeds 1

Every run is `whet train METHOD` on the built-in model as a user has it, except for its rate; methods with a teacher
train a student of two of the teacher's three layers. A run that is there already in --folder is not repeated. The
table goes to results/other_defaults.json and the runs to benchmarks/runs/other_defaults.jsonl.xz.

The rule that chooses: a rate is *fine* where no seed ends below its start by more than noise, and where its mean is
within noise of the best mean. Methods of one group share a default: it is fine for every method of the group where
there is such a rate, and today's stays where it is one of them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, log10, sqrt
from pathlib import Path
from statistics import fmean, variance
from typing import Any

from results_file import ROOT, add_results_flag, write_results
from run_archive import ARCHIVES, PlannedRun, make_runs, write_archive

sys.path.insert(0, str(ROOT / "src"))

import whet
from whet.settings.layers import merged

STEPS = range(-3, 4)  # thirds of a decade on either side of the middle
ERRORS = 2.0  # standard errors that count as noise
PROMPTS = 200  # of an evaluation, unless a group says otherwise
TEACHER, LAYERS, STUDENT = "teacher", "layers", "student"
RATE, CRITIC_RATE = "optimizer.learning_rate", "critic.learning_rate"
SPARE = {"model": {"device": "cpu", "threads": 1}, "eval": {"every": 0}, "report": {"save_every": 100_000}}
ADAPTERS = {"model": {"lora": 16}}
# the student of `whet pipeline distill`, whose settings a run folder of the built-in model would have by itself
TASK = {"data": {"source": "task:arithmetic", "count": 512}, "sampling": {"max_new_tokens": 64}}
TAUGHT = merged(TASK, {"model": {"name": STUDENT}, "steps": 100})
ALONE = {"batch": {"group_size": 1, "prompts_per_step": 64}}


@dataclass(frozen=True)
class Group:
    """Methods that share a default rate, and the runs that it is measured on."""

    name: str
    methods: tuple[str, ...]
    middle: float  # of the rates that are tried
    settings: Mapping[str, Any] = field(default_factory=dict)
    key: str = RATE

    def rates(self) -> list[float]:
        """Seven rates, a third of a decade apart."""
        return [float(f"{self.middle * 10 ** (step / 3):.2g}") for step in STEPS]


# the most telling first: a sweep that runs out of time has these
GROUPS = (
    Group("teacher-whole", ("opd_full", "gkd"), 1e-3, merged(merged(TAUGHT, ALONE), {"teacher": {"name": TEACHER}})),
    Group("teacher-sampled", ("opd", "iw_opd"), 1e-3, merged(merged(TAUGHT, ALONE), {"teacher": {"name": TEACHER}})),
    Group("teacher-self", ("sdft", "sdpo"), 1e-4),
    Group("preference", ("dpo", "ipo", "kto", "simpo", "orpo"), 1e-4),
    Group("reward-model", ("rm", "orm", "prm"), 1e-3),
    Group("critic", ("ppo",), 1e-3, key=CRITIC_RATE),
    Group("lora-policy", ("grpo",), 1e-3, ADAPTERS),
    Group("lora-preference", ("dpo",), 1e-3, ADAPTERS),
    Group("sft", ("sft",), 1e-3, merged(TASK, {"model": {"name": LAYERS}, "steps": 60})),
)


@dataclass(frozen=True)
class RateOutcome:
    """What the seeds of one method came to at one rate."""

    rate: float
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

    today: float  # the default of the code that ran this, which need not be one of the rates tried
    nearest: float  # the rate tried that is closest to it
    stands: bool
    chosen: float  # the rate tried that the rule takes; today's where it stands
    best: dict[str, float]  # by method
    fine: dict[str, list[float]]
    losing: dict[str, list[float]]


def share_variance(share: float) -> float:
    """Of a share of `PROMPTS` answers; never 0, as a share of 0 or 1 is not known exactly either."""
    likely = (share * PROMPTS + 1) / (PROMPTS + 2)
    return likely * (1 - likely) / PROMPTS


def fine_rates(outcomes: Sequence[RateOutcome]) -> tuple[list[float], float]:
    """The rates that never lose and are within noise of the best of them; and the best. No rate: none, and 0."""
    safe = [outcome for outcome in outcomes if not outcome.loses()]
    if not safe:
        return [], 0.0
    best = max(safe, key=lambda outcome: outcome.mean)
    within = [
        outcome.rate for outcome in safe if best.mean - outcome.mean <= ERRORS * sqrt(best.error**2 + outcome.error**2)
    ]
    return within, best.rate


def choose(by_method: Mapping[str, Sequence[RateOutcome]], today: float) -> Choice:
    """One default for all methods of a group: fine for as many as possible, losing for as few, then near to today's."""
    rates = sorted({outcome.rate for outcomes in by_method.values() for outcome in outcomes})
    found = {method: fine_rates(outcomes) for method, outcomes in by_method.items()}
    losing = {method: [one.rate for one in outcomes if one.loses()] for method, outcomes in by_method.items()}
    nearest = min(rates, key=lambda rate: abs(log10(rate / today)))

    def standing(rate: float) -> tuple[int, int, float]:
        lost = sum(rate in of_method for of_method in losing.values())
        fine = sum(rate in within for within, _ in found.values())
        return -lost, fine, -abs(log10(rate / nearest))

    chosen = max(rates, key=standing)
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
    plans = []
    for group in groups:
        section, key = group.key.split(".")
        for method in group.methods:
            for seed in range(seeds):
                for rate in group.rates():
                    settings = merged(merged(SPARE, located(group.settings, folder)), {section: {key: rate}})
                    plans.append(
                        PlannedRun(
                            f"{group.name}-{method}-{rate:g}-s{seed}",
                            method,
                            {**settings, "seed": seed},
                            {"group": group.name, "rate": rate, "seed": seed},
                        )
                    )
    return plans


def located(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Settings whose teacher and student are folders under `folder`."""
    values = dict(settings)
    for section in ("model", "teacher"):
        if values.get(section, {}).get("name") in (TEACHER, LAYERS, STUDENT):
            values[section] = {**values[section], "name": str(folder / values[section]["name"])}
    return values


def prepare(folder: Path) -> None:
    """The teacher, two of its layers, and that student after a few demonstrations: as `whet pipeline distill` does."""
    from whet.model.prune import save_smaller

    if not (folder / TEACHER / "run.json").is_file():
        whet.train("grpo", config=merged(SPARE, {"steps": 30}), folder=str(folder / TEACHER), console=False)
    if not (folder / LAYERS).is_dir():
        save_smaller(str(folder / TEACHER), folder / LAYERS, 2, False, 0)
    if not (folder / STUDENT / "run.json").is_file():
        warm = {"data": {"count": 128}, "steps": 16, "batch": {"rows_per_step": 32}}
        warm = merged(warm, {"model": {"name": str(folder / LAYERS)}, "optimizer": {"learning_rate": 1e-3}})
        whet.train("sft", config=merged(merged(SPARE, TASK), warm), folder=str(folder / STUDENT), console=False)


def outcomes_of(records: Iterable[Mapping[str, Any]]) -> list[RateOutcome]:
    """One method's records, by rate. A run that failed, or whose loss is not a number, ended at 0."""
    by_rate: dict[float, list[tuple[float, float]]] = {}
    for record in records:
        before, after = (float((record[end] or {}).get("accuracy", 0.0)) for end in ("before", "after"))
        by_rate.setdefault(record["tags"]["rate"], []).append((before, after if isfinite(after) else 0.0))
    return [RateOutcome(rate, *map(tuple, zip(*ends, strict=True))) for rate, ends in sorted(by_rate.items())]


def todays_rate(group: Group, folder: Path) -> float:
    """The default of the group's first method, by the code that is measured."""
    from whet.training.config import resolved

    config = resolved(group.methods[0], merged(SPARE, located(group.settings, folder)))
    section, key = group.key.split(".")
    return float(getattr(getattr(config, section), key))


def judged(group: Group, records: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, Any]:
    """A group's table and choice, as results/other_defaults.json has them."""
    by_method = {
        method: outcomes_of([record for record in records if record["method"] == method]) for method in group.methods
    }
    by_method = {method: outcomes for method, outcomes in by_method.items() if outcomes}
    choice = choose(by_method, todays_rate(group, folder))
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
                "rates": {
                    f"{outcome.rate:g}": {
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


def table_text(name: str, values: Mapping[str, Any]) -> str:
    """A group as text: a line per method, a column per rate; * is fine, ! loses against the start."""
    rates = sorted({float(rate) for method in values["methods"].values() for rate in method["rates"]})
    said = "stands" if values["stands"] else f"does not stand: {values['chosen']:g} would be chosen"
    lines = [f"\n{name}: today's {values['key']} is {values['today']:g}, which {said}"]
    lines.append(f"{'':10}{'start':>7}" + "".join(f"{rate:>9g}" for rate in rates))
    for method, found in values["methods"].items():
        cells = []
        for rate in rates:
            mark = "!" if rate in found["losing"] else "*" if rate in found["fine"] else " "
            mean = found["rates"].get(f"{rate:g}", {}).get("mean")
            cells.append(f"{'':>9}" if mean is None else f"{mean:>8.1%}{mark}")
        lines.append(f"{method:10}{found['start']:>7.1%}" + "".join(cells))
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
    prepare(folder)
    plans = planned(groups, chosen.seeds, folder)
    records = make_runs(plans, folder / "runs", chosen.workers, chosen.seconds, chosen.timeout)
    values = {}
    for group in groups:
        if own := [record for record in records if record["tags"]["group"] == group.name]:
            values[group.name] = judged(group, own, folder)
            print(table_text(group.name, values[group.name]), flush=True)
    if chosen.results and values:
        write_archive(ARCHIVES / f"{chosen.results}.jsonl.xz", records)
        write_results(chosen.results, {"seeds": chosen.seeds, "prompts": PROMPTS, "groups": values})


if __name__ == "__main__":
    main()
