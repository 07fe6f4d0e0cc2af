"""Which samples of a run somebody wants to see: filters over the index, text in the lines themselves, an order."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whet.pages.board.files import open_file
from whet.pages.board.growing_log import LONGEST
from whet.pages.board.sample_index import SampleIndex, parsed_sample

SORTS = {
    "newest": "newest first",
    "oldest": "oldest first",
    "highest": "highest reward first",
    "lowest": "lowest reward first",
    "longest": "longest first",
    "shortest": "shortest first",
}
MOST_SEARCHES = 8  # texts that are remembered for a run


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
        """Those of the samples that contain it, in order, and how many were looked at before the time was up."""
        with self._lock:
            if self._index.generation != self._generation:
                self._verdicts.clear()
                self._generation = self._index.generation
            file = open_file(self._index.path)
            if file is None:
                return [], len(numbers)
            with file:
                lines = _Lines(file.fileno(), places)
                found: list[int] = []
                for looked, number in enumerate(numbers.tolist()):
                    verdict = self._verdicts.get(number)
                    if verdict is None:
                        if looked % 64 == 0 and time.monotonic() > until:
                            return found, looked
                        verdict = self._verdicts[number] = self._holds(lines.text(number))
                    if verdict:
                        found.append(number)
            return found, len(numbers)

    def _holds(self, text: bytes) -> bool:
        if self._is_ascii and self._raw not in text.lower():
            return False
        line = parsed_sample(text)
        return line is not None and any(self._text in each.lower() for each in searched_texts(line))


class _Lines:
    """The lines of an open log by their number; each is known to end before the next one begins."""

    def __init__(self, descriptor: int, places: NDArray[np.int64]) -> None:
        self._descriptor = descriptor
        self._starts = [*places.tolist(), os.fstat(descriptor).st_size]

    def text(self, number: int) -> bytes:
        start, end = self._starts[number], self._starts[number + 1]
        return os.pread(self._descriptor, min(end - start, LONGEST), start).partition(b"\n")[0]


def searched_texts(line: Mapping[str, Any]) -> list[str]:
    """The texts of a sample that a search looks into."""
    turns = line.get("turns")
    spoken = [turn.get("text") for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []
    return [each for each in (line.get("question"), line.get("completion"), *spoken) if isinstance(each, str)]


class SampleFinder:
    """Answers queries about the samples of one run."""

    def __init__(self, index: SampleIndex) -> None:
        self._index = index
        self._searches: dict[str, TextSearch] = {}
        self._lock = threading.Lock()

    def find(self, query: SampleQuery, seconds: float = 0.6) -> FoundSamples:
        """The samples that fit a query, as far as they were found within so many seconds."""
        until = time.monotonic() + seconds
        columns = {name: np.array(each) for name, each in self._index.columns().items()}
        total = len(columns["step"])
        numbers = np.flatnonzero(self._passes(query, columns, total))
        numbers = numbers[_order(query.sort, columns, numbers)]
        if not query.search:
            return FoundSamples(numbers, total, len(numbers), len(numbers))
        found, looked = self._search(query.search).matches(numbers, columns["place"], until)
        return FoundSamples(np.array(found, dtype=np.int64), total, looked, len(numbers))

    def _passes(self, query: SampleQuery, columns: Mapping[str, NDArray[Any]], total: int) -> NDArray[np.bool_]:
        kept = np.ones(total, dtype=bool)
        if query.first_step is not None:
            kept &= columns["step"] >= query.first_step
        if query.last_step is not None:
            kept &= columns["step"] <= query.last_step
        if query.low is not None or query.high is not None:
            values = np.array(self._index.part(query.part))[:total] if query.part else columns["reward"]
            kept &= (values >= (-math.inf if query.low is None else query.low)) & (
                values <= (math.inf if query.high is None else query.high)
            )
        if query.stop:
            kept &= columns["stop"] == _code(self._index.stop_names(), query.stop)
        if query.prompt:
            kept &= columns["prompt"] == _code(self._index.prompt_names(), query.prompt)
        return kept

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
    """Of each prompt the first of these samples, in their order, and how many of them the prompt has."""
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
    return [int(each) for each in np.flatnonzero(same)]


def place_in_step(index: SampleIndex, number: int) -> int:
    """How many samples of the same step were recorded before it: tokens.jsonl refers to it so."""
    steps, place = index.columns()["step"], 0
    while number - place > 0 and steps[number - place - 1] == steps[number]:
        place += 1
    return place
