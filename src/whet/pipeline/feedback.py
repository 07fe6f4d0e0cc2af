"""A model's preferences between two completions under a principle: asked in both orders, kept as soft labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from whet.config.sections import Section
from whet.pipeline import read_json_lines, written_in_chunks
from whet.pipeline.bench import Bench
from whet.pipeline.constitution import Principle, clamped, drawn, preference_request
from whet.pipeline.judged import write_pairs
from whet.pipeline.judging import FIRST, SECOND, Contest, Label, agreed, contests, judged_pairs, normalised
from whet.pipeline.parts import CHUNK
from whet.pipeline.sections import PipelineSettings
from whet.types import Message, Prompt, Sampling

LABELS = "labels.jsonl"
WHICH: Message = {"role": "user", "content": f"So which one? Answer with {FIRST} or {SECOND}."}


class FeedbackSection(Section):
    name: str = Field("", description="the model that compares; empty: the one that wrote the critiques")
    reason: bool = Field(False, description="it writes its reasons first; then labels are held between 0.4 and 0.6")
    reason_tokens: int = Field(128, ge=1, description="of those reasons")
    least: float = Field(0.0, ge=0, lt=0.5, description="how far from 1/2 a preference must be, or it is left out")
    soft: bool = Field(True, description="a pair counts as far as the feedback is sure of it")


def letter_preferences(bench: Bench, questions: Sequence[Sequence[Message]]) -> list[float]:
    """How likely the model names the first completion: normalised over naming either."""
    from whet.data.families import completion_family
    from whet.train.completion_logp import families_logp

    machine = bench.machine
    families = [
        completion_family(machine.loaded.tokenizer, Prompt("feedback", tuple(messages)), (FIRST, SECOND))
        for messages in questions
    ]
    logp = families_logp(machine.policy, families, 16384, packed=True)
    return [normalised(float(first.sum()), float(second.sum())) for first, second in logp]


def reasoned_preferences(
    bench: Bench, questions: Sequence[Sequence[Message]], sampling: Sampling, seed: tuple[int, ...]
) -> list[float]:
    """The same after reasons that the model writes first, held back."""
    reasons = bench.texts(questions, 1, sampling, seed)
    longer = [
        (*messages, {"role": "assistant", "content": said or "-"}, WHICH)
        for messages, (said,) in zip(questions, reasons, strict=True)
    ]
    return [clamped(each) for each in letter_preferences(bench, longer)]


def _prompt_of(contest: Contest) -> Prompt:
    said = contest.row["prompt"]
    is_text = isinstance(said, str)
    return Prompt(contest.row["id"], () if is_text else tuple(said), said if is_text else None)


def write_feedback(
    folder: Path,
    settings: PipelineSettings,
    section: FeedbackSection,
    model: str,
    principles: Sequence[Principle],
    fought: Sequence[Contest],
) -> list[Label]:
    """Every contest compared under a principle drawn for it, in both orders, kept in labels.jsonl."""
    bench: list[Bench] = []

    def rows_of(number: int, chunk: Sequence[Contest]) -> list[dict[str, Any]]:
        if not bench:
            bench.append(Bench(settings, model))
        chosen = [drawn(principles, settings.seed, "prefer", contest.row["id"]) for contest in chunk]
        asked: list[Sequence[Message]] = []
        for contest, principle in zip(chunk, chosen, strict=True):
            prompt = _prompt_of(contest)
            asked.append(preference_request(prompt, contest.one, contest.other, principle))
            asked.append(preference_request(prompt, contest.other, contest.one, principle))
        if section.reason:
            sampling = Sampling(max_new_tokens=section.reason_tokens, temperature=settings.sampling.temperature)
            both = reasoned_preferences(bench[0], asked, sampling, (settings.seed, 5, number))
        else:
            both = letter_preferences(bench[0], asked)
        return [
            {"principle": principle.name, "forth": forth, "back": back}
            for principle, forth, back in zip(chosen, both[::2], both[1::2], strict=True)
        ]

    lines = read_json_lines(written_in_chunks(folder / LABELS, fought, CHUNK, rows_of))
    return [agreed(line["forth"], line["back"]) for line in lines]


def feedback_pairs(
    folder: Path, rows: Sequence[Mapping[str, Any]], section: FeedbackSection, labels: Sequence[Label]
) -> dict[str, Any]:
    """Write the pairs with their soft labels; an eighth is held out."""
    fought, dropped = contests(rows)
    pairs, counts = judged_pairs(fought, labels, section.least, section.soft)
    return write_pairs(folder, pairs, {**dropped, **counts})
