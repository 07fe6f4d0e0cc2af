"""THE loop's step: the same for every row, every engine, every reward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from whet.data.packing import token_batch
from whet.data.segments import anchors, segments, sentence_ends
from whet.metrics.distribution import reward_spread
from whet.model.causal_lm import CausalLM
from whet.model.critic import Critic
from whet.model.reference import CopiedReference, ReferencePolicy
from whet.objective import Memory, Objective, step_totals
from whet.protocols import Engine
from whet.rollout.buffer import PromptOrder, RolloutBuffer
from whet.rollout.collect import (
    RolloutBatch,
    RolloutSpec,
    Score,
    draw_completions,
    outcomes_of,
    request_seed,
    score_groups,
)
from whet.train.evaluate import Evaluator, eval_metrics
from whet.train.optimizer import OptimizerSettings, adamw, optimizer_tensors, restore_optimizer, scheduled_rate
from whet.train.run import PhaseTimer, RunFailed
from whet.train.update import NotFinite, Scores, TrainState, critic_values, token_scores, update
from whet.types import Group, Prompt, Sample, Sampling, StepReport, StopReason, TokenBatch


@dataclass(frozen=True)
class RLSettings:
    steps: int
    prompts_per_step: int
    group_size: int
    updates_per_step: int  # optimizer updates a pass over the batch
    micro_batch_tokens: int  # memory only, never the gradient
    sampling: Sampling
    seed: int
    epochs_per_batch: int = 1  # times the batch is gone through
    staleness: int = 0  # policy versions that completions are behind
    by_difficulty: bool = False  # visit prompts whose completions agree less often

    @property
    def updates(self) -> int:
        return self.updates_per_step * self.epochs_per_batch


@dataclass(frozen=True)
class RewardContext:
    score: Score
    part_weights: Mapping[str, float] = field(default_factory=dict)  # of the reward, in its order
    take_notes: Callable[[], Mapping[str, float]] = dict  # what rewards noticed since the last time, for the metrics


@dataclass(frozen=True)
class PromptDataset:
    """The prompts a run learns from, and how completions to them are judged."""

    prompts: Sequence[Prompt]
    prompt_tokens: Sequence[tuple[int, ...]]
    judging: Callable[[float], RewardContext]  # share of the training done -> how completions are judged then


@dataclass(frozen=True)
class RLModels:
    """Who takes part: the policy, who samples from it, what it is held to and who judges its states."""

    policy: CausalLM
    tokenizer: Any
    engine: Engine
    reference: ReferencePolicy | None = None
    critic: Critic | None = None
    critic_rate: float = 0.0  # the critic's learning rate; 0: the policy's


class RLTrainer:
    """Reinforcement learning of one policy by one objective."""

    def __init__(
        self,
        cast: RLModels,
        objective: Objective,
        questions: PromptDataset,
        settings: RLSettings,
        optimizer: OptimizerSettings,
        exam: Evaluator | None = None,
    ) -> None:
        if "ref_logp" in objective.needs() and cast.reference is None:
            raise ValueError(f"the objective {objective.name} needs a reference policy and got none")
        if "value" in objective.needs() and cast.critic is None:
            raise ValueError(f"the objective {objective.name} needs a critic and got none")
        self._cast, self._objective, self._questions, self._settings = cast, objective, questions, settings
        self._exam, self._rates = exam, optimizer
        self._memory: Memory = {}
        self._version = 0
        critic_optimizer = None if cast.critic is None else adamw(cast.critic.modules(), optimizer)
        self._learner = TrainState(
            cast.policy,
            adamw(cast.policy.model, optimizer),
            settings.sampling.temperature,
            settings.micro_batch_tokens,
            optimizer.max_gradient_norm,
            cast.critic,
            critic_optimizer,
        )
        wish = RolloutSpec(
            settings.prompts_per_step,
            settings.group_size,
            settings.sampling,
            "greedy_reward" in objective.needs(),
            objective.keep,
        )
        route = PromptOrder(settings.seed, settings.by_difficulty, settings.staleness)
        self._supply = RolloutBuffer(questions.prompts, self._ask, wish, route)
        self._ends = sentence_ends(cast.tokenizer, cast.policy.vocabulary) if "segment" in objective.needs() else None
        cast.policy.model.train()

    @property
    def model(self) -> Any:
        return self._cast.policy.model

    @property
    def tokenizer(self) -> Any:
        return self._cast.tokenizer

    @property
    def over(self) -> str | None:
        """Why the run ends before its last step, or None."""
        return self._objective.control.ends_run(self._memory)

    def step(self, number: int, clock: PhaseTimer) -> tuple[StepReport, list[tuple[Prompt, Sample]]]:
        self._clock = clock
        self._judging = self._questions.judging((number - 1) / self._settings.steps)
        self._judging.take_notes()  # those of the exam do not belong to the step
        found, groups = self._collected(number)
        notes = self._judging.take_notes()
        batch = self._annotated(self._packed(groups), clock)
        batch, self._memory = self._objective.advantage(batch, self._memory)
        rate = scheduled_rate(self._rates, number, self._settings.steps)
        with clock.phase("train"):
            metrics, last = self._learn(batch, groups, number, rate)
        row = self._objective
        if number > row.value.warmup:
            num_completions = sum(len(group.samples) for group in groups)
            self._memory = row.learned(self._memory, {**metrics, **last}, num_completions)
        report = StepReport(
            step=number,
            policy_version=self._version,
            counts={**counts(groups), **_spent(found, groups)},
            reward=mean_rewards(groups),
            spread=reward_spread(groups),
            metrics={
                **metrics,
                **self._told(batch),
                **notes,
                "uniform_groups": uniform_share(groups),
                "learning_rate": rate,
            },
        )
        self._version += 1
        self._cast.engine.load(self._cast.policy.model.state_dict(), self._version)
        kept = row.reference.kept_after(number)
        if kept < 1 and isinstance(self._cast.reference, CopiedReference):
            self._cast.reference.follow(self._cast.policy, kept)
        return report, [(group.prompt, sample) for group in groups for sample in group.samples]

    def _ask(self, rows: Sequence[int], count: int, sampling: Sampling, seed: tuple[int, ...]) -> list[Group]:
        tokens = [self._questions.prompt_tokens[row] for row in rows]
        with self._clock.phase("rollout"):
            written = draw_completions(self._cast.engine, tokens, count, sampling, seed)
        with self._clock.phase("reward"):
            return score_groups([self._questions.prompts[row] for row in rows], written, self._judging.score)

    def _collected(self, number: int) -> tuple[RolloutBatch, list[Group]]:
        keep = self._objective.keep
        found = self._supply.next_harvest()
        groups = [group for _, group in found.groups]
        if not keep.refills and not keep.grows:
            groups = [group for group in groups if keep(outcomes_of(group.samples), self._staleness(group))]
        if keep.refills and not groups:
            raise RunFailed(
                f"step {number}: all completions to each of {len(found.outcomes)} prompts had the same outcome, in "
                f"{found.rounds} rounds; nothing can be learned: look at the reward, change the data's difficulty, or "
                "train on every group with objective.keep=everything"
            )
        if not groups:
            raise RunFailed(f"step {number}: every group is older than objective.keep.max_staleness allows; raise it")
        if all(sample.reward is None for group in groups for sample in group.samples):
            raise RunFailed(f"step {number}: not one of its samples could be scored; fix the reward, then resume")
        return found, groups

    def _staleness(self, group: Group) -> int:
        return self._version - min(sample.versions[0] for sample in group.samples)

    def _packed(self, groups: Sequence[Group]) -> TokenBatch:
        weights = self._judging.part_weights or None
        batch = token_batch(groups, weights, self._settings.sampling.max_new_tokens)
        if self._ends is None:
            return batch
        segment = segments(batch.tokens, batch.action, self._ends)
        return replace(batch, segment=segment, anchor=anchors(batch.tokens, batch.group, segment))

    def _annotated(self, batch: TokenBatch, clock: PhaseTimer) -> TokenBatch:
        """What the objective needs. While the policy is the one that sampled, old_logp would only repeat logp."""
        needs, settings, cast = self._objective.needs(), self._settings, self._cast
        temperature, micro_batch_tokens = settings.sampling.temperature, settings.micro_batch_tokens
        if "ref_logp" in needs and cast.reference is not None:
            with clock.phase("reference"), cast.reference.open() as reference:
                batch = replace(batch, ref_logp=token_scores(reference, batch, temperature, micro_batch_tokens).logp)
        has_moved = settings.updates > 1 or settings.staleness > 0
        with clock.phase("train"):
            if ("old_logp" in needs and has_moved) or "entropy" in needs:
                seen = token_scores(cast.policy, batch, temperature, micro_batch_tokens)
                batch = replace(batch, old_logp=seen.logp if has_moved else None, entropy=seen.entropy)
            if cast.critic is not None:
                batch = replace(batch, value=critic_values(cast.critic, cast.policy, batch, micro_batch_tokens))
        return batch

    def _learn(
        self, batch: TokenBatch, groups: Sequence[Group], number: int, rate: float
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Metrics averaged over the updates of the step, and those of its last one."""
        share = rate / self._rates.learning_rate
        for group in self._learner.optimizer.param_groups:
            group["lr"] = rate
        if self._learner.critic_optimizer is not None:
            for group in self._learner.critic_optimizer.param_groups:
                group["lr"] = share * (self._cast.critic_rate or self._rates.learning_rate)
        row = self._objective.tuned(self._memory)
        only_critic = number <= row.value.warmup
        collected: list[dict[str, float]] = []
        for rows in self._minibatches(batch.num_sequences, number):
            part = batch.select(rows)
            totals = step_totals(part, self._settings.sampling.max_new_tokens)
            try:
                metrics, seen = self._updated(row, part, totals, only_critic)
            except NotFinite as error:
                raise RunFailed(_failure(number, error, groups, rows)) from error
            if not collected:  # before the first update the policy is the one that sampled
                metrics.update(_first_look(part, seen, self._settings.staleness > 0))
            if "ended" in metrics and collected:
                break
            collected.append(metrics)
        names = collected[0]
        means = {name: fmean([each[name] for each in collected if name in each]) for name in names}
        return {**means, "updates": float(len(collected))}, collected[-1]

    def _updated(self, row: Objective, part: TokenBatch, totals: Any, only_critic: bool) -> Any:
        if "divergence" in row.needs() and self._cast.reference is not None:
            with self._cast.reference.open() as reference:
                return update(self._learner, row, part, totals, reference=reference, only_critic=only_critic)
        return update(self._learner, row, part, totals, only_critic=only_critic)

    def _minibatches(self, num_rows: int, number: int) -> list[list[int]]:
        settings = self._settings
        return [
            rows
            for turn in range(settings.epochs_per_batch)
            for rows in minibatches(num_rows, settings.updates_per_step, settings.seed, number, turn)
        ]

    def _told(self, batch: TokenBatch) -> dict[str, float]:
        """What the row's memory and the critic say of themselves."""
        found = {
            name: self._memory[key]
            for name, key in (("beta", "beta"), ("length_power", "length_power"), ("entropy_weight", "entropy_weight"))
            if key in self._memory
        }
        if batch.target is not None and batch.value is not None and int(batch.action.sum()) > 1:
            target, value = batch.target[batch.action], batch.value[batch.action].to(batch.target.dtype)
            spread = target.var()
            if spread > 0:
                found["critic_explains"] = float(1 - (target - value).var() / spread)
        return found

    def evaluate(self) -> dict[str, float]:
        if self._exam is None:
            return {}
        return eval_metrics(self._exam.evaluate(self._cast.engine))

    def state(self) -> dict[str, Any]:
        return {"supply": self._supply.state(), "memory": dict(self._memory), "version": self._version}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        found = {"optimizer": optimizer_tensors(self._cast.policy.model, self._learner.optimizer)}
        if self._cast.critic is not None and self._learner.critic_optimizer is not None:
            found["critic"] = self._cast.critic.tensors()
            modules = self._cast.critic.modules()
            found["critic_optimizer"] = optimizer_tensors(modules, self._learner.critic_optimizer)
        if self._follows and isinstance(self._cast.reference, CopiedReference):
            found["reference"] = self._cast.reference.tensors()
        if self._settings.staleness:
            found["waiting"] = self._supply.tensors()
        return found

    @property
    def _follows(self) -> bool:
        """The reference is no longer the model the run began with."""
        return any(self._objective.reference.kept_after(step) < 1 for step in range(1, self._version + 1))

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        self._supply.restore(state["supply"], tensors.get("waiting", {}))
        self._memory = state["memory"]
        self._version = state["version"]
        self._cast.engine.load(self._cast.policy.model.state_dict(), self._version)
        restore_optimizer(self._cast.policy.model, self._learner.optimizer, tensors["optimizer"])
        if self._cast.critic is not None and self._learner.critic_optimizer is not None:
            self._cast.critic.restore(tensors["critic"])
            modules = self._cast.critic.modules()
            restore_optimizer(modules, self._learner.critic_optimizer, tensors["critic_optimizer"])
        if "reference" in tensors and isinstance(self._cast.reference, CopiedReference):
            self._cast.reference.restore(tensors["reference"])


