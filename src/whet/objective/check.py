"""Which rows cannot work in a run, and which numbers would have no effect in it. Each refusal names the fix."""

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
    """What a run gives its row."""

    group_size: int
    updates: int = 1  # optimizer updates a collected batch, all passes together
    num_parts: int = 1  # of the reward
    staleness: int = 0  # policy versions that completions are behind
    has_steps: bool = False  # a reward scores the steps of a completion
    steps: int = 0  # of the run; 0: not known


def check_setting(objective: Objective, setting: RunSetting, changed: Mapping[str, Any]) -> None:
    """Refuse a row that cannot work in this run, and every number the user set that would have no effect in it."""
    complaints = (_impossible(objective, setting), _pointless(objective, setting), _idle(objective, setting, changed))
    for complaint in chain(*complaints):
        raise WhetError(complaint)


def _impossible(row: Objective, setting: RunSetting) -> Iterator[str]:
    smallest = row.baseline.smallest_group
    if setting.group_size < smallest:
        yield (
            f"group_size is {setting.group_size} but the baseline {row.baseline.name} compares completions of one prompt; "
            f"give group_size >= {smallest}, or objective.baseline=running_mean"
        )
    if setting.group_size == 1 and row.scale.name in ("group_std", "drawn_std"):
        yield (
            f"objective.scale={row.scale.name} has no spread to divide by with group_size 1; give objective.scale=none"
        )
    if "value" in row.baseline.needs and not row.value.needs:
        yield (
            f"objective.baseline={row.baseline.name} needs a critic and objective.value=none trains none; "
            "give objective.value=squared_error"
        )
    if row.value.needs and "value" not in row.baseline.needs:
        yield (
            f"objective.value={row.value.name} trains a critic that objective.baseline={row.baseline.name} never asks; "
            "give objective.baseline=gae, or objective.value=none"
        )
    if "step_reward" in row.needs() and not setting.has_steps:
        yield (
            f"objective.baseline={row.baseline.name} needs a reward that scores the steps of a completion; "
            "give one, such as --reward working_steps"
        )
    if row.baseline.name == "partwise_group" and setting.num_parts < 2:
        yield "objective.baseline=partwise_group compares the parts of a reward one by one; give two --reward or more"
    if row.keep.grows != ("drawn" in row.baseline.needs):
        yield (
            f"objective.keep={row.keep.name} and objective.baseline={row.baseline.name} do not go together: a group "
            "drawn until it is mixed needs the mean of all draws; give keep=balanced with baseline=drawn_mean"
        )
    if "drawn" in row.scale.needs and not row.keep.grows:
        yield "objective.scale=drawn_std needs all rewards drawn; give keep=balanced with baseline=drawn_mean"
    if row.scale.name == "group_mean" and (row.shape.symbols() or row.kl.in_reward):
        yield "objective.scale=group_mean wants rewards of 0 or 1, which a shape or a KL in the reward changes; drop it"
    if row.mismatch.name == "stale_mask" and getattr(row.mismatch, "limit", 0) == 0:
        yield "objective.mismatch=stale_mask has no published limit; set objective.mismatch.limit, such as 0.5"

    if 0 < setting.steps <= row.value.warmup:
        yield (
            f"objective.value.warmup is {row.value.warmup:g} but the run has {setting.steps} steps: the policy would "
            "never learn; give more --steps, or a shorter warmup"
        )


def _pointless(row: Objective, setting: RunSetting) -> Iterator[str]:
    if setting.updates > 1 and not row.clip.uses_ratio and not row.mismatch.needs:
        yield (
            f"updates_per_step is {setting.updates} but objective.clip={row.clip.name} ignores how far the "
            "policy has moved; give updates_per_step=1, or objective.clip=ppo_clip"
        )
    if row.ratio.whole_completion and row.clip.uses_ratio and row.aggregate.counts_tokens and differences(row):
        yield (
            f"objective.ratio={row.ratio.name} weighs whole completions but objective.aggregate="
            f"{row.aggregate.name} counts tokens: long completions dominate; give objective.aggregate=sequence_mean"
        )
    if row.control.turns_beta and not hasattr(row.kl, "beta"):
        yield (
            f"objective.control={row.control.name} turns a KL's coefficient and objective.kl={row.kl.name} has none; "
            "give objective.kl=k3, or objective.control=fixed"
        )
    if row.reference.kept_after(0) < 1 and "ref_logp" not in row.needs():
        yield (
            f"objective.reference={row.reference.name} replaces a reference that nothing looks at; "
            "give a KL such as objective.kl=k3, or objective.reference=frozen"
        )
    if not row.baseline.sees_reward and (row.kl.in_reward or row.shape.symbols()):
        component = f"objective.kl={row.kl.name}" if row.kl.in_reward else f"objective.shape={row.shape.name}"
        yield (
            f"{component} changes the reward, which objective.baseline={row.baseline.name} never looks at; "
            "give a KL in the loss such as objective.kl=k3, or drop the shape"
        )
    if row.scale.name == "whiten_completions" and row.baseline.per_token:
        yield (
            f"objective.scale=whiten_completions counts completions and objective.baseline={row.baseline.name} credits tokens; "
            "give objective.scale=whiten_tokens"
        )
    if setting.updates == 1 and (row.kl.to_old or row.control.name in ("doubling", "end_updates")):
        component = f"objective.kl={row.kl.name}" if row.kl.to_old else f"objective.control={row.control.name}"
        yield (
            f"{component} holds to the policy that wrote the batch, which is the policy itself with one update; "
            "set batch.updates_per_step above 1"
        )
    if row.select.name == "tie_covariance" and not row.kl.needs:
        yield "objective.select=tie_covariance chooses tokens for a KL and objective.kl=none has none; give kl=abs_old"
    if setting.staleness and row.keep.name == "fresh" and setting.staleness > getattr(row.keep, "max_staleness", 0):
        yield (
            f"batch.staleness is {setting.staleness} but objective.keep=fresh leaves out completions older than "
            f"{row.keep.max_staleness:g} versions: nothing would be left; lower batch.staleness or raise keep.max_staleness"  # type: ignore[attr-defined]
        )
    corrected = row.mismatch.needs or "behavior_logp" in row.ratio.needs | row.baseline.needs
    if setting.staleness and not corrected:
        yield (
            f"batch.staleness is {setting.staleness}: completions are those of an older policy, which this row does not correct for; "
            "give objective.mismatch=truncate"
        )


def _idle(row: Objective, setting: RunSetting, changed: Mapping[str, Any]) -> Iterator[str]:
    still = setting.updates == 1 and setting.staleness == 0 and row.ratio.against == "old_logp"
    for path in changed:
        axis = path.partition(".")[0]
        if axis in ("clip", "ratio") and still:
            yield (
                f"objective.{path} has no effect with updates_per_step=1: the ratio is exactly 1 on the only update; "
                "set updates_per_step above 1, or drop it"
            )
