"""Everything around the steps of a run: reporting, evaluating, saving, stopping, and going on exactly where it was.

A checkpoint holds all that the next step depends on, and how long the logs were when it was written. After a kill the
logs are cut back to the newest complete checkpoint, so the run that goes on writes what an unbroken one would have.

What each step takes of the machine. Equal runs differ in it, as they do in seconds.
"""

from __future__ import annotations

import math
import resource
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor

from whet.model.checkpoint import hide, load_checkpoint
from whet.model.finite import non_finite_weight
from whet.model.run_models import checkpoint_step, complete_checkpoints
from whet.record.evaluations import Evaluations, evaluations_of
from whet.record.flat_rows import ThinnedLog
from whet.record.health.diagnosis import diagnosis
from whet.record.log import EvalRecord, RunRecorder, cut_back, eval_records, is_finished, read_metrics, step_reports
from whet.record.metrics.timer import PhaseTimer
from whet.record.run_kinds import kind_of
from whet.record.sections import HealthSection, ReportSection
from whet.training.distributed.agreement import agree_on_step
from whet.training.distributed.ranks import ALONE, Ranks
from whet.training.evaluator import PromptScores
from whet.training.health_actions import HealthAction, HealthWatch
from whet.training.saving import BASIS, Savable, Saver
from whet.training.stopping import EarlyEnd, TimeBudget, no_new_best
from whet.types import Prompt, RunFailed, Sample, StepReport

GIB = 2**30
OWN_MEMORY = Path("/proc/self/statm")


class MachineMeter:
    """Reads, from one step to the next, the cores and memory of this process and the memory and use of its GPU."""

    def __init__(self, device: torch.device) -> None:
        self._gpu = device if device.type == "cuda" else None
        self._can_tell_use = find_spec("pynvml") is not None
        self._before = self._clocks()

    def read(self) -> dict[str, float]:
        """`cores` that were busy on average since the last reading, `memory` and `gpu_memory` in GiB, `gpu_use` as a
        share; what the system does not tell is left out."""
        wall, spent = (now - before for now, before in zip(self._clocks(), self._before, strict=True))
        self._before = self._clocks()
        values = {"cores": spent / wall} if wall > 0 else {}
        try:
            pages = int(OWN_MEMORY.read_text().split()[1])
        except (OSError, ValueError, IndexError):
            pages = 0
        if pages:
            values["memory"] = pages * resource.getpagesize() / GIB
        if self._gpu is not None:
            free, total = torch.cuda.mem_get_info(self._gpu)
            values["gpu_memory"] = (total - free) / GIB
            if self._can_tell_use:
                values["gpu_use"] = torch.cuda.utilization(self._gpu) / 100
        return values

    @staticmethod
    def _clocks() -> tuple[float, float]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return time.perf_counter(), usage.ru_utime + usage.ru_stime


STOP = "stop"  # what a callback returns to end the run
STOPPING_EVENTS = ("stepped", "evaluated")


class FolderLost(RunFailed):
    """What the run wrote is gone: nothing more must be written in its place."""


class Trainer(ABC):
    """One way of training, a step at a time."""

    model: Any  # in training
    tokenizer: Any
    rate_factor = 1.0  # what is left of the scheduled learning rate
    prompt_scores: PromptScores = MappingProxyType({})  # of the last evaluation; empty where that is not known

    @property
    def ended_early(self) -> str | None:
        """Why the run ends before its last step, or None."""
        return None

    @abstractmethod
    def step(self, number: int, timer: PhaseTimer) -> tuple[StepReport, list[tuple[Prompt, Sample]]]:
        """Take one step; its report, and the samples it was trained on."""

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """Metrics on eval data; empty where there is none."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """The state, besides the tensors, that the next step depends on, as JSON."""

    @abstractmethod
    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """The tensors, besides the model's, that the next step depends on: named sets of them."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Go back to what `state` and `tensors` gave."""

    def close(self) -> None:
        """End what it started in other processes."""
        return None