def minibatches(num_rows: int, count: int, seed: int, step: int, turn: int = 0) -> list[list[int]]:
    """`count` parts of a seeded shuffle of the rows, another one in each turn; one part is the batch as it is."""
    if count == 1:
        return [list(range(num_rows))]
    names = (seed, "shuffle", step, turn) if turn else (seed, "shuffle", step)
    stream = torch.Generator().manual_seed(request_seed(*names) % 2**63)
    order = torch.randperm(num_rows, generator=stream)
    return [part.tolist() for part in order.tensor_split(count)]


def counts(groups: Sequence[Group]) -> dict[str, int]:
    samples = [sample for group in groups for sample in group.samples]
    return {
        "prompts": len(groups),
        "samples": len(samples),
        "tokens": sum(sample.num_actions for sample in samples),
        "truncated": sum(sample.stop is StopReason.LENGTH for sample in samples),
        "unscorable": sum(sample.reward is None for sample in samples),
    }


def _spent(found: RolloutBatch, groups: Sequence[Group]) -> dict[str, int]:
    """What it took to get the groups, where that is more than the groups themselves."""
    trained = sum(len(group.samples) for group in groups)
    if found.num_samples == trained:
        return {}
    return {"prompts_spent": len(found.outcomes), "samples_spent": found.num_samples, "rounds": found.rounds}


