"""A tool's result as text for the model: whatever it is, and never more than a limit."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from whet.envs.tools.tool import ToolText

NOTHING = "(no result)"
LONGEST_ERROR = 300  # characters
MOST_ITEMS = 1000  # of what a generator yields
# the folders in front of a file: not the slash of 1/2, nor what follows https:
FOLDERS = re.compile(r"(?<![\w/.:<])(?:/[\w.@~+-]+)+/")


def result_text(value: Any, most: int) -> ToolText:
    """The result as text, cut. Whatever its methods do, a text comes of it."""
    if isinstance(value, ToolText):
        return value
    text = _text(value)
    # what no tokenizer takes: halves of surrogate pairs
    text = text.encode("utf-8", "replace").decode("utf-8")
    return ToolText(text[:most], len(text))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    if value is None:
        return NOTHING
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return f"({len(value)} bytes that are no text)"
    if isinstance(value, Iterator):  # what a generator yields is its result
        value = list(itertools.islice(value, MOST_ITEMS))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif _is_bare(type(value)):
        value = _attributes(value)  # its own text would be an address, another one in every run
    makers: list[Callable[[Any], str]] = [lambda given: json.dumps(given, ensure_ascii=False), str, repr]
    for make in makers:
        try:
            text = make(value)
        except Exception:  # not JSON, endless, too many digits, or a method of its own that raises
            continue
        if isinstance(text, str):
            return text
    return f"(a {type(value).__name__} that has no text)"


def _is_bare(kind: Any) -> bool:
    """A class that says nothing about how it is written."""
    return kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__


def _attributes(value: Any) -> Any:
    """The public attributes of a plain object, or the name of its class."""
    public = {name: content for name, content in getattr(value, "__dict__", {}).items() if not name.startswith("_")}
    return public or f"(a {type(value).__name__})"


def shown(result: ToolText, most: int) -> tuple[str, bool]:
    """The text the model is shown, and whether something was left out."""
    if result.length <= most:
        return result.text, False
    return f"{result.text[:most]}\n... ({result.length - most} more characters were left out)", True


def error_line(text: str) -> str:
    """One line that the model can read: no line breaks, no folders of the machine, not too long."""
    line = FOLDERS.sub("", " ".join(text[: 20 * LONGEST_ERROR].split()))
    line = line.encode("utf-8", "replace").decode("utf-8")
    return f"error: {line if len(line) <= LONGEST_ERROR else line[: LONGEST_ERROR - 3] + '...'}"
