"""Rows as a DataFrame (without pandas a list of dictionaries of equal content), as CSV or as Parquet.

Words in a run come from models and data. A spreadsheet runs a cell that begins like a formula, so such a text gets an
apostrophe in front of it in CSV, which spreadsheets do not show; Parquet keeps every text as it is.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whet.types import WhetError

FORMATS = ("csv", "parquet")
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # and their wide forms


def table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Rows of unequal keys as one table; a value that a row lacks is missing in it."""
    if importlib.util.find_spec("pandas") is None:
        return [dict(row) for row in rows]
    import pandas

    return pandas.DataFrame([{name: _storable(value) for name, value in row.items()} for row in rows])


def _storable(value: Any) -> Any:
    """A lone surrogate is no text outside of Python; its escape is."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of unequal keys as CSV with a header; what is missing or not finite is an empty cell, lists are JSON."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_cell(name) for name in names])
    writer.writerows([_cell(row.get(name)) for name in names] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = _storable(text.replace("\0", "\\0"))
    return f"'{text}" if text.startswith(FORMULA) else text


def write_table(rows: Sequence[Mapping[str, Any]], path: str | Path, form: str | None = None) -> Path:
    """Write rows to a file, as its ending says: .csv or .parquet. An existing file is replaced whole."""
    target = Path(path)
    chosen = form or target.suffix.lower().removeprefix(".")
    if chosen not in FORMATS:
        raise WhetError(f"{target}: cannot tell the format; give a name ending in .csv or .parquet")
    temporary = target.with_name(f".{target.name}.temporary")
    try:
        if chosen == "csv":
            temporary.write_text(csv_text(rows), encoding="utf-8", newline="")
        else:
            _write_parquet(rows, temporary)
        os.replace(temporary, target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise WhetError(f"{target}: cannot be written ({error.strerror}); give another place") from None
    return target


def _write_parquet(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    absent = [name for name in ("pandas", "pyarrow") if importlib.util.find_spec(name) is None]
    if absent:
        names = " and ".join(absent)
        raise WhetError(f"Parquet needs {names}; run: pip install {' '.join(absent)}, or give a .csv file")
    # a column holds one type: whatever is a list or a table goes in as JSON
    flat = [
        {name: json.dumps(value) if isinstance(value, list | dict) else value for name, value in row.items()}
        for row in rows
    ]
    for name in {name for row in flat for name in row}:
        kinds = {type(row[name]) for row in flat if row.get(name) is not None}
        if str in kinds and len(kinds) > 1:
            for row in flat:
                row[name] = None if row.get(name) is None else str(row[name])
    table(flat).to_parquet(path, index=False)
