"""When a run is saved, and how little its steps wait for it.

A save is a copy in host memory, taken between two steps, and a thread that writes the copy during the next ones; that
of the last step is written during its evaluation. One save is under way at a time. `report.save_every` steps apart,
the next one waits for it; by cost, it is not due yet.
A save that the disk refuses is told and counted, and the run goes on to the next one; only the last one must not fail.
With several ranks every rank writes its own part, and the steps wait for that.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whet.model.checkpoint import empty_partial, prune_checkpoints, remove_leftovers, remove_model
from whet.model.run_models import BEST, CHECKPOINTS, FINAL, MODELS, about_model, checkpoint_name, complete_checkpoints
from whet.model.snapshot import (
    HostMemory,
    SaveFailed,
    SnapshotNotes,
    naming,
    reserve_memory,
    state_text,
    take_snapshot,
    tokenizer_texts,
    write_snapshot,
)
from whet.model.tensor_files import Abandoned
from whet.record.run_kinds import kind_of
from whet.record.sections import ReportSection
from whet.record.text import LOWER_IS_BETTER, headline, plain_metrics
from whet.threads import Thread
from whet.training.distributed.ranks import Ranks
from whet.types import StepReport

HELD_SHARE = 0.01  # of the wall time, the most that steps may wait for saving
WRITING_SHARE = 0.1  # of the wall time, the most in which a save may be under way behind them
BASIS = "trainer"  # in the state of a run: what its tensors belong to
GRACE = 2.0  # seconds that an interrupted run gives the save under way
DTYPES = {"training": None, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Savable:
    """What there is to save after a step; `tensors` and `state` are asked for only where a resume is to be possible."""

    step: int
    model: Any
    tokenizer: Any
    tensors: Callable[[], Mapping[str, Mapping[str, Tensor]]]
    state: Callable[[], Mapping[str, Any]]


@dataclass
class _Writing:
    """A save under way."""

    step: int
    path: Path
    thread: threading.Thread | None = None
    notes: Future[SnapshotNotes] = field(default_factory=Future)  # the thread waits for them when tensors are written
    basis: Any = None  # the trainer's state when its tensors were copied, where more is to be said of them
    abandoned: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
    seconds: float = 0.0

    def abandon_without_notes(self) -> None:
        """Nobody will say any more what the thread waits for."""
        if self.notes.cancel():
            self.abandoned.set()


class Saver:
    """Saves a run. All methods are for the thread that trains; with several ranks, for all of them at once."""

    def __init__(
        self,
        folder: Path,
        settings: ReportSection,
        ranks: Ranks,
        step: int,
        saved: Callable[[int, Path], object],
        failed: Callable[[int, str], object],
    ) -> None:
        """`step`: of the checkpoint that the run goes on from; 0: from none. `saved` and `failed` hear of each save."""
        self._folder, self._settings, self._ranks = folder, settings, ranks
        self._saved, self._failed = saved, failed
        self._checkpoints = folder / CHECKPOINTS
        self._memory = HostMemory()
        self._tokenizer: dict[str, bytes] = {}
        self._writing: _Writing | None = None
        self._began = time.perf_counter()
        self._whole = step  # the step of the last whole save
        self._next_held, self._next_writing = 0.0, 0.0  # what the next save will cost, by the last one
        self.counts = {"saves": 0, "failed": 0, "most_lost": 0}
        self.seconds = {"held": 0.0, "behind": 0.0}
        self._is_last = self._has_memory = False
        if ranks.is_first:
            self._tidy(step)
        self._best: Mapping[str, Any] | None = ranks.first(lambda: about_model(folder / BEST))

    def _tidy(self, step: int) -> None:
        """Take away what a killed process left, and models of steps that this run has yet to do."""
        remove_leftovers(self._checkpoints)
        remove_leftovers(self._folder)
        for name in MODELS:
            about = about_model(self._folder / name)
            if about is not None and about["step"] > step:
                remove_model(self._folder / name)
        prune_checkpoints(self._checkpoints, self._settings.keep_checkpoints)  # a kill may have come before it

    def due(self, step: int) -> bool:
        """Whether to save after this step: by its number, or as soon as the last save has been paid for."""
        if self._settings.save_every:
            return step % self._settings.save_every == 0
        return self._ranks.first(self._is_paid)

    def _is_paid(self) -> bool:
        if self._writing is not None:
            return False
        if not self.counts["saves"] + self.counts["failed"]:  # early: a run that is killed again and again gets on
            return self._memory.is_ready
        elapsed = time.perf_counter() - self._began
        held = self.seconds["held"] + self._next_held
        behind = self.seconds["behind"] + self._next_writing
        return held <= HELD_SHARE * elapsed and behind <= WRITING_SHARE * elapsed

    def new_best(self, report: StepReport, result: Mapping[str, float]) -> Mapping[str, Any] | None:
        """What to say of the model where its evaluation is the best so far, by the run's headline metric; else None."""
        return self._ranks.first(lambda: self._new_best(report, result))

    def _new_best(self, report: StepReport, result: Mapping[str, float]) -> Mapping[str, Any] | None:
        best, known = self._best or {}, plain_metrics(result)
        before = {**best.get("evaluation", {}), **({best["metric"]: best["value"]} if best else {})}
        before = {metric: number for metric, number in before.items() if number is not None}
        # what both measured: where every completion happened to get all or nothing, a reward is an accuracy too
        name = headline(
            {metric: known[metric] for metric in known if metric in before} or known, kind_of([report]).evals
        )
        if name is None or not math.isfinite(result[name]):
            return None
        value = float(result[name])
        if name in before:
            is_better = value < before[name] if name in LOWER_IS_BETTER else value > before[name]
            if not is_better:
                return None
        return {"metric": name, "value": value, "evaluation": _finite(result)}

    def begin(self, content: Savable) -> None:
        """Take the copy for a checkpoint and begin to write it, while what `save` is to say of it is still measured.

        Where the trainer's state is another one by then, its tensors may be too, and `save` begins anew.
        """
        if self._ranks.size > 1 or self._settings.save != "state":
            return
        begun = time.perf_counter()
        self.wait(count=False)
        path = self._checkpoints / checkpoint_name(content.step)
        basis = content.state()[BASIS]
        self._writing = self._begun(content, path, path)
        self._writing.basis = basis
        self.seconds["held"] += time.perf_counter() - begun

    def save(
        self,
        content: Savable,
        *,
        checkpoint: bool = True,
        best: Mapping[str, Any] | None = None,
        final: Mapping[str, float] | None = None,
    ) -> None:
        """Save a checkpoint, the best model, or the final one with its evaluation; several in one go.

        Returns when the copy is taken; waits first for a save that is under way, unless that was begun for this step.
        """
        begun = time.perf_counter()
        resumable = checkpoint and self._settings.save == "state"
        writing, state = self._writing, None
        if resumable and writing is not None and writing.basis is not None:
            state = content.state()
        if writing is None or state is None or (writing.step, writing.basis) != (content.step, state[BASIS]):
            self.wait(count=False)
            writing, state = None, None
        models: dict[Path, Mapping[str, Any]] = {}
        if best is not None:
            models[self._folder / BEST] = best
        if final is not None or (checkpoint and not resumable):
            models[self._folder / FINAL] = {"evaluation": _finite(final or {})}
        path = self._checkpoints / checkpoint_name(content.step) if resumable else None
        if self._ranks.size > 1:
            writing = _Writing(content.step, path or list(models)[-1])
            try:
                self._save_ranks(content, path, models)
            except SaveFailed as error:
                writing.error = error
        else:
            text = state_text(content.step, state or content.state()) if path is not None else b""
            writing = writing or self._begun(content, path, path or list(models)[-1])
            writing.notes.set_result(SnapshotNotes(text, models))
        self._writing = writing
        if best is not None:
            self._best = {"step": content.step, **best}
        held = time.perf_counter() - begun
        self.seconds["held"] += held
        if resumable or not self.counts["saves"]:  # a best model alone costs less
            self._next_held = held

    def _save_ranks(self, content: Savable, path: Path | None, models: Mapping[Path, Mapping[str, Any]]) -> None:
        state = content.state() if path is not None else {}
        tensors = content.tensors() if path is not None else {}
        texts = self._tokenizer_texts(content.tokenizer)
        dtype = DTYPES[self._settings.weights_dtype]
        from whet.training.distributed.sharded_checkpoint import save_sharded

        save_sharded(self._ranks, path, content.step, content.model, texts, tensors, state, models, dtype)
        if self._ranks.is_first:
            prune_checkpoints(self._checkpoints, self._settings.keep_checkpoints)

    def _begun(self, content: Savable, path: Path | None, shown: Path) -> _Writing:
        """Take the copy and start the thread that writes it; an error of the system's is for whoever waits."""
        writing = _Writing(content.step, shown)
        try:
            if path is not None:
                with naming(path):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    empty_partial(path)
            tensors = content.tensors() if path is not None else {}
            with naming(shown):
                texts = self._tokenizer_texts(content.tokenizer)
                snapshot = take_snapshot(content.step, content.model, texts, tensors, self._memory)
        except SaveFailed as error:
            writing.error = error
            return writing
        same = self._checkpoints / checkpoint_name(content.step)
        known = same if path is None and same in complete_checkpoints(self._checkpoints) else None

        waited = 0.0

        def notes() -> SnapshotNotes:
            nonlocal waited
            since = time.perf_counter()
            try:
                return writing.notes.result()
            except CancelledError:
                raise Abandoned from None
            finally:
                waited += time.perf_counter() - since

        def work() -> None:
            start = time.perf_counter()
            try:
                dtype = DTYPES[self._settings.weights_dtype]
                write_snapshot(snapshot, path, notes, dtype, known, lambda: not writing.abandoned.is_set())
                with naming(shown):
                    prune_checkpoints(self._checkpoints, self._settings.keep_checkpoints)
            except BaseException as error:
                writing.error = error
            finally:
                writing.seconds = time.perf_counter() - start - waited

        writing.thread = Thread(target=work, name="whet-save", daemon=True)
        writing.thread.start()
        return writing

    def _tokenizer_texts(self, tokenizer: Any) -> dict[str, bytes]:
        """Its files, asked for once: a run does not change its tokenizer, and a large one takes a while to write."""
        if not self._tokenizer:
            self._tokenizer = tokenizer_texts(tokenizer)
        return self._tokenizer

    def stepped(self, content: Savable) -> None:
        """Count what a kill would cost after this step, and hear of a save that has ended."""
        if not self._has_memory and self._ranks.size == 1:
            self._has_memory = True
            tensors = content.tensors() if self._settings.save == "state" else {}
            reserve_memory(content.model, tensors, self._memory)
        writing = self._writing
        if writing is not None and (writing.thread is None or not writing.thread.is_alive()):
            self._settle()
        self.counts["most_lost"] = max(self.counts["most_lost"], content.step - self._whole)

    def wait(self, count: bool = True) -> None:
        """Wait for the save under way; one that was only begun is given up."""
        if self._writing is None:
            return
        self._writing.abandon_without_notes()
        start = time.perf_counter()
        if self._writing.thread is not None:
            self._writing.thread.join()
        if count:
            self.seconds["held"] += time.perf_counter() - start
        self._settle()

    def finish(self) -> None:
        """Wait for the last save of a run; raise where it failed."""
        if self._writing is None:
            return
        self._is_last = True
        self.wait()

    @property
    def next_seconds(self) -> float:
        """What the next save will take, by the last one."""
        return self._next_held + self._next_writing

    def abandon(self) -> None:
        """Give up the save under way unless it ends at once: the last whole checkpoint then stays the newest."""
        writing, self._writing = self._writing, None
        if writing is not None and writing.thread is not None:
            writing.abandon_without_notes()
            writing.thread.join(GRACE)
            writing.abandoned.set()
            writing.thread.join()

    def release(self) -> None:
        """Give back the memory of the copies; nothing may be under way."""
        self._memory.release()

    def _settle(self) -> None:
        """Hear what became of a save that has ended."""
        writing, self._writing = self._writing, None
        assert writing is not None
        self.seconds["behind"] += writing.seconds
        self._next_writing = writing.seconds or self._next_writing
        if writing.error is None:
            if writing.path.name != BEST:
                self.counts["saves"] += 1
                self._whole = writing.step
            self._saved(writing.step, writing.path)
        elif isinstance(writing.error, SaveFailed) and not self._is_last:
            self.counts["failed"] += 1
            self._best = about_model(self._folder / BEST)
            self._failed(writing.step, self._failure(writing.error))
        elif not isinstance(writing.error, Abandoned):
            raise writing.error

    def _failure(self, error: SaveFailed) -> str:
        whole = complete_checkpoints(self._checkpoints)
        last = f"the last whole checkpoint is {whole[-1].name}" if whole else "no checkpoint is whole yet"
        return f"not saved ({error.reason}): the run continues and tries again; {last}"

    def account(self) -> dict[str, float]:
        """What saving came to: counts, seconds, and the wall time they are a share of."""
        return {**self.counts, **self.seconds, "wall": time.perf_counter() - self._began}


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: float(value) if math.isfinite(value) else None for name, value in values.items()}
