"""Prompts in, complete scored groups out. The collector owns engine and rewards; a trainer asks for more."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Protocol

from torch import Tensor

from whet.protocols import Engine
from whet.record.metrics.timer import PhaseTimer, Span
from whet.rollout.buffer import RolloutBatch, RolloutBuffer
from whet.rollout.episode_runner import EpisodeEnded, EpisodePlan, EpisodeRunner, tell_failures
from whet.rollout.episodes import EnvironmentRunner
from whet.rollout.prompt_order import PromptOrder
from whet.rollout.weight_sync_check import PolicyWatch
from whet.types import Group, Prompt, Sample, Sampling

Score = Callable[[Sequence[Prompt], Sequence[Sample]], list[Sample]]
Meanwhile = Callable[[Sequence[Group]], None]
BEHIND = "reward_behind"  # rewards at work while something else goes on
SampleGroups = Callable[[Sequence[int], int, Sampling, tuple[int, ...]], list[Group]]
"""(rows of the prompts, completions per prompt, how, seed) -> scored groups."""


class Ahead(Protocol):
    """Judges completions before all of a batch are there, for the `Score` that comes with it."""

    def begin(self, prompts: Sequence[Prompt]) -> EpisodeEnded:
        """Announce the prompts of the next episodes; the returned function hears of each that is over."""
        ...

    def take_spans(self) -> list[tuple[float, float]]:
        """(start, end) of what was done since the last time, in seconds of `time.perf_counter`."""
        ...


class GroupFilter(Protocol):
    """Decides whether a group is worth training on. An objective's `keep` is one."""

    refills: ClassVar[bool]
    grows: ClassVar[bool]

    @property
    def most_rounds(self) -> int: ...

    def __call__(self, outcomes: Sequence[float], staleness: int) -> bool: ...


@dataclass(frozen=True)
class RolloutSpec:
    """How many completions to draw per step, and which groups are worth training on."""

    num_prompts: int
    group_size: int
    sampling: Sampling
    greedy: bool  # one deterministic completion more for each prompt
    keep: GroupFilter


@dataclass(frozen=True)
class RewardContext:
    """How completions are scored at one point of the training."""

    score: Score
    part_weights: Mapping[str, float] = field(default_factory=dict)  # of the reward, in its order
    take_notes: Callable[[], Mapping[str, float]] = dict  # what rewards noticed since the last time, for the metrics
    ahead: Ahead | None = None  # judges completions while others are written; `score` finds what it did


@dataclass(frozen=True)
class PromptDataset:
    """The prompts a run learns from, and their tokens."""

    prompts: Sequence[Prompt]
    prompt_tokens: Sequence[tuple[int, ...]]


