"""Files larger than memory: rows in, row after row; rows out, all or nothing; and a file that any row is read from.

Input is whatever `--data` takes as a file, or `-` for JSON Lines on standard input. Output is JSON Lines, compressed
where the name ends in .gz, or `-` for standard output. A file is complete or not there: it is written beside its place
and moved.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from whet.data.foreign_rows import RANKED, STEPPED
from whet.data.prompts import prompts_from
from whet.data.rows import BadRow, Row, jsonl_rows
from whet.data.source import stored_rows
from whet.settings.user_files import reason, shown_source
from whet.types import Prompt, WhetError

STANDARD = "-"
COMPLETIONS = ("completion", "reply", "response", "output", "chosen", "rejected", "solution", *RANKED, *STEPPED)
LEVEL = 4  # of compression: near the best size, in a third of its time


@dataclass
class StoredRows:
    """The rows of a source. With `drop` those that cannot be read are left out and counted; else the first stops."""

    source: str
    drop: bool = False
    left_out: Counter[str] = field(default_factory=Counter)
    rows: int = 0  # read so far, those left out included

    def __iter__(self) -> Iterator[Row]:
        stored = jsonl_rows("stdin", sys.stdin.buffer) if self.source == STANDARD else stored_rows(self.source)
        self.rows, self.left_out = 0, Counter()
        for row in stored:
            self.rows += 1
            if row.fault is not None:
                self.refuse(row.fault)
                continue
            yield row
        if not self.rows:
            raise WhetError(f"{shown_source(self.source)}: holds no rows; expected at least one")

    def read(self, reader: Callable[[Sequence[Row]], list[Any]]) -> Iterator[tuple[Row, list[Any]]]:
        """Each row with what `reader` makes of it; one that it refuses stops, or is left out."""
        for row in self:
            try:
                yield row, reader([row])
            except BadRow as fault:
                self.refuse(fault)

    def prompts(self) -> Iterator[tuple[Row, Prompt]]:
        """Each row with the prompt it holds."""
        for row, (prompt,) in self.read(_prompts):
            yield row, prompt

    def texts(self, by: str = "prompt") -> Iterator[tuple[Row, str]]:
        """Each row with the text it is compared by: `prompt`, `all` of its texts, or a column."""
        if by in ("prompt", "all"):
            for row, (text,) in self.read(lambda rows: [_row_text(rows[0], by == "all")]):
                yield row, text
            return
        for row in self:
            value = row.values.get(by)
            if value is None:
                names = ", ".join(map(repr, row.values))
                self.refuse(
                    BadRow(
                        f"{row.where}: {by!r} is missing; the row has {names}; give --by prompt, all or a column",
                        f"{by!r} is missing",
                    )
                )
                continue
            yield row, "\n".join(_strings(value)) if not isinstance(value, str) else value

    def refuse(self, fault: BadRow) -> None:
        """Count the row as left out if `drop` is set, else raise `WhetError`; the caller skips the row."""
        if not self.drop:
            raise WhetError(f"{fault}; or leave such rows out with --unusable drop") from fault
        self.left_out[fault.reason] += 1


def _plain_prompt(row: Row) -> str | None:
    """The prompt of a row that plainly has one, as `prompts_from` would read it; None where that has to look closer."""
    value = row.values.get("prompt")
    is_plain = isinstance(value, str) and value.strip() and not value.startswith("\n\n")  # a transcript begins so
    return value if is_plain else None


def _prompts(rows: Sequence[Row]) -> list[Prompt]:
    """Ids may repeat here: a tool does not resume."""
    nameless = [Row({name: value for name, value in row.values.items() if name != "id"}, row.where) for row in rows]
    return prompts_from(nameless)


def prompt_text(prompt: Prompt) -> str:
    """Everything that is said before the completion."""
    if prompt.text is not None:
        return prompt.text
    return "\n".join(str(message.get("content", "")) for message in prompt.messages)


def _row_text(row: Row, whole: bool) -> str:
    """The text of the prompt; of the `whole` row its completions too."""
    if not whole and (text := _plain_prompt(row)) is not None:
        return text
    parts = [prompt_text(*_prompts([row]))]
    if not whole:
        return parts[0]
    for name in ("messages", "conversations", "text", *COMPLETIONS):
        parts += _strings(row.values.get(name))
    return "\n".join(parts)


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for name, inner in value.items() if name not in ("role", "from") for text in _strings(inner)]
    if isinstance(value, list | tuple):
        return [text for inner in value for text in _strings(inner)]
    return [] if value is None else [str(value)]


class RowWriter:
    """Counts what it writes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.rows = 0

    def write(self, values: Mapping[str, Any]) -> None:
        """Write a row as one line of JSON; a value that JSON lacks is written as its `str()`."""
        self.write_line(json.dumps(values, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass") + b"\n")

    def write_line(self, line: bytes) -> None:
        """Write a row that is JSON already; the line must end in a newline."""
        self._stream.write(line)
        self.rows += 1


@contextmanager
def writing(out: str, force: bool = False) -> Iterator[RowWriter]:
    """A writer of JSON Lines; the file is there only once everything went well."""
    if out == STANDARD:
        yield RowWriter(sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    path = checked_place(out, force)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as plain:
            if path.suffix == ".gz":
                with gzip.GzipFile("", "wb", LEVEL, plain, mtime=0) as packed:
                    yield RowWriter(packed)  # type: ignore[arg-type]
            else:
                yield RowWriter(plain)
        os.replace(beside, path)
    except OSError as error:
        raise WhetError(f"{shown_source(out)}: cannot be written ({reason(error)}); give another --out") from error
    finally:
        with suppress(OSError):
            beside.unlink()


def checked_place(out: str, force: bool) -> Path:
    """The path of a file to write; refused where it would overwrite, or be named like what it is not."""
    path = Path(out).expanduser()
    if not path.name.endswith((".jsonl", ".jsonl.gz")):
        raise WhetError(f"{shown_source(out)}: rows are written as JSON Lines; name it .jsonl or .jsonl.gz")
    if path.exists() and not force:
        raise WhetError(f"{shown_source(out)}: exists already; give another --out, or --force to overwrite it")
    if not path.parent.is_dir():
        raise WhetError(f"{shown_source(out)}: there is no folder {path.parent}; make it, or give another --out")
    return path


class Spool:
    """Rows on disk, each read by its number; gone with the `with` block. Memory: eight bytes per row."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="whet-data-")  # noqa: SIM115, closed by __exit__
        self._starts = array("q", [0])

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._starts) - 1

    def add(self, values: Mapping[str, Any]) -> int:
        """Append a row; returns its number."""
        line = json.dumps(values, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass") + b"\n"
        self._file.write(line)
        self._starts.append(self._starts[-1] + len(line))
        return len(self) - 1

    def line(self, number: int) -> bytes:
        """The line of a row as it is stored."""
        self._file.seek(self._starts[number])
        return self._file.read(self._starts[number + 1] - self._starts[number])

    def values(self, number: int) -> dict[str, Any]:
        """The row as it was added, except that values unknown to JSON come back as text."""
        row_values: dict[str, Any] = json.loads(self.line(number))
        return row_values
