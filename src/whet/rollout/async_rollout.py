"""Groups that are written while the trainer trains: asynchronous rollouts, none older than a stated number of versions.

The same interface as `RolloutCollector`. A `GroupWriter` writes in the background, `GroupWindow` says which groups a
step takes, and every update's weights go to the writer at once. Single completions are requests of a session, where
what is in the middle of being written goes on under newer weights; episodes end under the weights they began with.
Completions are judged as they end, also while a step is trained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from whet.protocols import Engine, Session
from whet.record.metrics.timer import PhaseTimer
from whet.rollout.buffer import RolloutBatch, RolloutBuffer
from whet.rollout.collect import (
    Meanwhile,
    PromptDataset,
    RewardContext,
    RolloutSpec,
    outcomes_of,
    score_groups,
    spans_behind,
)
from whet.rollout.episode_runner import EpisodeEnded, PlayNotes
from whet.rollout.prompt_order import PromptOrder
from whet.rollout.seed import request_seed
from whet.rollout.weight_sync_check import PolicyWatch
from whet.rollout.window import GroupWindow
from whet.types import Group, Request, Sample, WhetError

EpisodeHeard = Callable[[int, int, Sequence[Sample]], None]
"""(number of a group, of an episode in it, its samples): told as soon as it is over, on whatever thread."""


class GroupWriter(Protocol):
    """Writes groups in the background: `SessionWriter`, or `whet.rollout.episode_writer.EpisodeWriter`."""

    ended: EpisodeHeard | None

    def ask(self, number: int, row: int) -> None:
        """Ask for the group of this number, to the prompt in this row; its seeds follow from the number."""
        ...

    def finished(self) -> list[tuple[int, list[Sample]]]:
        """The groups that were finished since the last time, without waiting."""
        ...

    def advance(self) -> list[tuple[int, list[Sample]]]:
        """The same; waits a moment where there are none."""
        ...

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        """Newer weights: a group that is asked for after this is written by them, or by newer ones."""
        ...

    def take_notes(self) -> PlayNotes:
        """What happened in the episodes since the last time."""
        ...

    @property
    def idle_seconds(self) -> float:
        """How long there was nothing to write, since the beginning."""
        ...

    def close(self) -> None:
        """Stop the writer and free what it holds."""
        ...


class BackgroundSession(Session, Protocol):
    """A session that writes between calls too; its `advance` waits a moment where nothing is finished yet."""

    heard: Callable[[int, Sample], None] | None  # told of each request as it is finished, on another thread

    def finished(self) -> list[tuple[int, Sample]]:
        """What was finished since the last time, without waiting."""
        ...

    @property
    def idle_seconds(self) -> float:
        """How long there was nothing to write, since the beginning."""
        ...


class SessionWriter:
    """Groups of single completions, each a request of a session."""

    def __init__(self, session: BackgroundSession, dataset: PromptDataset, spec: RolloutSpec, seed: int) -> None:
        self._session, self._dataset, self._spec, self._seed = session, dataset, spec, seed
        self._samples: dict[int, dict[int, Sample]] = {}  # that are finished, by group and their place in it
        self.ended: EpisodeHeard | None = None
        session.heard = self._hear

    def _hear(self, request: int, sample: Sample) -> None:
        if self.ended is not None:
            self.ended(*divmod(request, self._spec.group_size), (sample,))

    def ask(self, number: int, row: int) -> None:
        self._samples[number] = {}
        size = self._spec.group_size
        for index in range(size):
            seed = request_seed(*group_seed(self._seed, number, self._spec), index)
            self._session.add(number * size + index, Request(self._dataset.prompt_tokens[row], seed))

    def finished(self) -> list[tuple[int, list[Sample]]]:
        return self._groups(self._session.finished())

    def advance(self) -> list[tuple[int, list[Sample]]]:
        return self._groups(self._session.advance())

    def _groups(self, finished: Iterable[tuple[int, Sample]]) -> list[tuple[int, list[Sample]]]:
        size, whole = self._spec.group_size, []
        for request, sample in finished:
            number, index = divmod(request, size)
            self._samples[number][index] = sample
            self._session.release(request)
            if len(self._samples[number]) == size:
                samples = self._samples.pop(number)
                whole.append((number, [samples[index] for index in range(size)]))
        return whole

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        self._session.load(weights, version)

    def take_notes(self) -> PlayNotes:
        return PlayNotes()

    @property
    def idle_seconds(self) -> float:
        return self._session.idle_seconds

    def close(self) -> None:
        self._session.close()


def group_seed(seed: int, number: int, spec: RolloutSpec) -> tuple[int, int, int]:
    """What the seeds of a group's episodes begin with: those that it has where each step waits for its own groups."""
    batch, position = divmod(number, spec.num_prompts)
    return seed, batch + 1, position


