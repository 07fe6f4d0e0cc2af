"""The lab as a page: a file that needs nothing but a browser, or a page of the board that asks for every table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from whet.explain.lab.experiments import experiments
from whet.explain.lab.packing import packed
from whet.report.pages import render_live, write_page

SCRIPT = "lab.js"
DATA = "lab-data"  # the id of the element that holds the tables


def static_page(record: Mapping[str, Any]) -> str:
    """The whole lab in one file: `record` is what `packed` made."""
    # a string in JSON: the template escapes what a page must not hold, and the order of the keys stays
    data = json.dumps(record, separators=(",", ":"), allow_nan=False)
    return render_live(
        "lab.html",
        SCRIPT,
        title="The lab",
        eyebrow="whet",
        experiments=experiments(),
        data=data,
        api="",
    )


def written_tables(page: str) -> Mapping[str, Any]:
    """The tables that a static page holds."""
    reader = _DataReader()
    reader.feed(page)
    return json.loads(json.loads("".join(reader.found)))


def write_static_page(path: Path, said: Callable[[str], None] = lambda _: None) -> Path:
    return write_page(path, static_page(packed(experiments(), said)))


class _DataReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag == "script" and dict(attrs).get("id") == DATA

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.found.append(data)
