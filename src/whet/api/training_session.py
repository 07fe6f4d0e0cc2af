"""A training session: the ranks joined, the run's folder claimed, its output and its crashes looked after.

`training_session` is the one context manager between a command and the steps of a run. What its parts opened is closed
in reverse order, however the run ends, and the other ranks hear of every way to end.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.api.ending import defer_signals, write_traceback
from whet.api.inputs import saved_start
from whet.api.ranks import agree_on_config, join_ranks, root_cause, speak_for_first
from whet.model.local_copies import SMOLLM2
from whet.record.run_folder import locked
from whet.threads import Thread
from whet.training.config import Config
from whet.training.distributed.launch import Launch, rank_device
from whet.training.saved_config import claimed_folder
from whet.types import WhetError

if TYPE_CHECKING:
    from whet.training.distributed.rank_group import RankGroup
    from whet.training.distributed.ranks import Ranks

YOUNG = 20_000  # objects that come to stay before they are looked through
MADE_BY_FIRST = (("data", "source"), ("eval", "source"), ("model", "name"))  # where what was given from Python lies


@contextlib.contextmanager
def training_session(launch: Launch, patience: float) -> Iterator[TrainingSession]:
    """Join the other ranks, where there are some, and hold open what the session claims."""
    with join_ranks(launch, patience) as group, contextlib.ExitStack() as stack:
        yield TrainingSession(group, stack)


class TrainingSession:
    """What one call of `whet.train` or `whet.resume` holds open; `group` is None for one process."""

    def __init__(self, group: RankGroup | None, stack: contextlib.ExitStack) -> None:
        self.group, self._stack = group, stack

    @property
    def is_first(self) -> bool:
        """Whether this process owns folder, console and records."""
        return self.group is None or self.group.is_first

    def claim_run_folder(
        self,
        config: Config,
        rows: Sequence[Mapping[str, Any]] | None,
        eval_rows: Sequence[Mapping[str, Any]] | None,
        model: Any,
        tokenizer: Any,
    ) -> tuple[Config, Path]:
        """The config with what lies in the run's folder, and the folder: made by the first rank, sent to the others."""
        if self.is_first:
            folder, claimed = self._stack.enter_context(claimed_folder(config, rows, eval_rows))
            final = self._stack.enter_context(saved_start(claimed, folder, model, tokenizer))
            if self.group is not None:
                places = [getattr(getattr(final, section), key) for section, key in MADE_BY_FIRST]
                self.group.hand_out("folder", json.dumps([str(folder.absolute()), final.folder, places]))
                agree_on_config(self.group, final)
            return final, folder
        assert self.group is not None
        shared, name, places = json.loads(self.group.hand_out("folder"))
        updates: dict[str, Any] = {"folder": name}
        for (section, key), value in zip(MADE_BY_FIRST, places, strict=True):
            if Path(value).parent == Path(name):
                updates[section] = getattr(config, section).model_copy(update={key: value})
        final = config.model_copy(update=updates)
        folder = shared_folder(shared)
        agree_on_config(self.group, final)
        return final, folder

    def claim_checkpoint(
        self, folder: Path, config: Config, name: str | None, is_longer: bool
    ) -> tuple[Path | None, int]:
        """The checkpoint to go on from and its step; chosen by the first rank, which keeps others out of the folder.

        `is_longer`: another number of steps was asked for.
        """
        from whet.model.run_models import checkpoint_step

        if not self.is_first:
            assert self.group is not None
            checkpoint = self.group.hand_out("checkpoint")
            chosen = shared_folder(str(folder)) / "checkpoints" / checkpoint if checkpoint else None
            return chosen, 0 if chosen is None else checkpoint_step(chosen)
        self._stack.enter_context(locked(folder))
        chosen = _checkpoint_to_resume(folder, config, name, is_longer)
        if self.group is not None:
            self.group.hand_out("checkpoint", chosen.name if chosen is not None else "")
        return chosen, 0 if chosen is None else checkpoint_step(chosen)

    def redirect_output(self, folder: Path, streams: bool) -> None:
        """Errors and warnings of all ranks but the first go to rank-N.log; so does what they print, with `streams`."""
        if not self.is_first:
            assert self.group is not None
            self._stack.enter_context(_output_in_log(folder, self.group, streams))

    def collect_seldom(self) -> None:
        """Look for garbage seldom from here to the end of the session."""
        self._stack.enter_context(gc_seldom())

    def begin_conversion(self, model: str) -> None:
        """Convert a GGUF that has no converted copy beside the imports; ended with the session."""
        if model != SMOLLM2 and not model.endswith(".gguf"):
            return
        from whet.model.gguf import begin_conversion

        self._stack.callback(begin_conversion(model))

    def init_process_group(self, config: Config) -> Ranks:
        """The ranks with a process group on their devices."""
        from whet.model.load import device_choice
        from whet.training.distributed.ranks import ALONE

        if self.group is None:
            return ALONE
        device = rank_device(self.group.launch, config.model.device, device_choice(config.model.device))
        return self.group.connect(device, config.scale.timeout)


def shared_folder(name: str) -> Path:
    """The run folder as this rank sees it."""
    folder = Path(name)
    if not folder.is_dir():
        raise WhetError(f"{folder} is not to be seen on this machine; give a folder on a disk that all ranks share")
    return folder


