"""RLHF: imitate what was chosen, learn a reward from the pairs, optimise it; several ways to do so at equal cost.

Ouyang et al. 2022 (arXiv 2203.02155). The policy, its reward model and the ways of the third stage see one half of the
pairs; a judge, which only measures, sees the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from whet.objective.presets import PRESETS
from whet.objective.presets.preference import PAIR_PRESETS
from whet.settings.bounds import MOST_ROWS, MOST_SAMPLES
from whet.settings.layers import merged
from whet.settings.sections import Table
from whet.tools.pipelines import amounts
from whet.tools.pipelines.library.entry import StageEntry
from whet.tools.pipelines.library.judged import BestOfEntry, JudgedEntry, WaysEntry
from whet.tools.pipelines.library.pairs import (
    CHOSEN,
    HELD_OUT,
    JUDGED_PROMPTS,
    OTHER_HALF,
    OWN,
    PROMPTS,
    TASK,
    PairsEntry,
    PairSplit,
    SplitPairsEntry,
)
from whet.tools.pipelines.library.sampling import SampleEntry
from whet.tools.pipelines.library.trainings import PreferenceEntry, RewardModelEntry, RLEntry, SFTEntry
from whet.tools.pipelines.settings import TRAIN_KEYS, Names, Pipeline, PipelineSettings, no_effect, without_reward
from whet.training.config import PolicyConfig, PreferenceConfig, config_class
from whet.types import WhetError, did_you_mean

SELECT = "best_of_n"  # no training: the reward model chooses among n completions of the first stage's policy
WAYS = ("ppo", "dpo", "grpo", SELECT)
PAIRS, SCORER, JUDGE = "pairs", "reward-model", "judge-model"
# MOST_KL is about that of the best of 64 completions, log 64 - 63/64. It is a mean over some five steps: a critic that
# is still being fitted drives PPO away for a few, and it comes back.
MOST_KL, KL_DECAY = 3.0, 0.8
# of the two estimators that it was swept with: docs/rlhf.md has the sweep
KL_BETA, SWEPT_KL = 1.0, ("k1_reward", "k3")
JUDGE_SEED = 1000  # added to the seed: the judge has other first weights and another order of its rows


class PairSettings(PipelineSettings, PairSplit):
    """What pipelines on preference pairs share."""

    pairs: str = Field(
        "",
        description="file of pairs; task:NAME: its right and wrong completions; empty, on a task: completions of the "
        "first policy, the best against the worst by the task's reward",
    )
    prompts: int = Field(
        1024, ge=8, le=MOST_ROWS, description="whose completions are compared; not where pairs is a file"
    )
    completions: int = Field(
        8, ge=2, le=MOST_SAMPLES, description="that the first policy writes to each, where pairs is empty"
    )
    judged_completions: amounts.Samples = Field(4, description="that each policy writes to each of them")
    reward_model: Table = Field({}, description=f"settings of the reward models: {TRAIN_KEYS}")
    reward_model_epochs: amounts.Epochs = Field(2.0, description="passes over the pairs of a reward model")

    def idle(self) -> dict[str, str]:
        idle = super().idle()
        if self.pairs:
            idle |= no_effect("the pairs are given and not written", "completions")
        if self.pairs and not self.pairs.startswith(TASK):
            idle |= no_effect("the pairs are given and not written", "prompts")
        else:
            idle |= no_effect("it is for pairs in a file", "as_chat", "columns", "unusable")
        if self.held_out:
            return idle | no_effect("held_out is given", "held_out_share")
        return idle | no_effect("the split by prompt has no overlap", "allow_overlap")

    def pair_entries(self) -> list[StageEntry]:
        """The pairs, written by the first policy where none are given, and split by prompt."""
        if not self.pairs and not self.data.parsed_source.is_task:
            raise WhetError(
                f"pairs: {self.data.source} has no preferences; give --set pairs=FILE with prompt, chosen and rejected"
            )
        if not self.pairs and self.held_out:
            raise WhetError(
                "held_out has no effect: the pairs are written here, and a share of them is held out; drop it"
            )
        for name, source in (("pairs", self.pairs), ("held_out", self.held_out)):
            if source and not source.startswith((TASK, "hub:")) and not Path(source).expanduser().is_file():
                raise WhetError(f"{name}: {source} is not there; give a file of pairs with prompt, chosen and rejected")
        written: list[StageEntry] = []
        if not self.pairs:
            sample = SampleEntry(
                name="completions",
                count=self.prompts,
                completions=self.completions,
                temperature=self.sampling.temperature,
            )
            written = [sample, PairsEntry(name="all-pairs", completions=sample.name)]
        same = self.model_dump(include=set(PairSplit.model_fields))
        return [*written, SplitPairsEntry(name=PAIRS, data=self.pairs or "all-pairs", rows=self.prompts, **same)]

    def reward_model_entry(self, name: str, half: str, start: str = "", seed_offset: int = 0) -> RewardModelEntry:
        """A reward model on one half of the pairs, measured on the held-out ones."""
        return RewardModelEntry(
            name=name,
            data=f"{PAIRS}/{half}",
            held_out=f"{PAIRS}/{HELD_OUT}",
            start=start,
            seed_offset=seed_offset,
            epochs=self.reward_model_epochs,
            train=self.reward_model,
        )


class RLHFSettings(PairSettings):
    """Imitation, a reward model, and the ways to optimise it."""

    compare: Names = Field(
        WAYS,
        min_length=1,
        description=f"ways of the third stage: methods of `whet algorithms` that learn from a reward or from pairs, "
        f"and {SELECT}, which trains nothing",
    )
    steps: amounts.Steps = Field(
        100, description="steps of the first method in compare; the others get as many as cost the same"
    )
    most_kl: amounts.EpochsOrNone = Field(
        MOST_KL,
        description="nats per completion from the policy of the first stage, at which training against the reward "
        "model ends; 0: only after its steps. Not for a way whose objective.control is given",
    )
    kl_beta: float = Field(
        KL_BETA,
        ge=0,
        le=100,
        description=f"weight of the KL to the policy of the first stage in training against the reward model, for ways "
        f"with {' or '.join(SWEPT_KL)}; 0: the method's own. Not for a way whose objective.kl is given",
    )
    most_n: amounts.Samples = Field(
        64, description=f"{SELECT}: at most this n; less where the budget is spent on the judged prompts before"
    )
    most_epochs: amounts.EpochsOrNone = Field(
        1.0,
        description="passes over the pairs that a method which learns from pairs makes at most, though it then spends "
        "less than the budget; 0: as many as the budget pays",
    )
    sft: Table = Field({}, description=f"settings of the imitation of chosen completions: {TRAIN_KEYS}")
    sft_epochs: amounts.EpochsOrNone = Field(
        1.0, description="passes over the chosen completions; 0: the policy is a good one already"
    )
    train: Table = Field({}, description=f"by method of compare, of its training: {TRAIN_KEYS}")

    small_run: ClassVar[Mapping[str, Any]] = {
        "prompts": 1024,
        "completions": 4,
        "steps": 12,
        "most_n": 16,
        "sft_epochs": 0.5,
        "sampling": {"max_new_tokens": 64},
        "sft": {"batch": {"rows_per_step": 32}},
        "reward_model": {"batch": {"rows_per_step": 32}},
        "judged_prompts": 80,
    }

    def idle(self) -> dict[str, str]:
        idle = {**super().idle(), **without_reward(self)}
        if SELECT not in self.compare:
            idle |= no_effect(f"{SELECT} is not in compare", "most_n")
        return idle if self.sft_epochs else idle | no_effect("sft_epochs is 0", "sft")


def check_ways(settings: RLHFSettings) -> None:
    """Refuse a way that could not work."""
    known = (*PRESETS, *PAIR_PRESETS, SELECT)
    for way in settings.compare:
        if way not in known or (way != SELECT and config_class(way) not in (PolicyConfig, PreferenceConfig)):
            raise WhetError(
                f"compare: {way!r} learns neither from a reward nor from pairs{did_you_mean(way, known)}; give methods "
                f"of `whet algorithms`, or {SELECT}"
            )
        if settings.compare.count(way) > 1:
            raise WhetError(f"compare names {way} twice; name it once")
    for name, values in settings.train.items():
        if name not in settings.compare or name == SELECT:
            trained = ", ".join(way for way in settings.compare if way != SELECT) or "none"
            raise WhetError(f"train.{name}: no method of compare is called that; its methods: {trained}")
        if "steps" in values:
            raise WhetError(f"train.{name}.steps is set by the pipeline: it follows from the budget; set steps instead")


def training_of(settings: RLHFSettings, way: str) -> Mapping[str, Any]:
    """The user's settings of a way; one that learns from the reward model is tied tighter, and has an end by KL."""
    train = settings.train.get(way) or {}
    if config_class(way) is PreferenceConfig:
        return train
    own, chosen = PRESETS[way].objective, train.get("objective", {})
    held: dict[str, Any] = {}
    if settings.kl_beta and own.kl.name in SWEPT_KL and "kl" not in chosen:
        held["kl"] = {"beta": settings.kl_beta}
    if settings.most_kl and own.control.name == "fixed" and "control" not in chosen:
        held["control"] = {"kind": "budget", "nats": settings.most_kl, "decay": KL_DECAY}
    return merged(train, {"objective": held}) if held else train


