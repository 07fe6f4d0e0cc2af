"""What a data file holds: rows, columns, what they are read as, lengths, duplicates, scripts and answers; and
how often a model solved each prompt, written into the rows."""

from __future__ import annotations

import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from whet.data.conversion import kind_of
from whet.data.prompts import prompts_from
from whet.data.reference_rewards import REFERENCE_REWARDS
from whet.data.rows import Row
from whet.data.shingles import Sketches, text_key
from whet.data.spool import COMPLETIONS, RowWriter, StoredRows, prompt_text
from whet.types import Prompt, WhetError

PASS_RATE = "pass_rate"


def rows_with_pass_rates(
    source: str,
    completions: Sequence[Mapping[str, Any]],
    writer: RowWriter,
    right_from: float = 1.0,
    keep_rewards: bool = False,
) -> dict[str, Any]:
    """Write the rows whose prompts were sampled, each with its share of right completions and, with `keep_rewards`,
    what each completion earned.

    A completion that could not be scored does not count; a prompt without one that could is left out and counted.
    """
    earned: dict[bytes, list[float]] = {}
    unscored: set[bytes] = set()
    for completion in completions:
        key = text_key(str(completion["prompt"]))
        if completion["reward"] is None:
            unscored.add(key)
        else:
            earned.setdefault(key, []).append(float(completion["reward"]))
    right = {key: [reward >= right_from for reward in rewards] for key, rewards in earned.items()}
    reader, never, always = StoredRows(source, drop=True), 0, 0
    missing = 0
    for row, prompts in reader.read(lambda rows: prompts_from(rows)):
        key = text_key(prompts[0].question())
        if key not in right:
            missing += key in unscored
            continue
        rate = sum(right[key]) / len(right[key])
        never, always = never + (rate == 0), always + (rate == 1)
        reference_column = {REFERENCE_REWARDS: earned[key]} if keep_rewards else {}
        writer.write({**row.values, PASS_RATE: round(rate, 6), "samples": len(right[key]), **reference_column})
    if not writer.rows:
        raise WhetError(f"{source}: no completion could be scored, so there is no pass rate; give another --reward")
    mean = sum(sum(flags) for flags in right.values()) / sum(len(flags) for flags in right.values())
    counts = {"rows": reader.rows, "kept": writer.rows, "mean_pass_rate": round(mean, 4)}
    return {**counts, "never_solved": never, "always_solved": always, **({"unscorable": missing} if missing else {})}


MOST_COLUMNS = 40
MOST_ANSWERS = 5
ANSWERS_KNOWN = 100_000  # different answers that are counted
LOOKED_AT = 400  # characters of a text whose script is told
Encode = Callable[[str], Sequence[int]]


def statistics(reader: StoredRows, similarity: float | None = None, encode: Encode | None = None) -> dict[str, Any]:
    """Counts over all rows, in one pass; `encode` counts tokens, `similarity` near duplicates of prompts."""
    columns: dict[str, Counter[str]] = {}
    kinds: Counter[str] = Counter()
    scripts: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    lengths = {name: array("i") for name in ("prompt_characters", "completion_characters", "prompt_tokens")}
    answered, sketches = 0, Sketches(sketched=similarity is not None)
    for row, prompt in reader.prompts():
        for name, value in row.values.items():
            if value is not None and (name in columns or len(columns) < MOST_COLUMNS):
                columns.setdefault(name, Counter())[_type(value)] += 1
        kinds[kind_of(row)] += 1
        text = prompt_text(prompt)
        scripts[script_of(text)] += 1
        lengths["prompt_characters"].append(len(text))
        lengths["completion_characters"].extend(_completion_lengths(row, prompt))
        if encode is not None:
            lengths["prompt_tokens"].append(len(encode(text)))
        if prompt.answer is not None:
            answered += 1
            if len(answers) < ANSWERS_KNOWN:
                answers[str(prompt.answer)[:60]] += 1
        sketches.add(text)
    same = sketches.exact()
    read, exact = len(same), len(np.unique(same))
    summary: dict[str, Any] = {
        "rows": reader.rows,
        "usable": read,
        "holds": dict(kinds.most_common()),
        "columns": {name: dict(types) for name, types in columns.items()},
        "lengths": {name: _spread(values) for name, values in lengths.items() if len(values)},
        "repeated_prompts": read - exact,
        "scripts": dict(scripts.most_common()),
        "answers": {"rows": answered, "different": len(answers), "commonest": dict(answers.most_common(MOST_ANSWERS))},
    }
    if similarity is not None:
        summary["near_duplicate_prompts"] = exact - len(np.unique(sketches.clusters(similarity)))
    return {**summary, "left_out": dict(reader.left_out)} if reader.left_out else summary


def _completion_lengths(row: Row, prompt: Prompt) -> Iterable[int]:
    for name in COMPLETIONS:
        value = row.values.get(name)
        listed = value if isinstance(value, list) else [value]
        yield from (len(completion) for completion in listed if isinstance(completion, str))


def _spread(values: array[int]) -> dict[str, float]:
    numbers = np.frombuffer(values, np.int32)
    low, middle, high = np.percentile(numbers, (5, 50, 95)).tolist()
    mean = round(float(numbers.mean()), 1)
    return {"mean": mean, "p5": low, "median": middle, "p95": high, "longest": int(numbers.max())}


def script_of(text: str) -> str:
    """The commonest script among the first letters of a text; "none" where there is no letter."""
    if text.isascii():
        return "latin" if any(map(str.isalpha, text[:LOOKED_AT])) else "none"
    scripts = Counter(script for letter in text[:LOOKED_AT] if (script := _script(letter)))
    return scripts.most_common(1)[0][0] if scripts else "none"


@lru_cache(maxsize=8192)
def _script(letter: str) -> str:
    return unicodedata.name(letter, "").partition(" ")[0].lower() if letter.isalpha() else ""


def _type(value: Any) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "text", list: "list", dict: "object"}
    return names.get(type(value), type(value).__name__)
