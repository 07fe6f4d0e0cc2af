"""Completions are judged while others are still written: what is known early waits for `whet.reward.score.score`.

`score` still sees a whole batch, in the order of its prompts: there failures are counted and parts combined, whatever
came first. It only finds the work of some parts done. Each such part has a lane, a thread that judges what has ended:

    judged early   every completion alone: code tests, answers checked in processes, reward workers, and functions of
                   one completion that were seen to wait rather than compute
    asked early    a reward with `prefetch(prompts, samples)`, a judge: what is slow is done, and the call on the whole
                   batch finds it; with `prefetches_groups` it is given the completions of a prompt together

Everything else is judged by `score` itself: a function that computes would take the interpreter from the decode loop,
and a time limit can interrupt it on the main thread only. An attribute `ahead` of a reward or its function decides
instead: True lets parts of a batch be judged early, False none, and a number so many parts at once.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from whet.protocols import Reward
from whet.reward.call import PerSample, RewardFunction, Together
from whet.reward.combine import RewardPart
from whet.reward.failure import call_name
from whet.reward.user_code import has_changes
from whet.threads import Thread
from whet.types import Prompt, Sample, StopReason

logger = logging.getLogger(__name__)

V = TypeVar("V")
Rows = Sequence[tuple[Prompt, Sample]]
JudgeRows = Callable[[Reward, Sequence[Prompt], Sequence[Sample]], list[V]]

WAITING_SECONDS = 1e-3  # of a call: quicker ones are not worth a thread
WAITING_SHARE = 0.5  # of a call's time that is no computing: from here on a function waits
AT_ONCE = 8  # completions that a function judges, one by one, before its verdicts are handed on
IDLE_SECONDS = 5.0  # after which a thread that has nothing to judge ends
PATIENCE = 60.0  # seconds after which it is said which reward is waited for


class ScoreAhead(Generic[V]):
    """The lanes of a run's parts; `judge` gives the verdicts of one part on some completions, as `score` would."""

    def __init__(self, parts: Sequence[RewardPart], judge: JudgeRows[V]) -> None:
        self._lanes = {part.name: _Lane(part, judge) for part in parts if may_go_ahead(part.resolved_reward)}

    def begin(self, prompts: Sequence[Prompt]) -> Callable[[int, Sequence[Sample]], None]:
        """Announce the prompts of the next episodes; the returned function hears of each that is over."""
        left = Counter(prompt.id for prompt in prompts)
        ended: dict[str, dict[int, list[tuple[Prompt, Sample]]]] = {}

        def hear(number: int, samples: Sequence[Sample]) -> None:
            prompt = prompts[number]
            rows = [(prompt, sample) for sample in samples if sample.stop is not StopReason.FAILED]
            left[prompt.id] -= 1
            of_prompt = ended.setdefault(prompt.id, {})
            of_prompt[number] = rows
            whole = [row for n in sorted(of_prompt) for row in of_prompt[n]] if not left[prompt.id] else []
            for lane in self._lanes.values():
                lane.add(whole if lane.takes_groups else rows)

        return hear

    def verdicts(
        self,
        part: str,
        prompts: Sequence[Prompt],
        samples: Sequence[Sample],
        work: Callable[[list[int]], list[V]],
    ) -> list[V]:
        """The verdicts of a part on a whole batch: those that are known, or will be in a moment, and the others'."""
        lane, everyone = self._lanes.get(part), list(range(len(samples)))
        if lane is None:
            return work(everyone)
        early = lane.take(samples)
        rest = [row for row in everyone if row not in early]
        if rest:
            early |= zip(rest, lane.timed(work, rest), strict=True)
        return [early[row] for row in everyone]

    def take_spans(self) -> list[tuple[float, float]]:
        """(start, end) of what lanes did since the last time, in seconds of `time.perf_counter`."""
        return sorted(span for lane in self._lanes.values() for span in lane.take_spans())


def may_go_ahead(reward: Reward) -> bool:
    """Whether completions of a batch may be judged one by one, before the others are there."""
    wanted = _wanted(reward)
    if getattr(reward, "asks_for_training", False):
        return False
    if wanted is not None:
        return wanted > 0
    return isinstance(reward, PerSample | Together) or callable(getattr(reward, "prefetch", None))


def _wanted(reward: Reward) -> int | None:
    """Calls that may be under way at once, as the reward says itself."""
    function = reward.function if isinstance(reward, RewardFunction) else reward
    wanted = getattr(function, "ahead", None)
    return None if wanted is None else max(0, int(wanted))


