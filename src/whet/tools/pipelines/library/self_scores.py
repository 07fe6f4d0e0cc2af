"""A policy's scores of its own completions: how it is asked, how its answer is read, pairs made of the scores. Pure.

A judged row has `id`, `prompt`, `completions`, `finished`, and for each completion `judgments` (scores, None for one
that could not be read), `truth` and `anchor` (both empty where unknown).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from whet.tools.pipelines.library.pair_rows import best_against_worst
from whet.types import Message, Prompt

LOW, HIGH = 0.0, 5.0
SCORE = re.compile(r"\bscore\W{0,4}?:\W{0,4}?(\d+(?:\.\d+)?)(?!\.?\d)", re.IGNORECASE)
RUBRIC = (
    "Mark the answer above with 0 to 5 points, one point for each of these that holds:\n"
    "- it is about what was asked;\n"
    "- it settles a good part of it;\n"
    "- it settles all of it, and what it says is true;\n"
    "- it is clear and in good order;\n"
    "- an expert would leave it as it is.\n"
    "First give your reason in at most two sentences. Then end with the line\n"
    "Score: k\n"
    "where k is the number of points."
)
Row = Mapping[str, Any]


def rubric_question(prompt: Prompt, completion: str) -> tuple[Message, ...]:
    """The additive rubric of Yuan 2024 (2401.10020) in whet's words: reason first, the score last."""
    asked = f"<question>\n{prompt.question()}\n</question>\n<answer>\n{completion}\n</answer>\n\n{RUBRIC}"
    return ({"role": "user", "content": asked},)


def short_score_question(prompt: Prompt, completion: str) -> tuple[Message, ...]:
    """A question that fits a small model which was taught what it means."""
    return ({"role": "user", "content": f"{prompt.question()}\n{completion}\nScore?"},)


def score_in(answer: str) -> float | None:
    """The "Score: k" of an answer; None where there is none on the scale, or two differ. Never 0 for silence.

    An answer that repeats a score of the completion beside its own cannot be read: which is which is not known.
    """
    stated = {float(score) for score in SCORE.findall(answer)}
    score = stated.pop() if len(stated) == 1 else math.nan
    return score if LOW <= score <= HIGH else None


def mean_score(judgments: Sequence[float | None]) -> float | None:
    """The mean of those that could be read, as a share of the scale."""
    known = [score for score in judgments if score is not None]
    return (fmean(known) - LOW) / (HIGH - LOW) if known else None


def self_scores(row: Row) -> list[float | None]:
    """The mean score the model gave to each completion of a row; None where no judgment could be read."""
    return [mean_score(judgments) for judgments in row["judgments"]]


def mixed_scores(row: Row, weight: float) -> list[float | None]:
    """(1 - weight) * own + weight * anchor; a completion that either of them cannot score is unscorable."""
    own = self_scores(row)
    if not weight:
        return own
    return [
        None if one is None or other is None else (1 - weight) * one + weight * other
        for one, other in zip(own, row["anchor"], strict=True)
    ]


def self_scored_pairs(rows: Sequence[Row], weight: float) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The best completion of each prompt against the worst, by its own scores mixed with the anchor's."""
    return best_against_worst([{**row, "scores": mixed_scores(row, weight)} for row in rows])


def judge_example(prompt: Prompt, completion: str, quality: float, reason: str) -> dict[str, Any]:
    """A demonstration of judging: a reason, then the score; 1 to 5, so that no completion scores nothing."""
    messages = [dict(message) for message in short_score_question(prompt, completion)]
    return {"prompt": messages, "completion": f"{reason} Score: {1 + round(4 * quality)}"}
