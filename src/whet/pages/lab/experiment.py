"""What an experiment of the lab is: controls, a table for every setting of them, and what to look at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from whet.pages.chart_specs import ChartSeries, ChartSpec, chart, curve
from whet.types import WhetError, did_you_mean

LabSettings = Mapping[str, float | str]
DIGITS = 4  # of every number in a table
NOISE = 1e-12  # what is smaller is rounding
PLACE_DIGITS = 8  # of where it lies: two sides of a jump are close together


@dataclass(frozen=True)
class Slider:
    """A number to turn. The static page stops at `values`; the board takes any number of `span`."""

    name: str
    label: str
    values: tuple[float, ...]  # rising
    default: float
    whole: bool = False
    log: bool = False  # between two values the board goes by factors, not by differences
    when: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # shown where a selector has one of these values
    reach: tuple[float, float] | None = None  # of the board, where it goes further than the static page

    @property
    def span(self) -> tuple[float, float]:
        """The smallest and the largest number that the board takes."""
        return self.reach or (self.values[0], self.values[-1])

    def read(self, text: str) -> float:
        """The number that a text stands for; a mistake names the fix."""
        low, high = self.span
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and low <= number <= high):
            raise WhetError(f"{self.name} is {text[:40]!r}; give a number from {low:g} to {high:g}")
        if self.whole and number != int(number):
            raise WhetError(f"{self.name} is {text[:40]!r}; give a whole number")
        return number

    @property
    def choices(self) -> tuple[float | str, ...]:
        """What the static page offers."""
        return self.values


@dataclass(frozen=True)
class Selector:
    """One of several named things to choose."""

    name: str
    label: str
    options: tuple[tuple[str, str], ...]  # (value, what a reader sees)
    default: str
    when: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def read(self, text: str) -> str:
        """The option that a text names; a mistake names the fix."""
        if text not in self.choices:
            known = ", ".join(str(choice) for choice in self.choices)
            raise WhetError(f"{self.name} is {text[:40]!r}{did_you_mean(text[:40], known.split(', '))}; give {known}")
        return text

    @property
    def choices(self) -> tuple[float | str, ...]:
        """What the static page offers."""
        return tuple(value for value, _ in self.options)


LabControl = Slider | Selector


@dataclass(frozen=True)
class LabChart:
    """One chart: `spec` is what `whet.chart` of the pages draws."""

    title: str
    spec: Mapping[str, Any]
    note: str = ""
    overlay: bool = True  # where two settings are compared: both in one chart, or two charts side by side


@dataclass(frozen=True)
class LabTable:
    """What an experiment found for one setting."""

    charts: tuple[LabChart, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    words: str = ""  # the formula or the situation behind these numbers
    refused: str = ""  # why there is nothing to draw: the component's own complaint

    def record(self) -> dict[str, Any]:
        """The table as JSON: numbers have four digits, None where a number is not finite."""
        return {
            "charts": [
                {"title": chart.title, "note": chart.note, "overlay": chart.overlay, "spec": _short_spec(chart.spec)}
                for chart in self.charts
            ],
            "facts": [list(fact) for fact in self.facts],
            "words": self.words,
            "refused": self.refused,
        }


@dataclass(frozen=True)
class Experiment:
    """A question, its controls, and the table that answers it."""

    name: str  # of its address
    title: str
    question: str
    see: str  # what to try, and what happens then
    papers: tuple[tuple[str, str], ...]  # (who and when, arXiv number)
    controls: tuple[LabControl, ...]
    table: Callable[[LabSettings], LabTable]
    compared: Mapping[str, str] = field(default_factory=dict)  # settings of a second side that is shown from the start
    plays: bool = False  # the curves are steps of a run, which the page can show one by one
    shared: tuple[str, ...] = ()  # controls that both sides of a comparison have in common

    def settings(self, texts: Mapping[str, str]) -> dict[str, float | str]:
        """Every control that applies, as given or by default; a mistake names the fix."""
        known = {control.name: control for control in self.controls}
        for name in texts:
            if name not in known:
                close = did_you_mean(name[:40], known)
                raise WhetError(f"{self.name} has no setting {name[:40]!r}{close}; it has {', '.join(known)}")
        chosen: dict[str, float | str] = {}
        for control in self.controls:
            if applies(control, chosen):
                text = texts.get(control.name)
                chosen[control.name] = control.default if text is None else control.read(text)
        return chosen

    def grid(self) -> Iterator[dict[str, float | str]]:
        """Every setting of the static page."""

        def spread(position: int, chosen: dict[str, float | str]) -> Iterator[dict[str, float | str]]:
            if position == len(self.controls):
                yield chosen
                return
            control = self.controls[position]
            if not applies(control, chosen):
                yield from spread(position + 1, chosen)
                return
            for value in control.choices:
                yield from spread(position + 1, {**chosen, control.name: value})

        yield from spread(0, {})

    def record(self) -> dict[str, Any]:
        """The experiment as JSON, without its tables."""
        return {
            "name": self.name,
            "title": self.title,
            "question": self.question,
            "see": self.see,
            "papers": [list(paper) for paper in self.papers],
            "controls": [_control_record(control) for control in self.controls],
            "compared": dict(self.compared),
            "plays": self.plays,
            "shared": list(self.shared),
        }


def applies(control: LabControl, chosen: LabSettings) -> bool:
    """Whether a control has a meaning beside those chosen before it."""
    return all(chosen.get(name) in values for name, values in control.when.items())


def _control_record(control: LabControl) -> dict[str, Any]:
    common = {
        "name": control.name,
        "label": control.label,
        "default": control.default,
        "when": {name: list(values) for name, values in control.when.items()},
    }
    if isinstance(control, Selector):
        return {**common, "options": [list(option) for option in control.options]}
    return {
        **common,
        "values": list(control.values),
        "span": list(control.span),
        "whole": control.whole,
        "log": control.log,
    }


def asks(kind: Any) -> frozenset[str]:
    """What a kind of component needs of the loop."""
    return frozenset(kind.needs)


def number(settings: LabSettings, name: str) -> float:
    """A setting of a slider."""
    return float(settings[name])


def rounded(value: Any, digits: int = DIGITS) -> Any:
    """The value with every float cut to so many significant digits; None for what is not finite."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        if abs(value) < NOISE:
            return 0
        short = float(f"{value:.{digits}g}")
        return int(short) if short == int(short) else short
    return [rounded(item, digits) for item in value] if isinstance(value, list | tuple) else value


