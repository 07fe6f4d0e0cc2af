"""The preference rows as a table and as prose: what `whet algorithms`, `whet explain` and the docs show."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from whet.explain.policy_table import aligned, explained, str_of
from whet.objective.preference.axes import PAIR_AXES, QUESTIONS, pair_description, pair_preset_named
from whet.objective.presets.preference import PAIR_PRESETS
from whet.objective.presets.reward_model import REWARD_MODELS

MAIN_AXES = ("score", "curve")


def pair_rows() -> list[dict[str, Any]]:
    """Every preference row with its components and their numbers."""
    return [_row(name) for name in PAIR_PRESETS]


def _row(name: str) -> dict[str, Any]:
    preset = PAIR_PRESETS[name]
    return {
        "name": name,
        "title": preset.title,
        **{axis: str_of(getattr(preset.objective, axis)) for axis in PAIR_AXES},
        "needs": sorted(preset.objective.needs()),
        "paper": preset.paper,
        "formula": preset.formula,
        "fixes": preset.fixes,
        "breaks": preset.breaks,
        "deviations": list(preset.deviations),
        "unverified": preset.unverified,
    }


def _also(row: dict[str, Any]) -> list[str]:
    usual = {axis: next(iter(kinds)) for axis, kinds in PAIR_AXES.items() if axis not in MAIN_AXES}
    return [f"{axis} {row[axis]}" for axis, name in usual.items() if row[axis] != name]


def pair_table() -> str:
    """One line a method, aligned so that it also reads well in a terminal; `also` holds the axes few rows use."""
    header = ["method", *MAIN_AXES, "also", "paper"]
    cells = [
        [row["name"], *(row[axis] for axis in MAIN_AXES), ", ".join(_also(row)), row["paper"].split(",")[0]]
        for row in pair_rows()
    ]
    return aligned([header, *cells])


def pair_overview(papers: bool = True) -> str:
    """One line a method: what it is for."""
    lines = [["method", "what it fixes", "paper"]]
    lines += [[row["name"], row["fixes"], row["paper"]] for row in pair_rows()]
    return aligned([line[: 3 if papers else 2] for line in lines])


def pair_axes_table() -> str:
    """Every axis with its question and its components, each with its numbers."""
    lines = [["axis", "question", "components (their numbers)"], ["---"] * 3]
    for axis, kinds in PAIR_AXES.items():
        components = []
        for name, kind in kinds.items():
            settable = ", ".join(field.name for field in fields(kind))
            components.append(f"`{name}` ({settable})" if settable else f"`{name}`")
        lines.append([f"`{axis}`", QUESTIONS[axis], ", ".join(components)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def pair_explanation(name: str) -> str:
    """A method for a reader: the paper's formula, whet's row, what it fixes, breaks and where whet had to choose."""
    preset = pair_preset_named(name)
    components = {axis: str_of(getattr(preset.objective, axis)) for axis in MAIN_AXES}
    components |= dict(each.split(" ", 1) for each in _also(_row(name)))
    return explained(name, preset, components, ["what a run minimises", *pair_description(preset.objective)[1:]])


def reward_model_explanation(name: str) -> str:
    """A kind of reward model for a reader."""
    preset = REWARD_MODELS[name]
    return explained(name, preset, {}, [f"says      {preset.words}", f"data      {preset.columns}"])


def pair_page() -> str:
    """The part of the docs about preference methods: generated, and checked against the presets."""
    parts = ["# Preference methods", "", "Generated from `whet/objective/presets/`.", "", pair_table(), ""]
    parts += [pair_axes_table(), ""]
    for name, preset in PAIR_PRESETS.items():
        parts += [f"## {preset.title}", "", "```", pair_explanation(name), "```", ""]
    return "\n".join(parts)
