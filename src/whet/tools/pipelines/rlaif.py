"""RLAIF: a judge compares the policy's completions, and a reward model or the policy itself learns from that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from whet.reward.sections import RewardSection
from whet.settings.bounds import MOST_ROWS
from whet.settings.layers import merged
from whet.settings.sections import Table
from whet.tools.pipelines import amounts
from whet.tools.pipelines.library.entry import StageEntry
from whet.tools.pipelines.library.evaluation import evals
from whet.tools.pipelines.library.judging import (
    EVAL_PAIRS,
    JudgedPairsEntry,
    JudgeEvalEntry,
    JudgeExamplesEntry,
    JudgeForm,
    PairLabels,
)
from whet.tools.pipelines.library.sampling import SampleEntry
from whet.tools.pipelines.library.trainings import PreferenceEntry, RewardModelEntry, RLEntry, SFTEntry
from whet.tools.pipelines.settings import (
    TRAIN_KEYS,
    Pipeline,
    PipelineSettings,
    can_evaluate,
    no_effect,
    task_reward,
    without_reward,
)
from whet.training.config import PolicyConfig, PreferenceConfig, config_class
from whet.types import WhetError

EVAL_EVERY = 5  # steps of the training against a learned reward: its own eval shows where that stops helping
DRAWN = 4  # completions per prompt that a trained judge's examples are picked from


class FeedbackSettings(PipelineSettings):
    """What is learnt from a model's preferences, and how."""

    learn: Literal["reward_model", "pairs"] = Field(
        "reward_model", description="train a reward model and then against it, or the policy on the pairs themselves"
    )
    method: str = Field(
        "", description="method of the policy's training; empty: rloo against a reward model, dpo on pairs"
    )
    steps: amounts.Steps = Field(
        100, description="steps of the training against the reward model, which is soon over-optimised"
    )
    epochs: amounts.Epochs = Field(2.0, description="passes over the pairs, of the reward model or of the policy")
    reward_model: Table = Field({}, description=f"settings of the reward model: {TRAIN_KEYS}")
    train: Table = Field({}, description=f"settings of the policy: {TRAIN_KEYS}")

    def idle(self) -> dict[str, str]:
        idle = {**super().idle(), **without_reward(self)}
        if self.learn == "pairs":
            idle |= no_effect("learn=pairs trains no reward model", "steps", "reward_model")
        return idle

    def learning(self, start: str) -> list[StageEntry]:
        """The training of the policy on `pairs`, or of a reward model on them and of the policy against it."""
        if self.learn == "reward_model" and "steps" in self.train:
            raise WhetError("train.steps is set by the pipeline; set steps instead")
        wanted = PolicyConfig if self.learn == "reward_model" else PreferenceConfig
        if self.method and config_class(self.method) is not wanted:
            raise WhetError(f"method {self.method!r} does not learn from {self.learn}; see `whet algorithms`")
        common: dict[str, Any] = {"name": "train", "start": start}
        if self.learn == "pairs":
            return [
                PreferenceEntry(
                    **common, data="pairs", method=self.method or "dpo", epochs=self.epochs, train=self.train
                )
            ]
        watched = [part.model_copy(update={"weight": 0.0}) for part in task_reward(self)]
        prompts = self.eval.prompts if can_evaluate(self) else 0
        own = {"eval": {"prompts": prompts, "every": EVAL_EVERY if prompts else 0}}
        return [
            RewardModelEntry(
                name="reward-model",
                data="pairs",
                held_out=f"pairs/{EVAL_PAIRS}",
                start=start,
                epochs=self.epochs,
                train=self.reward_model,
            ),
            RLEntry(
                **common,
                method=self.method or "rloo",  # a learned reward is right only near what it has seen: tied by a KL
                steps=self.steps,
                reward=RewardSection(parts=tuple(watched)),
                reward_model="reward-model",
                reward_model_rows="all",
                train=merged(own, self.train),
            ),
        ]


class JudgeSection(JudgeForm):
    """Who judges, and how it is asked."""

    name: str = Field(
        "", description="the model that judges; empty, and no base_url: the policy is trained to judge, on a task"
    )
    examples: amounts.Count = Field(1024, description="prompts that a trained judge learns from")
    train: Table = Field({}, description=f"settings of the judge's training: {TRAIN_KEYS}")

    @property
    def is_trained(self) -> bool:
        """True where neither a model nor a server is named."""
        return not self.name and not self.settings.get("base_url")


class RLAIFSettings(FeedbackSettings, PairLabels):
    """Pairs labelled by a judge."""

    judge: JudgeSection = JudgeSection()
    prompts: int = Field(1024, ge=8, le=MOST_ROWS, description="whose completions the judge compares")

    small_run: ClassVar[Mapping[str, Any]] = {
        "prompts": 384,
        "steps": 20,
        "sampling": {"max_new_tokens": 64},
        "judge": {"examples": 640, "verdict": "logp", "train": {"steps": 120, "batch": {"rows_per_step": 32}}},
        "reward_model": {"batch": {"rows_per_step": 32}},
    }

    def idle(self) -> dict[str, str]:
        why = "this judge is given and not trained"
        return super().idle() | ({} if self.judge.is_trained else no_effect(why, "judge.examples", "judge.train"))


def rlaif_entries(settings: RLAIFSettings) -> list[StageEntry]:
    """A judge, trained where none is given; two completions to each prompt, compared; and what learns from that."""
    judge, entries = settings.judge, evals(settings, "eval0")
    asked: dict[str, Any] = {name: getattr(judge, name) for name in JudgeForm.model_fields}
    drawn: dict[str, Any] = {"temperature": settings.sampling.temperature}
    if judge.is_trained:
        if not settings.data.parsed_source.is_task:
            raise WhetError("judge.name is empty: only a task has examples to train a judge on; name a model or server")
        asked |= {"question": "short", "settings": {"attempts": 1, "max_new_tokens": 4, **judge.settings}}
        written = SampleEntry(name="judge-completions", count=judge.examples, completions=DRAWN, **drawn)
        examples = JudgeExamplesEntry(name="judge-examples", completions=written.name)
        training = SFTEntry(name="judge-train", data=examples.name, epochs=0, train=judge.train)
        measured = JudgeEvalEntry(
            name="judge-eval", completions=written.name, examples=examples.name, judge=training.name, **asked
        )
        entries += [written, examples, training, measured]
    first = judge.examples if judge.is_trained else 0
    entries += [
        SampleEntry(name="completions", first=first, count=settings.prompts, completions=2, **drawn),
        JudgedPairsEntry(
            name="pairs",
            completions="completions",
            judge="judge-train" if judge.is_trained else judge.name,
            min_margin=settings.min_margin,
            soft_labels=settings.soft_labels,
            **asked,
        ),
    ]
    return [*entries, *settings.learning(""), *evals(settings, "eval1", "train")]


RLAIF = Pipeline(
    "rlaif",
    "a judge compares the policy's completions in both orders; a reward model, or the policy itself, learns from it",
    RLAIFSettings,
    rlaif_entries,
)