def _short_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    series = [
        {name: rounded(value, PLACE_DIGITS if name == "x" else DIGITS) for name, value in trace.items()}
        for trace in spec["series"]
    ]
    return {**spec, "series": series}


def line(
    name: str,
    x: Sequence[float],
    y: Sequence[float | None],
    tone: int,
    band: tuple[Sequence[float | None], Sequence[float | None]] | None = None,
    **look: bool,
) -> ChartSeries:
    """One series of a chart; `look` is that of `chart_specs.line`."""
    low, high = (list(edge) for edge in band) if band is not None else (None, None)
    return curve(name, (), tone, **look, x=list(x), y=list(y), low=low, high=high)


def chart_spec(
    x_label: str,
    y_label: str,
    series: Sequence[Mapping[str, Any]],
    *,
    x_log: bool = False,
    y_log: bool = False,
    y_range: tuple[float | None, float | None] = (None, None),
    percent: bool = False,
    steps: bool = False,
    lines: Sequence[Mapping[str, Any]] = (),
    height: int = 260,
) -> ChartSpec:
    """A chart as the pages draw it."""
    low, high = y_range
    return chart(
        series,
        x={"label": x_label, "log": x_log, "steps": steps},
        y={"label": y_label, "log": y_log, "min": low, "max": high, "percent": percent},
        smooth=False,
        lines=list(lines),
        height=height,
    )


def evenly(low: float, high: float, count: int) -> list[float]:
    """`count` numbers from `low` to `high` at equal distances."""
    return [low + (high - low) * index / (count - 1) for index in range(count)]
