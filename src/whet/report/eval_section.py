"""The held-out marks of a run as a section of its page: before and after, calibration, and what length has to do with
it. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from html import escape

from whet.report.record import Evaluation
from whet.report.svg import Scale
from whet.report.text import measured, number, percent

TENTHS = "calibration/"  # in the name of a mark, "step_" may stand before it
BY_LENGTH = (
    ("all pairs", "accuracy"),
    ("better completion is longer", "accuracy_when_longer"),
    ("better completion is shorter", "accuracy_when_shorter"),
)
WIDTH, HEIGHT = 340, 210


def told_marks(result: Mapping[str, float]) -> dict[str, float]:
    """The marks to be told in a line; those with a slash in their name are too many for one."""
    return {name: value for name, value in result.items() if "/" not in name}


def held_out_section(evaluations: Sequence[Evaluation]) -> str:
    """Empty where nothing, or only the one mark of the headline, was measured."""
    main = [each for each in evaluations if each.name == evaluations[0].name and told_marks(each.result)]
    if not main:
        return ""
    first, last = main[0].result, main[-1].result
    marks = told_marks(last)
    if len(marks) < 2:
        return ""
    rows = "".join(
        f"<tr><th>{escape(re.sub('[_/]', ' ', name))}</th><td>{measured(name, first.get(name))}</td>"
        f"<td>{measured(name, value)}</td></tr>"
        for name, value in last.items()
        if TENTHS not in name
    )
    head = f'<tr class="soft"><th></th><td>step {main[0].step}</td><td>step {main[-1].step}</td></tr>'
    figures = f"{calibration_figure(last)}{length_figure(last)}"
    charts = f'<div class="charts">{figures}</div>' if figures else ""
    table = f'<div class="box counts" style="margin-top:16px"><table>{head}{rows}</table></div>'
    return f"<section><h2>Held-out marks</h2>{charts}{table}</section>\n"


def tenths(result: Mapping[str, float]) -> list[tuple[float, float, int]]:
    """(how sure, how often right, rows) of each tenth that holds rows, the least sure first."""
    places = sorted({name.rpartition("/")[0] for name in result if TENTHS in name})
    found = []
    for place in places:
        sure, right, rows = (result.get(f"{place}/{key}") for key in ("sure", "right", "rows"))
        if sure is not None and right is not None and rows is not None and math.isfinite(sure + right + rows):
            found.append((sure, right, int(rows)))
    return found


def calibration_figure(result: Mapping[str, float]) -> str:
    """How often the model is right where it is so sure: on the diagonal it means what it says."""
    known = tenths(result)
    if not known:
        return ""
    across, up = _unit_scale(0.5, (44, WIDTH - 12)), _unit_scale(0.0, (HEIGHT - 24, 8))
    most = max(rows for *_, rows in known)
    level = f"M{across(0.5):.1f} {up(0.5):.1f}L{across(1):.1f} {up(1):.1f}"
    drawn = [_grid(across, up), f'<path class="raw s7" d="{level}"/>']
    path = "L".join(f"{across(sure):.1f} {up(right):.1f}" for sure, right, _ in known)
    drawn.append(f'<path class="line s0" d="M{path}"/>')
    for sure, right, rows in known:
        size = 2.5 + 5 * math.sqrt(rows / most)
        told = f"{percent(sure)} sure, {percent(right)} right, {rows} rows"
        drawn.append(
            f'<circle class="dot s0" cx="{across(sure):.1f}" cy="{up(right):.1f}" r="{size:.1f}">'
            f"<title>{told}</title></circle>"
        )
    lines = " · ".join(f"{100 * sure:.0f}% → {100 * right:.0f}% ({rows})" for sure, right, rows in known)
    gap = result.get("calibration_error", result.get("step_calibration_error"))
    error = f'<span class="last">error {number(gap)}</span>'
    return (
        '<figure><figcaption><b>Calibration</b><span class="soft">share right</span>'
        f"{error}</figcaption>{_svg('Share right by how sure the model is', drawn)}"
        f'<p class="range">sure → right (rows): {lines}</p></figure>'
    )


def length_figure(result: Mapping[str, float]) -> str:
    """Accuracy by whether the better completion is the longer one: far apart, and it is length that is scored."""
    known = [(name, result[mark]) for name, mark in BY_LENGTH if mark in result and math.isfinite(result[mark])]
    if len(known) < 2 or not any(mark in result for _, mark in BY_LENGTH[1:]):
        return ""
    across = _unit_scale(0.0, (12, WIDTH - 12))
    drawn = [f'<path class="grid" d="M{across(0.5):.1f} 8V{HEIGHT - 20}"/>']
    for place, (name, share) in enumerate(known):
        top = 12 + 56 * place
        drawn.append(f'<text class="tick" x="{across(0):.1f}" y="{top + 10}">{escape(name)}: {percent(share)}</text>')
        drawn.append(
            f'<rect class="band s{place}" style="opacity:.75" x="{across(0):.1f}" y="{top + 16}" '
            f'width="{max(across(share) - across(0), 1):.1f}" height="18" rx="3"/>'
        )
    drawn.append(f'<text class="tick middle" x="{across(0.5):.1f}" y="{HEIGHT - 6}">chance</text>')
    together = result.get("longer_correlation")
    tail = f"correlation of margin and difference in length {number(together)}" if together is not None else ""
    return (
        '<figure><figcaption><b>Accuracy by length</b><span class="soft">held-out pairs</span></figcaption>'
        f'{_svg("Accuracy by whether the better completion is longer", drawn)}<p class="range">{tail}</p></figure>'
    )


def _unit_scale(low: float, pixels: tuple[float, float]) -> Scale:
    ticks = tuple(low + (1 - low) * place / 5 for place in range(6))
    return Scale(low, 1.0, *pixels, ticks=ticks)


def _grid(across: Scale, up: Scale) -> str:
    lines = [
        f'<path class="grid" d="M{across.start:.1f} {up(tick):.1f}H{across.stop:.1f}"/>'
        f'<text class="tick end" x="{across.start - 5:.1f}" y="{up(tick) + 3.5:.1f}">{100 * tick:.0f}%</text>'
        for tick in up.ticks
    ]
    lines += [
        f'<text class="tick middle" x="{across(tick):.1f}" y="{HEIGHT - 6}">{100 * tick:.0f}%</text>'
        for tick in across.ticks
    ]
    return "".join(lines)


def _svg(name: str, drawn: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}">{"".join(drawn)}</svg>'
