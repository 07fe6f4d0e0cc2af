"""Reading a judge's answer. Only the judge's own verdict counts; what cannot be read for certain is None.

A judge repeats what it judges, also scores and whole JSON lines of it. So its verdict is one JSON object that begins
with a code: it is drawn for the question, and none of the texts that are judged contains it. The object holds nothing
but the code and what was asked for, so that there is no place in it for a quotation either. Several of them must say
the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

from whet.reward.judge.rubric import Rubric

PairVerdict = Literal["first", "second", "tie"]
T = TypeVar("T")
VerdictTable = Mapping[str, Any]

CODE, BETTER, REASON = "code", "better", "reason"
NUMBER = r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)"
MARK = re.compile(rf"\s*({NUMBER})\s*(?:/\s*({NUMBER}))?\s*")
BEGINNING = re.compile(rf'\{{\s*"{CODE}"\s*:\s*"([^"\n]*)"', re.IGNORECASE)
FENCE = re.compile(r"```[\w-]*[ \t]*\n(.*?)\n?```", re.DOTALL)
WORDS: Mapping[str, PairVerdict] = {
    **{"a": "first", "b": "second", "answer a": "first", "answer b": "second"},
    **dict.fromkeys(("tie", "both", "equal", "c", "neither", "draw"), "tie"),
}
TWICE = object()  # the value of a key that an object has twice


def rubric_scores_in(answer: str, rubric: Rubric, code: str) -> dict[str, float] | None:
    """The score of each criterion; None unless every one is there and on the scale."""
    names = {criterion.name.casefold(): criterion.name for criterion in rubric.criteria}

    def scores_of(table: VerdictTable) -> dict[str, float] | None:
        scores: dict[str, float] = {}
        for key, name in names.items():
            score = _score_of(table.get(key), rubric)
            if score is None:
                return None
            scores[name] = score
        return scores

    return _own_verdict(answer, code, tuple(names), scores_of)


def preference_in(answer: str, code: str) -> PairVerdict | None:
    """Which answer the judge prefers. Without a code the whole answer is the verdict: a letter and nothing else."""
    if not code:
        return WORDS.get(_own_words(answer)[-1].strip().strip(".*\"'`").strip().casefold())

    def choice_of(table: VerdictTable) -> PairVerdict | None:
        choice = table.get(BETTER)
        return WORDS.get(choice.strip().casefold()) if isinstance(choice, str) else None

    return _own_verdict(answer, code, (BETTER,), choice_of)


def _own_verdict(answer: str, code: str, keys: Sequence[str], read: Callable[[VerdictTable], T | None]) -> T | None:
    """What all verdicts of the judge's last words say; None where there is none, or two differ."""
    for text in reversed(_own_words(answer)):
        verdicts = [None if table is None else read(table) for table in _verdict_tables(text, code, keys)]
        if verdicts:
            return verdicts[0] if all(verdict == verdicts[0] for verdict in verdicts) else None
    return None


def _own_words(answer: str) -> list[str]:
    """What a judge says, without its thinking, in pieces between the ends of thoughts.

    A judge that thinks begins with it. Where an end is only quoted from a completion, the last piece with a verdict
    is the one that counts.
    """
    thinking, *pieces = answer.split("</think>")
    if not pieces:
        return [""] if thinking.lstrip().startswith("<think>") else [thinking]
    return pieces


def _verdict_tables(text: str, code: str, keys: Sequence[str]) -> Iterator[VerdictTable | None]:
    """Every JSON object that begins with the code, keys in lower case; None for one that holds more than it should.

    An object that is the whole text may hold more: what ends it early, in a string that was not closed, leaves a rest.
    """
    fenced = FENCE.fullmatch(text.strip())
    whole = (fenced[1] if fenced else text).strip()
    decoder = json.JSONDecoder(object_pairs_hook=_lowered)
    for match in BEGINNING.finditer(text):
        if match[1].strip().casefold() != code.casefold():
            continue
        try:
            table, end = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        extra = table.keys() - {CODE, *keys}
        yield table if not extra or text[match.start() : end] == whole else None


def _lowered(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        name = key.strip().casefold()
        table[name] = TWICE if name in table and table[name] != value else value
    return table


def _score_of(value: Any, rubric: Rubric) -> float | None:
    """The mark, unless it lies off the scale or is given on another one ("4/5" where 10 is the most)."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    match = MARK.fullmatch(str(value))
    if match is None:  # also NaN, infinity and 1e3
        return None
    score, most = float(match[1]), match[2]
    fits = rubric.low <= score <= rubric.high and (most is None or float(most) == rubric.high)
    return score if fits else None


def verdict_schema(rubric: Rubric | None) -> dict[str, Any]:
    """The `response_format` of an OpenAI-compatible server: marks by a rubric; without one, which answer is better.

    The code comes first, since a verdict begins with it. A reason may follow: the server escapes what it quotes.
    """
    asked: dict[str, Any] = {BETTER: {"type": "string", "enum": ["A", "B", "tie"]}}
    if rubric is not None:
        mark = {"type": "number", "minimum": rubric.low, "maximum": rubric.high}
        asked = {criterion.name: mark for criterion in rubric.criteria}
    properties = {CODE: {"type": "string"}, REASON: {"type": "string"}, **asked}
    schema = {
        **{"type": "object", "properties": properties, "required": list(properties)},
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": schema}}
