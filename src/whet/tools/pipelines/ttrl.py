"""Test-time RL (TTRL, 2504.16084): the majority of a model's own completions is the label where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from whet.reward.sections import RewardPartSection, RewardSection
from whet.settings.bounds import MOST_SAMPLES
from whet.tools.pipelines import amounts
from whet.tools.pipelines.library.choices import RLChoice
from whet.tools.pipelines.library.entry import StageEntry
from whet.tools.pipelines.library.evaluation import with_evals
from whet.tools.pipelines.library.sampling import SampleEntry, VoteEntry
from whet.tools.pipelines.library.trainings import RLEntry
from whet.tools.pipelines.settings import Pipeline, PipelineSettings, task_reward

MAJORITY = "majority_answer"


class LabelFreeSettings(PipelineSettings):
    """RL on prompts without labels."""

    least_share: amounts.Share = Field(
        0.0, description="share of a group's votes below which its majority is not rewarded"
    )
    votes: int = Field(16, ge=2, le=MOST_SAMPLES, description="completions per prompt of the votes that are counted")
    vote_prompts: amounts.CountOrNone = Field(256, description="training prompts that they are counted on; 0: none")
    rl: RLChoice = Field(RLChoice(), description="the training")

    small_run: ClassVar[Mapping[str, Any]] = {
        "data": {"count": 256},
        "sampling": {"max_new_tokens": 64},
        "eval": {"samples": 8},
        "vote_prompts": 128,
        "rl": {"steps": 20},
    }


def voted_reward(settings: LabelFreeSettings) -> RewardSection:
    """What pays is the majority; the gold answer is only watched, where there is one."""
    parts = [RewardPartSection(reward=MAJORITY, settings={"least_share": settings.least_share})]
    parts += [part.model_copy(update={"weight": 0.0, "rows": "with_answer"}) for part in task_reward(settings)]
    return RewardSection(parts=tuple(parts))


def ttrl_entries(settings: LabelFreeSettings) -> list[StageEntry]:
    """The votes before, the training, and the votes after."""
    entries: list[StageEntry] = [RLEntry(name="rl", reward=voted_reward(settings), **settings.rl.values())]
    if settings.vote_prompts:
        entries = [*_votes(settings, "before", ""), *entries, *_votes(settings, "after", "rl")]
    return with_evals(settings, entries)


def _votes(settings: LabelFreeSettings, when: str, model: str) -> list[StageEntry]:
    drawn = f"completions-{when}"
    gold = RewardSection(
        parts=tuple(part.model_copy(update={"weight": 1.0}) for part in voted_reward(settings).parts[1:])
    )
    sample = SampleEntry(name=drawn, model=model, count=settings.vote_prompts, completions=settings.votes, reward=gold)
    return [sample, VoteEntry(name=f"votes-{when}", completions=drawn, least_share=settings.least_share)]


TTRL = Pipeline(
    "ttrl",
    "RL without labels: a completion is paid for agreeing with the majority of its group; how often that is right",
    LabelFreeSettings,
    ttrl_entries,
)
