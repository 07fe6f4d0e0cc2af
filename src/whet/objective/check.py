"""Which methods cannot work in a run, and which numbers would have no effect in it. Each refusal names the fix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from whet.objective.axes import differences
from whet.objective.policy import Objective
from whet.types import WhetError


@dataclass(frozen=True)
class RunSetting:
    """What a run gives its method."""

    group_size: int
    updates: int = 1  # optimizer updates a collected batch, all passes together
    num_parts: int = 1  # of the reward
    staleness: int = 0  # policy versions that completions are behind
    has_steps: bool = False  # a reward scores the steps of a completion
    steps: int = 0  # of the run; 0: not known
    has_turns: bool = False  # an environment, tools or an agent answer the policy
    has_trees: bool = False  # several turns are drawn from one state
    stale_by: str = "batch.staleness"  # the setting that says so


def check_setting(objective: Objective, setting: RunSetting, changed: Mapping[str, Any]) -> None:
    """Refuse a method that cannot work in this run, and every number the user set that would have no effect in it."""
    complaints = (_impossible(objective, setting), _pointless(objective, setting), _idle(objective, setting, changed))
    for complaint in chain(*complaints):
        raise WhetError(complaint)


def _impossible(objective: Objective, setting: RunSetting) -> Iterator[str]:
    smallest = objective.baseline.smallest_group
    if setting.group_size < smallest:
        yield (
            f"group_size is {setting.group_size} but the baseline {objective.baseline.name} compares completions of "
            "one prompt; "
            f"give group_size >= {smallest}, or objective.baseline=running_mean"
        )
    if setting.group_size == 1 and objective.scale.name in ("group_std", "drawn_std"):
        yield (
            f"objective.scale={objective.scale.name} has no spread to divide by with group_size 1; give "
            "objective.scale=none"
        )
    if objective.clip.name == "group_softmax" and not objective.ratio.whole_completion:
        yield (
            f"objective.clip=group_softmax weighs completions, objective.ratio={objective.ratio.name} measures less; "
            "give objective.ratio=sequence"
        )
    if "value" in objective.baseline.needs and not objective.value.needs:
        yield (
            f"objective.baseline={objective.baseline.name} needs a critic and objective.value=none trains none; "
            "give objective.value=squared_error"
        )
    if objective.value.needs and "value" not in objective.baseline.needs:
        yield (
            f"objective.value={objective.value.name} trains a critic that "
            f"objective.baseline={objective.baseline.name} never asks; "
            "give objective.baseline=gae, or objective.value=none"
        )
    if "step_reward" in objective.needs() and not setting.has_steps and not setting.has_turns:
        yield (
            f"objective.baseline={objective.baseline.name} needs a reward that scores the steps of a completion; "
            "give one, such as working_steps, or an environment that rewards turns"
        )
    if objective.baseline.name == "partwise_group" and setting.num_parts < 2:
        yield "objective.baseline=partwise_group compares the parts of a reward one by one; give two rewards or more"
    if objective.keep.grows != ("drawn" in objective.baseline.needs):
        yield (
            f"objective.keep={objective.keep.name} and objective.baseline={objective.baseline.name} do not go "
            "together: a group "
            "drawn until it is mixed needs the mean of all draws; give keep=balanced with baseline=drawn_mean"
        )
    if "drawn" in objective.scale.needs and not objective.keep.grows:
        yield "objective.scale=drawn_std needs all rewards drawn; give keep=balanced with baseline=drawn_mean"
    if objective.scale.name == "group_mean" and (objective.shape.symbols() or objective.kl.in_reward):
        yield "objective.scale=group_mean wants rewards of 0 or 1, which a shape or a KL in the reward changes; drop it"
    if objective.mismatch.name == "stale_mask" and getattr(objective.mismatch, "limit", 0) == 0:
        yield "objective.mismatch=stale_mask has no published limit; set objective.mismatch.limit, such as 0.5"

    if 0 < setting.steps <= objective.value.warmup:
        yield (
            f"objective.value.warmup is {objective.value.warmup:g} but the run has {setting.steps} steps: the policy "
            "would "
            "never learn; give more steps, or a shorter warmup"
        )


# components that look at the turns of an episode, and what does the same for a single completion
OF_EPISODES = {
    "baseline": {
        "running_role_mean": "running_mean",
        "turn_return": "leave_one_out",
        "turn_index_rewards": "leave_one_out",
    },
    "select": {"finished_turns": "finished"},
    "imitate": {"observed": "none"},
}
# baselines that compare what was drawn from one state, and what each is without that
OF_TREES = {"siblings": "leave_one_out", "group_and_tree": "group_mean"}


def _without_turns(objective: Objective, setting: RunSetting) -> Iterator[str]:
    """What is nothing, or another component, where every sample is one completion."""
    for axis, components in OF_EPISODES.items():
        name = getattr(objective, axis).name
        if name in components and not (axis == "baseline" and setting.has_steps and name != "running_role_mean"):
            yield (
                f"objective.{axis}={name} is about episodes and this run writes single completions; give env, "
                f"tools or an agent, or objective.{axis}={components[name]}"
            )


# components that hold a method together without a ratio, while the policy leaves the one that wrote the batch
WITHOUT_RATIO = {"baseline": ("shifted_mean",), "kl": ("k2_old", "k2_old_completion", "k2_sampler")}


def _holds_without_ratio(objective: Objective) -> bool:
    return any(getattr(objective, axis).name in names for axis, names in WITHOUT_RATIO.items())


def _pointless(objective: Objective, setting: RunSetting) -> Iterator[str]:
    if not setting.has_turns:
        yield from _without_turns(objective, setting)
    if not setting.has_trees and objective.baseline.name in OF_TREES:
        yield (
            f"objective.baseline={objective.baseline.name} compares what was drawn from one state and this run draws "
            f"one turn from each; give env.branching=turns, or objective.baseline={OF_TREES[objective.baseline.name]}"
        )
    ignores = not objective.clip.uses_ratio and not objective.mismatch.needs
    if setting.updates > 1 and ignores and not _holds_without_ratio(objective):
        yield (
            f"updates_per_step is {setting.updates} but objective.clip={objective.clip.name} ignores how far the "
            "policy has moved; give updates_per_step=1, or objective.clip=ppo_clip"
        )
    if (
        objective.ratio.whole_completion
        and objective.clip.uses_ratio
        and objective.aggregate.counts_tokens
        and differences(objective)
    ):
        yield (
            f"objective.ratio={objective.ratio.name} weighs whole completions but objective.aggregate="
            f"{objective.aggregate.name} counts tokens: long completions dominate; give "
            "objective.aggregate=sequence_mean"
        )
    if objective.baseline.name == "none" and not objective.teacher.needs and not objective.imitate.needs:
        yield "objective.baseline=none learns from nothing; give objective.teacher=jsd, or baseline=group_mean"
    if objective.control.turns_beta and not hasattr(objective.kl, "beta"):
        yield (
            f"objective.control={objective.control.name} turns a KL's coefficient and "
            f"objective.kl={objective.kl.name} has none; "
            "give objective.kl=k3, or objective.control=fixed"
        )
    asked = objective.needs() & {"ref_logp", "teacher_logp", "teacher_divergence"}  # a teacher may be the reference
    if objective.reference.kept_after(0) < 1 and not asked:
        yield (
            f"objective.reference={objective.reference.name} replaces a reference that nothing looks at; "
            "give a KL such as objective.kl=k3, or objective.reference=frozen"
        )
    if not objective.baseline.sees_reward and (objective.kl.in_reward or objective.shape.symbols()):
        component = (
            f"objective.kl={objective.kl.name}" if objective.kl.in_reward else f"objective.shape={objective.shape.name}"
        )
        yield (
            f"{component} changes the reward, which objective.baseline={objective.baseline.name} never looks at; "
            "give a KL in the loss such as objective.kl=k3, or drop the shape"
        )
    if objective.scale.name == "whiten_completions" and objective.baseline.per_token:
        yield (
            f"objective.scale=whiten_completions counts completions and objective.baseline={objective.baseline.name} "
            "credits tokens; "
            "give objective.scale=whiten_tokens"
        )
    if setting.updates == 1 and (objective.kl.to_old or objective.control.name in ("doubling", "end_updates")):
        component = (
            f"objective.kl={objective.kl.name}"
            if objective.kl.to_old
            else f"objective.control={objective.control.name}"
        )
        yield (
            f"{component} holds to the policy that wrote the batch, which is the policy itself with one update; "
            "set batch.updates_per_step above 1"
        )
    if objective.select.name == "tie_covariance" and not objective.kl.needs:
        yield "objective.select=tie_covariance chooses tokens for a KL and objective.kl=none has none; give kl=abs_old"
    if (
        setting.staleness
        and objective.keep.name == "fresh"
        and setting.staleness > getattr(objective.keep, "max_staleness", 0)
    ):
        yield (
            f"{setting.stale_by} is {setting.staleness} but objective.keep=fresh leaves out completions older than "
            f"{getattr(objective.keep, 'max_staleness', 0):g} versions: nothing would be left; "
            f"lower {setting.stale_by} or raise keep.max_staleness"
        )
    looks = objective.ratio.needs | objective.baseline.needs | objective.kl.needs
    corrected = objective.mismatch.needs or "behavior_logp" in looks or objective.baseline.name == "shifted_mean"
    if setting.staleness and not corrected:
        yield (
            f"{setting.stale_by} is {setting.staleness}: completions are those of an older policy, which this method "
            "does not correct for; "
            "give objective.mismatch=truncate"
        )


def _idle(objective: Objective, setting: RunSetting, changed: Mapping[str, Any]) -> Iterator[str]:
    still = setting.updates == 1 and setting.staleness == 0 and objective.ratio.against == "old_logp"
    for path in changed:
        axis = path.partition(".")[0]
        if axis in ("clip", "ratio") and still:
            yield (
                f"objective.{path} has no effect with updates_per_step=1: the ratio is exactly 1 on the only update; "
                "set updates_per_step above 1, or drop it"
            )
    if "imitate.last" in changed and getattr(objective.imitate, "decay", 0) == 0:
        yield (
            "objective.imitate.last has no effect with imitate.decay 0: the weight stays what it is; set "
            "objective.imitate.decay to a number of steps, or drop it"
        )
