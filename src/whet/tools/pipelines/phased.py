"""Two phases: a policy learns preferences, then verifiable rewards on top, or the other way round.

After each phase both are measured, so that what the second takes away from the first is a number with an interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from whet.objective.presets import PRESETS
from whet.settings.layers import merged
from whet.settings.sections import Table
from whet.tools.pipelines import amounts
from whet.tools.pipelines.library.entry import StageEntry
from whet.tools.pipelines.library.pairs import HELD_OUT, JUDGED_PROMPTS, OTHER_HALF, OWN
from whet.tools.pipelines.library.phases import MeasuredEntry, PhaseCheckEntry
from whet.tools.pipelines.library.trainings import PreferenceEntry, RLEntry
from whet.tools.pipelines.rlhf import JUDGE, JUDGE_SEED, PAIRS, PairSettings
from whet.tools.pipelines.settings import TRAIN_KEYS, Pipeline, no_effect
from whet.training.config import PolicyConfig, config_class
from whet.types import WhetError

ALIGN, LEARN, UNGUARDED, REPLAY = "preference", "rl", "rl-unguarded", "replay"


class PhasedSettings(PairSettings):
    """Preferences and verifiable rewards, one after the other."""

    order: Literal["preference_first", "rl_first"] = Field("preference_first", description="which phase comes first")
    method: str = Field("dpo", description="method of the phase on pairs: a preference method")
    epochs: amounts.Epochs = Field(2.0, description="passes over the pairs of its half")
    preference: Table = Field({}, description=f"settings of the phase on pairs: {TRAIN_KEYS}")
    rl_method: str = Field("grpo", description="method of the phase on rewards: a policy method with a KL term")
    steps: amounts.Steps = Field(100, description="steps of the phase on rewards")
    train: Table = Field({}, description=f"settings of the phase on rewards: {TRAIN_KEYS}")
    guard_kl: amounts.EpochsOrNone = Field(
        0.04, description="KL penalty to the policy of the first phase while rewards are learned; 0: none"
    )
    compare_unguarded: bool = Field(True, description="learn rewards also without the guard, to see what it does")
    replay_epochs: amounts.EpochsOrNone = Field(
        0.0, description="passes over the pairs again after the phase on rewards; 0: none"
    )
    tolerance: float = Field(0.05, ge=0, lt=1, description="share of the first phase's metric that may be lost")

    small_run: ClassVar[Mapping[str, Any]] = {
        "pairs": "task:lists",
        "prompts": 1024,
        "steps": 15,
        "sampling": {"max_new_tokens": 64},
        "preference": {"batch": {"rows_per_step": 32}},
        "reward_model": {"batch": {"rows_per_step": 32}},
        "judged_prompts": 100,
    }

    def idle(self) -> dict[str, str]:
        if self.order == "rl_first":
            why = "order=rl_first ends with the phase on pairs, which has its own reference"
            return super().idle() | no_effect(why, "guard_kl", "compare_unguarded", "replay_epochs")
        return super().idle() | ({} if self.guard_kl else no_effect("guard_kl is 0", "compare_unguarded"))

    def aligning(self, name: str, start: str, epochs: float) -> PreferenceEntry:
        """A phase on pairs."""
        return PreferenceEntry(
            name=name,
            data=f"{PAIRS}/{OWN}",
            start=start,
            method=self.method,
            epochs=epochs,
            train=self.preference,
        )

    def learning(self, name: str, start: str, guard: float) -> RLEntry:
        """A phase on rewards; the guard is the coefficient of the KL to the policy that it starts from."""
        own_kl = PRESETS[self.rl_method].objective.kl.name
        kl = {"kind": own_kl if own_kl != "none" else "k3", "beta": guard} if guard else {"kind": "none"}
        train = merged(self.train, {"objective": {"kl": kl}})
        return RLEntry(name=name, start=start, method=self.rl_method, steps=self.steps, train=train)


def phase_entries(settings: PhasedSettings) -> list[PreferenceEntry | RLEntry]:
    """The trainings in order, each from the policy of the one it builds on."""
    if config_class(settings.rl_method) is not PolicyConfig:
        raise WhetError(f"rl_method is {settings.rl_method!r}, which draws no completions; see `whet algorithms`")
    if isinstance(settings.train.get("objective"), Mapping) and "kl" in settings.train["objective"]:
        raise WhetError("train.objective.kl is set by the pipeline; set guard_kl instead")
    if settings.order == "rl_first":
        return [settings.learning(LEARN, "", 0.0), settings.aligning(ALIGN, LEARN, settings.epochs)]
    phases: list[PreferenceEntry | RLEntry] = [
        settings.aligning(ALIGN, "", settings.epochs),
        settings.learning(LEARN, ALIGN, settings.guard_kl),
    ]
    if settings.replay_epochs:
        phases.append(settings.aligning(REPLAY, LEARN, settings.replay_epochs))
    if settings.guard_kl and settings.compare_unguarded:
        phases.append(settings.learning(UNGUARDED, ALIGN, 0.0))
    return phases


def phased_entries(settings: PhasedSettings) -> list[StageEntry]:
    """Pairs and a judge; the first policy measured, then each phase and its measures; the check."""
    phases = phase_entries(settings)
    measured: dict[str, Any] = {
        "judge": JUDGE,
        "prompts": f"{PAIRS}/{JUDGED_PROMPTS}",
        "pairs": f"{PAIRS}/{HELD_OUT}",
        "completions": settings.judged_completions,
    }
    start = MeasuredEntry(name="start-measured", who="the first policy", **measured)
    judge = settings.reward_model_entry(JUDGE, OTHER_HALF, seed_offset=JUDGE_SEED)
    entries: list[StageEntry] = [*settings.pair_entries(), judge, start]
    measured["against"] = start.name
    for number, phase in enumerate(phases, 1):
        name = f"{phase.name}-measured"
        order = {"who": phase.name, "number": number, "seed_offset": number}
        entries += [phase, MeasuredEntry(name=name, policy=phase.name, **order, **measured)]
    check = PhaseCheckEntry(
        name="check",
        start=start.name,
        phases={phase.name: f"{phase.name}-measured" for phase in phases},
        taught="preference" if settings.order == "preference_first" else "rl",
        tolerance=settings.tolerance,
    )
    return [*entries, check]


PHASED = Pipeline(
    "phased",
    "preferences, then verifiable rewards on top, or the other way round, with a check that the first is not lost",
    PhasedSettings,
    phased_entries,
)
