"""Where each sample of samples.jsonl begins and what it is sorted and found by, kept up while the run appends; which
samples somebody wants to see; and the line of tokens.jsonl that belongs to one, found by halving.

Lines themselves stay on the disk: a page of samples is read by their places. 50,000 samples take 2 MB.
"""

from __future__ import annotations

import json
import math
import os
import re
import threading
import time
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whet.pages.board.files import LONGEST, GrowingLog, last_lines, line_at, open_file
from whet.record.recorded_tokens import VALUES, recorded_tokens

MOST_SAMPLES = 2_000_000  # that are kept track of
MOST_NAMES, MOST_NAME = 100, 200  # parts of a reward and stop reasons, and characters of one
OPENING = re.compile(rb'\{"step": (\d{1,15}), "place": (\d{1,15}),')
BLOCK = 1 << 16
SORTS = {
    "newest": "newest first",
    "oldest": "oldest first",
    "highest": "highest reward first",
    "lowest": "lowest reward first",
    "longest": "longest first",
    "shortest": "shortest first",
}
# of each sample: the byte at which its line begins, numbers, and places of the lists of prompts and of stop reasons
COLUMNS = {"place": "q", "step": "q", "reward": "d", "tokens": "q", "prompt": "q", "stop": "q"}
MOST_SEARCHES = 8  # texts that are remembered for a run


class SampleIndex:
    """The samples of a run. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._log = GrowingLog(path)
        self._clear()

    def _clear(self) -> None:
        self._columns: dict[str, array[Any]] = {name: array(code) for name, code in COLUMNS.items()}
        self._stop_codes: dict[str, int] = {}
        self._parts: dict[str, array[float]] = {}  # of the reward; shorter than the others where the last ones lack it
        self._codes: dict[str, int] = {}  # of prompts
        self.num_damaged = 0  # lines that are no samples
        self.is_complete = False  # the index has reached the end of the log
        self.generation = getattr(self, "generation", -1) + 1  # grows when the log began anew: places are others then

    def __len__(self) -> int:
        return len(self._columns["place"])

    @property
    def share_read(self) -> float:
        """The share of the log's bytes that was read."""
        return min(1.0, self._log.position / size) if (size := self._log.size) else 1.0

    @property
    def is_behind(self) -> bool:
        """Whether the log has changed since it was last read."""
        return self._log.is_changed

    def refresh(self, seconds: float = 0.1) -> bool:
        """Read on for about so many seconds; True when the end of the log is reached."""
        until = time.monotonic() + seconds
        with self._lock:
            while len(self) < MOST_SAMPLES:
                part = self._log.read()
                if part.is_anew:
                    self._clear()
                self.num_damaged += part.num_too_long
                for offset, line in part.lines:
                    self._add(offset, line)
                self.is_complete = part.is_end
                if part.is_end or time.monotonic() > until:
                    break
            return self.is_complete

    def place(self, number: int) -> int:
        """The byte at which the line of the n-th sample begins."""
        with self._lock:
            return int(self._columns["place"][number])

    def columns(self) -> dict[str, array[Any]]:
        """Copies: place, step, reward, tokens and prompt (a number; `prompt_names` has its id) of each sample."""
        with self._lock:
            return {name: column[:] for name, column in self._columns.items()}

    def prompt_names(self) -> list[str]:
        """Ids of prompts, in the order they first appear."""
        with self._lock:
            return list(self._codes)

    def stop_names(self) -> list[str]:
        """Why samples ended; the column `stop` has places of this list."""
        with self._lock:
            return list(self._stop_codes)

    def part_names(self) -> list[str]:
        """Parts of the reward, in the order they first appear."""
        with self._lock:
            return sorted(self._parts)

    def part(self, name: str) -> array[float]:
        """A part of the reward of each sample; NaN where it has none."""
        with self._lock:
            values = self._parts.get(name, array("d"))[:]
            values.extend([math.nan] * (len(self) - len(values)))
            return values

    def line(self, offset: int) -> dict[str, Any] | None:
        """The sample that begins there, as it was recorded; None where there is none (any more)."""
        text = line_at(self.path, offset)
        return None if text is None else parsed_sample(text)

    def lines(self, places: Iterable[int]) -> list[tuple[int, dict[str, Any]]]:
        """Several samples with their places; those that are gone are left out."""
        lines = ((offset, self.line(offset)) for offset in places)
        return [(offset, line) for offset, line in lines if line is not None]

    def newest(self, count: int) -> list[tuple[int, dict[str, Any]]]:
        """The last samples of the log, the newest first, without waiting for the index."""
        lines = ((offset, parsed_sample(text)) for offset, text in reversed(last_lines(self.path, count)))
        return [(offset, line) for offset, line in lines if line is not None]

    def _add(self, offset: int, text: bytes) -> None:
        line = parsed_sample(text)
        if line is None:
            self.num_damaged += 1
            return
        stop = str(line.get("stop", ""))[:MOST_NAME]
        if stop not in self._stop_codes and len(self._stop_codes) >= MOST_NAMES:
            stop = next(iter(self._stop_codes))
        tokens = _number(line.get("tokens"))
        row = {
            "place": offset,
            "step": line["step"],
            "reward": _number(line.get("reward")),
            "tokens": int(tokens) if 0 <= tokens < 2**53 else 0,
            "prompt": self._codes.setdefault(str(line.get("prompt_id", "")), len(self._codes)),
            "stop": self._stop_codes.setdefault(stop, len(self._stop_codes)),
        }
        for name, value in row.items():
            self._columns[name].append(value)
        parts = line.get("parts")
        for name, value in parts.items() if isinstance(parts, dict) else ():
            if name not in self._parts and len(self._parts) >= MOST_NAMES:
                continue
            column = self._parts.setdefault(name[:MOST_NAME], array("d"))
            column.extend([math.nan] * (len(self) - 1 - len(column)))
            column.append(_number(value))


