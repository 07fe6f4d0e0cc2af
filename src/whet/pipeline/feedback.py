"""A model's preferences between two completions under a principle: asked in both orders, kept as soft labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from whet.config.sections import Section
from whet.pipeline import read_json_lines, write_in_chunks
from whet.pipeline.generation import ModelSampler
from whet.pipeline.constitution import Principle, clamped, drawn, preference_request
from whet.pipeline.rlaif import write_pairs
from whet.pipeline.judging import FIRST, SECOND, CandidatePair, PairLabel, combine_orders, candidate_pairs, judged_pairs, normalised
from whet.pipeline.training import CHUNK
from whet.pipeline.settings import PipelineSettings
from whet.types import Message, Prompt, Sampling

LABELS = "labels.jsonl"
WHICH: Message = {"role": "user", "content": f"So which one? Answer with {FIRST} or {SECOND}."}


class FeedbackSection(Section):
    name: str = Field("", description="the model that compares; empty: the one that wrote the critiques")
    reason: bool = Field(False, description="it writes its reasons first; then labels are held between 0.4 and 0.6")
    reason_tokens: int = Field(128, ge=1, description="of those reasons")
    least: float = Field(0.0, ge=0, lt=0.5, description="how far from 1/2 a preference must be, or it is left out")
    soft: bool = Field(True, description="a pair counts as far as the feedback is sure of it")


def letter_preferences(sampler: ModelSampler, questions: Sequence[Sequence[Message]]) -> list[float]:
    """How likely the model names the first completion: normalised over naming either."""
    from whet.data.families import completion_family
    from whet.train.completion_logp import families_logp

    machine = sampler.machine
    families = [
        completion_family(machine.loaded.tokenizer, Prompt("feedback", tuple(messages)), (FIRST, SECOND))
        for messages in questions
    ]
    logp = families_logp(machine.policy, families, 16384, packed=True)
    return [normalised(float(first.sum()), float(second.sum())) for first, second in logp]


def reasoned_preferences(
    sampler: ModelSampler, questions: Sequence[Sequence[Message]], sampling: Sampling, seed: tuple[int, ...]
) -> list[float]:
    """The same after reasons that the model writes first, held back."""
    reasons = sampler.texts(questions, 1, sampling, seed)
    longer = [
        (*messages, {"role": "assistant", "content": said or "-"}, WHICH)
        for messages, (said,) in zip(questions, reasons, strict=True)
    ]
    return [clamped(each) for each in letter_preferences(sampler, longer)]


def _prompt_of(candidate: CandidatePair) -> Prompt:
    said = candidate.row["prompt"]
    is_text = isinstance(said, str)
    return Prompt(candidate.row["id"], () if is_text else tuple(said), said if is_text else None)


def write_feedback(
    folder: Path,
    settings: PipelineSettings,
    section: FeedbackSection,
    model: str,
    principles: Sequence[Principle],
    candidates: Sequence[CandidatePair],
) -> list[PairLabel]:
    """Every contest compared under a principle drawn for it, in both orders, kept in labels.jsonl."""
    sampler: list[ModelSampler] = []

    def rows_of(number: int, chunk: Sequence[CandidatePair]) -> list[dict[str, Any]]:
        if not sampler:
            sampler.append(ModelSampler(settings, model))
        chosen = [drawn(principles, settings.seed, "prefer", candidate.row["id"]) for candidate in chunk]
        asked: list[Sequence[Message]] = []
        for candidate, principle in zip(chunk, chosen, strict=True):
            prompt = _prompt_of(candidate)
            asked.append(preference_request(prompt, candidate.one, candidate.other, principle))
            asked.append(preference_request(prompt, candidate.other, candidate.one, principle))
        if section.reason:
            sampling = Sampling(max_new_tokens=section.reason_tokens, temperature=settings.sampling.temperature)
            both = reasoned_preferences(sampler[0], asked, sampling, (settings.seed, 5, number))
        else:
            both = letter_preferences(sampler[0], asked)
        return [
            {"principle": principle.name, "forth": forth, "back": back}
            for principle, forth, back in zip(chosen, both[::2], both[1::2], strict=True)
        ]

    lines = read_json_lines(write_in_chunks(folder / LABELS, candidates, CHUNK, rows_of))
    return [combine_orders(line["forth"], line["back"]) for line in lines]


def feedback_pairs(
    folder: Path, rows: Sequence[Mapping[str, Any]], section: FeedbackSection, labels: Sequence[PairLabel]
) -> dict[str, Any]:
    """Write the pairs with their soft labels; an eighth is held out."""
    candidates, dropped = candidate_pairs(rows)
    pairs, counts = judged_pairs(candidates, labels, section.least, section.soft)
    return write_pairs(folder, pairs, {**dropped, **counts})
