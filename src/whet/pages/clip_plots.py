"""Clip rules as pictures: the factor in front of grad logp against the ratio, for good and for bad tokens.

What a picture shows is asked of the rule itself: where its band ends, whether it looks at the token's probability, and
whether at the other tokens of the completion. A new rule has its plot without a line here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

from whet.objective import AXES, PRESETS
from whet.objective.clip import ClipRule
from whet.objective.lazy_torch import torch
from whet.pages.chart_specs import Point, chart, curve
from whet.pages.chart_svg import figure_file

COMPLETION_TOKENS = 8
PROBABILITIES = (0.05, 0.5, 0.9)
USUAL = (0.0, 3.0)
SIDES = ((1.0, "A > 0"), (-1.0, "A < 0"))
TEXT_COLUMNS, TEXT_ROWS = 50, 8
TEXTS = Path(__file__).parent / "assets" / "clip_plots.txt"
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def remembered(function: AnyFunction) -> AnyFunction:
    """The function with its results kept. A rule can be a key: it is frozen, which its Protocol does not say."""
    return cast(AnyFunction, lru_cache(maxsize=4096)(function))


def weights(
    rule: ClipRule, ratios: Sequence[float], side: float, probability: float = 0.5, others: int = 7
) -> list[float]:
    """The rule's weight at each ratio of one token: of advantage `side`, and `probability` when it was written.

    The `others` of its completion have ratio 1.
    """
    ratio = torch.ones(len(ratios), 1 + others, dtype=torch.float64)
    ratio[:, 0] = torch.tensor(ratios, dtype=torch.float64)
    logp = ratio.log() + math.log(probability)
    rule_weights = rule(ratio, torch.full_like(ratio, side), torch.ones_like(ratio, dtype=torch.bool), logp)
    return cast(list[float], rule_weights[:, 0].tolist())


def rule_plot(rule: ClipRule) -> str:
    """Weight against ratio, a curve for A > 0 and one for A < 0; a panel a probability where the rule looks at it."""
    several = looks_at_probability(rule)
    chosen = PROBABILITIES if several else (0.5,)
    span = ratio_range(rule)
    reaches = {probability: min(span[1], _most(rule, probability)) for probability in chosen}
    drawn = {
        (probability, side): _stretches(rule, side, (span[0], reach), probability)
        for probability, reach in reaches.items()
        for side, _ in SIDES
    }
    bottom, top = _weight_range([weight for parts in drawn.values() for part in parts for _, weight in part])
    label = "weight" if several else "weight: the factor in front of grad log pi"
    panels = [
        chart(
            [
                curve(label, drawn[probability, side], tone, dashed=tone == 1)
                for tone, (side, label) in enumerate(SIDES)
            ],
            x={"label": "ratio", "min": span[0], "max": span[1]},
            y={"label": label, "min": bottom, "max": max(top, _rounded_up(1.2))},
            smooth=False,
            lines=[{"x": 1.0}],
            title=f"old probability {probability:g}" if several else "",
            limit={"x": reach, "text": "above probability 1"},
        )
        for probability, reach in reaches.items()
    ]
    return figure_file(panels, rule.name, _situation(rule), size=(230, 220) if several else (520, 240))


def clip_text(rule: ClipRule) -> str:
    """The same picture in characters, for a terminal: '+' where A > 0, '-' where A < 0, '*' where both."""
    low, high = ratio_range(rule)
    high = min(high, _most(rule, 0.5))
    ratios = [low + (high - low) * (column + 0.5) / TEXT_COLUMNS for column in range(TEXT_COLUMNS)]
    sides = [weights(rule, ratios, side) for side, _ in SIDES]
    bottom, top = _weight_range([value for values in sides for value in values])

    def line_of(weight: float) -> int:
        return TEXT_ROWS - round((weight - bottom) / (top - bottom) * TEXT_ROWS)

    cells = [[" "] * TEXT_COLUMNS for _ in range(TEXT_ROWS + 1)]
    for mark, values in zip("+-", sides, strict=True):
        for column, value in enumerate(values):
            if math.isfinite(value):
                row = line_of(value)
                cells[row][column] = mark if cells[row][column] == " " else "*"
    labels = {0: f"{top:g}", TEXT_ROWS: f"{bottom:g}", line_of(1): "1", line_of(0): "0"}
    lines = [f"weight against ratio: + A > 0, - A < 0, * both{_aside(rule)}"]
    lines += [f"{labels.get(row, ''):>6} |{''.join(line)}".rstrip() for row, line in enumerate(cells)]
    ends = f"{low:g}", f"{high:g}"
    middle = round((1 - low) / (high - low) * TEXT_COLUMNS)
    axis = list(f"{ends[0]:<{TEXT_COLUMNS - len(ends[1])}}{ends[1]}")
    axis[middle] = "1"
    return "\n".join([*lines, " " * 7 + "+" + "-" * TEXT_COLUMNS, " " * 8 + "".join(axis)])


def stored_text(rule: ClipRule) -> str:
    """`clip_text` of a rule, read where `write_texts` has written it: drawing it imports torch."""
    plots = dict(part.split("\n", 1) for part in TEXTS.read_text(encoding="utf-8").split("\n\n"))
    plot = plots.get(repr(rule))
    return clip_text(rule) if plot is None else plot.rstrip("\n")


def write_texts() -> None:
    """Write the plots of all built-in rules and methods into the package, each under the rule with its numbers."""
    plots = {repr(rule): clip_text(rule) for rule in plotted().values()}
    TEXTS.write_text("\n\n".join(f"{rule}\n{plot}" for rule, plot in plots.items()) + "\n", encoding="utf-8")


@remembered
def looks_at_probability(rule: ClipRule) -> bool:
    """True when a token's weight depends on how likely it was."""
    ratios = [0.02 * number for number in range(1, 54)]
    return any(weights(rule, ratios, side, 0.05) != weights(rule, ratios, side, 0.9) for side, _ in SIDES)


