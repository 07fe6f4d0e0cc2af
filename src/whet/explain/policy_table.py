"""The rows as a table and as prose: what `whet algorithms`, `whet explain` and docs/algorithms.md show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from whet.objective.axes import AXES, MAIN_AXES, description, preset_named
from whet.objective.presets import PRESETS

NUMBERS = re.compile(r"\([^)]*\)")
QUESTIONS = {
    "baseline": "compared with what?",
    "scale": "in which unit?",
    "ratio": "how is the policy's move measured?",
    "clip": "the factor in front of grad logp",
    "aggregate": "who counts how much?",
    "kl": "tied to the reference, or to the policy that wrote the batch, how?",
    "shape": "what is the reward really?",
    "keep": "which groups are worth training on?",
    "mismatch": "what if the sampler is not the trainer?",
    "select": "which tokens carry gradient?",
    "smooth": "who else learns from a token?",
    "imitate": "are right completions imitated as well?",
    "entropy": "is entropy rewarded?",
    "value": "how does the critic learn?",
    "control": "who turns the KL's coefficient, who ends updates or the run?",
    "reference": "which policy is the reference?",
}


def rows() -> list[dict[str, Any]]:
    """Every row with its components and their numbers."""
    return [_row(name) for name in PRESETS]


def _row(name: str) -> dict[str, Any]:
    preset = PRESETS[name]
    return {
        "name": name,
        "title": preset.title,
        **{axis: str_of(getattr(preset.objective, axis)) for axis in AXES},
        "needs": sorted(preset.objective.needs()),
        "paper": preset.paper,
        "formula": preset.formula,
        "fixes": preset.fixes,
        "breaks": preset.breaks,
        "deviations": list(preset.deviations),
    }


def str_of(component: Any) -> str:
    """`ppo_clip(low=0.2, high=0.2)`, or the bare name of a component without numbers."""
    numbers = ", ".join(f"{field.name}={getattr(component, field.name):g}" for field in fields(component))
    return f"{component.name}({numbers})" if numbers else str(component.name)


def markdown_table(numbers: bool = True) -> str:
    """One line a method, aligned so that it also reads well in a terminal; `also` holds the axes few rows use."""
    header = ["method", *MAIN_AXES, "also", "paper"]
    cells = [
        [row["name"], *(row[axis] for axis in MAIN_AXES), ", ".join(_also(row)), row["paper"].split(",")[0]]
        for row in rows()
    ]
    if not numbers:
        cells = [[NUMBERS.sub("", cell) for cell in line] for line in cells]
    return aligned([header, *cells])


def overview(papers: bool = True) -> str:
    """One line a method: what it is for."""
    lines = [["method", "what it fixes", "paper"], *([row["name"], row["fixes"], row["paper"]] for row in rows())]
    return aligned([line[: 3 if papers else 2] for line in lines])


def axes_table() -> str:
    """Every axis with its question and its components, each with its numbers."""
    lines = [["axis", "question", "components (their numbers)"]]
    for axis, kinds in AXES.items():
        components = []
        for name, kind in kinds.items():
            settable = ", ".join(field.name for field in fields(kind))
            components.append(f"`{name}` ({settable})" if settable else f"`{name}`")
        lines.append([f"`{axis}`", QUESTIONS[axis], ", ".join(components)])
    return "\n".join("| " + " | ".join(line) + " |" for line in [lines[0], ["---"] * 3, *lines[1:]])


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """A markdown table whose columns line up as plain text."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    ruled = [lines[0], ["-" * width for width in widths], *lines[1:]]
    padded = [[text.ljust(width) for text, width in zip(line, widths, strict=True)] for line in ruled]
    return "\n".join("| " + " | ".join(line) + " |" for line in padded)


def _also(row: Mapping[str, Any]) -> list[str]:
    defaults = {axis: next(iter(kinds)) for axis, kinds in AXES.items() if axis not in MAIN_AXES}
    return [f"{axis} {row[axis]}" for axis, usual in defaults.items() if row[axis] != usual]


def explanation(name: str) -> str:
    """A method for a reader: the paper's formula, whet's row, what it fixes, breaks and where whet had to choose."""
    preset = preset_named(name)
    components = {axis: str_of(getattr(preset.objective, axis)) for axis in MAIN_AXES}
    components |= dict(each.split(" ", 1) for each in _also(_row(name)))
    aim = ["what a run maximises", *description(preset.objective, updates_per_step=2)[1:]]
    return explained(name, preset, components, aim)


def explained(name: str, preset: Any, components: Mapping[str, str], aim: Sequence[str]) -> str:
    """The page of a method of any kind; `components` are those of its row, `aim` the objective in words and symbols."""
    lines = [
        f"{preset.title}: {preset.paper}",
        "",
        f"formula   {preset.formula}",
        f"fixes     {preset.fixes}",
        f"breaks    {preset.breaks}",
    ]
    if components:
        lines += ["", "row", *(f"  {axis:10} {component}" for axis, component in components.items())]
    lines += ["", *aim]
    if preset.deviations:
        lines += ["", "where the paper is silent, whet's choice", *(f"  - {each}" for each in preset.deviations)]
    if unverified := getattr(preset, "unverified", ""):
        lines += ["", f"not verified against the paper: {unverified}"]
    return "\n".join([*lines, "", f"run it    whet train {name}"])


def markdown_page() -> str:
    """docs/algorithms.md: generated, and checked against the presets."""
    parts = ["# Methods", "", "Generated from `whet/objective/presets/`; a test fails when this page is stale.", ""]
    parts += [markdown_table(), ""]
    for name, preset in PRESETS.items():
        clip = preset.objective.clip
        plot = clip.name if clip == type(clip)() else name  # a rule with numbers of its own has a plot of its own
        parts += [f"## {preset.title}", "", "```", explanation(name), "```", ""]
        parts += [f"![The weight of a token against its ratio under {clip.name}](images/clip/{plot}.svg)", ""]
    return "\n".join(parts)
