"""Rounds of sampling, keeping what is right and imitating it (RFT 2308.01825, RAFT 2304.06767, STaR 2203.14465)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from whet.tools.pipelines import amounts
from whet.tools.pipelines.library.choices import RejectionChoice, SFTChoice
from whet.tools.pipelines.library.entry import StageEntry
from whet.tools.pipelines.library.evaluation import with_evals
from whet.tools.pipelines.library.sampling import MixEntry, MixSource
from whet.tools.pipelines.library.trainings import SFTEntry
from whet.tools.pipelines.r1 import require_reward
from whet.tools.pipelines.settings import Pipeline, PipelineSettings


class RejectionSettings(PipelineSettings):
    """Sample, keep what is right, imitate it; again from what came of that."""

    rounds: amounts.Repeats = Field(2, description="how often completions are sampled and imitated")
    rejection: RejectionChoice = RejectionChoice()
    sft: SFTChoice = Field(SFTChoice(), description="imitation of what was kept")
    start: Literal["base", "last"] = Field(
        "base", description="the model that each round's SFT starts from: the first one, or that of the last round"
    )
    hint: bool = Field(
        False, description="where no completion is right, tell the model the answer and draw once more (STaR)"
    )
    general: str = Field("", description="demonstrations of other kinds, mixed in; empty: none")

    small_run: ClassVar[Mapping[str, Any]] = {
        "data": {"count": 256},
        "sampling": {"max_new_tokens": 64},
        "eval": {"samples": 8},
        "rejection": {"completions": 8},
        "sft": {"train": {"batch": {"rows_per_step": 32}}},
    }


def rejection_entries(settings: RejectionSettings) -> list[StageEntry]:
    """The stages of every round."""
    require_reward(settings)
    entries: list[StageEntry] = []
    model = ""
    for number in range(1, settings.rounds + 1):
        drawn, data = f"round{number}-completions", f"round{number}-kept"
        entries += settings.rejection.entries(model, (drawn, data), settings.hint)
        if settings.general:
            mixture = f"round{number}-mixture"
            entries.append(MixEntry(name=mixture, sources=(MixSource(data=data), MixSource(data=settings.general))))
            data = mixture
        start = model if settings.start == "last" else ""
        model = f"round{number}-sft"
        entries.append(SFTEntry(name=model, data=data, start=start, **settings.sft.values()))
    return with_evals(settings, entries)


REJECTION = Pipeline(
    "rejection",
    "round by round, the policy imitates those of its own completions that are right; optionally with hints",
    RejectionSettings,
    rejection_entries,
)
