"""Measured numbers in README.md and docs/, each from a file in results/ that a command wrote.

A page holds a template in a comment, which no reader sees, and below it what the template gives:

    <!-- results
    A step takes {gpu_step_135m/step_s:.2f} s ({gpu_step_135m/@}).
    -->
    A step takes 1.20 s (`results/gpu_step_135m.json`: 2026-11-16, commit abc1234, NVIDIA H200, torch 2.11).
    <!-- results: end -->

{FILE/KEY/KEY:FORMAT} is a value of results/FILE.json in Python's format language (of a list, the KEY is a place), and
{FILE/@} says where it is from. A line with {FILE/KEY/*} is repeated for every key there. {?FILE/KEY} is "-" where a
part of a measurement failed. `python tests/docs/generated_tables.py` writes all pages anew. A line that names a file of
LATER is left out while the file is missing, and the command says so; any other missing name is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
# measured on a GPU, or taking long: a page may name them before they are there
LATER = ("gpu_", "agents_", "real_", "soak", "moe_", "asynchrony_", "simulate_check")
BLOCK = re.compile(
    r"^(?P<open>[ ]*<!-- results\n(?P<template>.*?)\n[ ]*-->\n)(?P<shown>.*?)(?P<close>^[ ]*<!-- results: end -->)$",
    re.S | re.M,
)
REFERENCE = re.compile(r"\{(\??)([\w.-]+)/([^{}:]+)(?::([^{}]*))?\}")
Load = Callable[[str], Mapping[str, Any] | None]


class UnknownResult(ValueError):
    """A page names a value that no results file holds."""


def load_results(name: str) -> Mapping[str, Any] | None:
    """The record of results/NAME.json, or None where there is none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def with_results(text: str, load: Load = load_results) -> str:
    """The page with fresh numbers in every block."""

    def fresh(block: re.Match[str]) -> str:
        lines = shown_lines(block["template"], load)
        return block["open"] + "".join(f"{line}\n" for line in lines) + block["close"]

    return BLOCK.sub(fresh, text)


def shown_lines(template: str, load: Load) -> list[str]:
    """What a reader sees of a template; nothing where every line with a number had to be left out."""
    found: list[str] = []
    is_numbered, is_shown = False, False
    for line in template.splitlines():
        names = [match[2] for match in REFERENCE.finditer(line)]
        is_numbered = is_numbered or bool(names)
        if missing(names, load):
            continue
        found += expanded(line, load)
        is_shown = is_shown or bool(names)
    return found if is_shown or not is_numbered else []


def missing(names: list[str], load: Load) -> list[str]:
    """Those of LATER that are not there yet; another one that is not there is an error."""
    absent = [name for name in names if load(name) is None]
    for name in absent:
        if not name.startswith(LATER):
            raise UnknownResult(f"a page names results/{name}.json, which does not exist")
    return absent


def expanded(line: str, load: Load) -> list[str]:
    """The line with its values; one line a key where it holds a star."""
    for match in REFERENCE.finditer(line):
        before, star, _ = match[3].partition("*")
        if star:
            keys = value_at(match[2], before.rstrip("/"), load)
            return [each for key in keys for each in expanded(with_key(line, str(key)), load)]
    return [REFERENCE.sub(lambda match: shown(match, load), line)]


def with_key(line: str, key: str) -> str:
    def filled(match: re.Match[str]) -> str:
        return key if match[3].endswith("*") else match[0].replace("*", key)

    return REFERENCE.sub(filled, line)


def shown(match: re.Match[str], load: Load) -> str:
    optional, name, path, form = match.groups(default="")
    if path == "@":
        return origin(name, load)
    try:
        value = value_at(name, path, load)
    except UnknownResult:
        if optional:
            return "-"
        raise
    try:
        return format(value, form)
    except (ValueError, TypeError) as error:
        raise UnknownResult(f"results/{name}.json: {path} is {value!r}, which {form!r} cannot show: {error}") from None


def value_at(name: str, path: str, load: Load) -> Any:
    record = load(name)
    if record is None:
        raise UnknownResult(f"a page names results/{name}.json, which does not exist")
    value: Any = record["values"]
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
    record = load(name)
    assert record is not None
    machine = record["machine"]
    where = machine["gpu"] or f"{machine['cores']} cores of an {machine['processor']}"
    commit = f"{record['commit']}{' and changes' if record.get('dirty') else ''}"
    busy = "; others used the machine at the same time" if any(contended(record["values"])) else ""
    return f"`results/{name}.json`: {record['date']}, commit {commit}, {where}, torch {machine['torch']}{busy}"


def contended(values: Any) -> Iterator[bool]:
    if isinstance(values, Mapping):
        yield bool(values.get("contended"))
        for each in values.values():
            yield from contended(each)


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def left_out(text: str, load: Load = load_results) -> list[str]:
    """Names of LATER that a page waits for."""
    found = [match[2] for block in BLOCK.finditer(text) for match in REFERENCE.finditer(block["template"])]
    return sorted(set(missing(found, load)))


def write_pages() -> None:
    for path in pages():
        text = path.read_text(encoding="utf-8")
        path.write_text(with_results(text), encoding="utf-8")
        if waiting := left_out(text):
            print(f"{path.relative_to(ROOT)}: lines left out, no results yet: {', '.join(waiting)}")
