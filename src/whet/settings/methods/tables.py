"""The methods as tables and as prose, without torch: what `whet algorithms`, `whet explain` and the docs show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from whet.settings.methods import catalogue
from whet.settings.methods.method import AxisSummary, ComponentChoice, Method, MethodKind

HEADINGS: dict[MethodKind, str] = {
    "policy": "Reinforcement learning, from rewards",
    "preference": "Preference learning, from pairs or labels",
    "reward_model": "Reward models",
    "sft": "Imitation, from demonstrations",
}
PAGES: dict[MethodKind, str] = {"policy": "algorithms.md", "preference": "preference-methods.md"}
AIMS: dict[MethodKind, str] = {"policy": "what a run maximises", "preference": "what a run minimises"}


def overview(kind: MethodKind, papers: bool = False) -> str:
    """What each method of a kind is for, a line each."""
    lines = [["method", "what it says" if kind == "reward_model" else "what it fixes", "paper"]]
    lines += [[each.name, each.words or each.fixes, each.paper] for each in catalogue.methods(kind).values()]
    return aligned([line if papers else line[:2] for line in lines])


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
    for each in catalogue.methods(kind).values():
        shown = {axis: str(one) if numbers else one.name for axis, one in each.components.items()}
        also = ", ".join(f"{axis} {shown[axis]}" for axis in unusual_axes(each))
        lines.append([each.name, *(shown[axis] for axis in main), also, each.paper.split(",")[0]])
    return aligned(lines)


def axes_table(kind: MethodKind) -> str:
    """Every axis with its question and its components, each with its numbers."""
    lines = [["axis", "question", "components (their numbers)"], ["---"] * 3]
    for name, axis in catalogue.axes(kind).items():
        components = [
            f"`{each.name}` ({', '.join(each.numbers)})" if each.numbers else f"`{each.name}`"
            for each in axis.components.values()
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
    plot = catalogue.method(name).clip_plot
    return explanation(name) + (f"\n\n{plot}" if plot else "")


def _explained(method: Method) -> list[str]:
    lines = [
        f"{method.title}: {method.paper}",
        "",
        f"formula   {method.formula}",
        f"fixes     {method.fixes}",
        f"breaks    {method.breaks}",
    ]
    if method.components:
        axes = catalogue.axes(method.kind, own=False)
        shown = [name for name, axis in axes.items() if axis.main] + unusual_axes(method)
        lines += ["", "components", *(f"  {axis:10} {method.components[axis]}" for axis in shown)]
    if method.aim:
        lines += ["", AIMS[method.kind], *method.aim]
    if method.words:
        lines += ["", f"says      {method.words}", f"data      {method.columns}"]
    if method.deviations:
        lines += ["", "where the paper is silent, whet's choice", *(f"  - {each}" for each in method.deviations)]
    if method.unverified:
        lines += ["", f"not verified against the paper: {method.unverified}"]
    return lines


def unusual_axes(method: Method) -> list[str]:
    """The axes, the main ones apart, on which a method differs from most."""
    axes = catalogue.axes(method.kind, own=False)
    return [
        name
        for name, chosen in method.components.items()
        if not axes[name].main and str(chosen) != str(_usual(axes[name]))
    ]


def _usual(axis: AxisSummary) -> ComponentChoice:
    return next(iter(axis.components.values()))


def markdown_page(kind: MethodKind) -> str:
    """A page of the docs: generated, and checked against the presets."""
    title = {"policy": "# Methods", "preference": "# Preference methods"}[kind]
    note = (
        "Generated from `src/whet/objective/presets/` by `python -m whet.pages.methods`; a test fails when it is stale."
    )
    parts = [title, "", note, "", component_table(kind), "", axes_table(kind), ""]
    for each in catalogue.methods(kind).values():
        parts += [f"## {each.title}", "", "```", explanation(each.name), "```", ""]
        if each.clip_plot:
            rule, usual = each.components["clip"].name, catalogue.axes(kind)["clip"].components
            # a rule with numbers of its own has a plot of its own
            plot = rule if each.components["clip"] == usual[rule] else each.name
            parts += [f"![The weight of a token against its ratio under {rule}](images/clip/{plot}.svg)", ""]
    return "\n".join(parts)


def with_axes_table(page: str) -> str:
    """docs/objective.md with a fresh table of the axes of policy methods."""
    head = "| axis | question |"
    before, found, rest = page.partition(head)
    after = rest.partition("\n\n")[2]
    if not found:
        raise ValueError(f"the page has no table that begins with {head}")
    return f"{before}{axes_table('policy')}\n\n{after}"


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """A markdown table whose columns line up as plain text."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    ruled = [lines[0], ["-" * width for width in widths], *lines[1:]]
    padded = [[text.ljust(width) for text, width in zip(line, widths, strict=True)] for line in ruled]
    return "\n".join("| " + " | ".join(line) + " |" for line in padded)
