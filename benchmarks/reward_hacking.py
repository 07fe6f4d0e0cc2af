"""Two rewards that the built-in model hacks, and the same runs with a gate: the numbers and figures of
docs/reward-design.md.

    python benchmarks/reward_hacking.py --seeds 3 --folder runs/hacking --results

A run that is there already is not trained again. The rewards are the two functions below, used by their path.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import whet
from whet.pages.chart_specs import QUIET, chart, curve
from whet.pages.chart_svg import figure_file
from whet.record.log import eval_records, read_metrics, step_reports

HERE = Path(__file__)
IMAGES = HERE.parent.parent / "docs" / "images"
METHOD, STEPS, TAUGHT_STEPS = "grpo", 40, 20
BUDGET = 16  # tokens
SHOWN = (1, 4, 8, 16, 24, 40)  # steps
COMMON = {"model": {"device": "cpu", "threads": 1}, "eval": {"every": 2}, "report": {"save_every": 100}}
# a run folder as a model has none of the built-in model's defaults
TAUGHT = {
    "batch": {"prompts_per_step": 16, "group_size": 8},
    "optimizer": {"learning_rate": 1e-4},
    "sampling": {"max_new_tokens": 64},
    "data": {"count": 1024},
}


def short(num_tokens: int) -> float:
    """1 for a completion of at most 16 tokens."""
    return float(num_tokens <= BUDGET)


def claimed(completion: str, answer: int) -> float:
    """1 when the working says that it arrives at the target."""
    return float(f"={answer}</think>" in completion)


@dataclass(frozen=True)
class Story:
    """A right reward first, a hackable one beside it, and the task both are for."""

    right: str
    right_weight: float
    hackable: str
    title: str
    values: Mapping[str, Any]
    is_taught: bool  # starts from a model that was trained on the right reward alone

    def parts(self, gated: bool) -> list[dict[str, Any]]:
        gate = {"gate": self.right} if gated else {}
        return [
            {"reward": self.right, "weight": self.right_weight},
            {"reward": f"{_shown(HERE)}:{self.hackable}", **gate},
        ]


STORIES = {
    "short": Story("exact_answer", 1.0, "short", "Right answers, and short ones", TAUGHT, True),
    "claimed": Story(
        *("countdown", 0.0, "claimed", "Working that says it arrives"),
        {"data": {"source": "task:countdown", "difficulty": [2]}},
        False,
    ),
}
KINDS = {"hacked": "the part counts always", "gated": "the part counts only for a right answer"}


def trained(story: Story, kind: str, seed: int, folder: Path) -> Path:
    """The run folder of one kind and seed, trained now where it is not there yet."""
    found = folder / f"{story.hackable}-{kind}-{seed}"
    if not (found / "run.json").is_file():
        values = {**COMMON, **story.values, "reward": {"parts": story.parts(kind == "gated")}}
        if story.is_taught:
            values["model"] = {**COMMON["model"], "name": str(_taught(seed, folder))}
        whet.train(METHOD, config=values, steps=STEPS, seed=seed, folder=str(found))
    return found


def _taught(seed: int, folder: Path) -> Path:
    found = folder / f"taught-{seed}"
    if not (found / "run.json").is_file():
        whet.train(METHOD, config=COMMON, steps=TAUGHT_STEPS, seed=seed, folder=str(found))
    return found


def figure(story: Story, runs: Mapping[str, Sequence[Path]]) -> str:
    """One panel a kind: accuracy on held-out prompts, and what the policy was paid in training."""
    # of weight 0, the right part leaves the other one as the whole reward
    shown = {story.right: 2, story.hackable: 1} | ({"total": QUIET} if story.right_weight else {})
    panels = []
    for kind, folders in runs.items():
        curves = []
        for folder in folders:
            lines = read_metrics(folder)
            for part, tone in shown.items():
                points = tuple((float(each.step), each.reward[part]) for each in step_reports(lines))
                curves.append(curve(f"{'reward' if part == 'total' else part}, in training", (points,), tone))
            marks = tuple((float(exam.step), exam.result["accuracy"]) for exam in eval_records(lines))
            curves.append(curve("accuracy on held-out prompts, greedy", (marks,), 0))
        axes = {
            "x": {"label": "step", "min": 0.0, "max": float(STEPS)},
            "y": {"label": "", "min": 0.0, "max": 1.2},
        }
        panels.append(chart(curves, **axes, smooth=False, title=KINDS[kind]))
    seeds = len(next(iter(runs.values())))
    about = f"{METHOD}, the built-in model, {seeds} seeds, a line each"
    return figure_file(panels, story.title, about, size=(400, 230))


def summary(story: Story, runs: Mapping[str, Sequence[Path]]) -> dict[str, Any]:
    """Held-out metrics before and after and rewards in training, means over seeds, and the accuracy of each seed."""
    found: dict[str, Any] = {}
    for kind, folders in runs.items():
        lines = [read_metrics(folder) for folder in folders]
        evals = [eval_records(each) for each in lines]
        ends = {"before": [each[0].result for each in evals], "after": [each[-1].result for each in evals]}
        found[kind] = {end: means(results) for end, results in ends.items()}
        found[kind]["each seed"] = ", ".join(f"{each['accuracy']:.1%}" for each in ends["after"])
        found[kind]["training"] = {
            str(step): means([one.reward for each in lines for one in step_reports(each) if one.step == step])
            for step in SHOWN
        }
        found[kind]["greedy"] = {
            str(step): means([one.result for each in evals for one in each if one.step == step]) for step in SHOWN
        }
    return found


def means(results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {
        key: fmean(each[key] for each in results)
        for key, value in (results[0] if results else {}).items()
        if isinstance(value, float)
    }


def _shown(path: Path) -> str:
    """Relative where it can be, so that a run's config can be read on another machine."""
    here = Path.cwd().resolve()
    full = path.resolve()
    return str(full.relative_to(here)) if full.is_relative_to(here) else str(full)


def main() -> None:
    # not above: a run imports this file for its rewards, from anywhere
    from results_file import add_results_flag, write_results
    from workers import run_all

    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--folder", type=Path, default=Path("runs/hacking"))
    options.add_argument("--images", type=Path, default=IMAGES)
    options.add_argument("--story", choices=STORIES, action="append")
    options.add_argument("--workers", type=int, default=1, help="runs side by side")
    add_results_flag(options, "reward_hacking")
    given = options.parse_args()
    found: dict[str, Any] = {"seeds": given.seeds}
    names, seeds = given.story or list(STORIES), range(given.seeds)
    if any(STORIES[name].is_taught for name in names):
        run_all(_taught, [(seed, given.folder) for seed in seeds], given.workers)
    jobs = [(STORIES[name], kind, seed, given.folder) for name in names for kind in KINDS for seed in seeds]
    run_all(trained, jobs, given.workers)
    for name in names:
        story = STORIES[name]
        runs = {kind: [trained(story, kind, seed, given.folder) for seed in seeds] for kind in KINDS}
        (given.images / f"reward-{name}.svg").write_text(figure(story, runs), encoding="utf-8")
        found[name] = summary(story, runs)
        print(json.dumps(found[name], indent=1), flush=True)
    if given.results:
        write_results(given.results, found)


if __name__ == "__main__":
    main()