def _checkpoint_to_resume(folder: Path, config: Config, name: str | None, is_longer: bool) -> Path | None:
    """The newest complete checkpoint, or the one of that name; None where there is none, an error where all is done."""
    from whet.model.checkpoint import verify_checkpoint
    from whet.model.run_models import FINAL, checkpoint_step, complete_checkpoints
    from whet.record.log import is_finished

    complete = complete_checkpoints(folder / "checkpoints")
    chosen = complete[-1] if complete else None
    if name is not None:
        chosen = folder / "checkpoints" / name
        if chosen not in complete:
            raise WhetError(f"{chosen}: no complete checkpoint; there are {', '.join(path.name for path in complete)}")
    if chosen is None and config.report.save == "weights":
        raise WhetError(
            f"{folder} cannot be resumed: with report.save=weights it kept no training state; start a new run from its "
            f"weights, model {folder / FINAL}"
        )
    if chosen is None:
        return None
    verify_checkpoint(chosen)
    done = checkpoint_step(chosen)
    if is_longer and config.steps <= done:
        raise WhetError(f"{folder} is at step {done} already; give steps a larger total")
    # a run killed between its last step and its report still has that to write
    if done >= config.steps and is_finished(folder):
        raise WhetError(
            f"{folder}: nothing to do, all {config.steps} steps are done; to train on, "
            f"`whet resume {folder}` with a larger total: steps={2 * config.steps}"
        )
    _refuse_spent(folder, config.hours)
    return chosen


def _refuse_spent(folder: Path, hours: float) -> None:
    """Raise where a run ended with its time and is given no more."""
    from whet.record.log import is_finished, read_summary

    if not is_finished(folder):
        return
    summary = read_summary(folder)
    if summary.get("ended_by") == "hours" and 0 < hours <= float(summary.get("hours") or 0):
        raise WhetError(
            f"{folder}: nothing to do, its {hours:g} hours are spent; to train on, "
            f"`whet resume {folder}` with a larger total: hours={2 * hours:g}"
        )


@contextlib.contextmanager
def _output_in_log(folder: Path, group: RankGroup, streams: bool) -> Iterator[None]:
    """The log of a rank that is not the first; one with nothing in it is not left behind."""
    path = folder / f"rank-{group.launch.rank}.log"
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    logging.getLogger("whet").addHandler(handler)
    logging.getLogger("whet").propagate = False
    own_streams = _streams_in(path, lambda: group.is_first_unheard) if streams else contextlib.nullcontext(2)
    try:
        with own_streams as stderr:
            group.heart.last_words = lambda cause: _last_words(group, cause, stderr)
            try:
                yield
            except BaseException as error:
                write_traceback(path, error)
                with defer_signals():
                    ended = root_cause(group, error)
                if ended is error:
                    raise
                logging.getLogger("whet").warning("%s", ended)  # what broke here is only what came of it
                raise ended from error
    finally:
        logging.getLogger("whet").removeHandler(handler)
        logging.getLogger("whet").propagate = True
        handler.close()
        with contextlib.suppress(OSError):
            if not path.stat().st_size:
                path.unlink()


def _last_words(group: RankGroup, cause: str, stderr: int) -> None:
    logging.getLogger("whet").warning("%s", cause)
    speak_for_first(group, cause, stderr)


@contextlib.contextmanager
def _streams_in(path: Path, speaks: Callable[[], bool]) -> Iterator[int]:
    """Standard output and error of the process, C code's too, in a file; yields where standard error was.

    After an error until the process ends, unless it still `speaks`.
    """
    streams = (sys.stdout, sys.stderr)
    saved = {number: os.dup(number) for number in (1, 2)}
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        for stream in streams:
            stream.flush()
        for number in saved:
            os.dup2(file, number)
        failed = True
        try:
            yield saved[2]
            failed = False
        finally:
            if not failed or speaks():
                for stream in streams:
                    stream.flush()
                for number, was in saved.items():
                    os.dup2(was, number)
    finally:
        for descriptor in (file, *saved.values()):
            os.close(descriptor)


def begin_cuda(config: Config) -> None:
    """Let the driver make the context of the GPU in a thread: it takes about as long as importing torch, and neither
    waits for the other. Not where processes that use the GPU are still to be forked."""
    scale, name = config.scale, config.model.device
    if name not in ("auto", "cuda", "cuda:0") or config.sampling.engine != "torch":
        return
    if scale.engines or scale.max_staleness or scale.workers > 1:
        return
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # as torch does before it asks the driver

    def work() -> None:
        with contextlib.suppress(OSError, AttributeError):  # no driver here
            driver = ctypes.CDLL("libcuda.so.1")
            device, context = ctypes.c_int(), ctypes.c_void_p()
            if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
                driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)

    Thread(target=work, name="whet-cuda", daemon=True).start()


@contextlib.contextmanager
def gc_disabled(*, looks: bool = True) -> Iterator[None]:
    """Without garbage collection: while torch and transformers are imported it finds nothing, and costs half a second.

    What was made meanwhile, all of it young, is looked through once, for what trials and a loader leave in cycles may
    hold a model's memory, unless nothing of the kind was made; then it is left alone, torch's half a million objects
    too.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if looks:
                gc.collect(0)
            gc.freeze()
            gc.enable()


@contextlib.contextmanager
def gc_seldom() -> Iterator[None]:
    """Look for garbage seldom: little of it is in cycles, and the device waits. Afterwards as usual, and everywhere."""
    thresholds = gc.get_threshold()
    gc.set_threshold(YOUNG, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
