"""THE loop's step: the same for every row, every engine, every reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from whet.data.cursor import Cursor
from whet.data.packing import token_batch
from whet.model.split import SplitModel
from whet.objective import Memory, Objective, step_totals
from whet.protocols import Engine
from whet.rollout.collect import Score, replies, request_seed, scored_groups
from whet.train.evaluate import Exam, marks
from whet.train.optimizer import OptimizerSettings, adamw, optimizer_tensors, restore_optimizer, scheduled_rate
from whet.train.run import Clock, RunFailed
from whet.train.update import NotFinite, Scores, scores, update
from whet.types import Group, Prompt, Sample, Sampling, StepReport, StopReason, TokenBatch


@dataclass(frozen=True)
class RLSettings:
    steps: int
    prompts_per_step: int
    group_size: int
    updates_per_step: int
    tokens_per_pass: int  # memory only, never the gradient
    sampling: Sampling
    seed: int


@dataclass(frozen=True)
class Questions:
    """The prompts a run learns from, and how replies to them are judged."""

    prompts: Sequence[Prompt]
    prompt_tokens: Sequence[tuple[int, ...]]
    score: Score


class RLCourse:
    """Reinforcement learning of one policy by one objective."""

    def __init__(
        self,
        policy: SplitModel,
        tokenizer: Any,
        engine: Engine,
        objective: Objective,
        questions: Questions,
        settings: RLSettings,
        optimizer: OptimizerSettings,
        reference: SplitModel | None = None,
        exam: Exam | None = None,
    ) -> None:
        if "ref_logp" in objective.needs() and reference is None:
            raise ValueError(f"the objective {objective.name} needs a reference policy and got none")
        self._policy, self._tokenizer, self._engine = policy, tokenizer, engine
        self._objective, self._questions, self._settings = objective, questions, settings
        self._reference, self._exam = reference, exam
        self._rates = optimizer
        self._optimizer = adamw(policy.model, optimizer)
        self._cursor = Cursor(len(questions.prompts), settings.seed)
        self._memory: Memory = {}
        self._version = 0
        policy.model.train()

    @property
    def model(self) -> Any:
        return self._policy.model

    @property
    def tokenizer(self) -> Any:
        return self._tokenizer

    def step(self, number: int, clock: Clock) -> tuple[StepReport, list[tuple[Prompt, Sample]]]:
        groups = self._collect(number, clock)
        if all(sample.reward is None for group in groups for sample in group.samples):
            raise RunFailed(f"step {number}: not one of its samples could be scored; mend the reward, then resume")
        batch = self._annotated(token_batch(groups), clock)
        batch, self._memory = self._objective.advantage(batch, self._memory)
        rate = scheduled_rate(self._rates, number, self._settings.steps)
        with clock.phase("train"):
            metrics = self._learn(batch, groups, number, rate)
        report = StepReport(
            step=number,
            policy_version=self._version,
            counts=counts(groups),
            reward=mean_rewards(groups),
            metrics={**metrics, "uniform_groups": uniform_share(groups), "learning_rate": rate},
        )
        self._version += 1
        self._engine.load(self._policy.model.state_dict(), self._version)
        return report, [(group.prompt, sample) for group in groups for sample in group.samples]

    def _collect(self, number: int, clock: Clock) -> list[Group]:
        settings = self._settings
        rows, self._cursor = self._cursor.take(settings.prompts_per_step)
        tokens = [self._questions.prompt_tokens[row] for row in rows]
        with clock.phase("rollout"):
            written = replies(self._engine, tokens, settings.group_size, settings.sampling, (settings.seed, number))
        with clock.phase("reward"):
            return scored_groups([self._questions.prompts[row] for row in rows], written, self._questions.score)

    def _annotated(self, batch: TokenBatch, clock: Clock) -> TokenBatch:
        """What the objective needs. With one update the ratio is 1, so old_logp is only needed for more."""
        needs, settings = self._objective.needs(), self._settings
        temperature, tokens_per_pass = settings.sampling.temperature, settings.tokens_per_pass
        if "ref_logp" in needs and self._reference is not None:
            with clock.phase("reference"):
                ref_logp = scores(self._reference, batch, temperature, tokens_per_pass).logp
            batch = replace(batch, ref_logp=ref_logp)
        if "old_logp" in needs and settings.updates_per_step > 1:
            with clock.phase("train"):
                batch = replace(batch, old_logp=scores(self._policy, batch, temperature, tokens_per_pass).logp)
        return batch

    def _learn(self, batch: TokenBatch, groups: Sequence[Group], number: int, rate: float) -> dict[str, float]:
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        collected: list[dict[str, float]] = []
        for rows in minibatches(batch.num_sequences, self._settings.updates_per_step, self._settings.seed, number):
            part = batch.select(rows)
            totals = step_totals(part, self._settings.sampling.max_new_tokens)
            try:
                metrics, seen = update(
                    self._policy,
                    self._optimizer,
                    self._objective,
                    part,
                    totals,
                    temperature=self._settings.sampling.temperature,
                    tokens_per_pass=self._settings.tokens_per_pass,
                    max_gradient_norm=self._rates.max_gradient_norm,
                )
            except NotFinite as error:
                raise RunFailed(_failure(number, error, groups, rows)) from error
            if not collected:  # before the first update the policy is the one that sampled
                metrics.update(_first_look(part, seen))
            collected.append(metrics)
        names = collected[0]
        return {name: fmean([each[name] for each in collected if name in each]) for name in names}

    def evaluate(self) -> dict[str, float]:
        if self._exam is None:
            return {}
        return marks(self._exam.sat(self._engine))

    def state(self) -> dict[str, Any]:
        return {"position": self._cursor.position, "memory": dict(self._memory), "version": self._version}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        return {"optimizer": optimizer_tensors(self._policy.model, self._optimizer)}

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        self._cursor = replace(self._cursor, position=state["position"])
        self._memory = state["memory"]
        self._version = state["version"]
        self._engine.load(self._policy.model.state_dict(), self._version)
        restore_optimizer(self._policy.model, self._optimizer, tensors["optimizer"])


def minibatches(num_rows: int, count: int, seed: int, step: int) -> list[list[int]]:
    """`count` parts of a seeded shuffle of the rows; one part is the batch as it is."""
    if count == 1:
        return [list(range(num_rows))]
    stream = torch.Generator().manual_seed(request_seed(seed, "shuffle", step) % 2**63)
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


def _first_look(batch: TokenBatch, seen: Scores) -> dict[str, float]:
    action = batch.action
    if not action.any() or batch.behavior_logp is None:
        return {}
    gap = (seen.logp - batch.behavior_logp)[action].abs()
    return {
        "entropy": float(seen.entropy[action].double().mean()),
        "sampler_gap": float(gap.double().mean()),
        "sampler_gap_max": float(gap.max()),
    }


def _failure(step: int, error: NotFinite, groups: Sequence[Group], rows: Sequence[int]) -> str:
    ids = [group.prompt.id for group in groups for _ in group.samples]
    concerned = sorted({ids[rows[row]] for row in error.rows}) if error.rows else sorted({ids[row] for row in rows})
    shown = ", ".join(concerned[:4]) + (f" and {len(concerned) - 4} more" if len(concerned) > 4 else "")
    return f"step {step}: {error}; samples of {shown}; the weights of the last checkpoint are untouched"
