"""Rewards in processes of their own: completions are shared out, a worker that is lost or leaks is started again.

A batch that a lost worker had is scored by another one. Weights, gates and norms stay with the trainer, which sees the
whole batch; workers give the raw scores of one part.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from whet.protocols import Reward
from whet.reward.call import PerSample, Together
from whet.reward.combine import RewardPart
from whet.reward.failure import PartialFailure
from whet.reward.score import Failures, score
from whet.training.distributed.wire import packed_samples, unpacked_samples
from whet.training.distributed.workers import START_SECONDS, Worker, WorkerCall, WorkerLost, WorkerPool
from whet.types import Prompt, Sample, WhetError

logger = logging.getLogger(__name__)

MOST_ATTEMPTS = 3  # at one piece, each by another process
PIECES = 2  # per worker: who is done early takes the next
PATIENCE = 0.2  # seconds between two looks at calls that run
GIB = 2**30


@dataclass(frozen=True)
class PieceScores:
    """The raw scores of one reward, which of them failed, the latest failure in words, and what the reward noted."""

    scores: list[float | None]
    failed: list[bool]
    latest: str
    notes: Mapping[str, float] = field(default_factory=dict)


class RewardHost:
    """What a worker's process holds."""

    def __init__(self, rewards: Mapping[str, Reward]) -> None:
        self._rewards = rewards

    def score(self, name: str, prompts: Sequence[Prompt], samples: Sequence[Any], timeout: float) -> PieceScores:
        """Score the samples with the reward of this name, noting which of them failed."""
        failures = Failures("exclude", least_samples=1, window=len(samples))
        reward = self._rewards[name]
        part = RewardPart(reward)
        scored = score(prompts, unpacked_samples(samples), [part], timeout, failures)
        scores = [sample.parts.get(part.name) for sample in scored]
        failed = list(failures.recent[name])
        take_notes: Callable[[], dict[str, float]] = getattr(reward, "take_notes", dict)
        return PieceScores(scores, failed, failures.latest(name) if any(failed) else "", take_notes())


@dataclass
class RewardCounts:
    """What one worker did so far."""

    samples: int = 0
    restarts: int = 0


@dataclass(eq=False)
class _ScoringWorker:
    number: int
    worker: Worker
    counts: RewardCounts = field(default_factory=RewardCounts)
    call: WorkerCall | None = None
    since: float = 0.0
    piece: list[int] | None = None
    is_ready: bool = False

    @property
    def name(self) -> str:
        return f"reward worker {self.number}"


