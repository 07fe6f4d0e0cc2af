"""Where each sample of samples.jsonl begins and what it is sorted and found by, kept up while the run appends.

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
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.pages.board.files import open_file
from whet.pages.board.growing_log import LONGEST, GrowingLog, last_lines, line_at
from whet.record.log import in_todays_names
from whet.record.tokens import VALUES, recorded_tokens

MOST_SAMPLES = 2_000_000  # that are kept track of
MOST_NAMES, MOST_NAME = 100, 200  # parts of a reward and stop reasons, and characters of one
OPENING = re.compile(rb'\{"step": (\d{1,15}), "place": (\d{1,15}),')
BLOCK = 1 << 16


@dataclass(frozen=True)
class IndexedSample:
    """A sample without its text."""

    place: int  # byte at which its line begins
    step: int
    reward: float  # NaN where there is none
    tokens: int
    prompt_id: str


class SampleIndex:
    """The samples of a run. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._log = GrowingLog(path)
        self._clear()

    def _clear(self) -> None:
        self._places, self._steps, self._tokens = array("q"), array("q"), array("q")
        self._rewards, self._prompts, self._stops = array("d"), array("q"), array("q")
        self._stop_codes: dict[str, int] = {}
        self._parts: dict[str, array[float]] = {}  # of the reward; shorter than the others where the last ones lack it
        self._codes: dict[str, int] = {}
        self._names: list[str] = []
        self.num_damaged = 0  # lines that are no samples
        self.is_complete = False  # the index has reached the end of the log
        self.generation = getattr(self, "generation", -1) + 1  # grows when the log began anew: places are others then

    def __len__(self) -> int:
        return len(self._places)

    @property
    def share_read(self) -> float:
        """The share of the log's bytes that was read."""
        return min(1.0, self._log.position / size) if (size := self._log.size) else 1.0

    @property
    def is_behind(self) -> bool:
        """Whether the log has changed since it was last read."""
        return self._log.is_changed

    def refresh(self, seconds: float = 0.1) -> bool:
        """Read on for about so long; True when the end of the log is reached."""
        until = time.monotonic() + seconds
        with self._lock:
            while len(self._places) < MOST_SAMPLES:
                part = self._log.read()
                if part.is_anew:
                    self._clear()
                self.num_damaged += part.num_too_long
                for place, line in part.lines:
                    self._add(place, line)
                self.is_complete = part.is_end
                if part.is_end or time.monotonic() > until:
                    break
            return self.is_complete

    def samples(self) -> list[IndexedSample]:
        """All of them, in the order of the log."""
        with self._lock:
            return [self._sample(number) for number in range(len(self._places))]

    def sample(self, number: int) -> IndexedSample:
        """The n-th of the log."""
        with self._lock:
            return self._sample(number)

    def columns(self) -> dict[str, array[Any]]:
        """Copies: place, step, reward, tokens and prompt (a number; `prompt_names` has its id) of each sample."""
        with self._lock:
            return {
                "place": self._places[:],
                "step": self._steps[:],
                "reward": self._rewards[:],
                "tokens": self._tokens[:],
                "prompt": self._prompts[:],
                "stop": self._stops[:],
            }

    def prompt_names(self) -> list[str]:
        """Ids of prompts, in the order they first appear."""
        with self._lock:
            return list(self._names)

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
            found = self._parts.get(name, array("d"))[:]
            found.extend([math.nan] * (len(self._places) - len(found)))
            return found

    def line(self, place: int) -> dict[str, Any] | None:
        """The sample that begins there, as it was recorded; None where there is none (any more)."""
        text = line_at(self.path, place)
        return None if text is None else parsed_sample(text)

    def lines(self, places: Iterable[int]) -> list[tuple[int, dict[str, Any]]]:
        """Several samples with their places; those that are gone are left out."""
        found = ((place, self.line(place)) for place in places)
        return [(place, line) for place, line in found if line is not None]

    def newest(self, count: int) -> list[tuple[int, dict[str, Any]]]:
        """The last samples of the log, the newest first, without waiting for the index."""
        found = ((place, parsed_sample(text)) for place, text in reversed(last_lines(self.path, count)))
        return [(place, line) for place, line in found if line is not None]

    def _sample(self, number: int) -> IndexedSample:
        return IndexedSample(
            self._places[number],
            self._steps[number],
            self._rewards[number],
            self._tokens[number],
            self._names[self._prompts[number]],
        )

    def _add(self, place: int, text: bytes) -> None:
        line = parsed_sample(text)
        if line is None:
            self.num_damaged += 1
            return
        prompt = str(line.get("prompt_id", ""))
        code = self._codes.setdefault(prompt, len(self._names))
        if code == len(self._names):
            self._names.append(prompt)
        self._places.append(place)
        self._steps.append(line["step"])
        self._rewards.append(_number(line.get("reward")))
        tokens = _number(line.get("tokens"))
        self._tokens.append(int(tokens) if 0 <= tokens < 2**53 else 0)
        self._prompts.append(code)
        stop = str(line.get("stop", ""))[:MOST_NAME]
        if stop not in self._stop_codes and len(self._stop_codes) >= MOST_NAMES:
            stop = next(iter(self._stop_codes))
        self._stops.append(self._stop_codes.setdefault(stop, len(self._stop_codes)))
        parts = line.get("parts")
        for name, value in parts.items() if isinstance(parts, dict) else ():
            if name not in self._parts and len(self._parts) >= MOST_NAMES:
                continue
            column = self._parts.setdefault(name[:MOST_NAME], array("d"))
            column.extend([math.nan] * (len(self._places) - 1 - len(column)))
            column.append(_number(value))


def parsed_sample(text: bytes) -> dict[str, Any] | None:
    """A line of samples.jsonl; None for anything else."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or type(line.get("step")) is not int or not 0 <= line["step"] < 2**53:
        return None
    return in_todays_names(line)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else math.nan


def token_line(path: Path, step: int, place: int) -> dict[str, Any] | None:
    """The line of the sample that was recorded at this place of the step; None where there is none."""
    file = open_file(path)
    if file is None:
        return None
    with file:
        descriptor, wanted = file.fileno(), (step, place)
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


def _next_line(descriptor: int, place: int, end: int) -> tuple[int | None, tuple[int, int]]:
    """Where the first line at or behind a place begins, and its step and place; None where none begins before `end`.

    A line that is none of ours is passed over.
    """
    start: int | None = place if place == 0 else _behind_newline(descriptor, place - 1, end)
    while start is not None and start < end:
        found = OPENING.match(os.pread(descriptor, 64, start))
        if found:
            return start, (int(found[1]), int(found[2]))
        start = _behind_newline(descriptor, start, end)
    return None, (0, 0)


def _behind_newline(descriptor: int, place: int, end: int) -> int | None:
    while place < end:
        content = os.pread(descriptor, min(BLOCK, end - place), place)
        if not content:
            return None
        newline = content.find(b"\n")
        if newline >= 0:
            return place + newline + 1
        place += len(content)
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
