"""Rows as the user wrote them: files and hub datasets become `Row` values that know where they stand.

Nothing is interpreted here (see `whet.data.prompts`). Every mistake in a file is reported with its file, its line and
the fix. Counting starts at 1 everywhere, as in editors. `whet.data.source.read_rows` picks the reader for a source.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from whet.types import WhetError, nearest

TEXT_FORMATS = (".jsonl", ".json", ".csv")
JOINED = " + "  # between two columns that became one
FORMATS = (*TEXT_FORMATS, *(f"{suffix}.gz" for suffix in TEXT_FORMATS), ".parquet")


@dataclass(frozen=True)
class Row:
    """One row, by column name."""

    values: Mapping[str, Any]
    where: str  # "train.jsonl:17", "data.json: item 3", "file.parquet: row 3" or "owner/name[split]: row 3"
    names: Mapping[str, str] = field(default_factory=dict)  # whet's column -> where the user has it

    def changed(self, values: Mapping[str, Any], **names: str) -> Row:
        """The row with other values; `names` says where the user has those that were found under another name."""
        return Row(values, self.where, {**self.names, **names})

    def shown(self, column: str) -> str:
        """A column, or a place in one, by the user's own name for it."""
        found = re.match(r"'?(\w+)", column)
        name = self.names.get(found[1], found[1]).partition(JOINED)[0] if found else ""
        shown = column.replace(found[1], name, 1) if found else column
        return shown.replace(".role", ".from").replace(".content", ".value") if name == "conversations" else shown

    def columns(self) -> list[str]:
        """The user's own names of the columns."""
        return list(dict.fromkeys(each for name in self.values for each in self.names.get(name, name).split(JOINED)))


Reader = Callable[[str, Iterable[bytes]], Iterator[Row]]  # (file name, its bytes)