class Stateful(Protocol):
    """Something besides the trainer whose state a checkpoint needs, such as a reward with memory."""

    def state(self) -> Any:
        """The state as JSON."""
        ...

    def restore(self, state: Any) -> None:
        """Go back to what `state` gave."""
        ...


@dataclass(frozen=True)
class TrainingResult:
    """What a run came to."""

    status: str  # finished or interrupted
    steps: int
    before: Mapping[str, float]
    after: Mapping[str, float]
    seconds: Mapping[str, float]
    tokens: int  # generated, or trained on where nothing is generated
    ended: EarlyEnd | None = None  # why a finished run ended before its last step
    evaluations: Evaluations = field(default_factory=Evaluations)
    saving: Mapping[str, float] = field(default_factory=dict)  # what saving cost, and a kill would have


@dataclass
class _Progress:
    """What has been done so far; saved with every checkpoint. No times: equal runs have equal checkpoints."""

    step: int = 0
    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)
    evaluated_at: int = -1
    tokens: int = 0
    streaks: dict[str, int] = field(default_factory=dict)  # steps for which problems have held that are acted on
    rate_factor: float = 1.0  # what is left of the scheduled learning rate
    ended: list[str] = field(default_factory=list)  # what ended the run early, and in words


def notify(callbacks: Sequence[object], event: str, *arguments: Any) -> str:
    """Tell every callback that has a method of this name. A callback may have any subset of `Callback`'s methods.

    The name of the first that returned "stop" is returned, which ends the run; else nothing.
    """
    asked = ""
    for callback in callbacks:
        method = getattr(callback, event, None)
        answer = method(*arguments) if method is not None else None
        if isinstance(answer, str):
            name = type(callback).__name__
            if answer != STOP or event not in STOPPING_EVENTS:
                raise RunFailed(
                    f"the callback {name} returned {answer!r} from {event}; return {STOP!r} from "
                    f"{' or '.join(STOPPING_EVENTS)} to end the run, else nothing"
                )
            asked = asked or name
    return asked


def _for_checks(report: StepReport) -> StepReport:
    """What health checks read of a step: all steps are kept, and the rest would be most of their memory."""
    return replace(report, spread={}, seconds={}, timeline=(), machine={}, health=())


