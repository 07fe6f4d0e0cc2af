"""What no setting may be, whatever it is for: text that cannot be written, endless tables, numbers beyond measure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from whet.types import WhetError

DEEPEST = 16  # tables and lists inside one another
LONGEST = 100_000  # characters
WIDEST = 100_000  # entries of a list or a table
MOST_DIGITS = 64  # bits of an integer: TOML has no longer ones


def shown(value: Any) -> str:
    """A value as an error line quotes it: short, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # an integer of thousands of digits, a list of lists of lists, anybody's own `__repr__`
        text = f"a {type(value).__name__} too long to show"
    return text if len(text) <= 60 else f"{text[:57]}..."


def leaves(values: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each value that is no table and no list, with its path."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(values, list | tuple):
        for number, value in enumerate(values):
            yield from leaves(value, f"{path}[{number}]")
    else:
        yield path, values


def refuse_hostile(values: Any, path: str = "", depth: int = 0) -> None:
    """Raise for a value that no setting can have."""
    where = f"config: {shown_path(path)}"
    if isinstance(values, Mapping | list | tuple):
        if depth == DEEPEST:
            raise WhetError(f"{where} has more than {DEEPEST} tables or lists inside one another; give fewer")
        if len(values) > WIDEST:
            raise WhetError(f"{where} has {len(values)} entries; give at most {WIDEST}")
        pairs = values.items() if isinstance(values, Mapping) else enumerate(values)
        for key, value in pairs:
            if isinstance(values, Mapping):
                _refuse_text(where, key)
            refuse_hostile(value, f"{path}.{key}" if path else str(key), depth + 1)
    elif isinstance(values, str):
        _refuse_text(where, values)
    elif isinstance(values, float) and not math.isfinite(values):
        raise WhetError(f"{where} is {values}; give a finite number")
    elif isinstance(values, int) and values.bit_length() > MOST_DIGITS:
        raise WhetError(f"{where} is {shown(values)}; give a number of at most {MOST_DIGITS} bits")


def _refuse_text(where: str, text: Any) -> None:
    if not isinstance(text, str):
        raise WhetError(f"{where} has the key {shown(text)}; give keys that are text")
    if len(text) > LONGEST:
        raise WhetError(f"{where} is a text of {len(text)} characters; give at most {LONGEST}")
    unwritable = next((letter for letter in text if letter == "\0" or "\ud800" <= letter <= "\udfff"), None)
    if unwritable is not None:
        raise WhetError(f"{where} is {shown(text)}, which holds {unwritable!r}; give text that UTF-8 can write")


def shown_path(path: str) -> str:
    """The path, cut to 80 characters: it may come from an untrusted file."""
    return path if len(path) <= 80 else f"{path[:77]}..."
