"""The methods as tables and as prose: what `whet algorithms`, `whet explain` and the docs show.

`python -m whet.pages.methods` writes what is made of the presets afresh, to be run when a preset, a component or its
words have changed: the pages and pictures of the methods in docs/ of a clone, and the plots that `whet explain` prints.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whet.objective import catalogue
from whet.objective.axes import POLICY, PREFERENCE, description, preset_named
from whet.objective.catalogue import Method, MethodKind, component_choice
from whet.record.text import folded, listing

HEADINGS: dict[MethodKind, str] = {
    "policy": "Reinforcement learning, from rewards",
    "preference": "Preference learning, from pairs or labels",
    "reward_model": "Reward models",
    "sft": "Imitation, from demonstrations",
}
PAGES: dict[MethodKind, str] = {"policy": "algorithms.md", "preference": "preference-methods.md"}
AIMS: dict[MethodKind, str] = {"policy": "what a run maximises", "preference": "what a run minimises"}
FAMILIES = {family.name: family for family in (POLICY, PREFERENCE)}


def overview(kind: MethodKind) -> str:
    """What each method of a kind is for."""
    head = {"method": "what it says" if kind == "reward_model" else "what it fixes"}
    return listing(head | {method.name: method.words or method.fixes for method in catalogue.methods(kind).values()})


def algorithms_text(components: bool = False) -> str:
    """Every method under the heading of its kind; with the components it is made of, where there are some."""
    parts = []
    for kind, heading in HEADINGS.items():
        table = component_table(kind, numbers=False) if components and catalogue.axes(kind) else overview(kind)
        parts.append(f"{heading}\n\n{table}")
    return "\n\n".join(parts)


def component_table(kind: MethodKind, numbers: bool = True) -> str:
    """The components of each method of a kind; `also` holds the axes that few methods use."""
    main = [name for name, axis in catalogue.axes(kind).items() if axis.main]
    lines = [["method", *main, "also", "paper"]]
    for method in catalogue.methods(kind).values():
        shown = {axis: str(component) if numbers else component.name for axis, component in method.components.items()}
        also = ", ".join(f"{axis} {shown[axis]}" for axis in unusual_axes(method))
        lines.append([method.name, *(shown[axis] for axis in main), also, method.paper.split(",")[0]])
    return aligned(lines)


def axes_table(kind: MethodKind) -> str:
    """Every axis with its question and its components, each with its numbers."""
    lines = [["axis", "question", "components (their numbers)"], ["---"] * 3]
    for name, axis in catalogue.axes(kind).items():
        components = [
            f"`{component.name}` ({', '.join(component.numbers)})" if component.numbers else f"`{component.name}`"
            for component in axis.components.values()
        ]
        lines.append([f"`{name}`", axis.question, ", ".join(components)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def record(method: Method) -> dict[str, Any]:
    """A method as `whet algorithms --json` prints it."""
    return {
        "name": method.name,
        "kind": method.kind,
        "title": method.title,
        **{axis: str(component) for axis, component in method.components.items()},
        "needs": list(method.needs),
        "paper": method.paper,
        "formula": method.formula,
        "fixes": method.fixes,
        "breaks": method.breaks,
        "deviations": list(method.deviations),
        "unverified": method.unverified,
    }


def explanation(name: str) -> str:
    """A method for a reader: the paper's formula, its components, what it fixes and breaks, and what whet chose."""
    method = catalogue.method(name)
    environment = " --env file.py:Class" if method.episodes else ""
    return "\n".join([*_explained(method), "", f"run it    whet train {name}{environment}"])


def explanation_with_plot(name: str) -> str:
    """The explanation and, of a policy method, its clip rule drawn in characters: what `whet explain` prints."""
    explained = "\n".join(map(_folded, explanation(name).splitlines()))
    if catalogue.method(name).kind != "policy":
        return explained
    from whet.pages.clip_plots import stored_text

    return f"{explained}\n\n{stored_text(preset_named(name).objective.clip)}"


def _explained(method: Method) -> list[str]:
    lines = [
        f"{method.title}: {method.paper}",
        "",
        f"formula   {method.formula}",
        f"fixes     {method.fixes}",
        f"breaks    {method.breaks}",
    ]
    if method.components:
        axes = FAMILIES[method.kind].axes
        shown = [name for name, axis in axes.items() if axis.main] + unusual_axes(method)
        lines += ["", "components", *(f"  {axis:10} {method.components[axis]}" for axis in shown)]
        effective = description(preset_named(method.name).objective, updates_per_step=2)[1:]
        lines += ["", AIMS[method.kind], *effective]
    if method.words:
        lines += ["", f"says      {method.words}", f"data      {method.columns}"]
    if method.deviations:
        lines += [
            "",
            "where the paper is silent, whet's choice",
            *(f"  - {deviation}" for deviation in method.deviations),
        ]
    if method.unverified:
        lines += ["", f"not verified against the paper: {method.unverified}"]
    return lines


def _folded(line: str) -> str:
    """A line for the terminal, folded behind its label or the mark of its list."""
    label = re.match(r"\w* {2,}(- )?", line)
    return folded(line, label.end() if label else 0)


def unusual_axes(method: Method) -> list[str]:
    """The axes, the main ones apart, on which a method differs from most."""
    axes = FAMILIES[method.kind].axes if method.components else {}
    usual = {name: component_choice(next(iter(axis.components.values()))()) for name, axis in axes.items()}
    return [name for name, axis in axes.items() if not axis.main and method.components[name] != usual[name]]


def markdown_page(kind: MethodKind) -> str:
    """A page of the docs: generated, and checked against the presets."""
    title = {"policy": "# Methods", "preference": "# Preference methods"}[kind]
    note = (
        "Generated from `src/whet/objective/presets/` by `python -m whet.pages.methods`; a test fails when it is stale."
    )
    parts = [title, "", note, "", component_table(kind), "", axes_table(kind), ""]
    for method in catalogue.methods(kind).values():
        parts += [f"## {method.title}", "", "```", explanation(method.name), "```", ""]
        if kind == "policy":
            rule, usual = method.components["clip"].name, catalogue.axes(kind)["clip"].components
            # a rule with numbers of its own has a plot of its own
            plot = rule if method.components["clip"] == usual[rule] else method.name
            parts += [f"![The weight of a token against its ratio under {rule}](images/clip/{plot}.svg)", ""]
    return "\n".join(parts)


def with_axes_table(page: str) -> str:
    """docs/objective.md with a fresh table of the axes of policy methods."""
    head = "| axis | question |"
    before, found_head, rest = page.partition(head)
    after = rest.partition("\n\n")[2]
    if not found_head:
        raise ValueError(f"the page has no table that begins with {head}")
    return f"{before}{axes_table('policy')}\n\n{after}"


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """A markdown table whose columns line up as plain text."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    ruled = [lines[0], ["-" * width for width in widths], *lines[1:]]
    padded = [[text.ljust(width) for text, width in zip(line, widths, strict=True)] for line in ruled]
    return "\n".join("| " + " | ".join(line) + " |" for line in padded)


def main() -> None:
    """Write the plots of the package and, in a clone, the pages and pictures of the methods."""
    from whet.pages import clip_plots

    clip_plots.write_texts()
    docs = Path(__file__).parents[3] / "docs"
    if not docs.is_dir():
        return
    clip_plots.write_plots(docs / "images" / "clip")
    for kind, page in PAGES.items():
        (docs / page).write_text(markdown_page(kind), encoding="utf-8")
    objective = docs / "objective.md"
    objective.write_text(with_axes_table(objective.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