def run_training(
    trainer: Trainer,
    folder: Path,
    record: RunRecorder,
    callbacks: Sequence[object],
    summary: Mapping[str, Any],
    *,
    steps: int,
    eval_every: int,
    saving: ReportSection,
    stop_after: int = 0,
    hours: float = 0.0,
    begun: float | None = None,
    eval_size: int = 0,
    problems: HealthSection | None = None,
    checkpoint: Path | None = None,
    precision: str = "fp32",
    health_settings: Mapping[str, Any] | None = None,
    also_saved: Mapping[str, Stateful] | None = None,
    identity: str = "",
    ranks: Ranks = ALONE,
    note: Callable[[str], object] | None = None,
) -> TrainingResult:
    """Run the remaining of all `steps`. `checkpoint` is where to go on from; without one the run starts at step 1.

    `eval_every` 0 evaluates only before the first and after the last step; `saving` says when
    checkpoints are saved and how many are kept, `problems` what is done about the run's health.
    `stop_after` ends the run after so many evaluations without a new best, `hours` when they are spent since `begun`
    (by the monotonic clock; None: now). `eval_size` is how many prompts or rows an evaluation is a mean over.
    `also_saved` is what checkpoints hold besides the trainer, by name; `identity` is what they say whose they are.
    Of several ranks the first alone writes records and is listened to by callbacks; `note` hears what this rank does.
    """
    others = dict(also_saved or {})
    progress = _restored(trainer, folder, checkpoint, others, ranks)
    ranks.gather(None)  # the first rank has cut the logs back
    note = note or _ignore
    lines = read_metrics(folder)
    history: ThinnedLog[StepReport] = ThinnedLog()  # of a long run: a check must not cost more with every step
    for earlier in step_reports(lines):
        history.append(_for_checks(earlier))
    evals = eval_records(lines)
    watch = HealthWatch(problems or HealthSection(), dict(progress.streaks), progress.rate_factor)
    if watch.rate_factor != 1:
        trainer.rate_factor = watch.rate_factor
    spent = _spent(lines)
    budget = TimeBudget(hours, sum(spent.values()), begun)
    everyone = [record, *callbacks]

    def evaluations() -> Evaluations:
        return evaluations_of(evals, kind_of(history.items()).evals)

    was_finished = ranks.first(lambda: is_finished(folder))  # before "running" is written
    notify(everyone, "started", {**summary, "evaluations": evaluations().values()} if evals else summary)

    def evaluate(step: int, is_last: bool = False) -> str:
        """Evaluate; the callback that asked to stop, or nothing. The last checkpoint is written meanwhile."""
        note(f"evaluating after step {step}")
        _check_weights(trainer.model, step, folder)
        if is_last:
            copying = PhaseTimer()
            with copying.phase("save"):
                saver.begin(content(step))
            _add(spent, copying.seconds)
        timer = PhaseTimer()
        with timer.phase("evaluate"), _memory_in_words(f"the evaluation at step {step}", folder):
            result = trainer.evaluate()
        if step == 0:
            progress.before = result
        progress.after, progress.evaluated_at = result, step
        if not result:  # nothing to evaluate on takes no time worth a line
            return ""
        _add(spent, timer.seconds)
        took, scores = timer.seconds["evaluate"], {name: tuple(row) for name, row in trainer.prompt_scores.items()}
        evals.append(EvalRecord(step, "eval", result, took, eval_size, scores))
        record.evaluated(step, "eval", result, took, eval_size, scores)
        return notify(callbacks, "evaluated", step, "eval", result, took)

    def state() -> dict[str, Any]:
        return {
            "run": vars(progress),
            BASIS: trainer.state(),
            "also": {name: part.state() for name, part in others.items()},
            "logs": record.position(),
            "identity": identity,
        }

    def content(step: int) -> Savable:
        return Savable(step, trainer.model, trainer.tokenizer, trainer.tensors, state)

    def save(step: int, *, checkpoint: bool, best: Mapping[str, Any] | None = None, is_last: bool = False) -> None:
        note(f"saving step {step}")
        refuse_lost(record, step)
        timer = PhaseTimer()
        with timer.phase("save"):
            _check_weights(trainer.model, step, folder)
            measured = progress.after if progress.evaluated_at == step else {}
            saver.save(content(step), checkpoint=checkpoint, best=best, final=measured if is_last else None)
            if is_last:
                saver.finish()
        _add(spent, timer.seconds)

    def failed(step: int, text: str) -> None:
        notify(everyone, "save_failed", step, text)

    saver = Saver(folder, saving, ranks, progress.step, lambda *done: notify(everyone, "saved", *done), failed)
    try:
        end = _method_end(trainer) or _known_end(progress, was_finished)
        progress.ended = []
        if progress.evaluated_at < 0:
            end = _agreed(ranks, end, evaluate(0))
        saved = progress.step if checkpoint is not None else -1
        is_final = False
        meter = MachineMeter(next(trainer.model.parameters()).device)
        with _graceful_stop() as stopping:
            for step in range(progress.step + 1, (steps if end is None else progress.step) + 1):
                timer = PhaseTimer()
                note(f"in step {step}")
                with _memory_in_words(f"step {step}", folder):
                    report, samples = trainer.step(step, timer)
                health = diagnosis([*history.items(), report], precision, health_settings, evals)
                is_evaluated = progress.evaluated_at == step - 1
                taken = _actions(watch, health, is_evaluated, progress, trainer, ranks)
                report = replace(report, health=(*health, *taken.values()), seconds=timer.seconds, machine=meter.read())
                history.append(_for_checks(report))
                _add(spent, timer.seconds)
                progress.step = step
                progress.tokens += report.counts.get("tokens", 0)
                refuse_lost(record, step)
                asked = notify(everyone, "stepped", report, samples)
                saver.stepped(content(step))
                end = _method_end(trainer) or (EarlyEnd("health", taken["stop"]) if "stop" in taken else None)
                reserve = sum(timer.seconds.values()) + (evals[-1].seconds if evals else 0.0) + saver.next_seconds
                end = _agreed(ranks, end, asked, budget.end(reserve))
                done = step == steps or end is not None
                stops, disagreement = agree_on_step(ranks, trainer.model, report, samples, stopping.is_set())
                if disagreement:
                    raise RunFailed(disagreement)
                best = None
                if done or (eval_every and step % eval_every == 0):
                    asked = evaluate(step, is_last=done)
                    best = saver.new_best(report, progress.after)
                    end = _agreed(ranks, end, asked, no_new_best(evaluations(), stop_after))
                    done = done or end is not None
                is_final = done or stops
                progress.ended = [] if end is None else [end.by, end.text]
                if is_final or "checkpoint" in taken or saver.due(step):
                    save(step, checkpoint=True, best=best, is_last=is_final)
                    saved = step
                elif best is not None:
                    save(step, checkpoint=False, best=best)
                # several ranks stop together: a signal that came to one meanwhile counts at the next step
                if is_final or (ranks.size == 1 and stopping.is_set()):
                    break
            if not is_final:  # the signal came after its step had been looked at, or there was no step left to do
                save(progress.step, checkpoint=saved != progress.step, is_last=True)
    except BaseException as error:
        lost = folder_lost(record, progress.step) if isinstance(error, Exception) else None
        _leave(saver, lost or error)
        if lost is not None:
            raise lost from error
        raise
    finally:
        saver.release()
    refuse_lost(record, progress.step)
    result = _result(progress, steps, end if progress.step < steps else None, spent)
    return replace(result, saving=saver.account(), evaluations=evaluations())


