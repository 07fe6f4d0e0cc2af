"""Self-rewarding: the policy scores its own completions and learns from that, round by round; watched for collapse
(2401.10020)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from whet.tools.pipelines import amounts
from whet.tools.pipelines.iterative_dpo import RoundSettings
from whet.tools.pipelines.library.entry import StageEntry
from whet.tools.pipelines.library.evaluation import evals
from whet.tools.pipelines.library.self_judging import (
    CollapseEntry,
    SelfExamplesEntry,
    SelfJudgeEvalEntry,
    SelfJudgeSection,
    SelfScoredPairsEntry,
    SelfScoring,
    TeachSection,
)
from whet.tools.pipelines.library.trainings import SFTEntry
from whet.tools.pipelines.settings import Pipeline, is_scored, without_reward


class SelfRewardingSettings(RoundSettings, SelfScoring):
    """The policy's own scores, and an anchor if wanted."""

    method: str = Field(
        "rpo_iterative",
        description="a preference method of `whet algorithms`; plain dpo taught the built-in model in one round and "
        "ruined it in the next: docs/self-improvement.md",
    )
    prompts_per_round: amounts.Count = Field(1024, description="new ones in every round")
    teach: TeachSection = Field(TeachSection(), description="the first training: to answer and to judge")
    judge: SelfJudgeSection = Field(SelfJudgeSection(), description="how the policy judges itself")
    stop: bool = Field(True, description="end the pipeline when a round is called a collapse")

    small_run: ClassVar[Mapping[str, Any]] = {
        "prompts_per_round": 128,
        "completions": 8,
        "sampling": {"max_new_tokens": 64},
        "teach": {"train": {"steps": 200, "optimizer": {"learning_rate": 2e-3}, "batch": {"rows_per_step": 64}}},
        "judge": {"question": "short", "max_new_tokens": 60},
        "train": {"batch": {"rows_per_step": 32}},
    }

    def idle(self) -> dict[str, str]:
        idle = {**super().idle(), **without_reward(self)}
        if not is_scored(self.anchor):
            idle["anchor_weight"] = "has no effect without anchor.parts; name a reward there, or drop it"
        if not self.data.parsed_source.is_task:
            reason = "has no effect: only a task writes examples; give a file instead"
            idle |= dict.fromkeys(("teach.count", "teach.share_worked", "judge.examples", "judge.eval_prompts"), reason)
        return idle


def self_rewarding_entries(settings: SelfRewardingSettings) -> list[StageEntry]:
    """The first policy that judges itself; then rounds of own pairs, training, eval, and a check for collapse."""
    judge, teach, is_task = settings.judge, settings.teach, settings.data.parsed_source.is_task
    entries: list[StageEntry] = []
    model = ""
    if (is_task and (judge.examples or teach.count)) or teach.file or judge.file:
        examples = SelfExamplesEntry(name="examples", teach=teach, judge=judge)
        model = "teach"
        entries += [examples, SFTEntry(name=model, data=examples.name, epochs=0, train=teach.train)]
    measured = evals(settings, "eval0", model)
    first = SelfJudgeEvalEntry(name="judge0", model=model, judge=judge)
    entries += [*measured, first]
    pairs, judges, evaluated = [], [first.name], [entry.name for entry in measured]
    for number in range(1, settings.rounds + 1):
        scored = SelfScoredPairsEntry(
            name=f"round{number}-pairs",
            model=model,
            judge=judge,
            number=number,
            count=settings.prompts_per_round,
            **{name: getattr(settings, name) for name in SelfScoring.model_fields},
        )
        training = settings.training(number, model)
        model = training.name
        measured = evals(settings, f"round{number}-eval", model)
        pairs.append(scored.name)
        evaluated += [entry.name for entry in measured]
        check = CollapseEntry(
            name=f"round{number}-collapse",
            model=model,
            judge=judge,
            pairs=tuple(pairs),
            judges=tuple(judges),
            evals=tuple(evaluated),
            stop=settings.stop,
        )
        judges.append(check.name)
        entries += [scored, training, *measured, check]
    return entries


SELF_REWARDING = Pipeline(
    "self_rewarding",
    "the policy scores its own completions and learns from that, with an anchor if wanted; watched for collapse",
    SelfRewardingSettings,
    self_rewarding_entries,
)