class Collector(Protocol):
    """Gives a trainer the groups of one step after another, and takes the weights of every step."""

    def collect(self, progress: float, meanwhile: Meanwhile | None = None) -> RolloutBatch:
        """The scored groups of the next step; `progress` is the share of the training that is done.

        `meanwhile` is called, at most once, with the very groups that will be returned, before they are scored: where
        it is certain which they are, and scores are on their way.
        """
        ...

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Hand the policy's new weights to the engine; the groups collected so far count as trained on."""
        ...

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs beside `tensors`, as JSON values."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of groups that are written and not trained on yet, by name."""
        ...

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `state` and `tensors` returned when the checkpoint was written."""
        ...

    def close(self) -> None:
        """End the threads that write in the background."""
        ...


class RolloutCollector:
    """Collects the groups of one step after another: samples, scores, keeps what is worth training on."""

    def __init__(
        self,
        engine: Engine,
        dataset: PromptDataset,
        reward_at: Callable[[float], RewardContext],  # by the share of the training that is done
        spec: RolloutSpec,
        order: PromptOrder,
        staleness: int = 0,
        runner: EpisodeRunner | None = None,  # of the episodes; None: each is one completion
        watch: PolicyWatch | None = None,  # of an engine with weights of its own
    ) -> None:
        self._watch = watch
        self._engine, self._dataset, self._reward_at = engine, dataset, reward_at
        self._runner = runner or EnvironmentRunner(engine)
        self._spec, self._order = spec, order
        self._buffer = RolloutBuffer(staleness)
        self._num_batches = 0  # drawn so far

    def collect(self, progress: float, meanwhile: Meanwhile | None = None) -> RolloutBatch:
        """The groups of the next step, and what they cost; the first step of a stale run fills the queue.

        `progress` is the share of the training that is done. Each completion goes to the rewards as it ends, and they
        are waited for when all are written, round by round; a round's size depends on the scores of those before it.
        """
        reward, timer = self._reward_at(progress), PhaseTimer()
        reward.take_notes()  # those of an evaluation do not belong to the step
        settled = not (self._spec.keep.refills or self._spec.keep.grows or self._spec.greedy or self._buffer.staleness)
        meanwhile = meanwhile if settled else None
        self._runner.take_notes()
        checked: Mapping[str, float] = {}
        while not self._buffer.is_full:
            self._num_batches += 1
            sample_groups = partial(self._sample_groups, reward, timer, meanwhile)
            batch = draw_batch(sample_groups, self._order.take, self._spec, (self._order.seed, self._num_batches))
            checked = self._check_policy(batch, timer)
            self._order.record(batch.outcomes)
            self._buffer.add(replace(batch, part_weights=reward.part_weights))
        if (rest := getattr(self._engine, "rest", None)) is not None:
            rest()  # nothing is written while the policy is trained
        played = self._runner.take_notes()
        # the wait for environments is part of the rollout
        waited = sum(played.seconds.values())
        timer.add({**played.seconds, **({"rollout": -waited} if waited else {})}, spans_behind(reward))
        notes = {**reward.take_notes(), **checked}
        return replace(self._buffer.take(), seconds=timer.seconds, spans=tuple(timer.spans), notes=notes, played=played)

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Hand the policy's new weights to the engine."""
        (self._watch or self._engine).load(weights, version)

    def _check_policy(self, batch: RolloutBatch, timer: PhaseTimer) -> Mapping[str, float]:
        """Completions were written by the policy that is trained; what that took, for the metrics."""
        if self._watch is None:
            return {}
        with timer.phase("train"):  # a pass of the trainer
            return self._watch.check([sample for _, group in batch.groups for sample in group.samples])

    def close(self) -> None:
        """Nothing to end: no work is pending between two steps."""

    def _sample_groups(
        self,
        reward: RewardContext,
        timer: PhaseTimer,
        meanwhile: Meanwhile | None,
        rows: Sequence[int],
        count: int,
        sampling: Sampling,
        seed: tuple[int, ...],
    ) -> list[Group]:
        tokens = [self._dataset.prompt_tokens[row] for row in rows]
        prompts = [self._dataset.prompts[row] for row in rows]
        with timer.phase("rollout"):
            plan = EpisodePlan(prompts, tokens, count, sampling, seed)
            completions = play_ahead(self._runner, plan, reward.ahead)
        if meanwhile is not None and reward.ahead is not None:
            meanwhile([Group(prompt, tuple(samples)) for prompt, samples in zip(prompts, completions, strict=True)])
        with timer.phase("reward"):
            return score_groups(prompts, completions, reward.score)

    def state(self) -> dict[str, Any]:
        """The prompt order, the number of batches drawn, and the groups that wait, without their tensors."""
        return {"order": self._order.state(), "num_batches": self._num_batches, "buffer": self._buffer.state()}

    def tensors(self) -> dict[str, Tensor]:
        return self._buffer.tensors()

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Go on with the order and the groups of a checkpoint."""
        self._order.restore(state["order"])
        self._num_batches = state["num_batches"]
        self._buffer.restore(state["buffer"], tensors, self._dataset.prompts)


def play_ahead(runner: EpisodeRunner, plan: EpisodePlan, ahead: Ahead | None) -> list[list[Sample]]:
    """The runner's episodes; each that is over goes to `ahead` while the others are played."""
    if ahead is None:
        return runner.play(plan)
    return runner.play(plan, ahead.begin([prompt for prompt in plan.prompts for _ in range(plan.count)]))


def draw_and_score(runner: EpisodeRunner, plan: EpisodePlan, score: Score) -> list[Group]:
    """The scored episodes to each prompt, outside of training; each is judged as it ends, where that can be."""
    drawn = play_ahead(runner, plan, getattr(score, "ahead", None))
    tell_failures(runner.take_notes())
    return score_groups(plan.prompts, drawn, score)


def spans_behind(reward: RewardContext) -> list[Span]:
    """The spans in which rewards worked while something else went on."""
    return [] if reward.ahead is None else [(BEHIND, start, end) for start, end in reward.ahead.take_spans()]


def draw_completions(
    engine: Engine, prompt_tokens: Sequence[tuple[int, ...]], group_size: int, sampling: Sampling, seed: tuple[int, ...]
) -> list[list[Sample]]:
    """`group_size` completions to each prompt, prompt by prompt: episodes without an environment."""
    nameless = [Prompt(str(row), ()) for row in range(len(prompt_tokens))]
    return EnvironmentRunner(engine).play(EpisodePlan(nameless, prompt_tokens, group_size, sampling, seed))


