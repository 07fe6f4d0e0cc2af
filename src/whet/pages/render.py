"""HTML pages from the templates beside this file: one shell, one style sheet, everything escaped.

The one file that knows jinja2. Every value is escaped where it enters a template; only charts, which escape their own
text, are placed as they are. The content policy in the head forbids every script but the charts' own, since
completions are written by a model that may have read anything.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.pages.chart_svg import NARROW, SMALL, WIDE, chart_svg
from whet.record.text import number

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"
OF_BOARD = Path(__file__).parent / "board" / "templates"  # pages of the board extend those beside this file
ASSETS = Path(__file__).parent / "assets"
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
EMPTY = ("heading", "verdict", "status", "status_text")  # of the shell, unless a page says otherwise
CHART_SCRIPTS = ("uplot.js", "charts.js")  # in the order they are loaded


@dataclass(frozen=True)
class Tile:
    """A number at the head of a page; `before` is where it came from, `after` a small addition."""

    name: str
    value: str
    before: str = ""
    after: str = ""


@dataclass(frozen=True)
class LegendEntry:
    """A name beside its colour."""

    name: str
    tone: str  # class name of its colour
    value: str = ""
    note: str = ""
    dashed: bool = False
    start: str = "0"  # of its part of a bar, between 0 and 1
    share: str = "0"


@dataclass(frozen=True)
class Figure:
    """A chart with its caption. With a key and no spec it is drawn when it is asked for."""

    title: str
    unit: str
    spec: Mapping[str, Any]
    last: str = ""
    note: str = ""
    key: str = ""
    is_wide: bool = False  # takes the whole width of the page

    @property
    def is_live(self) -> bool:
        """True where charts.js draws it: lines, not columns, intervals, spans and dots of several sizes."""
        looks = ("sizes", "titles", "bare", "diamond")
        return not {"columns", "intervals", "spans"} & set(self.spec) and not any(
            look in series for series in self.spec.get("series", ()) for look in looks
        )

    @property
    def legend(self) -> list[LegendEntry]:
        """The series by name with their last values; of a single one the caption says enough."""
        series = [trace for trace in self.spec.get("series", ()) if trace["name"] and trace["x"]]
        if len(series) < 2 and not self.spec.get("named"):
            return []
        return [
            LegendEntry(
                trace["name"],
                f"s{trace['tone']}",
                trace["value"] if "value" in trace else number((trace.get("own") or trace["y"])[-1]),
                dashed=bool(trace.get("dashed")),
            )
            for trace in series
        ]


@dataclass(frozen=True)
class PageTable:
    """A table with a head; the first cell of a row names it."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class TurnCard:
    """One turn of a trajectory."""

    who: str
    text: str
    notes: tuple[str, ...]
    errors: tuple[str, ...]
    learns: bool  # the policy's own turn


@dataclass(frozen=True)
class TextCard:
    """A completion with its prompt, scores and whereabouts."""

    rank: str
    reward: str
    chips: tuple[tuple[str, str], ...]
    texts: tuple[tuple[str, str], ...]
    foot: str
    id: str = ""
    turns: tuple[TurnCard, ...] = ()  # of an episode, between its prompt and its gold answer


def render(template: str, **values: Any) -> str:
    """A template filled in. Names that a template needs and does not get are an error."""
    shell = {"shell": "base.html", "board": False, "policy": POLICY, "live": False, "about": ()}
    shell |= dict.fromkeys(EMPTY, "")
    return _environment().get_template(template).render({**shell, **values})


def render_live(template: str, *scripts: str, **values: Any) -> str:
    """A self-contained page whose charts answer to the pointer and the keyboard; it runs their script and no other.

    A template with `scripts` of its own, files of the assets, asks `chart_script` for the same ones.
    """
    return render(template, **{"policy": script_policy(chart_script(*scripts)), "live": True, **values})


@cache
def chart_script(*scripts: str) -> str:
    """What a self-contained page runs: the charting library, the charts, their start, and the page's own scripts."""

    def joined(names: tuple[str, ...]) -> str:
        return "".join(f"{(ASSETS / name).read_text(encoding='utf-8')}\n" for name in names)

    return joined(CHART_SCRIPTS) + "whet.upgrade();" + (f"\n{joined(scripts)}" if scripts else "")


def script_policy(script: str) -> str:
    """The content policy that admits one script, by its digest, and no other."""
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode()
    return f"{POLICY}; script-src 'sha256-{digest}'"


def prepare_board() -> None:
    """Compile the templates, which takes longer than filling them in."""
    for path in (*TEMPLATES.glob("*.html"), *OF_BOARD.glob("*.html")):
        _environment().get_template(path.name)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def svg(text: str) -> Markup:
        """A chart of `chart_svg`: nothing else may pass unescaped."""
        if text and not text.startswith("<svg "):
            raise ValueError(f"only charts are placed as they are, and this is none: {text[:40]!r}")
        return Markup(text)

    environment = Environment(
        loader=FileSystemLoader((TEMPLATES, OF_BOARD)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )

    def drawn(figure: Figure, size: tuple[int, int] = SMALL) -> Markup:
        return svg(chart_svg(figure.spec, f"{figure.title} {figure.unit}".strip(), size))

    environment.filters["svg"] = svg
    environment.globals |= {"drawn": drawn, "WIDE": WIDE, "NARROW": NARROW}
    environment.globals["chart_script"] = lambda *scripts: Markup(chart_script(*scripts))
    environment.globals["script"] = lambda name: Markup((ASSETS / name).read_text(encoding="utf-8"))
    environment.globals["chart_style"] = lambda: Markup((ASSETS / "uplot.css").read_text(encoding="utf-8"))
    return environment
