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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from whet.settings.user_files import names_in, readable_file, reading, shown_source
from whet.types import WhetError

TEXT_FORMATS = (".jsonl", ".json", ".csv")
JOINED = " + "  # between two columns that became one
FORMATS = (*TEXT_FORMATS, *(f"{suffix}.gz" for suffix in TEXT_FORMATS), ".parquet", ".arrow")
DEEPEST = 64  # lists and objects inside one another
MOST_DIGITS = 300  # of an integer: a float still holds it
LONGEST_FIELD = 2**31 - 1  # bytes of a CSV field; the package's own limit of 131,072 refuses honest texts
MOST_NAMES = 20  # of columns in an error line


class BadRow(WhetError):
    """A row that cannot be read. `reason` is the same for all rows with the same mistake."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Row:
    """One row, by column name."""

    values: Mapping[str, Any]
    where: str  # "train.jsonl:17", "data.json: item 3", "file.parquet: row 3" or "owner/name[split]: row 3"
    names: Mapping[str, str] = field(default_factory=dict)  # whet's column -> where the user has it
    fault: BadRow | None = None  # why nothing could be read here; then there are no values

    def changed(self, values: Mapping[str, Any], **names: str) -> Row:
        """The row with other values; `names` says where the user has those that were found under another name."""
        return Row(values, self.where, {**self.names, **names})

    def shown(self, column: str) -> str:
        """A column, or a place in one, by the user's own name for it."""
        match = re.match(r"'?(\w+)", column)
        name = self.names.get(match[1], match[1]).partition(JOINED)[0] if match else ""
        shown = column.replace(match[1], name, 1) if match else column
        return shown.replace(".role", ".from").replace(".content", ".value") if name == "conversations" else shown

    def columns(self) -> list[str]:
        """The user's own names of the columns."""
        return list(
            dict.fromkeys(column for name in self.values for column in self.names.get(name, name).split(JOINED))
        )


Reader = Callable[[str, Iterable[bytes]], Iterator[Row]]  # (file name, its bytes)


def mistake(row: Row, field: str, given: str, expected: str, fix: str) -> BadRow:
    """One line: where, what was given, what was expected, and what to change."""
    field = row.shown(field)
    general_field = re.sub(r"\[\d+\]", "", field)
    # a value of the row's own would make every row a reason of its own
    valued = re.search(r"""['"\d{[]|\b(null|True|False)\b""", given.replace("'chosen'", ""))
    reason = f"{general_field} is not {re.sub(r'[0-9]+', 'n', expected)}" if valued else f"{general_field} {given}"
    return BadRow(f"{row.where}: {field} {given}; expected {expected}; {fix}", reason)


def column_notes(rows: Iterable[Row]) -> str:
    """Where the columns of translated rows come from: `prompt from question, answer from what follows #### in answer`.

    Nothing where every row has whet's own columns.
    """
    sources: dict[str, dict[str, None]] = {}
    for row in rows:
        for column, name in row.names.items():
            if column != name and column in row.values:
                sources.setdefault(column, {})[name] = None
    return ", ".join(f"{column} from {' or '.join(names)}" for column, names in sources.items())


def file_rows(source: str) -> Iterator[Row]:
    """The rows of a JSON Lines, JSON, CSV, Parquet or Arrow file, read on demand.

    A line that cannot be read is a row with a `fault`; what spoils the whole file is an error.
    """
    expected = f"a file ending in {', '.join(FORMATS)}"
    folder = Path(source)
    try:
        inside = [name for name in names_in(folder) if name.endswith(FORMATS)]
    except ValueError:
        inside = []
    if inside:
        raise WhetError(
            f"{shown_source(source)}: is a folder; expected {expected}; give a file in it, such as {folder / inside[0]}"
        )
    on_hub = len(folder.parts) == 2 and not folder.suffix and not folder.is_absolute()
    hint = f" (a dataset of the hub is written hub:{shown_source(source)})" if on_hub else ""
    path = readable_file(source, expected, hint=hint)
    lower = path.name.lower()
    if lower.endswith((".parquet", ".arrow")):
        return _table_rows(path)
    readers = {".jsonl": jsonl_rows, ".json": _json_rows, ".csv": _csv_rows}
    reader = readers.get(Path(lower.removesuffix(".gz")).suffix)
    if reader is None:
        raise WhetError(
            f"{shown_source(source)}: unknown kind of file; expected a name ending in {', '.join(FORMATS)}; "
            "rename or convert the file"
        )
    return _text_rows(path, reader)


