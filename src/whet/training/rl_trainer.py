"""Reinforcement learning: one step, the same for every objective, every engine, every reward."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from whet.data.packing import (
    anchors,
    segments,
    sentence_ends,
    token_batch,
    with_demonstrations,
    with_states,
    with_turns,
)
from whet.model.causal_lm import CausalLM
from whet.model.critic import Critic
from whet.model.experts import Routers, routers
from whet.model.reference import CopiedReference, ReferencePolicy
from whet.model.token_logp import TokenScores
from whet.objective import Memory, Objective, step_totals
from whet.objective.clip import StepClip
from whet.record.log import recorded_places
from whet.record.metrics.distribution import reward_spread
from whet.record.metrics.timer import PhaseTimer
from whet.rollout.buffer import RolloutBatch
from whet.rollout.collect import Collector, outcomes_of
from whet.rollout.seed import request_seed
from whet.training.demonstrations import DemonstrationSource, ShownRow
from whet.training.distributed.ranks import ALONE, Ranks
from whet.training.evaluator import Evaluator
from whet.training.optimizer import (
    adamw,
    optimizer_tensors,
    restore_optimizer,
    scheduled_rate,
    set_learning_rate,
)
from whet.training.run_loop import Trainer
from whet.training.sections import BatchSection, OptimizerSection
from whet.training.step_metrics import (
    TokenTraces,
    collection_counts,
    critic_metrics,
    deciding_parts,
    drift_metrics,
    environment_metrics,
    episode_counts,
    expert_counts,
    group_counts,
    group_staleness,
    load_metrics,
    mean_rewards,
    outcome_lengths,
    refused_majorities,
    repetition,
    replayed_share,
    reward_company,
    role_rewards,
    sampler_metrics,
    teacher_metrics,
    uniform_share,
    used_experts,
)
from whet.training.teacher import DistillationSettings, Teacher, taught_rows
from whet.training.update import (
    RoutingReplay,
    TrainState,
    UpdateRefused,
    critic_values,
    replayed_experts,
    token_scores,
    top_scores,
    update,
)
from whet.types import Group, Prompt, RunFailed, Sample, Sampling, StepReport, TokenBatch

logger = logging.getLogger(__name__)
MOST_UNSCORED = 10  # steps in a row without a single score

SHOWN_FAILURES = 3  # of a step's episodes, in words
# what `RLTrainer._annotate` adds to a batch; none of it depends on a reward
ANNOTATED = (
    *("ref_logp", "teacher_logp", "teacher_top", "teacher_top_logp"),
    *("old_logp", "entropy", "old_experts", "value"),
)
TUNED = ("beta", "length_power", "entropy_weight")  # values that an objective adapts from step to step


@dataclass(frozen=True)
class RLModels:
    """The policy, the reference it is held to, and the critic that values its states."""

    policy: CausalLM
    tokenizer: Any
    reference: ReferencePolicy | None = None
    critic: Critic | None = None
    critic_rate: float = 0.0  # the critic's learning rate; 0: the policy's
    teacher: Teacher | None = None
    target: DistillationSettings = field(default_factory=DistillationSettings)
    demonstrations: DemonstrationSource | None = None


class RLTrainer(Trainer):
    """Reinforcement learning of one policy by one objective."""

    def __init__(
        self,
        models: RLModels,
        objective: Objective,
        collector: Collector,
        *,
        batch: BatchSection,
        optimizer: OptimizerSection,
        sampling: Sampling,
        steps: int,
        seed: int,
        most_actions: int = 0,
        staleness: int | None = None,
        traced: int = 0,
        evaluator: Evaluator | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """`most_actions` are the tokens that the policy may write in an episode; 0: one completion's.

        `staleness` is how many policy versions completions are behind, where the batch does not say it. Samples of so
        many groups as `traced` says, the best and the worst, tell what became of their tokens.
        """
        for fields, provided, what in (
            ({"ref_logp"}, models.reference, "a reference policy"),
            ({"teacher_logp", "teacher_divergence"}, models.teacher, "a teacher"),
            ({"demonstrated"}, models.demonstrations, "demonstrations"),
            ({"value"}, models.critic, "a critic"),
        ):
            if provided is None and fields & objective.needs():
                raise ValueError(f"the objective {objective.name} needs {what} and got none")
        self.model, self.tokenizer = models.policy.model, models.tokenizer
        self._models, self._objective, self._collector = models, objective, collector
        self._batch_section, self._optimizer_section, self._sampling = batch, optimizer, sampling
        self._steps, self._seed, self._evaluator, self._ranks = steps, seed, evaluator, ranks
        self._most_actions = most_actions or sampling.max_new_tokens
        self._staleness = batch.staleness if staleness is None else staleness
        self._traced = traced
        self._memory: Memory = {}
        self._version = 0
        self._has_skipped = False
        self._has_unscored, self._unscored_steps = False, 0  # ever; in a row
        self._train_state = TrainState(
            models.policy,
            adamw(models.policy.model, optimizer),
            temperature=sampling.temperature,
            micro_batch_tokens=batch.micro_batch_tokens,
            max_gradient_norm=optimizer.max_gradient_norm,
            critic=models.critic,
            critic_optimizer=None if models.critic is None else adamw(models.critic.modules(), optimizer),
            ranks=ranks,
            routing_replay=batch.routing_replay,
        )
        self._routers = routers(models.policy)
        needs_segments = "segment" in objective.needs()
        self._sentence_ends = sentence_ends(models.tokenizer, models.policy.vocabulary) if needs_segments else None
        models.policy.model.train()

    @property
    def taught_by(self) -> str:
        """The teacher in words; empty where there is none."""
        return "" if self._models.teacher is None else self._models.teacher.said

    @property
    def shown(self) -> str:
        """The demonstrations in words; empty where there are none."""
        return "" if self._models.demonstrations is None else self._models.demonstrations.said

    @property
    def ended_early(self) -> str | None:
        return self._objective.control.ends_run(self._memory)

    def step(self, number: int, timer: PhaseTimer) -> tuple[StepReport, list[tuple[Prompt, Sample]]]:
        early: list[TokenBatch] = []

        def annotate(groups: Sequence[Group]) -> None:
            """What can be known of the groups before they are scored."""
            early.append(self._annotate(self._pack(groups, {}), groups, timer))

        reads_scores = self._models.target.section.context != "none"  # the teacher is shown how it went
        meanwhile = None if reads_scores or not self._has_passes else annotate
        rollout = self._collector.collect((number - 1) / self._steps, meanwhile)
        timer.add(rollout.seconds, rollout.spans)
        for failure in rollout.played.failures[:SHOWN_FAILURES]:
            logger.warning("step %d: %s; it is left out", number, failure)
        groups = self._select(rollout, number)
        batch = self._pack(groups, rollout.part_weights)
        if early and len(groups) == len(rollout.groups):  # all are trained on: what is known of them holds
            batch = replace(batch, **{name: getattr(early[0], name) for name in ANNOTATED})
        else:
            batch = self._annotate(batch, groups, timer)
        batch, self._memory = self._objective.advantage(batch, self._memory)
        rate = self.rate_factor * scheduled_rate(self._optimizer_section, number, self._steps)
        source = self._models.demonstrations
        shown = [] if source is None else source.rows(groups)
        samples = [(group.prompt, sample) for group in groups for sample in group.samples]
        traces = TokenTraces(batch, recorded_places(samples, self._traced) if self._ranks.is_first else ())
        reports: list[StepReport] = []

        def describe() -> None:
            """What is known of the step before it is trained on."""
            counts = {**self._untaught_count(batch), **({} if source is None else {"demonstrations": len(shown)})}
            reports.append(self._described(rollout, groups, batch, StepReport(number, self._version, counts, {}, {})))

        with timer.phase("train"):
            metrics = self._update(batch, groups, shown, number, rate, traces, describe)
        metrics |= {name: self._memory[name] for name in TUNED if name in self._memory}
        report = replace(reports[0], metrics={**metrics, **reports[0].metrics, "learning_rate": rate})
        self._publish(number)
        return replace(report, timeline=timer.timeline()), traces.on(samples)

    def _described(
        self, rollout: RolloutBatch, groups: Sequence[Group], batch: TokenBatch, report: StepReport
    ) -> StepReport:
        """The report with what completions and rewards say, whatever is learned from them."""
        counts = {
            **group_counts(groups),
            **episode_counts(groups, rollout.played),
            **collection_counts(rollout, groups),
            **report.counts,
        }
        metrics = {
            **critic_metrics(batch),
            **teacher_metrics(batch),
            **rollout.notes,
            **reward_company(batch),
            **outcome_lengths(groups),
            **deciding_parts(batch, groups, rollout.part_weights),
            **repetition(groups),
            **refused_majorities(groups),
            **environment_metrics(groups),
            **role_rewards(groups),
            **({"uniform_groups": uniform_share(groups)} if self._objective.needs_reward else {}),
        }
        return replace(
            report, counts=counts, reward=mean_rewards(groups), spread=reward_spread(groups), metrics=metrics
        )

    def _select(self, rollout: RolloutBatch, number: int) -> list[Group]:
        """The groups to train on; an error where nothing can be learned from them."""
        keep = self._objective.keep
        groups = [group for _, group in rollout.groups]
        if not keep.refills and not keep.grows:
            groups = [
                group for group in groups if keep(outcomes_of(group.samples), group_staleness(group, self._version))
            ]
        if keep.refills and not groups:
            raise RunFailed(
                f"step {number}: all completions to each of {len(rollout.outcomes)} prompts had the same outcome, in "
                f"{rollout.rounds} rounds; nothing can be learned: look at the reward, change the difficulty, or "
                "train on every group with objective.keep=everything"
            )
        if not groups:
            raise RunFailed(f"step {number}: every group is older than objective.keep.max_staleness allows; raise it")
        self._count_unscored(groups, rollout, number)
        return groups

    def _count_unscored(self, groups: Sequence[Group], rollout: RolloutBatch, number: int) -> None:
        """Refuse steps without a score: at once where the environment failed, else many in a row.

        In a mixture of tasks a step may hold only rows that no reward is for; nothing is learned from it.
        """
        if any(sample.reward is not None for group in groups for sample in group.samples):
            self._unscored_steps = 0
            return
        self._unscored_steps += 1
        failures = rollout.played.failures
        if failures or self._unscored_steps >= MOST_UNSCORED:
            cause = f"fix the environment ({failures[0]})" if failures else "fix the reward"
            several = f" and of the {MOST_UNSCORED - 1} before" if not failures else ""
            raise RunFailed(f"step {number}: not one of its samples{several} could be scored; {cause}, then resume")
        if not self._has_unscored:
            self._has_unscored = True
            logger.warning(
                "step %d: no reward scored any of its samples, and nothing is learned from it; later ones are counted "
                "in unscorable",
                number,
            )

    def _pack(self, groups: Sequence[Group], part_weights: Mapping[str, float]) -> TokenBatch:
        batch = token_batch(groups, part_weights or None, self._most_actions, self._objective.needs())
        if self._batch_section.routing_replay == "sampler" and batch.routed_experts is None:
            raise RunFailed(
                "batch.routing_replay=sampler: the engine's samples do not say which experts wrote them "
                "(Sample.routed_experts); let the engine return them, or give batch.routing_replay=trainer"
            )
        if self._sentence_ends is None:
            return batch
        samples = [sample for group in groups for sample in group.samples]
        segment = with_turns(segments(batch.tokens, batch.action, self._sentence_ends), samples)
        anchor = with_states(anchors(batch.tokens, batch.group, segment), samples)
        return replace(batch, segment=segment, anchor=anchor)

    def _annotate(self, batch: TokenBatch, groups: Sequence[Group], timer: PhaseTimer) -> TokenBatch:
        """What the objective needs. While the policy is the one that sampled, old_logp would only repeat logp."""
        needs, models, replayed = self._objective.needs(), self._models, self._batch_section.routing_replay
        temperature, micro_batch_tokens = self._sampling.temperature, self._batch_section.micro_batch_tokens
        if "ref_logp" in needs and models.reference is not None:
            with timer.phase("reference"), models.reference.open() as reference:
                ref_logp = token_scores(reference, batch, temperature, micro_batch_tokens, self._ranks).logp
                batch = replace(batch, ref_logp=ref_logp)
        if models.teacher is not None:
            with timer.phase("teacher"):
                batch = self._ask_teacher(batch, groups, models.teacher)
        has_moved = self._has_moved
        replay = batch.routed_experts if replayed == "sampler" else None
        with timer.phase("train"):
            if ("old_logp" in needs and has_moved) or "entropy" in needs or replayed == "trainer":
                scores = token_scores(
                    models.policy, batch, temperature, micro_batch_tokens, self._ranks, replay, has_moved
                )
                batch = replace(batch, old_logp=scores.logp if has_moved else None, entropy=scores.entropy)
                batch = replace(batch, old_experts=scores.experts)
            if models.critic is not None:
                value = critic_values(models.critic, models.policy, batch, micro_batch_tokens, self._ranks, replay)
                batch = replace(batch, value=value)
        return batch

    @property
    def _has_moved(self) -> bool:
        """Whether some update of a step sees another policy than the one that sampled."""
        section = self._batch_section
        return section.updates_per_step * section.epochs_per_batch > 1 or self._staleness > 0

    @property
    def _has_passes(self) -> bool:
        """Whether `_annotate` has anything to compute."""
        needs, models = self._objective.needs(), self._models
        return bool(
            needs & {"ref_logp", "entropy"}
            or ("old_logp" in needs and self._has_moved)
            or self._batch_section.routing_replay == "trainer"
            or models.teacher is not None
            or models.critic is not None
        )

    def _ask_teacher(self, batch: TokenBatch, groups: Sequence[Group], teacher: Teacher) -> TokenBatch:
        """What the objective needs of the teacher before the first update.

        Where the teacher reads more than the prompt, samples about which there is nothing to read are not trained on:
        they leave numerators and denominators, as any row without an action does.
        """
        needs, target = self._objective.needs(), self._models.target
        shown = None
        if target.section.context != "none":
            shown = taught_rows(batch, groups, target)
            batch = replace(batch, action=batch.action & False if shown is None else shown.places)
            if shown is None:
                return _untaught(batch, needs, target)
        seen = batch if shown is None else shown.batch
        if "teacher_logp" in needs:
            logp = teacher.logp(seen)
            batch = replace(batch, teacher_logp=logp if shown is None else shown.back(logp))
        if "teacher_divergence" in needs and target.section.top_k:
            chosen = None
            if target.section.top_of == "policy":
                tokens, temperature = self._batch_section.micro_batch_tokens, self._sampling.temperature
                policy = self._models.policy
                chosen, _ = top_scores(policy, batch, temperature, tokens, target.section.top_k, None, self._ranks)
            top, logp = teacher.top(seen, chosen if shown is None or chosen is None else shown.forth(chosen))
            if shown is not None:
                top, logp = shown.back(top), shown.back(logp)
            batch = replace(batch, teacher_top=top, teacher_top_logp=logp)
        return batch

    def _update(
        self,
        batch: TokenBatch,
        groups: Sequence[Group],
        shown: Sequence[ShownRow],
        number: int,
        rate: float,
        traces: TokenTraces,
        meanwhile: Callable[[], object],
    ) -> dict[str, float]:
        """Every update of the step; metrics are averaged over them. `meanwhile` is called during the first one."""
        self._set_learning_rates(rate)
        ids = [group.prompt.id for group in groups for _ in group.samples] + [
            shown_row.prompt.id for shown_row in shown
        ]
        num_samples = batch.num_sequences
        if self._models.demonstrations is not None:
            batch = with_demonstrations(batch, [shown_row.row for shown_row in shown])
        objective = self._objective.tuned(self._memory)
        only_critic = number <= objective.value.warmup
        updates: list[dict[str, float]] = []
        experts = _ExpertUse(self._routers, self._batch_section.routing_replay)
        for rows in self._minibatches(batch.num_sequences, number):
            minibatch = self._surveyed(objective, batch, rows, first=not updates)
            if all(metrics.get("gradient_norm") == 0 for metrics in updates):
                minibatch = self._before_moving(minibatch)
            totals = step_totals(minibatch, self._most_actions)
            try:
                with self._divergence_reference() as reference, self._divergence_teacher() as teacher:
                    metrics, scores = update(
                        self._train_state,
                        objective,
                        minibatch,
                        totals,
                        reference=reference,
                        teacher=teacher,
                        teacher_temperature=self._models.target.section.temperature,
                        only_critic=only_critic,
                        meanwhile=None if updates else meanwhile,
                    )
            except UpdateRefused as error:
                raise RunFailed(_failure(number, error, ids, rows)) from error
            if not updates:  # before the first update the policy is the one that sampled
                metrics.update(sampler_metrics(minibatch, scores, self._staleness > 0))
            experts.add(minibatch, scores)
            if "ended" in metrics and updates:
                break
            traces.add(objective, minibatch, rows, scores.logp, only_critic)
            updates.append(metrics)
        means = {
            name: fmean([update_metrics[name] for update_metrics in updates if name in update_metrics])
            for name in updates[0]
        }
        means |= {"updates": float(len(updates)), **experts.metrics(), **self._skipped(updates, number)}
        if not only_critic:
            self._memory = self._objective.learned(self._memory, {**means, **updates[-1]}, num_samples)
        return means

    def _skipped(self, updates: Sequence[Mapping[str, float]], number: int) -> dict[str, float]:
        """How many updates of the step had no signal; said when it happens for the first time."""
        skipped = sum(metrics.get("gradient_norm") == 0 for metrics in updates)
        if skipped and not self._has_skipped:
            self._has_skipped = True
            logger.warning(
                "step %d: the gradient was 0 and the update was skipped: no completion is better than its group; later "
                "ones are counted in skipped_updates",
                number,
            )
        return {"skipped_updates": float(skipped)} if skipped else {}

    def _before_moving(self, batch: TokenBatch) -> TokenBatch:
        """A part of the step that is read by the policy as it sampled. Where that still is the reference, the part is
        read once more as it is packed: rounding would pass for a distance, and Adam would make a whole step of it."""
        if batch.ref_logp is None or batch.old_logp is None or not torch.equal(batch.ref_logp, batch.old_logp):
            return batch
        tokens, temperature = self._batch_section.micro_batch_tokens, self._sampling.temperature
        replay = batch.routed_experts if self._batch_section.routing_replay == "sampler" else None
        logp = token_scores(self._models.policy, batch, temperature, tokens, self._ranks, replay).logp
        return replace(batch, ref_logp=logp, old_logp=logp)

    def _untaught_count(self, batch: TokenBatch) -> dict[str, int]:
        """Samples that were left out because the teacher had nothing to read about them."""
        if self._models.target.section.context == "none":
            return {}
        return {"untaught": int((batch.lengths == 0).sum())}

    def _surveyed(self, objective: Objective, batch: TokenBatch, rows: list[int], first: bool) -> TokenBatch:
        """The rows of an update. A clip rule that looks at the whole step sees it first, which is one more pass; before
        the first update the log-probabilities are known."""
        whole = isinstance(objective.clip, StepClip) and objective.clip.whole_groups
        seen = batch if whole else batch.select(rows)
        if objective.surveys(seen):
            logp = seen.old_logp if first else None
            if logp is None:
                replay = batch.routed_experts if self._batch_section.routing_replay == "sampler" else None
                replay = replay if replay is None or whole else replay[rows]
                temperature, tokens = self._sampling.temperature, self._batch_section.micro_batch_tokens
                logp = token_scores(self._models.policy, seen, temperature, tokens, self._ranks, replay).logp
            seen = objective.surveyed(seen, logp)
        return seen.select(rows) if whole else seen

    def _set_learning_rates(self, rate: float) -> None:
        state, highest = self._train_state, self._optimizer_section.learning_rate
        set_learning_rate(state.optimizer, rate)
        if state.critic_optimizer is not None:
            set_learning_rate(state.critic_optimizer, rate / highest * (self._models.critic_rate or highest))

    def _divergence_reference(self) -> Any:
        """The reference as a context, for an objective that compares whole distributions; else None."""
        if "divergence" in self._objective.needs() and self._models.reference is not None:
            return self._models.reference.open()
        return nullcontext()

    def _divergence_teacher(self) -> Any:
        """The teacher as a context, where its whole distribution is compared; else None."""
        models = self._models
        if (
            "teacher_divergence" in self._objective.needs()
            and models.teacher is not None
            and not models.target.section.top_k
        ):
            return models.teacher.open()
        return nullcontext()

    def _minibatches(self, num_rows: int, number: int) -> list[list[int]]:
        return [
            rows
            for epoch in range(self._batch_section.epochs_per_batch)
            for rows in minibatches(num_rows, self._batch_section.updates_per_step, self._seed, number, epoch)
        ]

    def _publish(self, number: int) -> None:
        """Hand the new weights to the engine, and let the reference follow where the objective says so."""
        self._version += 1
        self._collector.load_weights(self.model.state_dict(), self._version)
        kept_share = self._objective.reference.kept_after(number)
        if kept_share < 1 and isinstance(self._models.reference, CopiedReference):
            self._models.reference.follow(self._models.policy, kept_share)

    def evaluate(self) -> dict[str, float]:
        if self._evaluator is None:
            return {}
        metrics, self.prompt_scores = self._evaluator.measure()
        return metrics

    def close(self) -> None:
        """End what writes completions in the background."""
        self._collector.close()

    def state(self) -> dict[str, Any]:
        return {"collector": self._collector.state(), "memory": dict(self._memory), "version": self._version}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        state, models = self._train_state, self._models
        tensors = {"optimizer": optimizer_tensors(models.policy.model, state.optimizer)}
        if models.critic is not None and state.critic_optimizer is not None:
            tensors["critic"] = models.critic.tensors()
            tensors["critic_optimizer"] = optimizer_tensors(models.critic.modules(), state.critic_optimizer)
        if self._reference_moved and isinstance(models.reference, CopiedReference):
            tensors["reference"] = models.reference.tensors()
        if self._staleness:
            tensors["rollouts"] = self._collector.tensors()
        return tensors

    @property
    def _reference_moved(self) -> bool:
        """The reference is no longer the model the run began with."""
        return any(self._objective.reference.kept_after(step) < 1 for step in range(1, self._version + 1))

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        models, critic_optimizer = self._models, self._train_state.critic_optimizer
        self._collector.restore(state["collector"], tensors.get("rollouts", {}))
        self._memory, self._version = state["memory"], state["version"]
        self._collector.load_weights(self.model.state_dict(), self._version)
        # shards of a run whose updates were all skipped hold no moments
        restore_optimizer(models.policy.model, self._train_state.optimizer, tensors.get("optimizer", {}))
        if models.critic is not None and critic_optimizer is not None:
            models.critic.restore(tensors["critic"])
            restore_optimizer(models.critic.modules(), critic_optimizer, tensors.get("critic_optimizer", {}))
        if "reference" in tensors and isinstance(models.reference, CopiedReference):
            models.reference.restore(tensors["reference"])


def _untaught(batch: TokenBatch, needs: frozenset[str], target: DistillationSettings) -> TokenBatch:
    """A step in which there is nothing to learn: the fields are there, and no action."""
    none = torch.zeros(batch.action.shape)
    wide = torch.zeros((*batch.action.shape, target.section.top_k))
    if "teacher_logp" in needs:
        batch = replace(batch, teacher_logp=none)
    if "teacher_divergence" in needs:
        batch = replace(batch, teacher_top=wide.int(), teacher_top_logp=wide)
    return batch


class _ExpertUse:
    """What a step's updates do with the experts of a mixture; nothing of a model without."""

    def __init__(self, of: Routers | None, replay: RoutingReplay) -> None:
        self._of, self._replay = of, replay
        self._counts: Tensor | None = None
        self._metrics: dict[str, float] = {}

    def add(self, batch: TokenBatch, scores: TokenScores) -> None:
        """One update, with what its pass chose: before the first, the policy is the one the batch began with."""
        if self._of is None or scores.experts is None:
            return
        replay = replayed_experts(batch, self._replay)
        counts = expert_counts(used_experts(scores.experts, replay), self._of.num_experts)
        if self._counts is None:
            self._counts = torch.zeros_like(counts)
            self._metrics |= drift_metrics("router_drift", batch.routed_experts, scores.experts)
            self._metrics |= replayed_share(scores.experts, replay)
        self._counts += counts
        self._metrics |= drift_metrics("router_shift", batch.old_experts, scores.experts)

    def metrics(self) -> dict[str, float]:
        return self._metrics if self._counts is None else {**self._metrics, **load_metrics(self._counts)}


def minibatches(num_rows: int, count: int, seed: int, step: int, epoch: int = 0) -> list[list[int]]:
    """`count` parts of a seeded shuffle of the rows, another one in each epoch; one part is the batch as it is."""
    if count == 1:
        return [list(range(num_rows))]
    names = (seed, "shuffle", step, epoch) if epoch else (seed, "shuffle", step)
    stream = torch.Generator().manual_seed(request_seed(*names) % 2**63)
    order = torch.randperm(num_rows, generator=stream)
    return [part.tolist() for part in order.tensor_split(count)]


def _failure(step: int, error: UpdateRefused, ids: Sequence[str], rows: Sequence[int]) -> str:
    """`ids` are the prompts of the step's rows, `rows` those of the update."""
    concerned = sorted({ids[rows[row]] for row in error.rows}) if error.rows else sorted({ids[row] for row in rows})
    shown = ", ".join(concerned[:4]) + (f" and {len(concerned) - 4} more" if len(concerned) > 4 else "")
    return f"step {step}: {error}; samples of {shown}; the weights of the last checkpoint are untouched"
