"""Answers for a person to look at: some of the best and some of the worst of a step, by the reward's own judgement.

`review.jsonl` in the run folder has one answer a line with an empty `mark`; `review.html` shows the same answers with
buttons. Marks given there stay in the browser until they are downloaded; those written into the file by hand stay in
the file, also when the run goes on. A good answer with a low reward, or a bad one with a high reward, is a reward to
fix.
"""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import json
import logging
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.metrics.distribution import is_flat
from whet.report.record import parsed_line, sample_line
from whet.report.review_page import review_page
from whet.types import Prompt, Sample, StepReport, WhetError

logger = logging.getLogger(__name__)

REVIEW, REVIEW_PAGE = "review.jsonl", "review.html"
HIGH, LOW = "high", "low"
GOOD, BAD = "good", "bad"
MARKS = (GOOD, BAD)
EVERY, COUNT = 100, 20  # steps between reviews, answers of each end
LONGEST_SHOWN = 100  # characters of a wrong mark that an error repeats


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
            if not rows:
                return
            try:
                read_review(self.folder)
            except WhetError as error:  # somebody's slip while marking: no reason to end a training
                logger.warning("the review of step %d is not written: %s", report.step, error)
                return
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
    kept = [row for row in read_review(folder) if first is None or row["step"] < first]
    everything = [*kept, *rows]
    text = "".join(json.dumps(dict(row), ensure_ascii=False, allow_nan=False) + "\n" for row in everything)
    page = review_page(folder.name, everything)
    # nothing is replaced before everything is made
    _replace(folder / REVIEW, text)
    _replace(folder / REVIEW_PAGE, page)
    return folder / REVIEW_PAGE


def read_review(folder: Path | str) -> list[dict[str, Any]]:
    """The rows of a run's review, with their marks checked; no file, no rows."""
    path = Path(folder) / REVIEW
    rows: dict[str, dict[str, Any]] = {}
    for place, row in _marked_lines(path) if path.exists() else ():
        step = row.get("step")
        has_step = isinstance(step, int) and not isinstance(step, bool)
        if not has_step or row.get("end") not in (HIGH, LOW) or not isinstance(row.get("completion"), str):
            raise WhetError(f"{path}:{place}: no row of a review; restore the line or delete it")
        if row["id"] in rows:
            raise WhetError(f"{path}:{place}: sample {row['id']!r} is listed twice; delete one of the lines")
        rows[row["id"]] = row
    return list(rows.values())


def read_marks(path: Path | str, folder: Path | str) -> list[dict[str, Any]]:
    """The rows of a downloaded review of the run in `folder`: every line is one of its samples, with a mark or not."""
    path = Path(path)
    known = {row["id"] for row in read_review(folder)}
    seen: dict[str, int] = {}
    marked = []
    for place, row in _marked_lines(path):
        if row["id"] not in known:
            raise WhetError(
                f"{path}:{place}: {row['id']!r} is no sample of {Path(folder) / REVIEW}; give the file that the "
                f"{REVIEW_PAGE} of this run saved, or delete the line"
            )
        if row["id"] in seen:
            raise WhetError(
                f"{path}:{place}: sample {row['id']!r} stands in line {seen[row['id']]} too; delete one of them"
            )
        seen[row["id"]] = place
        marked.append(row)
    if not marked:
        raise WhetError(f"{path} is empty; give the {REVIEW} that the page saved")
    return marked


def _marked_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The number and content of each line that is not blank: an object with an id, a mark and a note.

    People edit these files: a last line without its newline counts, and so does the first one after a byte order mark.
    """
    if path.is_dir():
        raise WhetError(f"{path} is a folder; give the {REVIEW} that the page saved")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise WhetError(f"{path}: no such file; give the {REVIEW} that the page saved") from None
    except OSError as error:
        raise WhetError(f"{path} cannot be read ({error.strerror}); make it readable, or give another file") from None
    for place, line in enumerate(content.removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1):
        if not line.strip():
            continue
        row = parsed_line(f"{path}:{place}", line)
        if not isinstance(row.get("id"), str):
            raise WhetError(f'{path}:{place}: no sample is named; restore its "id", or delete the line')
        if row.get("mark") not in (None, "", *MARKS):
            mark = json.dumps(row["mark"], ensure_ascii=False)[:LONGEST_SHOWN]
            raise WhetError(f'{path}:{place}: mark is {mark}; write "{GOOD}", "{BAD}" or null')
        if not isinstance(row.get("note", ""), str | None):
            raise WhetError(f"{path}:{place}: note is {_shown(row['note'])}; write text in quotes")
        yield place, row


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


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True)[:LONGEST_SHOWN]


def _identity(step: int, prompt_id: str, completion: str, place: int) -> str:
    text = f"{step}\n{prompt_id}\n{completion}\n{place}"
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:12]


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(text.encode("utf-8", "backslashreplace"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise WhetError(f"{path} cannot be written ({error.strerror}) and stays as it was; make room for it") from None