def _known_end(progress: _Progress, was_finished: bool) -> EarlyEnd | None:
    """What ended a run that was killed before it could say so; one that did is resumed to go on.

    A budget that was spent is looked at again: the resume may have brought more hours.
    """
    end = EarlyEnd(*progress.ended) if progress.ended else None  # type: ignore[arg-type]
    return None if end is None or was_finished or end.by == "hours" else end


def _method_end(trainer: Trainer) -> EarlyEnd | None:
    return None if trainer.ended_early is None else EarlyEnd("method", trainer.ended_early)


def _agreed(ranks: Ranks, end: EarlyEnd | None, asked: str, other: EarlyEnd | None = None) -> EarlyEnd | None:
    """Why the run ends, if it does: the first reason there is, and what the first rank knows of clock and callbacks."""
    if end is not None:  # every rank knows it
        return end
    return ranks.first(lambda: EarlyEnd("callback", f"the callback {asked} asked for it") if asked else other)


def _leave(saver: Saver, error: BaseException) -> None:
    """End the save under way of a run that broke: a whole picture is written to its end, unless nobody may wait."""
    try:
        if not isinstance(error, KeyboardInterrupt | FolderLost):
            saver.wait()
    except Exception as also:
        error.add_note(f"besides, the save under way failed: {also}")
    finally:
        saver.abandon()


def _actions(
    watch: HealthWatch,
    health: Sequence[str],
    is_evaluated: bool,
    progress: _Progress,
    trainer: Trainer,
    ranks: Ranks,
) -> dict[HealthAction, str]:
    """What is done about the problems of a step. Every rank does what the first one decides."""
    if not watch.policy.on_problem:
        return {}
    taken = watch.look(ranks.first(lambda: tuple(health)), is_evaluated)
    progress.streaks, progress.rate_factor = watch.streaks, watch.rate_factor
    if "lower_rate" in taken:
        trainer.rate_factor = watch.rate_factor
    return taken


def folder_lost(record: RunRecorder, step: int) -> FolderLost | None:
    """What to say where the run's folder was removed, whatever error that led to; else None."""
    lost = record.lost()
    if lost is None:
        return None
    return FolderLost(
        f"step {step}: {lost} was deleted, moved or replaced while the run was writing there, and what it held is "
        "lost; start the run again in a folder of its own"
    )