@remembered
def looks_at_completion(rule: ClipRule) -> bool:
    """True when a token's weight depends on the other tokens of its completion."""
    ratios = [0.02 * number for number in range(1, 100)]
    return any(weights(rule, ratios, side, others=0) != weights(rule, ratios, side) for side, _ in SIDES)


@remembered
def ratio_range(rule: ClipRule) -> tuple[float, float]:
    """The range of ratios worth showing: 0 to 3, more where the band ends further out, near 1 where it is tiny."""
    chosen = PROBABILITIES if looks_at_probability(rule) else (0.5,)
    edges = [
        edge
        for probability in chosen
        for side, _ in SIDES
        for edge in _edges(rule, side, _probes(_most(rule, probability)), probability)
    ]
    far = max((abs(edge - 1) for edge in edges), default=1.0)
    if far < 0.1:
        reach = _rounded_up(2 * far)
        return 1 - reach, 1 + reach
    return USUAL[0], max(USUAL[1], _rounded_up(1.2 * (1 + far)))


def plotted() -> dict[str, ClipRule]:
    """Every picture by the name of its file: each rule, and each method whose numbers are not the rule's own."""
    rules: dict[str, ClipRule] = {name: kind() for name, kind in AXES["clip"].items()}
    methods = {name: preset.objective.clip for name, preset in PRESETS.items()}
    return rules | {name: rule for name, rule in methods.items() if rule != rules[rule.name]}