@dataclass
class _GroupAsked:
    """A group that was asked for."""

    row: int  # of its prompt
    samples: Sequence[Sample] = ()  # once it is finished
    hear: EpisodeEnded | None = None  # what judges its episodes as they end


def check_async_rollout(spec: RolloutSpec) -> None:
    """Refuse what a session in the background cannot draw."""
    if spec.greedy:
        raise WhetError(
            "scale.max_staleness: a greedy baseline draws a second completion at temperature 0, and a session has "
            "one temperature; give another objective.baseline, or scale.max_staleness=0"
        )
    if spec.keep.grows:
        raise WhetError(
            "scale.max_staleness: objective.keep draws more completions to prompts of an earlier round, which "
            "would be of several ages; give another objective.keep, or scale.max_staleness=0"
        )


class AsyncCollector:
    """Collects the groups of one step after another from a writer that is always ahead."""

    def __init__(
        self,
        writer: GroupWriter,
        dataset: PromptDataset,
        reward_at: Callable[[float], RewardContext],  # by the share of the training that is done
        spec: RolloutSpec,
        order: PromptOrder,
        window: GroupWindow,
        weights: Callable[[], Mapping[str, Any]],  # the policy's, before the first step
        engine: Engine | None = None,  # another one that follows the policy's versions, of evaluations
        watch: PolicyWatch | None = None,  # of the writer's weights
    ) -> None:
        check_async_rollout(spec)
        self._watch, self._writer, self._dataset = watch, writer, dataset
        self._reward_at, self._spec = reward_at, spec
        self._order, self._window, self._weights, self._engine = order, window, weights, engine
        self._version: int | None = None  # of the writer's weights
        self._asked: dict[int, _GroupAsked] = {}  # by the number of the group
        self._idle_before = 0.0
        self._passed = 0  # times that a group was taken before an older one, in this step
        self._ahead = reward_at(0.0).ahead
        writer.ended = self._hear

    def _hear(self, number: int, episode: int, samples: Sequence[Sample]) -> None:
        """An episode is over, maybe while a step is trained: it is judged at once."""
        hear = self._asked[number].hear
        if hear is not None:
            hear(episode, samples)

    def collect(self, progress: float, meanwhile: Meanwhile | None = None) -> RolloutBatch:
        """The groups of the next step, the oldest that are finished; waits where the bound on their age says so."""
        reward, timer = self._reward_at(progress), PhaseTimer()
        reward.take_notes()  # those of an evaluation do not belong to the step
        if self._version is None:
            self.load_weights(self._weights(), 0)
        self._take_in(self._writer.finished())
        depth = self._window.num_finished
        usable: list[tuple[int, Group]] = []
        visited: list[tuple[int, float]] = []
        spec, num_samples, rounds, num_taken = self._spec, 0, 0, 0
        most = spec.num_prompts * (spec.keep.most_rounds if spec.keep.refills else 1)
        self._passed = 0
        while len(usable) < spec.num_prompts and num_taken < most:
            wanted = min(spec.num_prompts - len(usable), most - num_taken)
            with timer.phase("rollout"):
                taken = self._take(wanted)
            num_taken, rounds = num_taken + len(taken), rounds + 1
            if meanwhile is not None and self._ahead is not None and not spec.keep.refills:
                meanwhile([Group(self._dataset.prompts[asked.row], tuple(asked.samples)) for asked in taken])
            with timer.phase("reward"):
                prompts = [self._dataset.prompts[asked.row] for asked in taken]
                groups = score_groups(prompts, [asked.samples for asked in taken], reward.score)
            num_samples += sum(len(group.samples) for group in groups)
            for asked, group in zip(taken, groups, strict=True):
                outcomes = outcomes_of(group.samples)
                if outcomes:
                    visited.append((asked.row, sum(outcomes) / len(outcomes)))
                if not spec.keep.refills or spec.keep(outcomes, 0):
                    usable.append((asked.row, group))
                else:
                    self._window.reject()
        self._order.record(visited)
        checked: Mapping[str, float] = {}
        if self._watch is not None:
            with timer.phase("train"):  # a pass of the trainer
                checked = self._watch.check([sample for _, group in usable for sample in group.samples])
        timer.add({}, spans_behind(reward))
        notes = {
            **checked,
            **reward.take_notes(),
            **self._age([group for _, group in usable]),
            "groups_waiting": float(depth),
            "groups_passed": float(self._passed),
            "trainer_idle_seconds": timer.seconds.get("rollout", 0.0),
            "engine_idle_seconds": self._idle_since(),
        }
        return RolloutBatch(
            tuple(usable),
            tuple(visited),
            num_samples,
            rounds,
            reward.part_weights,
            timer.seconds,
            tuple(timer.spans),
            notes,
            replace(self._writer.take_notes(), seconds={}),  # the step has waited for none of it
        )

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """A step is over: its groups make room for new ones, which the new weights write."""
        self._take_in(self._writer.finished())
        (self._watch or self._writer).load(weights, version)
        if self._engine is not None:
            self._engine.load(weights, version)
        restored = self._version is None
        self._version = version
        self._window.trained()
        if restored:  # what a checkpoint says was not finished
            for number in self._in_flight(finished=False):
                self._ask(number)
        self._fill()

    def close(self) -> None:
        self._writer.close()

    def _fill(self) -> None:
        """Ask for as many groups as may be in flight."""
        while self._window.room > 0:
            (row,) = self._order.take(1)
            number = self._window.admit()
            self._asked[number] = _GroupAsked(row)
            self._ask(number)

    def _ask(self, number: int) -> None:
        asked = self._asked[number]
        if self._ahead is not None:
            asked.hear = self._ahead.begin([self._dataset.prompts[asked.row]] * self._spec.group_size)
        self._writer.ask(number, asked.row)

    def _take_in(self, finished: Iterable[tuple[int, Sequence[Sample]]]) -> None:
        for number, samples in finished:
            self._asked[number].samples = samples
            self._window.finish(number)

    def _take(self, count: int) -> list[_GroupAsked]:
        """So many groups, in the order in which they were asked for."""
        taken: list[int] = []
        while len(taken) < count:
            self._fill()
            finished = self._window.take()
            if finished is None:
                self._take_in(self._writer.advance())
            else:
                self._passed += any(older.number < finished.number for older in self._window.in_flight)
                taken.append(finished.number)
        return [self._asked.pop(number) for number in sorted(taken)]

    def _age(self, groups: Sequence[Group]) -> dict[str, float]:
        """How many versions the groups lie behind, by their oldest token, and how many tokens by how many."""
        if not groups or self._version is None:
            return {}
        samples = [sample for group in groups for sample in group.samples]
        ages = [self._version - min(sample.versions[0] for sample in group.samples) for group in groups]
        tokens: Counter[int] = Counter()
        for sample in samples:
            if sample.token_versions is None:
                tokens[self._version - sample.versions[0]] += sample.num_actions
            else:
                tokens.update((self._version - sample.token_versions[sample.action]).tolist())
        return {
            "versions_behind": sum(ages) / len(ages),
            "versions_behind_max": float(max(ages)),
            **{f"tokens_{behind}_behind": float(tokens[behind]) for behind in sorted(tokens)},
        }

    def _idle_since(self) -> float:
        before, self._idle_before = self._idle_before, self._writer.idle_seconds
        return max(0.0, self._idle_before - before)

    def state(self) -> dict[str, Any]:
        """Groups that are finished and wait are saved; the others are asked for again, with their seeds."""
        return {
            "order": self._order.state(),
            "window": self._window.state(),
            "rows": [[number, self._asked[number].row] for number in self._in_flight(finished=None)],
            "ready": self._ready().state(),
        }

    def tensors(self) -> dict[str, Tensor]:
        return self._ready().tensors()

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        if "window" not in state:
            raise WhetError(
                "the checkpoint is of a run in which each step waited for its completions: resume it with "
                "scale.max_staleness=0"
            )
        self._order.restore(state["order"])
        self._window.restore([tuple(entry) for entry in state["window"]["queue"]], state["window"]["next"])
        self._asked = {number: _GroupAsked(row) for number, row in state["rows"]}
        ready = RolloutBuffer()
        ready.restore(state["ready"], tensors, self._dataset.prompts)
        saved = ready.take().groups
        for number, (_, group) in zip(self._in_flight(finished=True), saved, strict=True):
            self._asked[number].samples = group.samples
            if self._ahead is not None:
                hear = self._ahead.begin([group.prompt] * len(group.samples))
                for index, sample in enumerate(group.samples):
                    hear(index, (sample,))

    def _in_flight(self, finished: bool | None) -> list[int]:
        return [asked.number for asked in self._window.in_flight if finished is None or asked.finished == finished]

    def _ready(self) -> RolloutBuffer:
        """The groups that are finished, not scored yet."""
        groups = []
        for number in self._in_flight(finished=True):
            asked = self._asked[number]
            groups.append((asked.row, Group(self._dataset.prompts[asked.row], tuple(asked.samples))))
        buffer = RolloutBuffer()
        buffer.add(RolloutBatch(tuple(groups), (), 0, 0))
        return buffer
