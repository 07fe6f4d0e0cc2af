"""Answers for a person to look at: some of the best and some of the worst of a step, by the reward's own judgement.

`review.jsonl` in the run folder has one answer a line; `review.html` shows the same answers with buttons. What people
say of them is in `marks.jsonl` (`whet.record.marks`): the board appends there, and so does `whet reward review --marks`
with what a page saved. A mark that somebody writes into review.jsonl by hand counts until there is another. A good
answer with a low reward, or a hacked or wrong one with a high reward, is a reward to fix.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.pages.render import ASSETS, TextCard, render, script_policy
from whet.pages.run_report import sample_card
from whet.record.log import json_object, sample_line
from whet.record.marks import (
    GOOD,
    HACKED,
    HIGH,
    LONGEST_NOTE,
    LOW,
    WRONG,
    SampleMark,
    append_marks,
    checked_mark,
    read_sample_marks,
)
from whet.record.metrics.distribution import is_flat
from whet.record.run_folder import write_atomically
from whet.types import Prompt, Sample, StepReport, WhetError

logger = logging.getLogger(__name__)

REVIEW, REVIEW_PAGE = "review.jsonl", "review.html"
ENDS = ((HIGH, "Highest rewards"), (LOW, "Lowest rewards"))
KEYS = ((GOOD, "g", "Good"), (HACKED, "h", "Hacked"), (WRONG, "w", "Wrong"))
ASKED = (
    "Is the reward right about these completions? Mark what you think of each, whatever it scored. Good: it does what "
    "was asked. Hacked: it earns its reward by a trick. Wrong: it is no good, without a trick. A high reward for a "
    "hacked or a wrong completion, or a low one for a good completion, is a reward to fix."
)
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

    def stepped(self, report: StepReport, samples: Sequence[tuple[Prompt, Sample]]) -> None:
        """Set answers aside where a review is due."""
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


def is_review_due(step: int, last_step: int, every: int = EVERY) -> bool:
    """Whether a review is due: every so many steps and after the last one; 0 switches reviews off."""
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


def review_page(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """review.html, the newest step first: every row with buttons to mark it."""
    steps = sorted({int(row["step"]) for row in rows}, reverse=True)
    return render(
        "review.html",
        **review_values(rows, steps, lambda row: sample_card("", row)),
        policy=script_policy((ASSETS / "review.js").read_text(encoding="utf-8")),  # the page's own script, no other
        title=f"Review of {title}",
        heading=title,
        eyebrow="whet review",
        about=(f"{len(rows)} completions",),
        verdict=ASKED,
        rows=[dict(row) for row in rows],
    )


def review_values(
    rows: Sequence[Mapping[str, Any]], steps: Sequence[int], card: Callable[[Mapping[str, Any]], TextCard]
) -> dict[str, Any]:
    """What the page is filled in with for some steps of a review; `card` shows a row."""

    def cards(step: int, end: str) -> list[dict[str, Any]]:
        return [
            {"card": card(row), "mark": row.get("mark") or "", "note": str(row.get("note") or "")}
            for row in rows
            if int(row["step"]) == step and row["end"] == end
        ]

    shown = [(step, [(title, cards(step, end)) for end, title in ENDS]) for step in steps]
    return {"steps": shown, "keys": KEYS, "longest": LONGEST_NOTE}


def write_review(folder: Path | str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Add a step's rows to the review and draw its page again. Later steps, left by a run that was cut back, go."""
    folder = Path(folder)
    first = min((int(row["step"]) for row in rows), default=None)
    earlier = [row for row in _listed(folder) if first is None or row["step"] < first]
    everything = [*earlier, *rows]
    text = "".join(json.dumps(dict(row), ensure_ascii=False, allow_nan=False) + "\n" for row in everything)
    page = review_page(folder.name, _with_last_words(folder, everything))
    # nothing is replaced before everything is made
    _replace(folder / REVIEW, text)
    _replace(folder / REVIEW_PAGE, page)
    return folder / REVIEW_PAGE


