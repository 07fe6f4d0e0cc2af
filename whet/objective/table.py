"""The rows as a table and as prose: what `whet algorithms`, `whet explain` and docs/algorithms.md show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from whet.objective.axes import AXES, MAIN_AXES, description, preset_named
from whet.objective.presets import PRESETS


def rows() -> list[dict[str, Any]]:
    """Every row with its pieces and their numbers."""
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


def str_of(piece: Any) -> str:
    """`ppo_clip(low=0.2, high=0.2)`, or the bare name of a piece without numbers."""
    numbers = ", ".join(f"{field.name}={getattr(piece, field.name):g}" for field in fields(piece))
    return f"{piece.name}({numbers})" if numbers else str(piece.name)


def markdown_table() -> str:
    """One line a method, aligned so that it also reads well in a terminal; `also` holds the axes few rows use."""
    header = ["method", *MAIN_AXES, "also", "paper"]
    cells = [
        [row["name"], *(row[axis] for axis in MAIN_AXES), ", ".join(_also(row)), row["paper"].split(",")[0]]
        for row in rows()
    ]
    widths = [max(len(line[column]) for line in [header, *cells]) for column in range(len(header))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |"
        for line in [header, ["-" * width for width in widths], *cells]
    ]
    return "\n".join(lines)


def _also(row: Mapping[str, Any]) -> list[str]:
    defaults = {axis: next(iter(kinds)) for axis, kinds in AXES.items() if axis not in MAIN_AXES}
    return [f"{axis} {row[axis]}" for axis, usual in defaults.items() if row[axis] != usual]


def explanation(name: str) -> str:
    """A method for a reader: the paper's formula, whet's row, what it fixes, breaks and where whet had to choose."""
    preset = preset_named(name)
    lines = [
        f"{preset.title}: {preset.paper}",
        "",
        f"formula   {preset.formula}",
        f"fixes     {preset.fixes}",
        f"breaks    {preset.breaks}",
        "",
        "row",
        *(f"  {axis:10} {str_of(getattr(preset.objective, axis))}" for axis in MAIN_AXES),
        *(f"  {also.replace(' ', ' ' * (11 - len(also.split(' ')[0])), 1)}" for also in _also(_row(name))),
        "",
        "what a run maximises",
        *description(preset.objective, updates_per_step=2)[1:],
    ]
    if preset.deviations:
        lines += ["", "where the paper is silent, whet's choice", *(f"  - {each}" for each in preset.deviations)]
    lines += ["", f"run it    whet train {name}"]
    return "\n".join(lines)


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
