"""Reading a judge's answer. What cannot be read for certain is None, and the question is sent again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from whet.reward.judge.rubric import Rubric

PairVerdict = Literal["first", "second", "tie"]

NUMBER = r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)"
SCORE = re.compile(rf"\**\s*(?:\[\[?)?\s*({NUMBER})\s*(?:/\s*({NUMBER})|out of\s+({NUMBER}))?", re.IGNORECASE)
OVERALL = re.compile(
    r"\b(?:overall|final|total)?\s*(?:score|rating|mark|grade|verdict)\b\W{0,6}?(?:is\b|of\b|[:=])\s*", re.IGNORECASE
)
BRACKETS = re.compile(rf"\[\[\s*({NUMBER})\s*\]\]|\\boxed\{{\s*({NUMBER})\s*\}}")
FRACTION = re.compile(rf"(?<![\d./])({NUMBER})\s*/\s*({NUMBER})(?![\d/])")
BETTER = re.compile(
    r"\b(?:better|winner|verdict|preferred)\b\W{0,6}?(?:answer\s+|is\s+|:\s*|=\s*)*\W{0,4}(A|B|tie|both|equal)\b",
    re.IGNORECASE,
)
IS_BETTER = re.compile(r"\banswer\s+(A|B)\s+is\s+(?:clearly\s+|slightly\s+|much\s+)?(?:the\s+)?better\b", re.IGNORECASE)
CHOSEN = re.compile(r"\[\[\s*(A|B|C|tie)\s*\]\]", re.IGNORECASE)
WORDS: Mapping[str, PairVerdict] = {
    **{"a": "first", "b": "second", "answer a": "first", "answer b": "second"},
    **dict.fromkeys(("tie", "both", "equal", "c", "neither", "draw"), "tie"),
}


def rubric_scores_in(answer: str, rubric: Rubric) -> dict[str, float] | None:
    """The score of each criterion; None unless every one is there and on the scale. The last one given counts."""
    text = without_thinking(answer)
    for table in reversed(list(json_objects(text))):
        scores = _scores_of_table(table, rubric)
        if scores is not None:
            return scores
    if len(rubric.criteria) > 1:
        return _scores_of_lines(text, rubric)
    score = _single_score(text, rubric)
    return None if score is None else {rubric.criteria[0].name: score}


def preference_in(answer: str) -> PairVerdict | None:
    """Which answer the judge prefers."""
    text = without_thinking(answer)
    for table in reversed(list(json_objects(text))):
        for key in ("better", "winner", "verdict", "preference", "preferred"):
            choice = _lowered(table).get(key)
            if isinstance(choice, str) and choice.strip().casefold() in WORDS:
                return WORDS[choice.strip().casefold()]
    for pattern in (CHOSEN, BETTER, IS_BETTER):
        verdicts = pattern.findall(text)
        if verdicts:
            return WORDS[verdicts[-1].casefold()]
    return WORDS.get(text.strip().strip(".*\"'`").strip().casefold())


def without_thinking(answer: str) -> str:
    """What follows the judge's own thinking; nothing while it is unfinished."""
    text = answer.rpartition("</think>")[2]
    return "" if "<think>" in text else text


def json_objects(text: str) -> Iterator[Mapping[str, Any]]:
    """Every outermost JSON object in the text, in order."""
    decoder = json.JSONDecoder()
    at = text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError):
            at = text.find("{", at + 1)
            continue
        if isinstance(value, dict):
            yield value
        at = text.find("{", end)


def _scores_of_table(table: Mapping[str, Any], rubric: Rubric) -> dict[str, float] | None:
    lowered = _lowered(table)
    for key in ("scores", "marks", "ratings", "criteria"):
        if isinstance(lowered.get(key), Mapping):
            lowered = {**lowered, **_lowered(lowered[key])}
    scores: dict[str, float] = {}
    for criterion in rubric.criteria:
        value = lowered.get(criterion.name.casefold())
        if value is None and len(rubric.criteria) == 1:
            value = next((lowered[key] for key in ("score", "rating", "mark", "grade") if key in lowered), None)
        if isinstance(value, Mapping):
            inner = _lowered(value)
            value = next((inner[key] for key in ("score", "mark", "rating", "value") if key in inner), None)
        score = _score_of(value, rubric)
        if score is None:
            return None
        scores[criterion.name] = score
    return scores


def _scores_of_lines(text: str, rubric: Rubric) -> dict[str, float] | None:
    scores: dict[str, float] = {}
    for criterion in rubric.criteria:
        label = re.compile(rf"(?<!\w){re.escape(criterion.name)}(?!\w)[\s*`\"]*(?:score|mark)?\s*[:=]", re.IGNORECASE)
        ends = [match.end() for match in label.finditer(text)]
        score = _score_at(text, ends[-1], rubric) if ends else None
        if score is None:
            return None
        scores[criterion.name] = score
    return scores


def _single_score(text: str, rubric: Rubric) -> float | None:
    bare = re.fullmatch(rf"\W*({NUMBER})\s*(?:/\s*({NUMBER}))?\W*", text.strip())
    if bare is not None:
        return _on_scale(bare[1], bare[2], rubric)
    ends = [match.end() for match in OVERALL.finditer(text)]
    if ends:
        return _score_at(text, ends[-1], rubric)
    bracketed = BRACKETS.findall(text)
    if bracketed:
        return _on_scale(bracketed[-1][0] or bracketed[-1][1], None, rubric)
    fractions = [number for number, most in FRACTION.findall(text) if float(most) == rubric.high]
    return _on_scale(fractions[-1], None, rubric) if fractions else None


def _score_at(text: str, at: int, rubric: Rubric) -> float | None:
    match = SCORE.match(text, at)
    return None if match is None else _on_scale(match[1], match[2] or match[3], rubric)


def _score_of(value: Any, rubric: Rubric) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return _on_scale(str(value), None, rubric)
    match = re.fullmatch(rf"\s*({NUMBER})\s*(?:/\s*({NUMBER}))?\s*", str(value))
    return None if match is None else _on_scale(match[1], match[2], rubric)


def _on_scale(number: str, most: str | None, rubric: Rubric) -> float | None:
    """The mark, unless it lies off the scale or is instructions on another one ("4/5" where 10 is the most)."""
    try:
        score = float(number)
        fits = rubric.low <= score <= rubric.high and (most is None or float(most) == rubric.high)
    except ValueError:
        return None
    return score if fits else None


def _lowered(table: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key).strip().casefold(): value for key, value in table.items()}