class RewardWorkers:
    """`count` workers; `start(number)` begins one. `memory` (bytes) is what a worker may hold."""

    def __init__(
        self, pool: WorkerPool, start: Callable[[int], Worker], count: int, *, memory: int, timeout: float
    ) -> None:
        self._pool, self._start, self._memory, self._timeout = pool, start, memory, timeout
        self._lock = threading.Lock()  # parts that are judged while others are written ask from threads of their own
        self._workers = [_ScoringWorker(number, start(number)) for number in range(count)]
        for worker in self._workers:
            worker.call, worker.since = worker.worker.call("begin"), time.monotonic()

    @property
    def counts(self) -> dict[str, tuple[str, RewardCounts]]:
        """Where the worker runs and what it did, by name."""
        return {worker.name: (worker.worker.place, worker.counts) for worker in self._workers}

    def score(
        self, reward: str, prompts: Sequence[Prompt], samples: Sequence[Sample], timeout: float, whole: bool
    ) -> PieceScores:
        """The scores of all samples, in order; `whole`: the reward wants to see them in one call."""
        with self._lock:
            return self._score(reward, prompts, samples, timeout, whole)

    def _score(
        self, reward: str, prompts: Sequence[Prompt], samples: Sequence[Sample], timeout: float, whole: bool
    ) -> PieceScores:
        count = 1 if whole else PIECES * len(self._workers)
        todo = deque((piece, 1) for piece in _pieces(prompts, count))
        running: dict[int, int] = {}  # worker -> the attempt it makes
        scores: list[float | None] = [None] * len(samples)
        failed = [False] * len(samples)
        latest, done = "", 0
        notes: dict[str, float] = {}
        packed = packed_samples(samples)
        while done < len(samples):
            for worker in self._workers:
                if worker.is_ready and worker.call is None and todo:
                    worker.piece, running[worker.number] = todo.popleft()
                    rows = worker.piece
                    call = worker.worker.call(
                        "score", reward, [prompts[row] for row in rows], [packed[row] for row in rows], timeout
                    )
                    worker.call, worker.since = call, time.monotonic()
            for worker, piece, result, lost in self._next():
                if lost:
                    attempt = running.pop(worker.number, 0)
                    if piece is not None and attempt < MOST_ATTEMPTS:
                        todo.appendleft((piece, attempt + 1))
                    elif piece is not None:  # what it holds is the cause: the run's reward.on_error decides
                        for row in piece:
                            failed[row] = True
                        done += len(piece)
                        latest = (
                            f"reward {reward!r}: its batch from prompt {prompts[piece[0]].id!r} on ended {attempt} "
                            f"workers, the last because {lost}; fix the reward, or raise scale.reward_memory or "
                            "scale.timeout"
                        )
                elif piece is not None and result is not None:
                    running.pop(worker.number, None)
                    for index, row in enumerate(piece):
                        scores[row], failed[row] = result.scores[index], result.failed[index]
                    latest, done = result.latest or latest, done + len(piece)
                    _add(notes, result.notes)
                    worker.counts.samples += len(piece)
        return PieceScores(scores, failed, latest, notes)

    def _next(self) -> list[tuple[_ScoringWorker, list[int] | None, PieceScores | None, str]]:
        """Wait for calls: (worker, its rows, their scores, why it was lost)."""
        calls = {id(busy.call): busy for busy in self._workers if busy.call is not None}
        came: list[tuple[_ScoringWorker, list[int] | None, PieceScores | None, str]] = []
        for call in self._pool.finished([busy.call for busy in calls.values() if busy.call is not None], PATIENCE):
            worker = calls[id(call)]
            piece, worker.piece, worker.call = worker.piece, None, None
            try:
                result = call.result()
            except WorkerLost as error:
                limit = f"; one that holds more than {self._memory / GIB:g} GiB ends itself" if self._memory else ""
                came.append((worker, piece, None, self._restart(worker, f"{error}{limit}")))
                continue
            worker.is_ready = True
            came.append((worker, piece, result if piece is not None else None, ""))
        for worker in calls.values():
            longest = self._timeout if worker.is_ready else max(self._timeout, START_SECONDS)
            if worker.call is not None and time.monotonic() - worker.since > longest:
                piece, worker.piece = worker.piece, None
                lost = self._restart(worker, f"no answer for {longest:g} seconds (scale.timeout)")
                came.append((worker, piece, None, lost))
        return came

    def _restart(self, scorer: _ScoringWorker, why: str) -> str:
        logger.warning(
            "%s at %s: %s; its batch is scored by another, and it is started again",
            scorer.name,
            scorer.worker.place,
            why,
        )
        was_ready = scorer.is_ready
        scorer.worker.end()
        scorer.counts.restarts += 1
        scorer.is_ready = False
        if not was_ready and scorer.counts.restarts > MOST_ATTEMPTS:
            raise WhetError(f"{scorer.name} does not start: {why}; fix that, or drop scale.reward_workers")
        scorer.worker = self._start(scorer.number)
        scorer.call, scorer.since = scorer.worker.call("begin"), time.monotonic()
        return why


def _add(notes: dict[str, float], more: Mapping[str, float]) -> None:
    for name, value in more.items():
        notes[name] = notes.get(name, 0.0) + value


def _pieces(prompts: Sequence[Prompt], count: int) -> list[list[int]]:
    """Rows in about `count` parts; those of one prompt stay together."""
    most = max(1, -(-len(prompts) // count))
    pieces: list[list[int]] = []
    for row, prompt in enumerate(prompts):
        same = row > 0 and prompts[row - 1].id == prompt.id
        if pieces and (len(pieces[-1]) < most or (same and len(pieces[-1]) < 2 * most)):
            pieces[-1].append(row)
        else:
            pieces.append([row])
    return pieces


@dataclass(frozen=True)
class RemoteReward:
    """A reward as the trainer calls it, scored by workers. They keep its time limit."""

    name: str
    workers: RewardWorkers | None  # None: another rank speaks to them
    timeout: float
    whole: bool
    deterministic: bool = True
    skips_none: bool = False  # as the reward itself: None is not a score that is missing
    limits_itself: bool = True
    _noted: dict[str, float] = field(default_factory=dict, compare=False, repr=False)

    @property
    def ahead(self) -> bool:
        """Whether completions may go to workers while others are still being written."""
        return not self.whole

    def __call__(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
        if self.workers is None:
            raise RuntimeError("only the first rank may ask the reward workers")
        result = self.workers.score(self.name, prompts, samples, self.timeout, self.whole)
        _add(self._noted, result.notes)
        if any(result.failed):
            raise PartialFailure(result.latest, result.scores, result.failed)
        return result.scores

    def take_notes(self) -> dict[str, float]:
        """What the reward noted in all its processes since the last call."""
        notes = dict(self._noted)
        self._noted.clear()
        return notes


def stays_here(reward: Reward) -> bool:
    """True for a reward that cannot score elsewhere: it asks the policy's engine, or remembers from call to call."""
    keeps_notes = hasattr(reward, "take_notes") and not getattr(reward, "notes_add_up", False)
    return (
        keeps_notes
        or getattr(reward, "asks_for_training", False)
        or any(hasattr(reward, name) for name in ("asking", "restore"))
    )


def wants_all(reward: Reward) -> bool:
    """True for a reward that sees all completions in one call, and may compare them."""
    return not isinstance(reward, PerSample | Together)