class BadRow(WhetError):
    """A row that cannot be read. `reason` is the same for all rows with the same mistake."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


def mistake(row: Row, field: str, given: str, expected: str, fix: str) -> BadRow:
    """One line: where, what was given, what was expected, and what to change."""
    field = row.shown(field)
    place = re.sub(r"\[\d+\]", "", field)
    # a value of the row's own would make every row a reason of its own
    valued = re.search(r"""['"\d{[]|\b(null|True|False)\b""", given.replace("'chosen'", ""))
    reason = f"{place} is not {re.sub(r'[0-9]+', 'n', expected)}" if valued else f"{place} {given}"
    return BadRow(f"{row.where}: {field} {given}; expected {expected}; {fix}", reason)


def column_notes(rows: Iterable[Row]) -> str:
    """Where the columns of translated rows come from: `prompt from question, answer from what follows #### in answer`.

    Nothing where every row has whet's own columns.
    """
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        for column, name in row.names.items():
            if column != name and column in row.values:
                found.setdefault(column, {})[name] = None
    return ", ".join(f"{column} from {' or '.join(names)}" for column, names in found.items())


def file_rows(source: str) -> Iterator[Row]:
    """The rows of a JSON Lines, JSON, CSV or Parquet file, read on demand."""
    path = Path(source).expanduser()
    name = path.name
    if path.is_dir():
        inside = sorted(child.name for child in path.iterdir() if child.name.endswith(FORMATS))
        fix = f"give a file in it, such as {path / inside[0]}" if inside else "give the file itself"
        raise WhetError(f"{source}: is a folder; expected a file ending in {', '.join(FORMATS)}; {fix}")
    if not path.exists():
        raise WhetError(_missing_file(source, path))
    lower = name.lower()
    if lower.endswith(".parquet"):
        return _parquet_rows(path)
    readers = {".jsonl": _jsonl_rows, ".json": _json_rows, ".csv": _csv_rows}
    reader = readers.get(Path(lower.removesuffix(".gz")).suffix)
    if reader is None:
        raise WhetError(
            f"{source}: unknown kind of file; expected a name ending in {', '.join(FORMATS)}; "
            "rename or convert the file"
        )
    return _text_rows(path, reader)


def _missing_file(source: str, path: Path) -> str:
    fix = "correct the path"
    if path.parent.is_dir():
        close = nearest(path.name, (child.name for child in path.parent.iterdir()))
        fix = f"did you mean {path.parent / close}?" if close else fix
        given = "no such file"
    else:
        given = f"no such file, nor the folder {path.parent}"
    if len(path.parts) == 2 and not path.suffix and not path.is_absolute():
        fix += f" (a dataset of the hub is written hub:{source})"
    return f"{source}: {given}; expected a data file; {fix}"


def _text_rows(path: Path, reader: Reader) -> Iterator[Row]:
    with path.open("rb") as stream:
        if path.suffix.lower() != ".gz":
            yield from reader(path.name, stream)
            return
        try:
            yield from reader(path.name, gzip.GzipFile(fileobj=stream))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise WhetError(
                f"{path.name}: the gzip data is damaged ({error}); expected a whole .gz file; fetch it again"
            ) from error


def _decoded(where: str, line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise WhetError(
            f"{where}: byte {error.start + 1} is not UTF-8; expected UTF-8 text; save the file as UTF-8"
        ) from error


def _lines(name: str, stream: Iterable[bytes]) -> Iterator[str]:
    # bytes are split on "\n" alone; str.splitlines would also cut JSON strings at U+2028 and its kin
    for number, line in enumerate(stream, start=1):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        yield _decoded(f"{name}:{number}", line)


def _jsonl_rows(name: str, stream: Iterable[bytes]) -> Iterator[Row]:
    for number, line in enumerate(_lines(name, stream), start=1):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        try:
            value = json.loads(line.rstrip("\r\n"))
        except json.JSONDecodeError as error:
            raise WhetError(
                f"{where}: column {error.colno}: not valid JSON ({error.msg}); expected one JSON object on each line; "
                "correct the line"
            ) from error
        yield _object_row(value, where)


def _json_rows(name: str, stream: Iterable[bytes]) -> Iterator[Row]:
    try:
        items = json.loads("".join(_lines(name, stream)))
    except json.JSONDecodeError as error:
        several = error.msg == "Extra data"
        fix = "if it holds one object per line, name it .jsonl" if several else "correct the line"
        raise WhetError(
            f"{name}:{error.lineno}: column {error.colno}: not valid JSON ({error.msg}); "
            f"expected one array of objects; {fix}"
        ) from error
    if not isinstance(items, list):
        raise WhetError(
            f"{name}: holds {_kind(items)}; expected an array of objects; put the rows in [ ], or use .jsonl"
        )
    for number, item in enumerate(items, start=1):
        yield _object_row(item, f"{name}: item {number}")


def _object_row(value: Any, where: str) -> Row:
    if not isinstance(value, dict):
        raise WhetError(
            f'{where}: the row is {_kind(value)}; expected a JSON object; write it as {{"column": value, ...}}'
        )
    return Row(value, where)


def _csv_rows(name: str, stream: Iterable[bytes]) -> Iterator[Row]:
    reader = csv.reader(_lines(name, stream), strict=True)
    header: list[str] | None = None
    line = 1
    try:
        for fields in reader:
            # a quoted field may span lines: the record starts right after the last line of the one before
            where, line = f"{name}:{line}", reader.line_num + 1
            if not fields:
                continue
            if header is None:
                header = _csv_header(fields, where)
                continue
            if len(fields) != len(header):
                raise WhetError(
                    f"{where}: the row has {len(fields)} fields; expected {len(header)} "
                    f"({', '.join(header)}); quote fields that hold commas or line breaks"
                )
            yield Row(dict(zip(header, fields, strict=True)), where)
    except csv.Error as error:
        raise WhetError(
            f"{name}:{line}: not valid CSV ({error}); expected quotes inside a quoted field to be doubled; "
            "correct the row, or save the data as .jsonl"
        ) from error


def _csv_header(fields: list[str], where: str) -> list[str]:
    for position, column in enumerate(fields, start=1):
        if not column.strip():
            raise WhetError(f"{where}: header field {position} is empty; expected a column name; name the column")
        if column in fields[: position - 1]:
            raise WhetError(
                f"{where}: column {column!r} appears twice in the header; expected different names; rename one of them"
            )
    return fields


def _parquet_rows(path: Path) -> Iterator[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        _raise_missing_package(path.name, "pyarrow", error)
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            values = (value for batch in file.iter_batches(batch_size=1024) for value in batch.to_pylist())
            for number, value in enumerate(values, start=1):
                yield Row(value, f"{path.name}: row {number}")
    except pyarrow.ArrowException as error:
        raise WhetError(
            f"{path.name}: not readable as Parquet ({_first_line(error)}); expected a whole Parquet file; "
            "fetch or write it again"
        ) from error


def hub_rows(source: str, name: str, config: str | None, split: str) -> Iterator[Row]:
    """The rows of the hub dataset `name`; errors name it as the user did, by `source`."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        _raise_missing_package(source, "datasets", error)
    try:
        dataset = load_dataset(name, config, split=split)
    except Exception as error:  # the package raises many unrelated kinds: unknown name, config, split, no network
        raise WhetError(
            f"{source}: the dataset did not load ({type(error).__name__}: {_first_line(error)}); "
            "check its name, config, split and your network"
        ) from error
    label = f"{name}{f'/{config}' if config else ''}[{split}]"
    for number, value in enumerate(dataset, start=1):
        yield Row(dict(value), f"{label}: row {number}")


def _raise_missing_package(source: str, package: str, error: ImportError) -> NoReturn:
    raise WhetError(f"{source}: needs the package {package}; run: pip install 'whet[hub]'") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or "no details"


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return names.get(type(value), type(value).__name__)
