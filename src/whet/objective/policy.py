"""The one loss of every policy method.

    loss = - SUM_it share_it (weight_it A_it - kl_weight_it) logp_it    (- entropy, + exact KL, same shares)

Only `logp` carries gradient, and the `Extras` of methods that need more. A method is a choice of components, one per
axis; nothing here knows a method by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from whet.objective.advantage import Baseline, Memory
from whet.objective.aggregate import Aggregate
from whet.objective.clip import ClipRule, StepClip
from whet.objective.component import given
from whet.objective.control import Control, FixedCoefficient
from whet.objective.keep import Everything, Keep
from whet.objective.kl import KL
from whet.objective.lazy_torch import Tensor, torch
from whet.objective.mismatch import Mismatch, NoMismatch
from whet.objective.ratio import Ratio, token_ratio
from whet.objective.reference import Frozen, ReferencePolicy
from whet.objective.scale import AdvantageScale
from whet.objective.select import AllTokens, Select
from whet.objective.shape import AsScored, RewardShape
from whet.objective.statistics import compared_apart, episode_weight
from whet.objective.teacher import NoTeacher, TeacherTerm
from whet.objective.terms import (
    Bonus,
    Entropy,
    Imitate,
    NoBonus,
    NoCritic,
    NoImitation,
    NoSmoothing,
    Smooth,
    Value,
)
from whet.types import Extras, TokenBatch, Totals


@dataclass(frozen=True)
class Loss:
    """`value` is differentiable. `sums` are those of this pass: added over passes and ranks they are the step's."""

    value: Tensor  # []
    sums: Mapping[str, Tensor]  # [] each, where the loss was computed

    @property
    def metrics(self) -> dict[str, float]:
        """The sums as numbers. On a device this waits for it."""
        return {name: float(number) for name, number in self.sums.items()}


