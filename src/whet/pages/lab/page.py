"""The lab as a page: a file that needs nothing but a browser, or a page of the board that asks for every table."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from whet.pages.lab.experiment import PLACE_DIGITS, rounded
from whet.pages.lab.experiments import experiments
from whet.pages.lab.packing import packed, unpacked
from whet.pages.render import render_live, write_page
from whet.types import WhetError

SCRIPT = "lab.js"
DATA = "lab-data"  # the id of the element that holds the tables


def static_page(record: Mapping[str, Any]) -> str:
    """The whole lab in one file: `record` is what `packed` made."""
    text = json.dumps(record, separators=(",", ":"), allow_nan=False)
    # a fifth of its size, and a browser unpacks it itself; no letter of base64 means anything to a page
    data = base64.b64encode(gzip.compress(text.encode("utf-8"), 9, mtime=0)).decode()
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
    held = page.partition(f'<script id="{DATA}" type="text/plain">')[2].partition("</script>")[0]
    if not held:
        raise WhetError("the page holds no tables of the lab; write it with: python -m whet.pages.lab")
    return json.loads(gzip.decompress(base64.b64decode(held)))


def write_static_page(path: Path, said: Callable[[str], None] = lambda _: None) -> Path:
    """Compute every table and write the page."""
    return write_page(path, static_page(packed(experiments(), said)))


def recompute_tables(path: Path, names: Collection[str], said: Callable[[str], None] = lambda _: None) -> Path:
    """The page with the tables of these experiments computed anew, and those of the others as they are."""
    record = written_tables(path.read_text(encoding="utf-8"))
    kept = {
        held["name"]: [unpacked(record, table) for table in held["tables"]]
        for held in record["experiments"]
        if held["name"] not in names
    }
    return write_page(path, static_page(packed(experiments(), said, kept)))


def rewrite_static_page(path: Path) -> Path:
    """The page with its tables as they are, and everything else as it is today."""
    record = dict(written_tables(path.read_text(encoding="utf-8")))
    kept = {each["name"]: each for each in record["experiments"]}
    described = []
    for experiment in experiments():
        today = json.loads(json.dumps(experiment.record()))
        if kept.get(experiment.name, {}).get("controls") != today["controls"]:
            raise WhetError(f"the controls of {experiment.name} have changed: compute the tables anew")
        described.append({**today, "tables": kept[experiment.name]["tables"]})
    columns = rounded(record["columns"], PLACE_DIGITS)
    return write_page(path, static_page({**record, "columns": columns, "experiments": described}))