def write_plots(folder: str | Path) -> list[Path]:
    """Draw every picture into the folder, as NAME.svg."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    written = []
    for name, rule in plotted().items():
        written.append(path / f"{name}.svg")
        written[-1].write_text(rule_plot(rule), encoding="utf-8")
    return written


def _situation(rule: ClipRule) -> str:
    numbers = ", ".join(f"{number.name} {getattr(rule, number.name):g}" for number in fields(rule))  # type: ignore[arg-type]
    completion = (
        f"the other {COMPLETION_TOKENS - 1} tokens of the completion at ratio 1" if looks_at_completion(rule) else ""
    )
    return "; ".join(part for part in (numbers, completion) if part)


def _aside(rule: ClipRule) -> str:
    if looks_at_probability(rule):
        return " (was 0.5 likely)"
    return f" (1 of {COMPLETION_TOKENS} tokens)" if looks_at_completion(rule) else ""


def _most(rule: ClipRule, probability: float) -> float:
    """The largest ratio a token can have; a rule that does not look at its probability is drawn for all of them."""
    return 1 / probability if looks_at_probability(rule) else math.inf


def _probes(most: float) -> list[float]:
    """Ratios on both sides of 1, dense near it: 1e-5 to 20 away, and never above `most`."""
    away = [10 ** (-5 + 0.05 * step) for step in range(127)]
    return sorted([1 - step for step in away if step < 1] + [1 + step for step in away if 1 + step < most])


def curve_points(
    rule: ClipRule, side: float, span: tuple[float, float], probability: float, steps: int
) -> list[tuple[float, float]]:
    """(ratio, weight) from one end of the span to the other, with both sides of every edge."""
    return [point for stretch in _stretches(rule, side, span, probability, steps) for point in stretch]


def _stretches(
    rule: ClipRule, side: float, span: tuple[float, float], probability: float, steps: int = 240
) -> tuple[tuple[Point, ...], ...]:
    low, high = span
    step = (high - low) / steps
    # a ratio of 0 has no logarithm, and no token that was drawn has it; some rules are steep there
    first = [low] if low else [step * 0.1**power for power in range(9, 0, -1)]
    grid = first + [low + step * number for number in range(1, steps + 1)]
    edges = [edge for edge in _edges(rule, side, grid, probability) if low < edge < high]
    stretches = []
    nudge = 1e-7 * (high - low)
    for start, stop in zip([grid[0], *edges], [*edges, grid[-1]], strict=True):
        ends = [start + (nudge if start in edges else 0), stop - (nudge if stop in edges else 0)]
        ratios = [ends[0], *(at for at in grid if ends[0] < at < ends[1]), ends[1]]
        points = zip(ratios, weights(rule, ratios, side, probability), strict=True)
        stretches.append(tuple(point for point in points if math.isfinite(point[1])))
    return tuple(stretch for stretch in stretches if stretch)


def _edges(rule: ClipRule, side: float, grid: Sequence[float], probability: float) -> list[float]:
    """The ratios at which the weight becomes or stops being 0, or the ratio itself: the band's ends, by halving."""

    def kinds(ratios: Sequence[float]) -> list[tuple[bool, bool]]:
        values = weights(rule, ratios, side, probability)
        return [(value == 0, value == ratio) for value, ratio in zip(values, ratios, strict=True)]

    known, edges = kinds(grid), []
    for low, high, before, after in zip(grid, grid[1:], known, known[1:], strict=False):
        if before == after or (before[0] == after[0] and low <= 1 <= high):  # a smooth rule meets the ratio at 1 alone
            continue
        while high - low > 1e-12 * max(1.0, high):
            middle = (low + high) / 2
            low, high = (middle, high) if kinds([middle])[0] == before else (low, middle)
        edges.append((low + high) / 2)
    return edges


def _weight_range(weights: Sequence[float]) -> tuple[float, float]:
    """The range of the weight axis: from 0, or below it for negative weights, to 1 or more."""
    finite = [value for value in weights if math.isfinite(value)]
    least, most = min(finite, default=0.0), max(finite, default=1.0)
    return (-_rounded_up(-least) if least < 0 else 0.0), _rounded_up(most) if most > 1 else 1.0


def _rounded_up(value: float) -> float:
    """The next of 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    steps = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0)
    return next(round(multiple * power, 12) for multiple in steps if multiple * power >= value * (1 - 1e-9))
