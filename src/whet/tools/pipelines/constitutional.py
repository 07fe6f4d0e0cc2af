"""Principles instead of labels: the policy criticises and revises its completions, learns the revisions, and is then
trained on a model's preferences under the same principles (2212.08073)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from whet.settings.bounds import MOST_ROWS
from whet.settings.sections import Table
from whet.tools.pipelines import amounts
from whet.tools.pipelines.library.constitution import (
    ConductEntry,
    ConstitutionExamplesEntry,
    PrincipledPairsEntry,
    Reasoning,
    Revising,
    RevisionsEntry,
)
from whet.tools.pipelines.library.entry import StageEntry
from whet.tools.pipelines.library.evaluation import evals
from whet.tools.pipelines.library.sampling import MixEntry, MixSource, SampleEntry
from whet.tools.pipelines.library.trainings import SFTEntry
from whet.tools.pipelines.rlaif import FeedbackSettings
from whet.tools.pipelines.settings import TRAIN_KEYS, Pipeline, no_effect


class FeedbackSection(Reasoning):
    """Who compares completions under the principles, and how."""

    name: str = Field("", description="the model that compares; empty: the one that wrote the critiques")


class ConstitutionalSettings(FeedbackSettings, Revising):
    """A constitution and what is done with it."""

    prompts: amounts.Count = Field(1024, description="whose completions are criticised and revised")
    helpful: str = Field("", description="a file of demonstrations that are learned together with the revisions")
    examples: amounts.Count = Field(512, description="prompts of a task that teach criticising, revising and comparing")
    teach: Table = Field({}, description=f"settings of that first training, on a task: {TRAIN_KEYS}")
    revise_epochs: amounts.Epochs = Field(2.0, description="passes over the revisions")
    revise: Table = Field({}, description=f"settings of the training on revisions: {TRAIN_KEYS}")
    preference_prompts: int = Field(1024, ge=8, le=MOST_ROWS, description="new ones, whose completions are compared")
    feedback: FeedbackSection = Field(FeedbackSection(), description="who compares, and how")

    small_run: ClassVar[Mapping[str, Any]] = {
        "prompts": 256,
        "critiques": 1,
        "critique_tokens": 24,
        "preference_prompts": 256,
        "steps": 20,
        "sampling": {"max_new_tokens": 64},
        "teach": {"steps": 200, "optimizer": {"learning_rate": 2e-3}, "batch": {"rows_per_step": 64}},
        "revise": {"batch": {"rows_per_step": 32}},
        "reward_model": {"batch": {"rows_per_step": 32}},
        "learn": "pairs",
    }

    def idle(self) -> dict[str, str]:
        idle = super().idle()
        if not self.data.parsed_source.is_task:
            idle |= no_effect("only a task writes examples", "examples", "teach")
        if not self.feedback.reason:
            idle["feedback.reason_tokens"] = "has no effect without feedback.reason; drop it"
        return idle


def constitutional_entries(settings: ConstitutionalSettings) -> list[StageEntry]:
    """What a task teaches first; revisions and what learns them; preferences and what learns those."""
    is_task, feedback = settings.data.parsed_source.is_task, settings.feedback

    def measured(number: int, model: str) -> list[StageEntry]:
        if is_task:
            return evals(settings, f"eval{number}", model)
        if not settings.eval.source or not settings.eval.prompts:
            return []
        return [ConductEntry(name=f"conduct{number}", model=model, forbidden=settings.forbidden)]

    entries: list[StageEntry] = []
    if is_task:
        entries += [
            ConstitutionExamplesEntry(name="examples", count=settings.examples),
            SFTEntry(name="teach", data="examples", epochs=0, train=settings.teach),
        ]
    first = "teach" if is_task else ""
    same = settings.model_dump(include=set(Revising.model_fields))
    revisions = RevisionsEntry(name="revisions", model=first, count=settings.prompts, **same)
    entries += [*measured(0, first), revisions]
    learnt = revisions.name
    if settings.helpful:
        learnt = "mixture"
        sources = (MixSource(data=revisions.name), MixSource(data=settings.helpful))
        entries.append(MixEntry(name=learnt, sources=sources))
    entries += [
        SFTEntry(name="revise", data=learnt, start=first, epochs=settings.revise_epochs, train=settings.revise),
        *measured(1, "revise"),
        SampleEntry(
            name="completions",
            model="revise",
            first=settings.prompts,
            count=settings.preference_prompts,
            completions=2,
            temperature=settings.sampling.temperature,
        ),
        PrincipledPairsEntry(
            name="pairs",
            completions="completions",
            judge=feedback.name or first,
            constitution=settings.constitution,
            **feedback.model_dump(exclude={"name"}),
        ),
    ]
    return [*entries, *settings.learning("revise"), *measured(2, "train")]


CONSTITUTIONAL = Pipeline(
    "constitutional",
    "completions are criticised and revised under principles and learned; then a model's preferences under them",
    ConstitutionalSettings,
    constitutional_entries,
)