def rlhf_entries(settings: RLHFSettings) -> list[StageEntry]:
    """Pairs, imitation, a reward model and a judge; then each way from one start and for one budget; the comparison."""
    check_ways(settings)
    entries = settings.pair_entries()
    start = "sft" if settings.sft_epochs else ""
    if start:
        entries.append(SFTEntry(name=start, data=f"{PAIRS}/{CHOSEN}", epochs=settings.sft_epochs, train=settings.sft))
    judged: dict[str, Any] = {
        "start": start,
        "judge": JUDGE,
        "reward_model": SCORER,
        "prompts": f"{PAIRS}/{JUDGED_PROMPTS}",
        "completions": settings.judged_completions,
    }
    beginning = JudgedEntry(name="sft-judged", policy=start, pairs=f"{PAIRS}/{OWN}", who="sft", **judged)
    entries += [
        settings.reward_model_entry(SCORER, OWN, start),
        settings.reward_model_entry(JUDGE, OTHER_HALF, seed_offset=JUDGE_SEED),
        beginning,
    ]
    judged |= {"against": beginning.name, "number": 1}
    trainings: dict[str, str] = {}
    # the first method sets the budget, also of a choice that comes before it
    trained = [way for way in settings.compare if way != SELECT]
    for offset, way in enumerate([*trained, *(way for way in settings.compare if way == SELECT)], 1):
        budget = {"cost_of": f"{trained[0]}-train"} if trained and way != trained[0] else {}
        name = f"{way}-judged"
        trainings[way] = name if way == SELECT else f"{way}-train"
        if way == SELECT:
            judged |= {"policy": start, "seed_offset": offset, "who": way}
            entries.append(BestOfEntry(name=name, most_n=settings.most_n, **budget, **judged))
            continue
        common: dict[str, Any] = {
            "name": trainings[way],
            "start": start,
            "method": way,
            "lengths": beginning.name,
            **budget,
        }
        common |= {"train": training_of(settings, way), "steps": 0 if budget else settings.steps}
        if config_class(way) is PreferenceConfig:
            most = settings.most_epochs if budget else 0.0
            entries.append(PreferenceEntry(data=f"{PAIRS}/{OWN}", most_epochs=most, **common))
        else:
            scored = {"reward_model": SCORER, "reward_model_rows": "all"}
            entries.append(RLEntry(prompts=f"{PAIRS}/{PROMPTS}", **scored, **common))
        judged |= {"policy": trainings[way], "seed_offset": offset, "who": way}
        entries.append(JudgedEntry(name=name, **judged))
    ways = {way: f"{way}-judged" for way in settings.compare}
    return [
        *entries,
        WaysEntry(name="compare", start=beginning.name, judged=ways, trainings={way: trainings[way] for way in ways}),
    ]


RLHF = Pipeline(
    "rlhf",
    "imitation of chosen completions, a reward model, and the policy optimised against it; several ways at equal cost",
    RLHFSettings,
    rlhf_entries,
)