def parsed_sample(text: bytes) -> dict[str, Any] | None:
    """A line of samples.jsonl; None for anything else."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or type(line.get("step")) is not int or not 0 <= line["step"] < 2**53:
        return None
    return line


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else math.nan


def token_line(path: Path, step: int, index: int) -> dict[str, Any] | None:
    """The line of the sample that was recorded at this place of the step; None where there is none."""
    file = open_file(path)
    if file is None:
        return None
    with file:
        descriptor, wanted = file.fileno(), (step, index)
        low, high = 0, os.fstat(descriptor).st_size  # the first line that is not before `wanted` begins within
        while low < high:
            middle = (low + high) // 2
            start, key = _next_line(descriptor, middle, high)
            if start is None or key >= wanted:
                high = middle
            else:
                low = start + 1
        start, key = _next_line(descriptor, low, os.fstat(descriptor).st_size)
        if start is None or key != wanted:
            return None
        file.seek(start)
        text = file.readline(LONGEST)
    return _checked(text) if text.endswith(b"\n") else None


def _next_line(descriptor: int, offset: int, end: int) -> tuple[int | None, tuple[int, int]]:
    """The byte and the (step, place) of the first line at or after `offset`; None where none begins before `end`.

    A line that is none of ours is passed over.
    """
    start: int | None = offset if offset == 0 else _behind_newline(descriptor, offset - 1, end)
    while start is not None and start < end:
        match = OPENING.match(os.pread(descriptor, 64, start))
        if match:
            return start, (int(match[1]), int(match[2]))
        start = _behind_newline(descriptor, start, end)
    return None, (0, 0)


def _behind_newline(descriptor: int, offset: int, end: int) -> int | None:
    while offset < end:
        content = os.pread(descriptor, min(BLOCK, end - offset), offset)
        if not content:
            return None
        newline = content.find(b"\n")
        if newline >= 0:
            return offset + newline + 1
        offset += len(content)
    return None


def _checked(text: bytes) -> dict[str, Any] | None:
    """A line whose tokens can be told; None for one that somebody damaged."""
    try:
        line = json.loads(text)
        recorded_tokens(line)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, StopIteration, RuntimeError):
        return None
    return line if isinstance(line, dict) else None


def token_values(line: dict[str, Any]) -> dict[str, Any]:
    """A line of tokens.jsonl for a page: equally long lists, null where a token has no such value."""
    tokens = recorded_tokens(line)
    turns = line.get("turns")
    return {
        "pieces": [token.piece for token in tokens],
        "action": [token.is_action for token in tokens],
        **{name: [getattr(token, name) for token in tokens] for name in VALUES},
        "turns": turns if isinstance(turns, list) else [],
        "left_out": line.get("left_out", 0),
    }


@dataclass(frozen=True)
class SampleQuery:
    """What is asked for; None and empty: no matter which."""

    search: str = ""  # in question, completion or any turn, whatever its case
    first_step: int | None = None
    last_step: int | None = None
    low: float | None = None  # bounds of the reward, or of a part of it
    high: float | None = None
    part: str = ""  # empty: the reward itself
    stop: str = ""
    prompt: str = ""
    sort: str = "newest"


@dataclass(frozen=True)
class FoundSamples:
    """Numbers of samples in the order asked for."""

    numbers: NDArray[np.int64]
    total: int  # samples of the run, as far as it is read
    looked_through: int  # of those that pass the filters, how many were searched for the text
    to_look_through: int

    @property
    def is_complete(self) -> bool:
        """Whether everything was looked through."""
        return self.looked_through == self.to_look_through


class TextSearch:
    """Which samples contain a text, found a little further with every call. Safe to use from several threads."""

    def __init__(self, index: SampleIndex, text: str) -> None:
        self._index, self._text = index, text.lower()
        # a line has the text as JSON writes it; ASCII can be looked for before anything is decoded
        self._raw = json.dumps(self._text, ensure_ascii=False)[1:-1].encode("utf-8", "backslashreplace")
        self._is_ascii = self._raw.isascii()
        self._verdicts: dict[int, bool] = {}
        self._generation = index.generation
        self._lock = threading.Lock()

    def matches(self, numbers: NDArray[np.int64], places: NDArray[np.int64], until: float) -> tuple[list[int], int]:
        """The numbers of the samples that contain the text, in order, and how many were looked at in time."""
        with self._lock:
            if self._index.generation != self._generation:
                self._verdicts.clear()
                self._generation = self._index.generation
            file = open_file(self._index.path)
            if file is None:
                return [], len(numbers)
            with file:
                starts = [*places.tolist(), os.fstat(file.fileno()).st_size]  # each line ends before the next begins
                matching: list[int] = []
                for looked, number in enumerate(numbers.tolist()):
                    verdict = self._verdicts.get(number)
                    if verdict is None:
                        if looked % 64 == 0 and time.monotonic() > until:
                            return matching, looked
                        size = min(starts[number + 1] - starts[number], LONGEST)
                        text = os.pread(file.fileno(), size, starts[number]).partition(b"\n")[0]
                        verdict = self._verdicts[number] = self._holds(text)
                    if verdict:
                        matching.append(number)
            return matching, len(numbers)

    def _holds(self, text: bytes) -> bool:
        if self._is_ascii and self._raw not in text.lower():
            return False
        line = parsed_sample(text)
        return line is not None and any(self._text in text.lower() for text in searched_texts(line))


def searched_texts(line: Mapping[str, Any]) -> list[str]:
    """The texts of a sample that a search looks into."""
    turns = line.get("turns")
    spoken = [turn.get("text") for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []
    return [text for text in (line.get("question"), line.get("completion"), *spoken) if isinstance(text, str)]


class SampleFinder:
    """Answers queries about the samples of one run."""

    def __init__(self, index: SampleIndex) -> None:
        self._index = index
        self._searches: dict[str, TextSearch] = {}
        self._lock = threading.Lock()

    def find(self, query: SampleQuery, seconds: float = 0.6) -> FoundSamples:
        """The samples that fit a query, as far as they were found within so many seconds."""
        until = time.monotonic() + seconds
        columns = {name: np.array(values) for name, values in self._index.columns().items()}
        total = len(columns["step"])
        numbers = np.flatnonzero(self._passes(query, columns, total))
        numbers = numbers[_order(query.sort, columns, numbers)]
        if not query.search:
            return FoundSamples(numbers, total, len(numbers), len(numbers))
        matching, looked = self._search(query.search).matches(numbers, columns["place"], until)
        return FoundSamples(np.array(matching, dtype=np.int64), total, looked, len(numbers))

    def _passes(self, query: SampleQuery, columns: Mapping[str, NDArray[Any]], total: int) -> NDArray[np.bool_]:
        passing = np.ones(total, dtype=bool)
        if query.first_step is not None:
            passing &= columns["step"] >= query.first_step
        if query.last_step is not None:
            passing &= columns["step"] <= query.last_step
        if query.low is not None or query.high is not None:
            values = np.array(self._index.part(query.part))[:total] if query.part else columns["reward"]
            passing &= (values >= (-math.inf if query.low is None else query.low)) & (
                values <= (math.inf if query.high is None else query.high)
            )
        if query.stop:
            passing &= columns["stop"] == _code(self._index.stop_names(), query.stop)
        if query.prompt:
            passing &= columns["prompt"] == _code(self._index.prompt_names(), query.prompt)
        return passing

    def _search(self, text: str) -> TextSearch:
        with self._lock:
            search = self._searches.pop(text, None) or TextSearch(self._index, text)
            self._searches[text] = search  # the newest last
            while len(self._searches) > MOST_SEARCHES:
                del self._searches[next(iter(self._searches))]
            return search


def _code(names: list[str], name: str) -> int:
    return names.index(name) if name in names else -1


def _order(sort: str, columns: Mapping[str, NDArray[Any]], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Places of `numbers` in the order asked for; samples without a reward come last."""
    if sort == "oldest":
        return np.arange(len(numbers))
    if sort in ("highest", "lowest"):
        rewards = columns["reward"][numbers].astype(float)
        signed = -rewards if sort == "highest" else rewards
        return np.argsort(np.where(np.isnan(signed), np.inf, signed), kind="stable")
    if sort in ("longest", "shortest"):
        tokens = columns["tokens"][numbers]
        return np.argsort(-tokens if sort == "longest" else tokens, kind="stable")
    return np.arange(len(numbers))[::-1]


