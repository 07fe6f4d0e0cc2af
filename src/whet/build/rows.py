"""From a config's files to values: columns are renamed, and rows that cannot be used stop the run or are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from whet.data import Row, read_rows
from whet.data.prompts import renamed
from whet.data.usable import Usable, left_out_words, usable
from whet.config.sections import DataSection

Read = Callable[..., list[Any]]


def read_usable(data: DataSection, source: str, reader: Callable[[Row], Read], limit: int = 0) -> Usable[Any]:
    """The values of a file; `reader` says by its first row who reads it. At most `limit` rows, 0 is all."""
    rows = renamed(read_rows(source, limit or None), data.columns)
    return usable(rows, partial(reader(rows[0]), as_chat=data.as_chat), drop=data.unusable == "drop")


def left_out_phrases(*values: Sequence[Any]) -> list[str]:
    """What the summary of a run says of the rows that were left out: one phrase, or none."""
    total: Counter[str] = sum((each.left_out for each in values if isinstance(each, Usable)), Counter())
    return [left_out_words(total)] if total else []
