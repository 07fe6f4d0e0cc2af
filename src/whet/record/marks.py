"""What people said of a run's samples: `marks.jsonl` in its folder, append-only; the last word about a sample counts.

Whoever marks appends under a lock, and nobody rewrites the file: two people, or a person and a run that selects more
samples, do not lose each other's work.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.record.log import complete_bytes, json_object
from whet.record.metrics.distribution import kappa
from whet.record.metrics.intervals import share_interval
from whet.types import WhetError

MARKS_LOG = "marks.jsonl"
HIGH, LOW = "high", "low"
GOOD, HACKED, WRONG = "good", "hacked", "wrong"
MARKS = (GOOD, HACKED, WRONG)
LONGEST_SHOWN = 100  # characters of a wrong mark that an error repeats
LONGEST_NOTE = 10_000  # characters


@dataclass(frozen=True)
class SampleMark:
    """A mark or note that a person gave a sample."""

    id: str
    mark: str | None  # one of MARKS; None: taken back
    note: str = ""


@dataclass(frozen=True)
class ReviewAgreement:
    """The reward's verdict (its end of the review) against people's (good, or not)."""

    marked: int
    agreed: int  # high and good, low and hacked or wrong
    low: float  # Wilson's 95% interval of the share; NaN where nothing is marked
    high: float
    kappa: float  # Cohen's; NaN where nothing is marked, or where both said one thing only

    @property
    def share(self) -> float:
        """The share of marked samples on which both agree; NaN where nothing is marked."""
        return self.agreed / self.marked if self.marked else math.nan


def checked_mark(where: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with its mark; an error that names the place where it is none."""
    mark = row.get("mark")
    if mark is not None and mark not in ("", *MARKS):
        shown = json.dumps(mark, ensure_ascii=False)[:LONGEST_SHOWN]
        expected = ", ".join(f'"{choice}"' for choice in MARKS)
        raise WhetError(f"{where}: mark is {shown}; write {expected} or null")
    if not isinstance(row.get("note", ""), str | None):
        shown = json.dumps(row["note"], ensure_ascii=True)[:LONGEST_SHOWN]
        raise WhetError(f"{where}: note is {shown}; write text in quotes")
    return {**row, "mark": mark or None}


def append_marks(folder: Path | str, marks: Sequence[SampleMark]) -> None:
    """Append marks. A line that a crash tore is cut first; a link is not followed."""
    path = Path(folder) / MARKS_LOG
    lines = [
        json.dumps({"id": mark.id, "mark": mark.mark, "note": mark.note, "at": round(time.time(), 3)}) + "\n"
        for mark in marks
    ]
    if not lines:
        return
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = os.fstat(file).st_size
            with os.fdopen(file, "r+b", closefd=False) as log:
                whole = complete_bytes(log)
            if whole < size:
                os.ftruncate(file, whole)
            content = "".join(lines).encode()
            try:
                while content:
                    content = content[os.write(file, content) :]
                os.fsync(file)
            except OSError:
                os.ftruncate(file, whole)  # half of what was said is worse than nothing of it
                raise
        finally:
            os.close(file)
    except OSError as error:
        raise WhetError(f"{path} cannot be written ({error.strerror}) and stays as it was; make it writable") from None


def read_sample_marks(folder: Path | str) -> dict[str, SampleMark]:
    """The last mark of each sample that a person marked, by its id; empty without a file."""
    path = Path(folder) / MARKS_LOG
    marks: dict[str, SampleMark] = {}
    for position, text in _lines(path):
        row = checked_mark(position, json_object(position, text))
        if not isinstance(row.get("id"), str):
            raise WhetError(f'{position}: no sample is named; restore its "id", or delete the line')
        marks[row["id"]] = SampleMark(row["id"], row["mark"], row.get("note") or "")
    return marks


def _lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """The complete lines that are not empty; one without its newline was torn by a crash."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise WhetError(f"{path} cannot be read ({error.strerror}); make it readable") from None
    except ValueError:  # half a surrogate pair, or NUL
        raise WhetError(f"{str(path)!r} is no path; give a file or a folder") from None
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        if line.strip():
            yield f"{path}:{number}", line


def review_counts(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many of each end were marked how, and how many not at all: "high good", "high hacked", ..."""
    counts = {f"{end} {verdict}": 0 for end in (HIGH, LOW) for verdict in (*MARKS, "unmarked")}
    for row in rows:
        counts[f"{row['end']} {row.get('mark') or 'unmarked'}"] += 1
    return counts


def agreement(counts: Mapping[str, int]) -> ReviewAgreement:
    """Whether people and the reward see the same in the marked samples."""
    table = [[counts[f"{end} {GOOD}"], counts[f"{end} {HACKED}"] + counts[f"{end} {WRONG}"]] for end in (HIGH, LOW)]
    marked, agreed = sum(map(sum, table)), table[0][0] + table[1][1]
    low, high = share_interval(agreed / marked, marked) if marked else (math.nan, math.nan)
    return ReviewAgreement(marked, agreed, low, high, kappa(table))


def review_verdict(counts: Mapping[str, int]) -> str:
    """What the marks say of the reward."""
    high, low = (sum(counts[f"{end} {mark}"] for mark in MARKS) for end in (HIGH, LOW))
    waiting = counts[f"{HIGH} unmarked"] + counts[f"{LOW} unmarked"]
    if not high + low:
        return f"No answer is marked yet; {waiting} wait."
    both = agreement(counts)
    by_chance = "" if math.isnan(both.kappa) else f", kappa {both.kappa:.2f}"
    return (
        f"{counts[f'{HIGH} {HACKED}']} of {high} marked answers with a high reward are hacked and "
        f"{counts[f'{HIGH} {WRONG}']} are wrong; {counts[f'{LOW} {GOOD}']} of {low} with a low reward are good. "
        f"The reward agrees with {both.agreed} of {both.marked} marks ({both.share:.0%}, 95% interval "
        f"{both.low:.0%} to {both.high:.0%}{by_chance}); {waiting} wait."
    )
