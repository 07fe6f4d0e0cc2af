"""A run in small, for a notebook: one figure, and a card with the verdict, the headline numbers and the figure."""

from __future__ import annotations

from html import escape
from pathlib import Path

from whet.report.charts import LIGHT, line_chart
from whet.report.pages import render
from whet.report.run import read_run, verdict
from whet.report.run_page import main_series, problems, tiles

# the figure stands on somebody else's page, so it brings the colours that a report's style sheet would give
FIGURE_STYLE = (
    "<style>.whet-figure{max-width:100%;height:auto;font:11px system-ui,sans-serif}"
    ".whet-figure .tick{fill:#7d858f;font-size:11px}.whet-figure .end{text-anchor:end}"
    ".whet-figure .middle{text-anchor:middle}.whet-figure .grid{stroke:#8a8f98;stroke-opacity:.25;fill:none}"
    ".whet-figure .line,.whet-figure .raw{fill:none;stroke-width:1.8}.whet-figure .raw{opacity:.4;stroke-width:1}"
    ".whet-figure .band{opacity:.16}.whet-figure .strip{fill:transparent}"
    "{tones}</style>"
)
FIGURE_SIZE = (720, 240)


def run_figure(folder: Path | str) -> str:
    """The headline evaluation and what was trained, by step, as one SVG that needs no style sheet; "" before any."""
    series = main_series(read_run(folder))
    if not series:
        return ""
    values = [value for line in series for _, value in line.points]
    unit = min(values) >= 0 and 0.1 < max(values) <= 1
    names = " and ".join(dict.fromkeys(line.name for line in series))
    chart = line_chart(series, f"{names} by step", FIGURE_SIZE, unit)
    tones = "".join(
        f".whet-figure .line.s{place},.whet-figure .raw.s{place}{{stroke:{colour}}}"
        f".whet-figure .dot.s{place},.whet-figure .band.s{place},.whet-figure .key.s{place}{{fill:{colour}}}"
        for place, colour in enumerate(LIGHT)
    )
    legend = _legend([line.name for line in series])
    opening, rest = chart.split(">", 1)
    width, height = FIGURE_SIZE
    opening = opening.replace(f'viewBox="0 0 {width} {height}"', f'viewBox="0 -22 {width} {height + 22}"')
    opening = opening.replace(
        "<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" class="whet-figure" width="{width}" height="{height + 22}" '
    )
    return f"{opening}>{FIGURE_STYLE.replace('{tones}', tones)}{legend}{rest}"


def _legend(names: list[str]) -> str:
    parts, x = [], 46.0
    for place, name in enumerate(names):
        parts.append(
            f'<circle class="key s{place}" cx="{x:.0f}" cy="-9" r="4"/>'
            f'<text class="tick" x="{x + 9:.0f}" y="-5">{escape(name)}</text>'
        )
        x += 32 + 6.2 * len(name)
    return "".join(parts)


def run_card(folder: Path | str) -> str:
    """Verdict, headline numbers, problems and the figure as a piece of HTML. Everything from the run is escaped."""
    run = read_run(folder)
    return render(
        "card.html",
        title=run.title,
        status=run.status,
        verdict=verdict(run),
        tiles=tiles(run),
        problems=problems(run),
        figure=run_figure(folder),
        folder=str(run.folder),
    )