def score_groups(prompts: Sequence[Prompt], completions: Sequence[Sequence[Sample]], score: Score) -> list[Group]:
    """One group per prompt, every sample scored."""
    flat_prompts = [prompt for prompt, samples in zip(prompts, completions, strict=True) for _ in samples]
    scored = iter(score(flat_prompts, [sample for samples in completions for sample in samples]))
    return [
        Group(prompt, tuple(next(scored) for _ in samples))
        for prompt, samples in zip(prompts, completions, strict=True)
    ]


def outcomes_of(samples: Sequence[Sample]) -> list[float]:
    """The first reward part of each scored sample."""
    return [sample.outcome for sample in samples if sample.outcome is not None]


def draw_batch(
    sample_groups: SampleGroups, take: Callable[[int], list[int]], spec: RolloutSpec, seed: tuple[int, ...]
) -> RolloutBatch:
    """Draw until enough groups are worth training on, or the rounds are spent; `take` gives rows of new prompts.

    A round lasts as long as its longest completion, however few prompts it has. So a further round draws as many as
    the share of groups kept so far says are needed; what is kept beyond that is left out.
    """
    batch: list[tuple[int, Group]] = []
    visited: list[tuple[int, float]] = []
    num_samples, num_drawn, rounds = 0, 0, 0
    while len(batch) < spec.num_prompts and rounds < (spec.keep.most_rounds if spec.keep.refills else 1):
        rows = take(_round_size(spec.num_prompts, len(batch), num_drawn))
        num_drawn += len(rows)
        groups = sample_groups(rows, spec.group_size, spec.sampling, (*seed, rounds) if rounds else seed)
        num_samples += sum(len(group.samples) for group in groups)
        if spec.keep.grows:
            groups, more = _grow(sample_groups, rows, groups, spec, seed)
            num_samples += more
        rounds += 1
        for row, group in zip(rows, groups, strict=True):
            outcomes = group.drawn or outcomes_of(group.samples)
            if outcomes:
                visited.append((row, sum(outcomes) / len(outcomes)))
            if not spec.keep.refills or _differs(group, spec.keep):
                batch.append((row, group))
    batch = batch[: spec.num_prompts]
    if spec.greedy:
        rows = [row for row, _ in batch]
        greedy = sample_groups(rows, 1, replace(spec.sampling, temperature=0.0), (*seed, -1))
        num_samples += len(greedy)
        batch = [
            (row, replace(group, greedy=drawn.samples[0])) for (row, group), drawn in zip(batch, greedy, strict=True)
        ]
    return RolloutBatch(tuple(batch), tuple(visited), num_samples, rounds)


def _differs(group: Group, keep: GroupFilter) -> bool:
    """True where a role of the group is worth training on: what two roles earned says nothing about either."""
    by_role: dict[str, list[Sample]] = {}
    for sample in group.samples:
        by_role.setdefault(sample.role, []).append(sample)
    return any(keep(outcomes_of(samples), 0) for samples in by_role.values())


def _round_size(num_prompts: int, num_kept: int, num_drawn: int) -> int:
    """Prompts to draw so that about the missing ones are kept; never more than a step has."""
    missing = num_prompts - num_kept
    return missing if not num_kept else min(num_prompts, math.ceil(missing * num_drawn / num_kept))


def _grow(
    sample_groups: SampleGroups, rows: Sequence[int], groups: list[Group], spec: RolloutSpec, seed: tuple[int, ...]
) -> tuple[list[Group], int]:
    """More completions to the prompts whose outcomes all agree; then a balanced group of the usual size."""
    pools = [list(group.samples) for group in groups]
    more = 0
    for number in range(1, spec.keep.most_rounds):
        agreeing = [position for position, pool in enumerate(pools) if not spec.keep(outcomes_of(pool), 0)]
        if not agreeing:
            break
        extra = sample_groups(
            [rows[position] for position in agreeing], spec.group_size, spec.sampling, (*seed, number)
        )
        for index, group in zip(agreeing, extra, strict=True):
            # an episode of another round is no branch of the one that has its number in the first
            pools[index] += [
                replace(sample, episode=f"{sample.episode}+{number}") if sample.episode else sample
                for sample in group.samples
            ]
            more += len(group.samples)
    return [
        replace(
            group,
            samples=tuple(balanced(pool, spec.group_size)),
            drawn=tuple(sample.reward for sample in pool if sample.reward is not None),
        )
        for group, pool in zip(groups, pools, strict=True)
    ], more


def balanced(pool: Sequence[Sample], size: int) -> list[Sample]:
    """`size` samples, half of them above the pool's mean outcome where there are enough, the first drawn first."""
    known = outcomes_of(pool)
    mean = sum(known) / len(known) if known else 0.0
    above = [sample for sample in pool if sample.outcome is not None and sample.outcome > mean]
    others = [sample for sample in pool if sample.outcome is None or sample.outcome <= mean]
    count = min(len(above), max(size // 2, size - len(others)))
    return above[:count] + others[: size - count]