def mean_rewards(groups: Sequence[Group]) -> dict[str, float]:
    """`total` and each part: means over the scored samples."""
    samples = [sample for group in groups for sample in group.samples if sample.reward is not None]
    if not samples:
        return {"total": float("nan")}
    parts = {name: fmean([sample.parts[name] for sample in samples]) for name in samples[0].parts}
    return {"total": fmean([sample.reward for sample in samples if sample.reward is not None]), **parts}


def uniform_share(groups: Sequence[Group]) -> float:
    """Share of groups whose scored samples all have the same reward: they teach nothing."""
    outcomes = [{sample.reward for sample in group.samples if sample.reward is not None} for group in groups]
    return fmean([float(len(each) <= 1) for each in outcomes])


def _first_look(batch: TokenBatch, seen: Scores, is_stale: bool) -> dict[str, float]:
    action = batch.action
    if not action.any() or batch.behavior_logp is None:
        return {}
    gap = (seen.logp - batch.behavior_logp)[action].abs()
    name = "staleness" if is_stale else "sampler_gap"  # an older policy is meant to differ, an engine is not
    return {
        "entropy": float(seen.entropy[action].double().mean()),
        name: float(gap.double().mean()),
        f"{name}_max": float(gap.max()),
    }


def _failure(step: int, error: NotFinite, groups: Sequence[Group], rows: Sequence[int]) -> str:
    ids = [group.prompt.id for group in groups for _ in group.samples]
    concerned = sorted({ids[rows[row]] for row in error.rows}) if error.rows else sorted({ids[row] for row in rows})
    shown = ", ".join(concerned[:4]) + (f" and {len(concerned) - 4} more" if len(concerned) > 4 else "")
    return f"step {step}: {error}; samples of {shown}; the weights of the last checkpoint are untouched"
