"""From one format of training data to another; what is lost on the way is counted and said.

    prompts   `prompt`, `answer`                             from everything
    sft       `prompt`, `completion`                         from demonstrations; the better ones of all others
    pairs     `prompt`, `chosen`, `rejected`, `margin`       from pairs, rankings; from labels and scores where a
                                                             prompt has both kinds
    labels    `prompt`, `completion`, `label`                from labels, pairs, rankings, scores, steps (their outcome)
    steps     `prompt`, `steps`, `labels`                    from steps; from demonstrations and labels without labels

The first row decides what the file holds. Prompts are written as they are: text, or messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from whet.data.foreign_rows import completion_row, holds_completion, holds_pair, holds_ranking, holds_steps
from whet.data.pairs import RankedCompletions, preferences_from, rankings_from
from whet.data.prompts import LabelledCompletion, demonstrations_from, labelled_from
from whet.data.rows import Row, mistake
from whet.data.shingles import text_key
from whet.data.spool import RowWriter, Spool, StoredRows, prompt_text
from whet.data.step_rows import LabelledSteps, outcomes_from, stepped_from
from whet.types import Prompt, WhetError, is_finite_number

TARGETS = ("prompts", "sft", "pairs", "labels", "steps")
SCORES = ("reward", "score", "pass_rate")  # columns of a completion's score, where it has no label
Values = dict[str, Any]
Lost = Counter[str]


def kind_of(row: Row) -> str:
    """What a row holds: pairs, rankings, steps, labels, scores, sft or prompts."""
    values = row.values
    if holds_pair(row):
        return "pairs"
    if holds_steps(row):
        return "steps"
    if holds_ranking(row):
        return "rankings"
    if holds_completion(row):
        return "labels"
    if values.get("completion") is not None and any(is_finite_number(values.get(name)) for name in SCORES):
        return "scores"
    answered = any(values.get(name) is not None for name in ("completion", "output", "response", "reply", "text"))
    turns = values.get("messages") or values.get("conversations")
    if isinstance(turns, list) and turns and isinstance(turns[-1], Mapping):
        answered |= turns[-1].get("role", turns[-1].get("from")) in ("assistant", "gpt")
    return "sft" if answered or values.get("solution") is not None else "prompts"


def convert(
    reader: StoredRows, writer: RowWriter, target: str, right_from: float = 1.0, separator: str = "\n\n"
) -> dict[str, Any]:
    """Write the rows in another format; returns what was read, written and lost."""
    if target not in TARGETS:
        raise WhetError(f"convert: {target!r} is no format; expected one of {', '.join(TARGETS)}")
    first = next(iter(reader), None)
    if first is None:
        raise WhetError(f"{reader.source}: no row of it can be read; is it the right file?")
    kind = kind_of(first)
    lost: Lost = Counter()
    if target == "prompts":
        rows = _prompts(reader, kind, lost)
    elif target == "pairs" and kind in ("labels", "scores"):
        rows = _paired(reader, kind, right_from, lost)
    else:
        maker = _makers(right_from, separator).get((kind, target))
        if maker is None:
            possible = ", ".join(sorted({to for of, to in _makers(0, "") if of == kind} | {"prompts"}))
            raise WhetError(f"{first.where}: {kind} cannot become {target}; they can become {possible}")
        read, make = maker
        rows = (made for _, row_values in reader.read(read) for value in row_values for made in make(value, lost))
    for values in rows:
        writer.write(values)
    if not writer.rows:
        reasons = ", ".join(f"{count} {what}" for what, count in lost.items()) or "nothing fits"
        raise WhetError(f"{reader.source}: no {target} can be made of its {kind} ({reasons})")
    dropped = {"left_out": dict(reader.left_out)} if reader.left_out else {}
    return {"rows": reader.rows, "from": kind, "to": target, "kept": writer.rows, "lost": dict(lost), **dropped}


Maker = tuple[Callable[[Sequence[Row]], list[Any]], Callable[[Any, Lost], Iterator[Values]]]


def _makers(right_from: float, separator: str) -> dict[tuple[str, str], Maker]:
    def scored(rows: Sequence[Row]) -> list[Any]:
        return [_scored(row, right_from) for row in rows]

    def stepped(rows: Sequence[Row]) -> list[Any]:
        return stepped_from(rows, need_labels=False)

    def split(value: LabelledCompletion, lost: Lost) -> Iterator[Values]:
        lost["labels of steps: a whole completion has none"] += 1
        yield from _split(value.prompt, value.completion, separator, {"final_answer_correct": value.label})

    def cut(value: Any, lost: Lost) -> Iterator[Values]:
        lost["labels of steps: a demonstration has none"] += 1
        yield from _split(value.prompt, value.completion, separator, {})

    return {
        ("pairs", "pairs"): (preferences_from, _pair_rows),
        ("rankings", "pairs"): (preferences_from, _pair_rows),
        ("pairs", "labels"): (preferences_from, _both_labels),
        ("rankings", "labels"): (rankings_from, _ends_as_labels),
        ("labels", "labels"): (_labelled, _label_rows),
        ("scores", "labels"): (scored, _label_rows),
        ("steps", "labels"): (outcomes_from, _outcome_rows),
        ("steps", "steps"): (stepped, _step_rows),
        ("labels", "steps"): (_labelled, split),
        ("sft", "steps"): (demonstrations_from, cut),
        ("sft", "sft"): (demonstrations_from, _shown),
        ("pairs", "sft"): (preferences_from, _chosen_only),
        ("rankings", "sft"): (rankings_from, _best_only),
        ("labels", "sft"): (_labelled, _good_only),
        ("scores", "sft"): (scored, _good_only),
        ("steps", "sft"): (outcomes_from, _good_only),
    }


def _prompt_values(prompt: Prompt) -> Values:
    """The prompt with its own answer and other columns."""
    values: Values = {
        "prompt": prompt.text if prompt.text is not None else [dict(message) for message in prompt.messages]
    }
    if prompt.answer is not None:
        values["answer"] = prompt.answer
    return values


def _prompts(reader: StoredRows, kind: str, lost: Lost) -> Iterator[Values]:
    """The prompts of the rows, each once."""
    seen: set[bytes] = set()
    for row, prompt in reader.prompts():
        key = text_key(prompt_text(prompt))
        if key in seen:
            lost["repeated prompts"] += 1
            continue
        seen.add(key)
        if kind != "prompts":
            lost[f"what was known of completions ({kind})"] += 1
        name = {"id": row.values["id"]} if row.values.get("id") is not None else {}
        yield {**name, **_prompt_values(prompt)}


def _pair_rows(pair: Any, lost: Lost) -> Iterator[Values]:
    extra = {"margin": pair.margin} if pair.margin else {}
    yield {**_prompt_values(pair.prompt), "chosen": pair.chosen, "rejected": pair.rejected, **extra}


def _both_labels(pair: Any, lost: Lost) -> Iterator[Values]:
    lost["that two completions were compared with each other"] += 1
    yield {**_prompt_values(pair.prompt), "completion": pair.chosen, "label": True}
    yield {**_prompt_values(pair.prompt), "completion": pair.rejected, "label": False}


def _ends_as_labels(ranked: RankedCompletions, lost: Lost) -> Iterator[Values]:
    """The best are good and the worst are bad; who stands between is neither."""
    lost["order of completions"] += 1
    worst = max(ranked.ranks)
    for completion, rank in zip(ranked.completions, ranked.ranks, strict=True):
        if rank in (0, worst):
            yield {**_prompt_values(ranked.prompt), "completion": completion, "label": rank == 0}
        else:
            lost["completions between the best and the worst"] += 1


def _labelled(rows: Sequence[Row]) -> list[LabelledCompletion]:
    return labelled_from([completion_row(row) for row in rows])


def _label_rows(value: LabelledCompletion, lost: Lost) -> Iterator[Values]:
    if "score" in value.prompt.meta:
        lost["scores: only whether they reach --right-from is kept"] += 1
    yield {**_prompt_values(value.prompt), "completion": value.completion, "label": value.label}


def _outcome_rows(value: LabelledCompletion, lost: Lost) -> Iterator[Values]:
    lost["labels of single steps"] += 1
    yield {**_prompt_values(value.prompt), "completion": value.completion, "label": value.label}


def _step_rows(value: LabelledSteps, lost: Lost) -> Iterator[Values]:
    yield {**_prompt_values(value.prompt), "steps": list(value.steps), "labels": list(value.labels)}


def _split(prompt: Prompt, completion: str, separator: str, extra: Values) -> Iterator[Values]:
    steps = [step.strip() for step in completion.split(separator) if step.strip()]
    yield {**_prompt_values(prompt), "steps": steps, "labels": [None] * len(steps), "separator": separator, **extra}


def _shown(value: Any, lost: Lost) -> Iterator[Values]:
    yield {**_prompt_values(value.prompt), "completion": value.completion}


def _chosen_only(pair: Any, lost: Lost) -> Iterator[Values]:
    lost["rejected completions"] += 1
    yield {**_prompt_values(pair.prompt), "completion": pair.chosen}


def _best_only(ranked: RankedCompletions, lost: Lost) -> Iterator[Values]:
    lost["completions that are not the best"] += len(ranked.completions) - 1
    yield {**_prompt_values(ranked.prompt), "completion": ranked.completions[0]}


def _good_only(value: LabelledCompletion, lost: Lost) -> Iterator[Values]:
    if value.label:
        yield {**_prompt_values(value.prompt), "completion": value.completion}
    else:
        lost["bad completions"] += 1


def _scored(row: Row, right_from: float) -> LabelledCompletion:
    """A completion with a score, as `whet eval` keeps them; good from `right_from` on."""
    name = next((name for name in SCORES if is_finite_number(row.values.get(name))), None)
    if name is None:
        raise mistake(row, "'reward'", "is missing or no number", "the score of the completion", "drop the row")
    score = float(row.values[name])
    values = {key: value for key, value in row.values.items() if key not in ("id", name, "parts")}
    (shown,) = demonstrations_from([row.changed({**values, "score": score})])
    return LabelledCompletion(shown.prompt, shown.completion, score >= right_from)


def _paired(reader: StoredRows, kind: str, right_from: float, lost: Lost) -> Iterator[Values]:
    """Pairs of prompts with good and bad completions: each completion in one pair; by score the best with the worst."""
    read = _labelled if kind == "labels" else lambda rows: [_scored(row, right_from) for row in rows]
    sides: dict[bytes, list[tuple[float, int]]] = {}
    with Spool() as spool:
        for row, values in reader.read(read):
            for value in values:
                score = float(row.values.get("label", value.label)) if kind == "labels" else value.prompt.meta["score"]
                number = spool.add({**_prompt_values(value.prompt), "completion": value.completion})
                sides.setdefault(text_key(prompt_text(value.prompt)), []).append((float(score), number))
        for scored in sides.values():
            ordered = sorted(scored, key=lambda pair: (-pair[0], pair[1]))
            used = 0
            for better, worse in zip(ordered, reversed(ordered), strict=True):
                if better[0] <= worse[0]:
                    break
                first, second = spool.values(better[1]), spool.values(worse[1])
                if first["completion"] == second["completion"]:
                    continue
                used += 2
                margin = {"margin": better[0] - worse[0]} if kind == "scores" else {}
                completion = first.pop("completion")
                yield {**first, "chosen": completion, "rejected": second["completion"], **margin}
            if not used:
                lost["prompts whose completions are all as good"] += 1
            if len(ordered) > used:
                lost["completions without a partner"] += len(ordered) - used