@dataclass(frozen=True)
class Objective:
    """A method as a choice of orthogonal components, one per axis."""

    name: str
    baseline: Baseline
    scale: AdvantageScale
    ratio: Ratio
    clip: ClipRule
    aggregate: Aggregate
    kl: KL
    shape: RewardShape = field(default_factory=AsScored)
    keep: Keep = field(default_factory=Everything)
    mismatch: Mismatch = field(default_factory=NoMismatch)
    select: Select = field(default_factory=AllTokens)
    smooth: Smooth = field(default_factory=NoSmoothing)
    imitate: Imitate = field(default_factory=NoImitation)
    entropy: Entropy = field(default_factory=NoBonus)
    value: Value = field(default_factory=NoCritic)
    control: Control = field(default_factory=FixedCoefficient)
    reference: ReferencePolicy = field(default_factory=Frozen)
    teacher: TeacherTerm = field(default_factory=NoTeacher)

    def needs(self) -> frozenset[str]:
        """What the loop must annotate beyond rewards; `old_logp` only matters once the policy has moved."""
        components = [getattr(self, axis.name) for axis in fields(self)[1:]]
        needed = frozenset().union(*(component.needs for component in components))
        return needed | {self.ratio.against} if self.clip.uses_ratio else needed

    @property
    def needs_reward(self) -> bool:
        """False where nothing the method does depends on what a completion earned: then a run may have no reward."""
        verdicts = {"parts", "step_reward", "greedy_reward", "drawn"} & self.needs()
        return self.baseline.sees_reward or bool(verdicts) or self.keep.refills or self.keep.grows

    @property
    def is_taught(self) -> bool:
        """True where a teacher grades every token, and no reward is learned from."""
        return bool({"teacher_logp", "teacher_divergence"} & self.needs()) and not self.needs_reward

    def tuned(self, memory: Memory) -> Objective:
        """The method of this step: with the coefficients its controllers have arrived at."""
        kl, weight = self.kl, self.entropy.coefficient(memory)
        if self.control.turns_beta and "beta" in memory:
            kl = replace(kl, beta=memory["beta"])  # type: ignore[type-var, call-arg]
        entropy = Bonus(weight) if weight > 0 else NoBonus()
        return replace(self, kl=kl, entropy=entropy, imitate=self.imitate.tuned(memory))

    def symbols(self, updates_per_step: int = 1) -> list[str]:
        """What is maximised, line by line."""
        lines = [self.shape.symbols()] if self.shape.symbols() else []
        inner = f"{self.mismatch.symbols()}{self.clip.symbols()}{self.kl.symbols()}"
        inner += f"{self.teacher.symbols()}{self.entropy.symbols()}"
        rest = "" if self.imitate.rest == 1 else f"{self.imitate.rest:g} * "
        lines += [
            f"A = {self.scale.symbols(self.baseline.symbols())}",
            f"J = {rest}{self.aggregate.symbols()} [ {inner} ]{self.imitate.symbols()}",
        ]
        if self.clip.uses_ratio:
            note = "" if self._ratio_moves(updates_per_step) else "  (always 1 here: one update per batch)"
            lines.append(f"{self.ratio.symbols()}{note}")
        return lines

    def spoken(self, updates_per_step: int = 1) -> list[Any]:
        """The components that matter in such a run, in the order in which a batch meets them."""
        moves = self.clip.uses_ratio and self._ratio_moves(updates_per_step)
        return [
            *(self.keep, self.shape, self.baseline, self.scale),
            *([self.ratio] if moves else []),
            *(self.clip, self.mismatch, self.select, self.smooth, self.aggregate, self.kl, self.control),
            *(self.teacher, self.reference, self.entropy, self.imitate, self.value),
        ]

    def _ratio_moves(self, updates_per_step: int) -> bool:
        return updates_per_step > 1 or self.ratio.against == "behavior_logp"

    def refuse_idle(self) -> None:
        """Components that would have no effect whatever the run; those of a policy depend on it: `check_setting`."""

    def advantage(self, batch: TokenBatch, memory: Memory) -> tuple[TokenBatch, Memory]:
        """The batch with A = scale(R - b) on its action tokens, and what to remember for the next step.

        Give it the whole collected batch, never a part: statistics and choices of tokens are taken over all of it.
        Roles are compared apart, and the branches of an episode count as one.
        """
        now = self.tuned(memory)
        group, batch = batch.group, compared_apart(batch)
        cost = now.kl.cost(batch)
        reward, earned = now.shape(batch), batch.step_reward if now.baseline.per_token else None
        token_reward = None if earned is None else earned.nan_to_num().to(reward.dtype)
        if cost is not None and not now.kl.immediate:
            token_reward = -cost if token_reward is None else token_reward - cost
        if token_reward is not None and not now.baseline.per_token:
            reward = reward + torch.where(batch.action, token_reward, 0.0).sum(-1)
        paid = replace(batch, reward=reward, token_reward=token_reward)
        scored = batch.action & ~batch.reward.isnan()[:, None]
        scaled = now.scale(now.baseline.centred(paid, memory), paid)
        if cost is not None and now.kl.immediate:
            scaled = scaled - cost
        known = replace(paid, reward=batch.reward, advantage=torch.where(scored, scaled, 0.0))
        known = replace(known, target=now.baseline.target(paid), importance=now.aggregate.importance(paid, memory))
        chosen = now.select(known)
        weight = episode_weight(chosen, chosen.lengths > 0)
        return replace(chosen, group=group, row_weight=weight), now.baseline.remembered(paid, memory)

    def surveys(self, batch: TokenBatch) -> bool:
        """True where the clip rule must see the whole step, under the policy as it is, before an update."""
        moves = batch.old_logp is not None or self.ratio.against == "behavior_logp"
        return isinstance(self.clip, StepClip) and moves

    def surveyed(self, batch: TokenBatch, logp: Tensor) -> TokenBatch:
        """The step's batch with the weights of a clip rule that looks at all of it; `logp` [N, T] are the policy's."""
        if not (isinstance(self.clip, StepClip) and self.surveys(batch)):
            return batch
        current = logp.detach().masked_fill(~batch.action, 0.0)
        old = current if batch.old_logp is None else batch.old_logp.masked_fill(~batch.action, 0.0)
        ratio = self.ratio(current - self._against(batch, old), batch)
        return replace(batch, step_weight=self.clip.over_step(ratio, batch))

    def loss(self, batch: TokenBatch, logp: Tensor, totals: Totals, extras: Extras | None = None) -> Loss:
        """The step's loss restricted to the rows of this pass. `logp` [N, T] carries the gradient."""
        if batch.advantage is None:
            raise ValueError("the batch has no advantage yet: call Objective.advantage on the whole step first")
        extras, action = extras or Extras(), batch.action
        current = logp.detach().masked_fill(~action, 0.0)
        old = current if batch.old_logp is None else batch.old_logp.masked_fill(~action, 0.0)
        moved = token_ratio(current - old)
        ratio = self.ratio(current - self._against(batch, old), batch)
        advantage = self.smooth.pushed(batch.advantage.to(logp.dtype), batch, extras)
        weight, surrogate = self._clipped(batch, ratio, advantage, current)
        metrics = {
            "ratio": _total(torch.where(action, ratio, 0.0), batch),
            "reweighted": _total(self._is_reweighted(batch, weight, ratio) & action, batch),
        }
        factor = self._correction(batch, current, old, advantage)
        if factor is not None:
            weight, surrogate = weight * factor, surrogate * factor
            metrics["mismatch_dropped"] = _total((factor == 0) & action, batch)
        if batch.learns is not None:
            weight, surrogate = (torch.where(batch.learns, values, 0.0) for values in (weight, surrogate))
        share = self.aggregate(batch, totals).to(logp.dtype)
        if batch.row_weight is not None:
            share = share * batch.row_weight[:, None].to(logp.dtype)
        pull = weight * advantage
        metrics["kl_old"] = _total(torch.where(action, moved - 1 - (current - old), 0.0), batch)
        metrics.update(self._kl_metrics(batch, current, moved))
        metrics = {name: number / max(totals.tokens, 1) for name, number in metrics.items()}
        metrics["surrogate"] = (share * surrogate).sum()
        if batch.importance is not None:
            grad = torch.where(action, surrogate, 0.0) * batch.importance[:, 1:]
            metrics["share_grad"] = _total(grad, batch) / max(totals.tokens, 1)
        if batch.ref_logp is not None:
            strayed = _total(torch.where(action, current - batch.ref_logp, 0.0), batch)
            metrics["kl_completion"] = strayed / max(totals.sequences, 1)
        value = self._weighted(batch, logp, share, pull, extras) + self._ties(batch, logp, share, moved, extras)
        if self.teacher.needs:
            apart = self._apart(batch, share, moved, extras)
            value = value + self.teacher.weight * apart.sum()
            metrics["teacher_divergence"] = apart.detach().sum()
        imitated = self.imitate(batch, totals)
        if imitated is not None:
            known = logp.masked_fill(imitated == 0, 0.0)
            doubt, imitated = self.imitate.doubt(known), imitated.to(logp.dtype)
            pull = imitated if doubt is None else imitated * doubt
            value = self.imitate.rest * value - _total(pull * known, batch)
        return Loss(value, metrics)

    def token_weight(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        """weight_it [N, T] as `loss` has it at these log-probabilities: the factor in front of A grad logp.

        Of the clip rule, the mismatch rule and the choice of tokens; 0 for what is no action. Shares, and what a
        smoothing moves to other tokens, are not in it. Any rows of the step may be asked about.
        """
        if batch.advantage is None:
            raise ValueError("the batch has no advantage yet: call Objective.advantage on the whole step first")
        action = batch.action
        current = logp.detach().masked_fill(~action, 0.0)
        old = current if batch.old_logp is None else batch.old_logp.masked_fill(~action, 0.0)
        ratio, advantage = self.ratio(current - self._against(batch, old), batch), batch.advantage.to(logp.dtype)
        weight, _ = self._clipped(batch, ratio, advantage, current)
        factor = self._correction(batch, current, old, advantage)
        weight = weight if factor is None else weight * factor
        return torch.where(action if batch.learns is None else action & batch.learns, weight, 0.0)

    def grad(self, batch: TokenBatch, totals: Totals) -> Tensor | None:
        """d loss / d logp [N, T], where no log-probability changes it: one update on the policy's own completions, and
        no term that looks at logp. Who knows it before the forward pass need not come back to the logits."""
        looking = self.kl.needs | self.mismatch.needs | self.smooth.needs | self.entropy.needs | self.teacher.needs
        if batch.old_logp is not None or self.ratio.against != "old_logp" or looking:
            return None
        if "demonstrated" in self.imitate.needs:  # the factor of a token may be its probability's
            return None
        with torch.enable_grad():
            logp = torch.zeros(batch.tokens.shape, device=batch.tokens.device, requires_grad=True)
            (gradient,) = torch.autograd.grad(self.loss(batch, logp, totals).value, logp)
        return gradient

    def critic_loss(self, batch: TokenBatch, value: Tensor, totals: Totals) -> Loss:
        """The critic's error of this pass, as a share of the whole step's. `value` [N, T] carries the gradient."""
        counted = batch.action & ~batch.reward.isnan()[:, None]
        error = torch.where(counted, self.value.error(value.masked_fill(~counted, 0.0), batch), 0.0)
        error = _total(error, batch) / max(totals.tokens, 1)
        return Loss(self.value.coefficient * error, {"value_error": error.detach()})

    def learned(self, memory: Memory, metrics: Mapping[str, float], num_completions: int) -> Memory:
        """What to remember after the updates of a step; `metrics` are those of its last update."""
        beta = getattr(self.kl, "beta", 0.0)
        memory = self.control.adjusted(memory, beta, metrics, num_completions)
        memory = self.imitate.adjusted(self.entropy.adjusted(memory, metrics))
        return self.aggregate.learned(memory, metrics.get("share_grad", 0.0))

    def _clipped(self, batch: TokenBatch, ratio: Tensor, advantage: Tensor, current: Tensor) -> tuple[Tensor, Tensor]:
        """The weight and the value of the paper's expression."""
        if not self.surveys(batch):
            tokens = (ratio, advantage, batch.action, current)
            return self.clip(*tokens), self.clip.surrogate(*tokens)
        if batch.step_weight is None:
            raise ValueError(f"{self.clip.name} looks at the whole step: call Objective.surveyed on it first")
        weight = batch.step_weight.to(ratio.dtype)
        return weight, weight * advantage

    def _is_reweighted(self, batch: TokenBatch, weight: Tensor, ratio: Tensor) -> Tensor:
        """Where the weight is not the ratio. A rule that saw the whole step saw it in a pass of its own, whose
        rounding differs with the number of ranks: there 1% apart counts as equal."""
        return (weight - ratio).abs() > 0.01 * ratio if self.surveys(batch) else weight != ratio

    def _correction(self, batch: TokenBatch, current: Tensor, old: Tensor, advantage: Tensor) -> Tensor | None:
        """The factor of the mismatch rule; None where there is none."""
        if not self.mismatch.needs:
            return None
        sampled = self._sampled(batch)
        return self.mismatch(old - sampled, current - sampled, advantage, batch.action)

    def _against(self, batch: TokenBatch, old: Tensor) -> Tensor:
        return old if self.ratio.against == "old_logp" else self._sampled(batch)

    def _sampled(self, batch: TokenBatch) -> Tensor:
        behavior = given(batch.behavior_logp, f"the method {self.name} needs behavior_logp")
        return behavior.masked_fill(~batch.action, 0.0)

    def _weighted(self, batch: TokenBatch, logp: Tensor, share: Tensor, pull: Tensor, extras: Extras) -> Tensor:
        """- SUM share pull logp; where a method smooths, part of the pull goes to the likeliest tokens."""
        coefficient = torch.where(batch.action, share * pull, 0.0)
        moved = self.smooth.spread(batch, extras)
        if moved is None:
            return -(coefficient * logp.masked_fill(~batch.action, 0.0)).sum()
        if extras.top_logp is None:
            raise ValueError(f"the method {self.name} needs top_logp and the pass has none")
        moved = moved.to(logp.dtype)
        own = ((1 - moved) * coefficient * logp.masked_fill(~batch.action, 0.0)).sum()
        top = extras.top_logp.masked_fill(~batch.action[..., None], 0.0).mean(-1)
        return -own - (moved * coefficient * top).sum()

    def _ties(self, batch: TokenBatch, logp: Tensor, share: Tensor, moved: Tensor, extras: Extras) -> Tensor:
        """The KL and entropy terms."""
        action = batch.action
        tied = action if batch.tied is None else batch.tied & action
        value = logp.new_zeros(())
        if "divergence" in self.kl.needs:
            if extras.divergence is None:
                raise ValueError(f"the {self.kl.name} term needs the divergence of the pass and got none")
            beta = getattr(self.kl, "beta", 0.0)
            value = value + beta * torch.where(tied, share * extras.divergence, 0.0).sum()
        elif self.kl.needs:
            u = self._strayed(batch, logp.detach())
            coefficient = torch.where(tied, share * self.kl.weight(u, moved), 0.0)
            value = value + (coefficient * logp.masked_fill(~action, 0.0)).sum()
        weight = self.entropy.coefficient({})
        if weight > 0:
            if extras.entropy is None:
                raise ValueError(f"the method {self.name} needs the entropy of the pass")
            value = value - weight * torch.where(action, share * extras.entropy, 0.0).sum()
        return value

    def _apart(self, batch: TokenBatch, share: Tensor, moved: Tensor, extras: Extras) -> Tensor:
        """share * factor * divergence from the teacher [N, T], 0 for what is no action of a scored sample."""
        if extras.teacher_divergence is None:
            raise ValueError(f"the {self.teacher.name} term needs the teacher_divergence of the pass and got none")
        counted = batch.action & ~batch.reward.isnan()[:, None]
        factor = self.teacher.factor(moved) * share
        return torch.where(counted, factor * extras.teacher_divergence.masked_fill(~counted, 0.0), 0.0)

    def _strayed(self, batch: TokenBatch, current: Tensor) -> Tensor:
        """u = logp - ref_logp, or - behavior_logp; 0 for a term that looks at neither."""
        if self.kl.to_old:
            return torch.zeros_like(current)
        if self.kl.to_sampler:
            return (current - self._sampled(batch)).masked_fill(~batch.action, 0.0)
        reference = given(batch.ref_logp, f"the {self.kl.name} term needs ref_logp")
        return (current - reference).masked_fill(~batch.action, 0.0)

    def _kl_metrics(self, batch: TokenBatch, current: Tensor, moved: Tensor) -> dict[str, Tensor]:
        if not self.kl.needs:
            return {}
        value = self.kl.value(self._strayed(batch, current), moved)
        return {"kl": _total(torch.where(batch.action, value, 0.0), batch)}


def _total(values: Tensor, batch: TokenBatch) -> Tensor:
    """The sum of [N, T], each row by its weight."""
    return values.sum() if batch.row_weight is None else (values * batch.row_weight[:, None]).sum()
