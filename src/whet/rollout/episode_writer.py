"""Episodes that a thread of this process plays while the trainer trains, on an engine with weights of its own.

Whatever plays episodes where each step waits for them plays them here: environments, tools, an agent's program. A batch
is one step's groups. It is played by the newest weights there are when it begins, and newer ones wait until it has
ended: an episode is written by one policy. Where batches mostly wait for their environments, longer than a step takes,
the next one begins when the trainer has nothing left to train on, and is all that was asked for by then: the episodes
of several steps wait side by side. On a CUDA device the thread has a stream of its own, so that the device computes for
the writer and the trainer side by side.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from whet.protocols import Engine
from whet.rollout.async_rollout import EpisodeHeard, group_seed
from whet.rollout.collect import PromptDataset, RolloutSpec
from whet.rollout.episode_runner import EpisodePlan, EpisodeRunner, PlayNotes
from whet.threads import Thread
from whet.types import Sample

MOMENT = 0.05  # seconds that `advance` waits for a group
MOSTLY = 0.5  # of a batch's time, spent in waiting for environments
# Times a step of the trainer's that a batch waits: from there on two steps that wait together save more than the
# trainer's steps behind the writing, which then stand beside nothing: wait / 2 + step < wait.
LONGER = 2.0
LONGEST_END = 60.0  # seconds that the end of a run waits for the thread: until an episode ends


class _Closed(Exception):
    """Raised where the thread is told of an episode, to end a batch that nobody wants any more."""


class EpisodeWriter:
    """A `whet.rollout.async_rollout.GroupWriter` on a runner and the engine it plays on."""

    def __init__(
        self,
        runner: EpisodeRunner,
        engine: Engine,
        dataset: PromptDataset,
        spec: RolloutSpec,
        seed: int,
        device: torch.device,
    ) -> None:
        self._runner, self._engine, self._dataset, self._spec, self._seed = runner, engine, dataset, spec, seed
        self._device, self._num_threads = device, torch.get_num_threads()
        self._changed = threading.Condition()
        self._asked: list[tuple[int, int]] = []  # numbers and rows of groups
        self._weights: tuple[Mapping[str, Any], int] | None = None  # the newest that the engine does not have yet
        self._is_closing = False
        self._idle = 0.0
        self._waits = False  # whether batches mostly wait for their environments
        self._is_awaited, self._awaited = False, 0.0  # whether the trainer waits for groups, and seconds of this batch
        self._ended = time.monotonic()  # the batch before
        self._waited = 0.0  # seconds, in this batch
        self._notes: list[PlayNotes] = []
        self._results: queue.SimpleQueue[tuple[int, list[Sample]] | BaseException] = queue.SimpleQueue()
        self.ended: EpisodeHeard | None = None
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # the engine's weights were copied on another stream
        self._thread = Thread(target=self._run, name="whet episodes", daemon=True)
        self._thread.start()

    @property
    def idle_seconds(self) -> float:
        return self._idle

    def ask(self, number: int, row: int) -> None:
        with self._changed:
            self._asked.append((number, row))
            self._changed.notify()

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        """Copied here: the trainer writes over them while the engine still computes with the ones before."""
        copied = {name: value.detach().clone() for name, value in weights.items()}
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()  # the thread reads them on another stream
        with self._changed:
            self._weights = (copied, version)

    def finished(self) -> list[tuple[int, list[Sample]]]:
        groups = []
        while not self._results.empty():
            groups.append(self._read(self._results.get()))
        return groups

    def advance(self) -> list[tuple[int, list[Sample]]]:
        """Wait a moment for a group; empty where none was finished."""
        try:
            return [self._read(self._results.get(timeout=MOMENT)), *self.finished()]
        except queue.Empty:
            with self._changed:
                self._is_awaited, self._awaited = True, self._awaited + MOMENT
                self._changed.notify()
            return []

    @staticmethod
    def _read(result: tuple[int, list[Sample]] | BaseException) -> tuple[int, list[Sample]]:
        if isinstance(result, BaseException):
            raise result
        return result

    def take_notes(self) -> PlayNotes:
        with self._changed:
            notes, self._notes = self._notes, []
        return PlayNotes.joined(notes)

    def close(self) -> None:
        """End the thread and close the runner."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(LONGEST_END)
        close = getattr(self._runner, "close", None)
        if callable(close):
            close()

    def _run(self) -> None:
        torch.set_num_threads(self._num_threads)  # a new thread has its own number
        stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        try:
            with nullcontext() if stream is None else torch.cuda.stream(stream):
                while (asked := self._next(stream)) is not None:
                    self._play(asked)
        except _Closed:
            pass
        except BaseException as error:  # raised again where it can end the run
            self._results.put(error)

    def _next(self, stream: Any) -> list[tuple[int, int]] | None:
        """Wait for the groups of the next batch, and give the engine the newest weights; None: it is over."""
        began = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing or (self._asked and (self._is_awaited or not self._waits)))
            self._idle += time.monotonic() - began
            steps = [number // self._spec.num_prompts for number, _ in self._asked]
            is_next = [self._waits or step == min(steps) for step in steps]
            asked = [group for group, now in zip(self._asked, is_next, strict=True) if now]
            self._asked = [group for group, now in zip(self._asked, is_next, strict=True) if not now]
            weights, self._weights = self._weights, None
        if self._is_closing:
            return None
        if weights is not None:
            self._engine.load(*weights)
            if stream is not None:
                stream.synchronize()  # before the copies go
        return asked

    def _play(self, groups: Sequence[tuple[int, int]]) -> None:
        """Groups as they are played where each step waits for its own."""
        size, spec = self._spec.group_size, self._spec
        samples: dict[int, dict[int, Sequence[Sample]]] = {number: {} for number, _ in groups}

        def hear(episode: int, written: Sequence[Sample]) -> None:
            if self._is_closing:
                raise _Closed
            position, index = divmod(episode, size)
            number = groups[position][0]
            samples[number][index] = written
            if self.ended is not None:
                self.ended(number, index, written)
            if len(samples[number]) == size:
                self._note()
                self._results.put((number, [sample for index in range(size) for sample in samples[number][index]]))

        rows, began = [row for _, row in groups], time.monotonic()
        plan = EpisodePlan(
            [self._dataset.prompts[row] for row in rows],
            [self._dataset.prompt_tokens[row] for row in rows],
            size,
            spec.sampling,
            (self._seed,),
            [group_seed(self._seed, number, spec)[1:] for number, _ in groups],
        )
        self._runner.play(plan, hear)
        self._note()
        now, num_steps = time.monotonic(), len({number // spec.num_prompts for number, _ in groups})
        with self._changed:
            training = max(0.0, now - self._ended - self._awaited) / num_steps
            self._waits = self._waited > max(MOSTLY * (now - began), LONGER * training)
            self._ended, self._waited, self._is_awaited, self._awaited = now, 0.0, False, 0.0

    def _note(self) -> None:
        """Take down what happened, before the group that it belongs to is handed out."""
        notes = self._runner.take_notes()
        self._waited += sum(notes.seconds.values())
        with self._changed:
            self._notes.append(notes)
