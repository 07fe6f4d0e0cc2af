"""Lines of a log as a table: a DataFrame where pandas is installed, else a list of dictionaries of equal content."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any


def table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Rows of unequal keys as one table; a value that a row lacks is missing in it."""
    if importlib.util.find_spec("pandas") is None:
        return [dict(row) for row in rows]
    import pandas

    return pandas.DataFrame([dict(row) for row in rows])