class _Lane(Generic[V]):
    """One part and the threads that judge for it.

    Whoever writes hands completions over without taking a lock or starting a thread for each: both wait for the
    interpreter, and the decode loop with them.
    """

    def __init__(self, part: RewardPart, judge: JudgeRows[V]) -> None:
        self._part, self._reward, self._judge = part, part.resolved_reward, judge
        self._prefetch: Callable[[Sequence[Prompt], Sequence[Sample]], None] | None
        self._prefetch = getattr(self._reward, "prefetch", None)
        self._one_by_one = isinstance(self._reward, PerSample)
        self.takes_groups = bool(getattr(self._reward, "prefetches_groups", False))
        wanted = _wanted(self._reward)
        self._is_open = not self._one_by_one or wanted is not None  # else: when it was seen to wait
        self._most_calls = wanted or 1
        self._changed = threading.Condition()
        self._pending: queue.SimpleQueue[tuple[Prompt, Sample]] = queue.SimpleQueue()
        self._owed: set[int] = set()  # identities of samples that were handed over and not taken back
        self._judging: list[Rows] = []  # of each call that is under way
        self._num_threads = 0
        # by the identity of the sample, which is held on to: its verdict, or what was raised; None: asked early
        self._known: dict[int, tuple[Sample, V | BaseException | None]] = {}
        self._spans: list[tuple[float, float]] = []

    def add(self, rows: Rows) -> None:
        """Completions that have ended; whoever writes goes on at once."""
        chosen = [(prompt, sample) for prompt, sample in rows if self._part.scores_row(prompt)]
        if not chosen or not self._is_open:
            return
        for row in chosen:
            self._owed.add(id(row[1]))
            self._pending.put(row)
        if self._num_threads < self._most_calls:
            with self._changed:
                self._num_threads += 1
            Thread(target=self._run, name=f"whet reward {self._part.name}", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                rows = self._next_rows()
            except queue.Empty:
                with self._changed:
                    self._num_threads -= 1
                    if self._pending.empty():  # looked at last: what is handed over later finds a thread fewer
                        return
                    self._num_threads += 1
                continue
            with self._changed:
                self._judging.append(rows)
            began = time.perf_counter()
            verdicts = self._judged(rows)
            with self._changed:
                self._spans.append((began, time.perf_counter()))
                for (_, sample), verdict in zip(rows, verdicts, strict=True):
                    self._known[id(sample)] = (sample, verdict)
                self._judging = [other for other in self._judging if other is not rows]
                self._changed.notify_all()

    def _next_rows(self) -> Rows:
        """What one call judges: all that waits, or a few where it judges one by one."""
        most = (AT_ONCE if self._most_calls == 1 else 1) if self._one_by_one else None
        rows = [self._pending.get(timeout=IDLE_SECONDS)]
        try:
            while most is None or len(rows) < most:
                rows.append(self._pending.get_nowait())
        except queue.Empty:
            pass
        return rows

    def _judged(self, rows: Rows) -> Sequence[V | BaseException | None]:
        prompts, samples = [prompt for prompt, _ in rows], [sample for _, sample in rows]
        try:
            if self._prefetch is None:
                return self._judge(self._reward, prompts, samples)
            self._prefetch(prompts, samples)
            return [None] * len(rows)
        except BaseException as error:  # raised where the batch is scored, on the thread that trains
            return [error] * len(rows)

    def take(self, samples: Sequence[Sample]) -> dict[int, V]:
        """What is known of these samples, by index in the batch, once none of their calls is pending."""
        wanted = self._owed.intersection(map(id, samples))
        since, reported = time.monotonic(), False
        with self._changed:
            while not wanted <= self._known.keys():
                self._changed.wait(1.0)
                if not reported and time.monotonic() - since > PATIENCE:
                    reported = True
                    self._say_waiting()
            places = [row for row, sample in enumerate(samples) if id(sample) in self._known]
            known = {row: self._known.pop(id(samples[row]))[1] for row in places}
        self._owed -= wanted
        verdicts: dict[int, V] = {}
        for row, verdict in known.items():
            if isinstance(verdict, BaseException):
                raise verdict
            if verdict is not None:
                verdicts[row] = verdict
        return verdicts

    def _say_waiting(self) -> None:
        if self._judging:
            rows = self._judging[0]
            where = call_name([prompt for prompt, _ in rows], [sample for _, sample in rows])
            logger.warning(
                "waiting for reward %r for more than %g s, which judges %s; if it never returns, end the run and give "
                "it a time limit of its own",
                self._part.name,
                PATIENCE,
                where,
            )

    def timed(self, work: Callable[[list[int]], list[V]], rows: list[int]) -> list[V]:
        """What `work` says of the rows. A function that is seen to wait is judged ahead from now on."""
        if self._is_open or threading.current_thread() is not threading.main_thread():
            return work(rows)
        began, computed, paused = time.perf_counter(), time.thread_time(), _pauses()
        verdicts = work(rows)
        took, computing = time.perf_counter() - began, time.thread_time() - computed
        waits = took > WAITING_SECONDS * len(rows) and took - computing > WAITING_SHARE * took
        # a busy machine takes the core away from a function that computes; one that waits gives it up in every call
        self._is_open = waits and _pauses() - paused >= len(rows) and not has_changes()
        return verdicts

    def take_spans(self) -> list[tuple[float, float]]:
        with self._changed:
            spans, self._spans = self._spans, []
        return spans


def _pauses() -> int:
    """How often this thread has given up its core by itself; 0 where the system does not tell."""
    try:
        from resource import RUSAGE_THREAD, getrusage
    except ImportError:
        return 0
    return getrusage(RUSAGE_THREAD).ru_nvcsw
