"""Iterative DPO: round by round, the policy's best completions to new prompts against its worst."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from pydantic import Field

from whet.record.text import count_of
from whet.record.text import number as number_text
from whet.reward.sections import RewardSection
from whet.settings.bounds import MOST_ROWS, MOST_SAMPLES
from whet.tools.pipelines.evaluation import POLICY, eval_stage, evaluation_config, has_eval
from whet.tools.pipelines.generation import write_completions
from whet.tools.pipelines.pairs import best_against_worst
from whet.tools.pipelines.rounds import (
    RoundSettings,
    check_method,
    last_model,
    policy_after,
    round_prompts,
    train_stages,
    write_round_pairs,
)
from whet.tools.pipelines.settings import Pipeline
from whet.tools.pipelines.stages import FinishedStage, Stage
from whet.tools.pipelines.training import stage_settings


class IterativeDPOSettings(RoundSettings):
    """The policy's best completions against its worst."""

    prompts_per_round: int = Field(1024, ge=1, le=MOST_ROWS, description="new ones in every round")
    completions: int = Field(8, ge=2, le=MOST_SAMPLES, description="that the policy writes to each prompt")
    reward: RewardSection = Field(
        RewardSection(),
        description="what scores the completions: a rule, a learned model, a judge; empty: the task's own",
    )

    small_run: ClassVar[Mapping[str, Any]] = {
        "prompts_per_round": 128,
        "sampling": {"max_new_tokens": 64},
        "train": {"batch": {"rows_per_step": 32}},
    }


def iterative_dpo_stages(settings: IterativeDPOSettings) -> list[Stage]:
    reference = check_method(settings)
    stages = [eval_stage(settings, POLICY, 0, None)] if has_eval(settings) else []
    for number in range(1, settings.rounds + 1):
        stages.append(_pairs_stage(settings, number))
        stages += train_stages(settings, number, reference)
    return stages


def _pairs_stage(settings: IterativeDPOSettings, number: int) -> Stage:
    def work(folder: Path, done: Mapping[str, FinishedStage]) -> Mapping[str, Any]:
        config = evaluation_config(settings, last_model(settings, done, number), settings.reward)
        chosen = round_prompts(config, number, settings.prompts_per_round)
        rows = write_completions(folder, config, chosen, settings.completions, (settings.seed, number), is_scored=True)
        pairs, counts = best_against_worst(rows)
        scores = [score for row in rows for score in row["scores"] if score is not None]
        mean = f"; the completions score {number_text(fmean(scores))} on average" if scores else ""
        return write_round_pairs(
            folder,
            pairs,
            counts,
            f"{count_of(counts['ties'], 'prompt')} dropped where all completions score the same{mean}",
        )

    about = (
        f"{policy_after(number - 1)} writes {settings.completions} completions to each of "
        f"{settings.prompts_per_round} new prompts; the best against the worst"
    )
    return Stage(f"round{number}-pairs", about, work, stage_settings(settings))


ITERATIVE_DPO = Pipeline(
    "iterative_dpo",
    "round by round, the best of the policy's own completions to new prompts against the worst; any reward",
    IterativeDPOSettings,
    iterative_dpo_stages,
)
