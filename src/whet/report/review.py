"""Answers for a person to look at: some of the best and some of the worst of a step, by the reward's own judgement.

`review.jsonl` in the run folder has one answer a line with an empty `mark`; `review.html` shows the same answers with
buttons. Marks given there stay in the browser until they are downloaded; those written into the file by hand stay in
the file, also when the run goes on. A good answer with a low reward, or a bad one with a high reward, is a reward to
fix.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.metrics.distribution import is_flat
from whet.report.record import read_lines, sample_line
from whet.report.review_page import review_page
from whet.types import Prompt, Sample, StepReport, WhetError

REVIEW, REVIEW_PAGE = "review.jsonl", "review.html"
HIGH, LOW = "high", "low"
GOOD, BAD = "good", "bad"
MARKS = (GOOD, BAD)
EVERY, COUNT = 100, 20  # steps between reviews, answers of each end


@dataclass(frozen=True)
class ReviewPlan:
    """How often answers are set aside for a person, and how many of each end."""

    every: int = EVERY  # steps; 0 switches reviews off
    count: int = COUNT
    seed: int = 0


class Review:
    """A callback that keeps a run's review."""

    def __init__(self, folder: Path | str, last_step: int, plan: ReviewPlan, reward_hash: str = "") -> None:
        self.folder = Path(folder)
        self._last_step, self._plan, self._reward_hash = last_step, plan, reward_hash

    def started(self, summary: Mapping[str, Any]) -> None:
        pass

    def stepped(self, report: StepReport, samples: Sequence[tuple[Prompt, Sample]]) -> None:
        if is_review_due(report.step, self._last_step, self._plan.every):
            rows = review_rows(report.step, samples, self._plan.count, self._plan.seed, self._reward_hash)
            if rows:
                write_review(self.folder, rows)

    def evaluated(self, step: int, name: str, result: Mapping[str, float], seconds: float) -> None:
        pass

    def finished(self, summary: Mapping[str, Any]) -> None:
        pass


def is_review_due(step: int, last_step: int, every: int = EVERY) -> bool:
    """Every so many steps and after the last one; 0 switches reviews off."""
    return every > 0 and (step % every == 0 or step == last_step)


def review_rows(
    step: int, samples: Sequence[tuple[Prompt, Sample]], count: int = COUNT, seed: int = 0, reward_hash: str = ""
) -> list[dict[str, Any]]:
    """`count` answers with the highest and `count` with the lowest rewards of a step, unmarked.

    Among equal rewards the choice is drawn, the same for the same seed and step. No answer is in both halves, and
    where all rewards are equal every answer is in the low half: none of them stands out.
    """
    scored = [(prompt, sample) for prompt, sample in samples if sample.reward is not None]
    random.Random(f"review/{seed}/{step}").shuffle(scored)
    scored.sort(key=lambda pair: pair[1].reward or 0.0)
    listed = min(count, (len(scored) + 1) // 2)
    low, high = scored[:listed], scored[max(listed, len(scored) - count) :]
    if is_flat([sample.reward or 0.0 for _, sample in scored]):
        low, high = scored[:count], []
    rows: list[dict[str, Any]] = []
    for end, chosen in ((HIGH, high[::-1]), (LOW, low)):
        for prompt, sample in chosen:
            line = sample_line(step, prompt, sample)
            rows.append(
                {
                    "id": _identity(step, prompt.id, sample.completion, len(rows)),
                    "end": end,
                    **line,
                    "reward_hash": reward_hash,
                    "mark": None,
                    "note": "",
                }
            )
    return rows


def write_review(folder: Path | str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Add a step's rows to the review and draw its page again. Later steps, left by a run that was cut back, go."""
    folder = Path(folder)
    first = min((int(row["step"]) for row in rows), default=None)
    kept = [row for row in read_review(folder) if first is None or int(row["step"]) < first]
    everything = [*kept, *rows]
    text = "".join(json.dumps(dict(row), ensure_ascii=False, allow_nan=False) + "\n" for row in everything)
    _replace(folder / REVIEW, text)
    page = review_page(folder.name, everything)
    _replace(folder / REVIEW_PAGE, page)
    return folder / REVIEW_PAGE


def read_review(folder: Path | str) -> list[dict[str, Any]]:
    """The rows of a run's review, with their marks checked; no file, no rows."""
    path = Path(folder) / REVIEW
    rows = list(read_lines(path))
    for place, row in enumerate(rows, start=1):
        if not {"id", "step", "end", "completion"} <= row.keys():
            raise WhetError(f"{path}:{place}: no row of a review; restore the line or delete it")
        if row.get("mark") not in (None, "", *MARKS):
            raise WhetError(f"{path}:{place}: mark is {row['mark']!r}; write {GOOD!r}, {BAD!r} or null")
    return rows


def with_marks(rows: Iterable[Mapping[str, Any]], marked: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with the marks and notes of another copy of them, a downloaded one say; unmarked ones change nothing."""
    given = {str(row.get("id")): row for row in marked if row.get("mark") or row.get("note")}
    reviewed = []
    for row in rows:
        other = given.get(str(row["id"]), {})
        extra = {name: other[name] for name in ("mark", "note") if other.get(name)}
        reviewed.append({**row, **extra})
    return reviewed


def review_counts(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many of each end were marked good and bad, and how many not at all: "high good", "high bad", ..."""
    counts = {f"{end} {verdict}": 0 for end in (HIGH, LOW) for verdict in (*MARKS, "unmarked")}
    for row in rows:
        counts[f"{row['end']} {row.get('mark') or 'unmarked'}"] += 1
    return counts


def review_verdict(counts: Mapping[str, int]) -> str:
    """What the marks say of the reward."""
    high, low = (sum(counts[f"{end} {mark}"] for mark in MARKS) for end in (HIGH, LOW))
    waiting = counts[f"{HIGH} unmarked"] + counts[f"{LOW} unmarked"]
    if not high + low:
        return f"No answer is marked yet; {waiting} wait."
    hacked, missed = counts[f"{HIGH} {BAD}"], counts[f"{LOW} {GOOD}"]
    return (
        f"{hacked} of {high} marked answers with a high reward are bad, {missed} of {low} with a low reward are good; "
        f"{waiting} wait."
    )


def _identity(step: int, prompt_id: str, completion: str, place: int) -> str:
    text = f"{step}\n{prompt_id}\n{completion}\n{place}"
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:12]


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}")
    partial.write_bytes(text.encode("utf-8", "backslashreplace"))
    os.replace(partial, path)
