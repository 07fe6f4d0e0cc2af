"""R1's four stages (2501.12948): cold start, reasoning RL, rejection sampling into SFT, RL over all prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from whet.reward.sections import RewardPartSection, RewardSection
from whet.tools.pipelines import amounts
from whet.tools.pipelines.library.choices import RejectionChoice, RLChoice, SFTChoice
from whet.tools.pipelines.library.entry import StageEntry
from whet.tools.pipelines.library.evaluation import RecheckEntry, with_evals
from whet.tools.pipelines.library.sampling import MixEntry, MixSource
from whet.tools.pipelines.library.trainings import RewardModelEntry, RLEntry, SFTEntry
from whet.tools.pipelines.settings import Pipeline, PipelineSettings, benchmark_reward, is_scored
from whet.types import WhetError

RECORDED = 65_536  # groups per step: all of them


class R1Settings(PipelineSettings):
    """Cold start, reasoning RL, rejection sampling and SFT, RL over all prompts."""

    demonstrations: str = Field(
        "", description="demonstrations of the cold start: a file with completions; empty: the task's own"
    )
    cold_rows: amounts.CountOrNone = Field(0, description="demonstrations of the cold start; 0: all of a file")
    general: str = Field("", description="demonstrations of other kinds, mixed into the second SFT; empty: none")
    general_prompts: str = Field("", description="prompts of other kinds for the last RL; empty: none")
    pairs: str = Field("", description="pairs for a reward model, which scores prompts without an answer; empty: none")
    sft: SFTChoice = Field(SFTChoice(), description="the cold start")
    rl: RLChoice = Field(RLChoice(), description="reasoning RL")
    rejection: RejectionChoice = RejectionChoice()
    sft2: SFTChoice = Field(SFTChoice(), description="imitation of what was kept")
    start2: Literal["base", "cold", "rl"] = Field(
        "base", description="the model that the second SFT starts from: the first one as in the paper, or a later stage"
    )
    reward_model: SFTChoice = Field(SFTChoice(epochs=1.0), description="the reward model, where pairs are given")
    rl2: RLChoice = Field(RLChoice(), description="RL over all prompts")

    small_run: ClassVar[Mapping[str, Any]] = {
        "data": {"count": 512},
        "cold_rows": 64,
        "sampling": {"max_new_tokens": 64},
        "eval": {"samples": 8},
        "sft": {"train": {"batch": {"rows_per_step": 32}}},
        "rl": {"steps": 20},
        "rejection": {"prompts": 256},
        "sft2": {"train": {"batch": {"rows_per_step": 32}}},
        "rl2": {"steps": 20},
    }

    def idle(self) -> dict[str, str]:
        why = "has no effect without pairs; give a file of pairs, or drop it"
        return super().idle() | ({} if self.pairs else {"reward_model": why})


def reasoning_reward(settings: PipelineSettings) -> RewardSection:
    """The reward as given; on a task without one, right answer, format and language, all of weight 1 (2501.12948); a
    benchmark's file comes with its own."""
    source = settings.data.parsed_source
    if is_scored(settings.reward):
        return settings.reward
    if not source.is_task:
        return benchmark_reward(settings.data.source)
    names = dict.fromkeys(task.reward for task in source.tasks())
    if len(names) > 1:
        return settings.reward
    names |= dict.fromkeys(("think_format", "language"))
    chosen = {"language": {"expected": "en"}}
    return RewardSection(parts=tuple(RewardPartSection(reward=name, settings=chosen.get(name, {})) for name in names))


def require_reward(settings: PipelineSettings) -> RewardSection:
    """The reward of reasoning; data from a file must come with one."""
    reward = reasoning_reward(settings)
    if settings.data.parsed_source.is_stored and not is_scored(reward):
        raise WhetError("no reward: data from a file needs one; give --set 'reward.parts=[{reward=\"math_answer\"}]'")
    return reward


def r1_entries(settings: R1Settings) -> list[StageEntry]:
    """The stages, each followed by an eval where there is something to measure by."""
    reward, source = require_reward(settings), settings.data.parsed_source
    shown = settings.demonstrations or (settings.data.source if source.is_task else "")
    if not shown:
        raise WhetError("the cold start has no demonstrations; give --set demonstrations=FILE (prompt and completion)")
    data = "kept"
    entries: list[StageEntry] = [
        SFTEntry(name="cold-start", data=shown, rows=settings.cold_rows, **settings.sft.values()),
        RLEntry(name="reasoning-rl", start="cold-start", reward=reward, **settings.rl.values()),
        *settings.rejection.entries("reasoning-rl", ("completions", data)),
    ]
    if settings.general:
        entries.append(MixEntry(name="mixture", sources=(MixSource(data=data), MixSource(data=settings.general))))
        data = "mixture"
    start2 = {"base": "", "cold": "cold-start", "rl": "reasoning-rl"}[settings.start2]
    entries.append(SFTEntry(name="second-sft", data=data, start=start2, **settings.sft2.values()))
    prompts, learned = "", ""
    if settings.pairs:
        learned = "reward-model"
        entries.append(RewardModelEntry(name=learned, data=settings.pairs, **settings.reward_model.values()))
    if settings.general_prompts:
        prompts = "all-prompts"
        own = MixSource(data=settings.data.source, rows=settings.data.count if source.is_generated else 0)
        entries.append(MixEntry(name=prompts, sources=(own, MixSource(data=settings.general_prompts)), of="prompts"))
    last = {"start": "second-sft", "prompts": prompts, "reward": reward, "reward_model": learned}
    entries.append(RLEntry(name="final-rl", **last, **settings.rl2.values()))
    return with_evals(settings, entries)


R1 = Pipeline(
    "r1",
    "cold start by SFT, reasoning RL, rejection sampling into a second SFT, RL over all prompts",
    R1Settings,
    r1_entries,
)


class R1ZeroSettings(PipelineSettings):
    """RL from the base model."""

    rl: RLChoice = Field(RLChoice(), description="the training")

    small_run: ClassVar[Mapping[str, Any]] = {
        "data": {"count": 512},
        "sampling": {"max_new_tokens": 64},
        "eval": {"samples": 8},
        "rl": {"steps": 40},
    }


def r1_zero_entries(settings: R1ZeroSettings) -> list[StageEntry]:
    """The training, and the completions it learned from read again."""
    reward, values = require_reward(settings), settings.rl.values()
    report = {"samples_per_step": RECORDED, **values["train"].get("report", {})}
    values["train"] = {**values["train"], "report": report}
    entries: list[StageEntry] = [RLEntry(name="rl", reward=reward, **values)]
    return [*with_evals(settings, entries), RecheckEntry(name="re-checks", training="rl")]


R1_ZERO = Pipeline(
    "r1_zero",
    "RL straight from the base model, with the length and the re-checks of its completions along the way",
    R1ZeroSettings,
    r1_zero_entries,
)