def refuse_lost(record: RunRecorder, step: int) -> None:
    """Stop where what the run wrote was taken away: it would end as finished, with nothing to show for it."""
    lost = folder_lost(record, step)
    if lost is not None:
        raise lost


def _spent(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds by phase, over the recorded steps and evaluations."""
    spent: dict[str, float] = {}
    for report in step_reports(lines):
        _add(spent, {name: took for name, took in report.seconds.items() if math.isfinite(took)})
    for evaluation in eval_records(lines):
        _add(spent, {"evaluate": evaluation.seconds})
    return spent


def _check_weights(model: Any, step: int, folder: Path) -> None:
    """Never save or measure weights that are not numbers."""
    name = non_finite_weight(model)
    if name is not None:
        raise RunFailed(
            f"step {step}: the weight {name} is not finite (NaN or infinity), and such weights are not saved; lower "
            f"optimizer.learning_rate (`whet resume {folder} --set optimizer.learning_rate=RATE --accept-changes`)"
        )


def _result(progress: _Progress, steps: int, ended: EarlyEnd | None, spent: Mapping[str, float]) -> TrainingResult:
    status = "finished" if progress.step == steps or ended is not None else "interrupted"
    # a metric that only one of the two evaluations has is no comparison
    before = {name: value for name, value in progress.before.items() if name in progress.after}
    return TrainingResult(status, progress.step, before, progress.after, spent, progress.tokens, ended)


def _ignore(text: str) -> None:
    pass


def _restored(
    trainer: Trainer, folder: Path, checkpoint: Path | None, others: Mapping[str, Stateful], ranks: Ranks
) -> _Progress:
    if checkpoint is None:
        if ranks.is_first:
            cut_back(folder, {})
        return _Progress()
    from whet.training.distributed.sharded_checkpoint import is_sharded, load_sharded

    if ranks.size == 1 and not is_sharded(checkpoint):
        tensors, state = load_checkpoint(checkpoint, trainer.model)
    else:
        tensors, state = load_sharded(ranks, checkpoint, trainer.model)
    trainer.restore(state["trainer"], tensors)
    for name, saved in state["also"].items():
        if name in others:  # a reward that was taken out has nothing to restore
            others[name].restore(saved)
    # "stopped" is of an earlier version
    progress = _Progress(**{name: value for name, value in state["run"].items() if name != "stopped"})
    if not ranks.is_first:
        return progress
    cut_back(folder, state["logs"])
    # newer ones belong to the lines just cut off: pruning would take them for the newest, and so would a resume
    for path in complete_checkpoints(checkpoint.parent):
        if checkpoint_step(path) > checkpoint_step(checkpoint):
            hide(path)
    return progress


def _add(totals: dict[str, float], more: Mapping[str, float]) -> None:
    for name, number in more.items():
        totals[name] = totals.get(name, 0.0) + number


@contextmanager
def _memory_in_words(during: str, folder: Path) -> Iterator[None]:
    """A full GPU as a failed run with its way out, instead of a traceback from inside a kernel."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        asked = str(error).partition(". GPU")[0].strip().rstrip(".")
        raise RunFailed(
            f"{during}: {asked}; lower batch.micro_batch_tokens, which changes memory only (`whet resume {folder} "
            "--set batch.micro_batch_tokens=N`), or start with fewer rows per step or a lower sampling.max_new_tokens; "
            "end other processes on the GPU"
        ) from error


@contextmanager
def _graceful_stop() -> Iterator[threading.Event]:
    """Let the first Ctrl-C, termination or end of the terminal finish the step and save; a second one interrupts."""
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if stopping.is_set():
            earlier = before[signal.Signals(number)]
            if callable(earlier):
                earlier(number, frame)  # says by which signal it ends
            raise KeyboardInterrupt
        stopping.set()

    heeded = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup: the run outlives its terminal
        heeded.append(signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in heeded}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
