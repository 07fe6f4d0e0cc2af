"""Measured numbers in README.md, CONTRIBUTING.md and docs/, each from a file in results/ that a command wrote.

The text is written once, and a number is marked where it stands, by comments that no reader sees:

    A step takes <!--=gpu_step_135m/step_s:.2f-->1.20<!--/--> s (<!--=gpu_step_135m/@-->`results/...`<!--/-->).

FILE/KEY/KEY:FORMAT is a value of results/FILE.json in Python's format language (in a list, KEY is a position), and
FILE/@ says where the file is from. ?FILE/KEY is "-" where a part of a measurement failed. Whole tables and listings
stand between `<!-- NAME: from results -->` and `<!-- NAME: end -->`; result_tables.py has their templates.
`python -m tests.docs.generated_tables` writes all pages anew. A name that no file holds is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.results_file import has_changed
from tests.docs.result_tables import RESULT_TABLES

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
NAME = r"(?P<optional>\??)(?P<file>[\w.-]+)/(?P<path>[^{}<>:]+)(?::(?P<form>[^{}<>]*))?"
MARKED = re.compile(rf"(?P<open><!--={NAME}-->)(?P<value>.*?)(?P<close><!--/-->)", re.S)
REFERENCE = re.compile(rf"\{{{NAME}\}}")
TABLE = re.compile(
    r"^(?P<open>(?P<indent> *)<!-- (?P<name>\w+): from results -->\n).*?(?P<close>^ *<!-- (?P=name): end -->)$",
    re.S | re.M,
)
Load = Callable[[str], Mapping[str, Any] | None]


class UnknownResult(ValueError):
    """A page names a value that no results file holds."""


def load_results(name: str) -> Mapping[str, Any] | None:
    """The record of results/NAME.json, or None where there is none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def with_results(text: str, load: Load = load_results, tables: Mapping[str, str] = RESULT_TABLES) -> str:
    """The page with fresh numbers at every mark and in every table."""

    def fresh_table(match: re.Match[str]) -> str:
        if match["name"] not in tables:
            raise UnknownResult(f"a page names the table {match['name']}, which result_tables.py does not have")
        lines = [row for line in tables[match["name"]].splitlines() for row in expanded(line, load)]
        return match["open"] + "".join(f"{match['indent']}{line}\n" for line in lines) + match["close"]

    text = MARKED.sub(lambda match: f"{match['open']}{formatted(match, load)}{match['close']}", text)
    return TABLE.sub(fresh_table, text)


def expanded(line: str, load: Load) -> list[str]:
    """A line of a template with its values; one line per key where it holds a star."""
    for match in REFERENCE.finditer(line):
        before, star, _ = match["path"].partition("*")
        if star:
            keys = value_at(match["file"], before.rstrip("/"), load)
            return [row for key in keys for row in expanded(with_key(line, str(key)), load)]
    return [REFERENCE.sub(lambda match: formatted(match, load), line)]


def with_key(line: str, key: str) -> str:
    """The line of one key: a reference that ends in the star is the key itself."""

    def filled(match: re.Match[str]) -> str:
        return key if match["path"].endswith("*") else match[0].replace("*", key)

    return REFERENCE.sub(filled, line)


def formatted(match: re.Match[str], load: Load) -> str:
    """The value that a mark or a reference names, as text."""
    name, path, form = match["file"], match["path"], match["form"] or ""
    if path == "@":
        return origin(name, load)
    try:
        value = value_at(name, path, load)
    except UnknownResult:
        if match["optional"]:
            return "-"
        raise
    try:
        return format(value, form)
    except (ValueError, TypeError) as error:
        raise UnknownResult(f"results/{name}.json: {path} is {value!r}, which {form!r} cannot show: {error}") from None


def record_of(name: str, load: Load) -> Mapping[str, Any]:
    record = load(name)
    if record is None:
        raise UnknownResult(f"a page names results/{name}.json, which does not exist")
    return record


def value_at(name: str, path: str, load: Load) -> Any:
    value: Any = record_of(name, load)["values"]
    for key in filter(None, path.split("/")):
        if isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
            continue
        if not isinstance(value, Mapping) or key not in value:
            known = f"; it has {', '.join(value)}" if isinstance(value, Mapping) else ""
            raise UnknownResult(f"results/{name}.json has no {path}: no {key!r} there{known}")
        value = value[key]
    return value


def origin(name: str, load: Load) -> str:
    """The file, which has the command, and date, commit and machine in a few words."""
    record = record_of(name, load)
    machine = record["machine"]
    where = machine["gpu"] or f"{machine['cores']} cores of an {machine['processor']}"
    commit = f"{record['commit']}{' and changes' if record.get('dirty') else ''}"
    busy = "; others used the machine at the same time" if any(contended(record["values"])) else ""
    since = "; the code has changed since" if has_changed(record) else ""
    return f"`results/{name}.json`: {record['date']}, commit {commit}, {where}, torch {machine['torch']}{busy}{since}"


def contended(values: Any) -> Iterator[bool]:
    """Whether any part of a measurement shared its machine."""
    if isinstance(values, Mapping):
        yield bool(values.get("contended"))
        for value in values.values():
            yield from contended(value)


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def write_pages() -> None:
    for path in pages():
        text = path.read_text(encoding="utf-8")
        path.write_text(with_results(text), encoding="utf-8")