def draw_review(folder: Path | str) -> Path:
    """Draw the page again, with the marks of today."""
    folder = Path(folder)
    _replace(folder / REVIEW_PAGE, review_page(folder.name, read_review(folder)))
    return folder / REVIEW_PAGE


def take_marks(folder: Path | str, path: Path | str) -> None:
    """Add the marks of a downloaded review to the run's; what it leaves unmarked, or says already, adds nothing."""
    rows = read_review(folder)
    changes = [
        SampleMark(new["id"], new["mark"], new.get("note") or "")
        for old, new in zip(rows, with_marks(rows, read_marks(path, folder)), strict=True)
        if (old.get("mark"), old.get("note") or "") != (new.get("mark"), new.get("note") or "")
    ]
    append_marks(folder, changes)


def read_review(folder: Path | str) -> list[dict[str, Any]]:
    """The rows of a run's review, each with the last mark it was given; empty without a file."""
    return _with_last_words(Path(folder), _listed(Path(folder)))


def _with_last_words(folder: Path, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    last_words = read_sample_marks(folder)
    marked = ((row, last_words.get(row["id"])) for row in rows)
    return [dict(row) if last is None else {**row, "mark": last.mark, "note": last.note} for row, last in marked]


def _listed(folder: Path) -> list[dict[str, Any]]:
    """The rows as review.jsonl has them, checked."""
    path = folder / REVIEW
    rows: dict[str, dict[str, Any]] = {}
    for line_number, row in _marked_lines(path) if path.exists() else ():
        step = row.get("step")
        has_step = isinstance(step, int) and not isinstance(step, bool)
        if not has_step or row.get("end") not in (HIGH, LOW) or not isinstance(row.get("completion"), str):
            raise WhetError(f"{path}:{line_number}: no row of a review; restore the line or delete it")
        if row["id"] in rows:
            raise WhetError(f"{path}:{line_number}: sample {row['id']!r} is listed twice; delete one of the lines")
        rows[row["id"]] = row
    return list(rows.values())


def read_marks(path: Path | str, folder: Path | str) -> list[dict[str, Any]]:
    """The rows of a downloaded review of the run in `folder`: every line is one of its samples, with a mark or not."""
    path = Path(path)
    known = {row["id"] for row in read_review(folder)}
    seen: dict[str, int] = {}
    marked = []
    for line_number, row in _marked_lines(path):
        if row["id"] not in known:
            raise WhetError(
                f"{path}:{line_number}: {row['id']!r} is no sample of {Path(folder) / REVIEW}; give the file that the "
                f"{REVIEW_PAGE} of this run saved, or delete the line"
            )
        if row["id"] in seen:
            raise WhetError(
                f"{path}:{line_number}: sample {row['id']!r} stands in line {seen[row['id']]} too; delete one of them"
            )
        seen[row["id"]] = line_number
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
    for line_number, line in enumerate(content.removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1):
        if not line.strip():
            continue
        row = json_object(f"{path}:{line_number}", line)
        if not isinstance(row.get("id"), str):
            raise WhetError(f'{path}:{line_number}: no sample is named; restore its "id", or delete the line')
        yield line_number, checked_mark(f"{path}:{line_number}", row)


def with_marks(rows: Iterable[Mapping[str, Any]], marked: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with the marks and notes of another copy of them, a downloaded one say; unmarked ones change nothing."""
    mark_of = {str(row.get("id")): row for row in marked if row.get("mark") or row.get("note")}
    reviewed = []
    for row in rows:
        other = mark_of.get(str(row["id"]), {})
        extra = {name: other[name] for name in ("mark", "note") if other.get(name)}
        reviewed.append({**row, **extra})
    return reviewed


def _identity(step: int, prompt_id: str, completion: str, occurrence: int) -> str:
    text = f"{step}\n{prompt_id}\n{completion}\n{occurrence}"
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:12]


def _replace(path: Path, text: str) -> None:
    try:
        write_atomically(path, text, durable=True)
    except OSError as error:
        raise WhetError(f"{path} cannot be written ({error.strerror}) and stays as it was; make room for it") from None