def folded(index: SampleIndex, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first of these samples for each prompt, in their order, and how many of them the prompt has."""
    prompts = np.array(index.columns()["prompt"])[numbers]
    _, first, counts = np.unique(prompts, return_index=True, return_counts=True)
    order = np.argsort(first, kind="stable")
    return numbers[first[order]], counts[order]


def rewards_by_step(index: SampleIndex, numbers: NDArray[np.int64]) -> list[tuple[int, float, float, float]]:
    """(step, mean, lowest, highest reward) of these samples; steps without a reward are left out."""
    columns = index.columns()
    steps, rewards = np.array(columns["step"])[numbers], np.array(columns["reward"])[numbers]
    rows = []
    for step in np.unique(steps[~np.isnan(rewards)]).tolist():
        of_step = rewards[(steps == step) & ~np.isnan(rewards)]
        rows.append((step, float(of_step.mean()), float(of_step.min()), float(of_step.max())))
    return rows


def numbers_of_group(index: SampleIndex, number: int) -> list[int]:
    """The samples of the same prompt in the same step: its group, as far as it was recorded."""
    columns = index.columns()
    steps, prompts = np.array(columns["step"]), np.array(columns["prompt"])
    same = (steps == steps[number]) & (prompts == prompts[number])
    return [int(number) for number in np.flatnonzero(same)]


def place_in_step(index: SampleIndex, number: int) -> int:
    """How many samples of the same step were recorded before it: tokens.jsonl refers to it so."""
    steps, position = index.columns()["step"], 0
    while number - position > 0 and steps[number - position - 1] == steps[number]:
        position += 1
    return position