def _text_rows(path: Path, reader: Reader) -> Iterator[Row]:
    name = shown_source(path.name)
    with reading(name), path.open("rb") as stream:
        if path.suffix.lower() != ".gz":
            yield from reader(name, stream)
            return
        try:
            yield from reader(name, gzip.GzipFile(fileobj=stream))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise WhetError(
                f"{name}: the gzip data is damaged ({first_line(error)}); expected a whole .gz file; fetch it again"
            ) from error


def _decoded(where: str, line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        fault = f"byte {error.start + 1} is not UTF-8"
        raise BadRow(
            f"{where}: {fault}; expected UTF-8 text; save the file as UTF-8", "the line is not UTF-8"
        ) from error


def _lines(stream: Iterable[bytes]) -> Iterator[bytes]:
    # bytes are split on "\n" alone; str.splitlines would also cut JSON strings at U+2028 and its kin
    for number, line in enumerate(stream):
        yield line if number else line.removeprefix(b"\xef\xbb\xbf")


def _text_lines(name: str, stream: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(_lines(stream), start=1):
        yield _decoded(f"{name}:{number}", line)


def jsonl_rows(name: str, stream: Iterable[bytes]) -> Iterator[Row]:
    """One row per line that is not blank; a line that cannot be read yields a row with a `fault` and raises nothing."""
    for number, line in enumerate(_lines(stream), start=1):
        if line.strip():
            where = f"{name}:{number}"
            try:
                # only an escape can write half a character, as UTF-8 itself has none
                value = _parsed(_decoded(where, line).rstrip("\r\n"), where)
                yield _object_row(value, where, sound_text=b"\\u" not in line)
            except BadRow as fault:
                yield Row({}, where, fault=fault)


def _parsed(text: str, where: str) -> Any:
    """The value of a line of JSON."""
    try:
        return json_value(text)
    except json.JSONDecodeError as error:
        message = f"{where}: column {error.colno}: not valid JSON ({error.msg}); expected one JSON object on each line"
        raise BadRow(f"{message}; correct the line", "the line is not valid JSON") from error
    except (ValueError, RecursionError) as error:
        fault = shown_fault(error)
        raise BadRow(f"{where}: {fault}; expected one JSON object on each line; correct the line", fault) from error


def _json_rows(name: str, stream: Iterable[bytes]) -> Iterator[Row]:
    try:
        items = json_value("".join(_text_lines(name, stream)), limit_depth=False)
    except json.JSONDecodeError as error:
        several = error.msg == "Extra data"
        fix = "if it holds one object per line, name it .jsonl" if several else "correct the line"
        raise WhetError(
            f"{name}:{error.lineno}: column {error.colno}: not valid JSON ({error.msg}); "
            f"expected one array of objects; {fix}"
        ) from error
    except BadRow as error:
        raise WhetError(str(error)) from error
    except (ValueError, RecursionError) as error:
        raise WhetError(
            f"{name}: {shown_fault(error)}; expected one array of objects; correct it, or use .jsonl"
        ) from error
    if not isinstance(items, list):
        raise WhetError(
            f"{name}: holds {_kind(items)}; expected an array of objects; put the rows in [ ], or use .jsonl"
        )
    for number, item in enumerate(items, start=1):
        where = f"{name}: item {number}"
        try:
            yield _object_row(item, where)
        except BadRow as fault:
            yield Row({}, where, fault=fault)


def json_value(text: str, limit_depth: bool = True) -> Any:
    """Parsed JSON; a ValueError for what would be lost, or break somebody later: keys twice, endless integers."""
    value = json.loads(text, object_pairs_hook=_unique, parse_int=_integer)
    if limit_depth and text.count("[") + text.count("{") > DEEPEST:
        require_shallow(value)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {value_text(twice)} appears twice")
    return record


def _integer(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"a number has {len(text)} digits, more than {MOST_DIGITS}")
    return int(text)


def require_shallow(value: Any) -> None:
    """A ValueError where lists and objects stand too deep inside one another: much that reads them recurses."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for container in level
            if isinstance(container, dict | list | tuple)
            for inner in (container.values() if isinstance(container, dict) else container)
        ]
        if not level:
            return
    raise ValueError(f"lists and objects stand more than {DEEPEST} deep inside one another")


def shown_fault(error: BaseException) -> str:
    """A parser's error in one line; a `RecursionError` is reported as nesting that is too deep."""
    deep = f"lists and objects stand more than {DEEPEST} deep inside one another"
    return deep if isinstance(error, RecursionError) else first_line(error)


def _object_row(value: Any, where: str, sound_text: bool = False) -> Row:
    if not isinstance(value, dict):
        raise BadRow(
            f'{where}: the row is {_kind(value)}; expected a JSON object; write it as {{"column": value, ...}}',
            f"the row is {_kind(value)}",
        )
    return Row(value, where) if sound_text else sound(Row(value, where))


def sound(row: Row) -> Row:
    """The row, or the row with a fault that spares every reader a check of its own."""
    try:
        require_shallow(row.values)
    except ValueError as error:
        return _faulty(row, str(error), "flatter values", "correct the row or drop it")
    for column, text in _texts(row.values):
        if not text.isascii() and _has_half_character(text):
            fault = "holds half a character (a lone surrogate)"
            return _faulty(
                row, f"{value_text(column)} {fault}", "text that UTF-8 can write", "correct it or drop the row"
            )
    return row


def _faulty(row: Row, given: str, expected: str, fix: str) -> Row:
    return Row({}, row.where, fault=BadRow(f"{row.where}: {given}; expected {expected}; {fix}", given))


def _texts(value: Any, column: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield column, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield column or str(name), str(name)
            yield from _texts(inner, column or str(name))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, column)


def _has_half_character(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def value_text(value: Any) -> str:
    """A value as an error line quotes it."""
    text = "null" if value is None else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _csv_rows(name: str, stream: Iterable[bytes]) -> Iterator[Row]:
    csv.field_size_limit(LONGEST_FIELD)
    reader = csv.reader(_text_lines(name, stream), strict=True)
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
                fault = f"the row has {len(fields)} fields"
                message = f"{where}: {fault}; expected {len(header)} ({_some(header)})"
                message += "; quote fields that hold commas or line breaks"
                yield Row({}, where, fault=BadRow(message, "the row has another number of fields than the header"))
                continue
            yield Row(dict(zip(header, fields, strict=True)), where)
    except csv.Error as error:
        raise WhetError(
            f"{name}:{line}: not valid CSV ({error}); expected quotes inside a quoted field to be doubled; "
            "correct the row, or save the data as .jsonl"
        ) from error
    except BadRow as error:
        raise WhetError(str(error)) from error


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(name if len(name) <= 40 else f"{name[:37]}..." for name in names[:MOST_NAMES])
    return shown if len(names) <= MOST_NAMES else f"{shown}, and {len(names) - MOST_NAMES} more"


def _csv_header(fields: list[str], where: str) -> list[str]:
    seen: set[str] = set()
    for position, column in enumerate(fields, start=1):
        if not column.strip():
            raise WhetError(f"{where}: header field {position} is empty; expected a column name; name the column")
        if column in seen:
            raise WhetError(
                f"{where}: column {value_text(column)} appears twice in the header; expected different names; "
                "rename one of them"
            )
        seen.add(column)
    return fields


def _table_rows(path: Path) -> Iterator[Row]:
    """The rows of a Parquet file, or of an Arrow stream as `datasets` writes it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        _raise_missing_package(path.name, "pyarrow", error)
    name, kind = shown_source(path.name), "Arrow" if path.name.lower().endswith(".arrow") else "Parquet"
    try:
        if kind == "Parquet":
            opened = pyarrow.parquet.ParquetFile(path)
            names, batches = opened.schema_arrow.names, opened.iter_batches(batch_size=1024)
        else:
            opened = pyarrow.ipc.open_stream(path)
            names, batches = opened.schema.names, iter(opened)
        with opened:
            twice = next((column for column in names if names.count(column) > 1), None)
            if twice is not None:
                raise WhetError(
                    f"{name}: column {value_text(twice)} appears twice; expected different names; rename one of them"
                )
            values = (value for batch in batches for value in batch.to_pylist())
            for number, value in enumerate(values, start=1):
                yield sound(Row(value, f"{name}: row {number}"))
    except WhetError:
        raise
    except Exception as error:  # of damaged files pyarrow raises many kinds, OSError and UnicodeDecodeError too
        raise WhetError(
            f"{name}: not readable as {kind} ({first_line(error)}); expected a whole {kind} file with UTF-8 text; "
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
            f"{source}: the dataset did not load ({type(error).__name__}: {first_line(error)}); "
            "check its name, config, split and your network"
        ) from error
    label = f"{name}{f'/{config}' if config else ''}[{split}]"
    for number, value in enumerate(dataset, start=1):
        yield Row(dict(value), f"{label}: row {number}")


def _raise_missing_package(source: str, package: str, error: ImportError) -> NoReturn:
    raise WhetError(f"{source}: needs the package {package}; run: pip install 'whet[hub]'") from error


def first_line(error: BaseException) -> str:
    """The first line of an error's message, at most 200 characters, or "no details"."""
    line = str(error).strip().partition("\n")[0] or "no details"
    return line if len(line) <= 200 else f"{line[:197]}..."


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
