"""`whet.train` and `whet.resume`: a config, a folder, the trainer, its callbacks and the report at the end."""

from __future__ import annotations

import contextlib
import gc
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.api.ending import ERROR_LOG, going_on, one_line_of, signals_wait, watched, write_traceback
from whet.api.inputs import (
    RewardLike,
    check_callbacks,
    check_tokenizer,
    data_source,
    environment_section,
    made_rewards,
    model_name,
    reward_parts,
    reward_section,
    rows_in_memory,
    saved_start,
)
from whet.api.run import Run
from whet.api.run_files import Resumed, RunFiles, with_settings
from whet.config.config import FROM_PYTHON, Config, merged, read_toml, resolved
from whet.config.run_folder import (
    EVAL_ROWS,
    ROWS,
    START,
    claimed_folder,
    discard,
    locked,
    read_config,
    refuse_resume_of_0_1,
)
from whet.config.run_inputs import RunInputs
from whet.config.width import stated_width
from whet.importing import refuse_while_importing
from whet.reward.journal import journal
from whet.types import RunFailed, WhetError

if TYPE_CHECKING:
    from whet.build.assembly import Assembly
    from whet.train.run import TrainingResult
    from whet.types import StepReport

TRL_ARGUMENTS = {"train_dataset": "data", "eval_dataset": "eval_data", "reward_funcs": "reward", "args": "config"}
TRL_ARGUMENTS |= {"processing_class": "tokenizer"}
Rewards = RewardLike | Sequence[RewardLike] | Mapping[str, tuple[RewardLike, float]]


def train(
    method: str,
    *,
    model: Any = None,
    tokenizer: Any = None,
    data: Any = None,
    eval_data: Any = None,
    reward: Rewards | None = None,
    env: Any = None,
    tools: Sequence[Any] | None = None,
    agent: str | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    callbacks: Sequence[Any] = (),
    console: bool = True,
    command: str = "",
    **settings: Any,
) -> Run:
    """Train `model` on `data` by `method` and return the run.

    `model` is a name or path as on the command line, a `Run`, or a transformers model with its `tokenizer`. That object
    is not changed: its weights are copied into the run folder, and the run trains the copy. `data` is a source as on
    the command line, a path, rows as dictionaries, a Dataset or a DataFrame, and so is `eval_data`, which the run is
    evaluated on. `reward` is a built-in name, a function
    `(prompt, completion) -> float` or one in TRL's signature, a list of them, or `{name: (reward, weight)}`.
    `env` is an environment by name or a class, `tools` are names or functions the policy may call, `agent` is the
    command of a program that plays the episodes: docs/agents.md has all three.
    `config` is a TOML file or its nested values, `settings` are top-level keys that win over it:
    `steps=20, batch={"group_size": 4}`. `callbacks` have any of the methods of `whet.Callback` and are called
    beside the console; `console=False` silences that.
    """
    refuse_while_importing("whet.train")
    refuse_several_processes()
    for name in settings.keys() & TRL_ARGUMENTS.keys():
        raise WhetError(f"whet.train has no argument {name!r}; in whet it is {TRL_ARGUMENTS[name]}=...")
    check_callbacks(callbacks)
    check_tokenizer(model, tokenizer)
    layer = dict(settings)
    rows, eval_rows = rows_in_memory(data), rows_in_memory(eval_data)
    parts = reward_parts(reward)
    if model is not None:
        layer["model"] = {"name": model_name(model) or START}
    if data is not None:
        layer["data"] = {"source": data_source(data) or ROWS}
    if eval_data is not None:
        layer = merged({"eval": {"source": data_source(eval_data) or EVAL_ROWS}}, layer)
    if parts is not None:
        layer["reward"] = reward_section(parts)
    layer = merged(layer, environment_section(env, tools, agent))
    base = read_toml(config) if isinstance(config, str | Path) else dict(config or {})
    width = stated_width(model.config) if model is not None and model_name(model) is None else None
    resolved_config = resolved(method, base, layer, width=width)
    with (
        claimed_folder(resolved_config, rows, eval_rows) as (folder, claimed),
        saved_start(claimed, folder, model, tokenizer) as final,
    ):
        named = parts is not None and all(isinstance(each, str) for _, _, each in parts)
        files = RunFiles(final, folder, command)
        return _run(final, folder, callbacks, console, None, files, None if named else made_rewards(parts))


def resume(
    folder: str | Path | Run,
    *,
    steps: int | None = None,
    checkpoint: str | None = None,
    reward: Rewards | None = None,
    env: Any = None,
    tools: Sequence[Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    accept_changes: bool = False,
    callbacks: Sequence[Any] = (),
    console: bool = True,
    command: str = "",
) -> Run:
    """Go on with a run exactly where its newest complete checkpoint is; `steps` extends its total.

    `settings` are nested values over those of the run: how long it trains, what it saves and reports, how often it is
    evaluated. Data, model, reward or settings that decide what is trained and are no longer those of the run are
    refused, unless `accept_changes` is true; then the run notes what changed. `reward` is for a run whose reward was
    given from Python and is in no file; weights stay those of the run. `env` and `tools` likewise.
    """
    from whet.model import checkpoint_step, complete_checkpoints, verify_checkpoint
    from whet.report.record import is_finished

    refuse_while_importing("whet.resume")
    refuse_several_processes()
    check_callbacks(callbacks)
    path = folder.folder if isinstance(folder, Run) else Path(folder)
    environment_section(env, tools, None)  # what is in no file is found by its name again
    config = read_config(path)
    refuse_resume_of_0_1(path)
    given = merged({} if steps is None else {"steps": steps}, settings or {})
    if given:
        config = with_settings(config, given)
    unreachable = [part.reward for part in config.reward.parts if part.reward.startswith(FROM_PYTHON)]
    if reward is None and unreachable:
        name = unreachable[0].removeprefix(FROM_PYTHON)
        raise WhetError(
            f"{path}: its reward {name!r} was given from Python and is in no file; "
            "resume it there: whet.resume(folder, reward=...)"
        )
    with locked(path):
        found = complete_checkpoints(path / "checkpoints")
        chosen = found[-1] if found else None
        if checkpoint is not None:
            chosen = path / "checkpoints" / checkpoint
            if chosen not in found:
                raise WhetError(f"{chosen}: no complete checkpoint; there are {', '.join(each.name for each in found)}")
        done = 0
        if chosen is not None:
            verify_checkpoint(chosen)
            done = checkpoint_step(chosen)
            if "steps" in given and config.steps <= done:
                raise WhetError(f"{path} is at step {done} already; give --steps a larger total")
            # a run killed between its last step and its report still has that to write
            if done >= config.steps and is_finished(path):
                raise WhetError(
                    f"{path}: nothing to do, all {config.steps} steps are done; to train on, "
                    f"`whet resume {path} --steps {2 * config.steps}`"
                )
        parts = reward_parts(reward)
        if parts is not None and not isinstance(reward, Mapping) and len(parts) == len(config.reward.parts):
            parts = [(name, was.weight, each) for (name, _, each), was in zip(parts, config.reward.parts, strict=True)]
        inputs = RunFiles(config, path, command, Resumed(chosen, done, accept_changes, given))
        return _run(config, path, callbacks, console, chosen, inputs, made_rewards(parts))


def refuse_several_processes() -> None:
    """Raise under a launcher of several processes: each would train the same run on its own."""
    size = os.environ.get("WORLD_SIZE", "1")
    if size.isdigit() and int(size) > 1:
        raise WhetError(
            f"WORLD_SIZE is {size}: whet trains in one process, and {size} would train the same run each on its own; "
            "start it without torchrun"
        )


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Without garbage collection: while transformers is imported it finds nothing, and costs tenths of a second."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _run(
    config: Config,
    folder: Path,
    callbacks: Sequence[Any],
    console: bool,
    checkpoint: Path | None,
    files: RunFiles,
    rewards: Any,
) -> Run:
    import torch

    from whet.build.assembly import assemble
    from whet.report import RunRecorder, write_report
    from whet.train.run import LoopSettings, notify, run_training
    from whet.workbench.workbench import note_version, record_effect, write_version

    started = time.time()
    display, record, summary, first, opened = None, None, {}, _FirstStep(), contextlib.ExitStack()
    try:
        inputs = files.begin()
        with uncollected(), torch.inference_mode(False), torch.enable_grad():  # whatever mode the caller is in
            assembly = opened.enter_context(contextlib.closing(assemble(config, rewards)))
        inputs = files.settle(assembly.parts, inputs)
        summary = _summary(config, assembly, folder, started, inputs)
        ledger = config.reward.ledger or None
        version = write_version(folder, assembly.parts) if assembly.parts else None
        reward_hash = version.hash if version else ""
        first.then = lambda: note_version(folder, version, ledger) if version else None
        record = RunRecorder(folder, config.report.samples_per_step, reward_hash)
        display = _display() if console else None
        reviewers = _reviewers(config, folder, reward_hash)
        everyone = [first, *([display] if display is not None else []), *callbacks, *reviewers]
        kept = config.report
        schedule = LoopSettings(config.steps, config.eval.every, kept.save_every, kept.keep_checkpoints)
        start_up = time.time() - started
        with watched(folder), journal(folder):
            outcome = run_training(
                assembly.trainer,
                schedule,
                folder,
                record,
                everyone,
                summary,
                checkpoint=checkpoint,
                precision=assembly.precision,
                also_saved=assembly.also_saved,
                identity=inputs.identity,
            )
    except BaseException as error:
        _name_folder(error, folder)
        with signals_wait():
            if record is not None:
                _break_off(error, folder, record, summary, display, is_untouched=files.is_new and not first.done)
            elif files.is_new:  # a resume that is refused leaves the run as it was
                discard(folder)
        raise
    finally:
        opened.close()  # before the report: processes elsewhere have nothing left to do
    with signals_wait(), _finishing(folder):
        ending = {**_ending(outcome, start_up), "memory": _peak_memory(assembly.trainer.model)}
        if reward_hash:
            record_effect(folder, reward_hash, ledger)
        report = write_report(folder, {**summary, **ending})
        record.finished(ending)  # the last write: whoever finds the run finished finds everything else
        next_command = _next_command(config, folder, outcome)
        notify(everyone, "finished", {**summary, **ending, "report": str(report), "next": next_command})
    return Run(folder)


@contextlib.contextmanager
def _finishing(folder: Path) -> Iterator[None]:
    """The last writes of a run whose training is done: an error there costs the report, not the training."""
    try:
        yield
    except Exception as error:
        _name_folder(error, folder)
        error.add_note(f"the training itself is done and saved; `whet resume {folder}` writes what is missing")
        raise


def _name_folder(error: BaseException, folder: Path) -> None:
    """A full disk is found when a file is written, and then the system does not say which."""
    if isinstance(error, OSError) and error.filename is None and error.errno is not None:
        error.filename = str(folder)


def _break_off(
    error: BaseException, folder: Path, record: Any, summary: Mapping[str, Any], display: Any, is_untouched: bool
) -> None:
    """Leave a run that cannot go on as it should be found: its status, its report, and how to go on.

    Mistakes and interruptions before the first step leave nothing behind. An error nobody expected leaves its traceback
    in error.log, also then. What cannot be written, on a full disk say, is left: the error itself must come through.
    """
    from whet.report import write_report
    from whet.train.run import FolderLost

    is_expected = isinstance(error, WhetError | RunFailed | KeyboardInterrupt)
    if display is not None:
        with contextlib.suppress(Exception):
            display.close()
    if isinstance(error, FolderLost):  # nothing must be written in its place
        return
    if is_untouched and is_expected:
        with contextlib.suppress(OSError):
            discard(folder)
        return
    line = str(error) if is_expected else one_line_of(error)
    status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    if not is_expected and write_traceback(folder / ERROR_LOG, error):
        error.add_note(f"the traceback is in {folder / ERROR_LOG}")
    error.add_note(going_on(folder))
    with contextlib.suppress(OSError, ValueError):
        record.finished({**summary, "status": status, "finished": time.time(), "error": line or repr(error)})
    with contextlib.suppress(OSError, WhetError):
        write_report(folder)


class _FirstStep:
    """Whether a step is done, and what happens when the first one is: until then a run leaves no trace."""

    def __init__(self) -> None:
        self.done = False
        self.then: Callable[[], object] = lambda: None

    def stepped(self, report: StepReport, samples: Sequence[Any]) -> None:
        if not self.done:
            self.done = True
            self.then()


def _display() -> Any:
    """The console; in a notebook one output that is kept up to date."""
    from whet.api.notebook import NotebookDisplay, in_notebook
    from whet.report import Console

    return NotebookDisplay() if in_notebook() else Console()


def _peak_memory(model: Any) -> int:
    """The most bytes that the run held: of the GPU where it trains there, else of the process."""
    from whet.bench.benchmark import peak_memory

    return peak_memory(next(model.parameters()).device)


def _next_command(config: Config, folder: Path, outcome: TrainingResult) -> str:
    if outcome.status == "interrupted":
        return f"whet resume {folder}"
    from whet.build.kinds import kind_of

    has_prompts = "accuracy" in outcome.after or "reward" in outcome.after
    return kind_of(config).try_it.format(run=folder, prompt="" if has_prompts else ' "your prompt"')


def _summary(config: Config, assembly: Assembly, folder: Path, started: float, inputs: RunInputs) -> dict[str, Any]:
    changed = [f"after step {each['after_step']}: {', '.join(each['what'])}" for each in inputs.changes]
    facts = {**assembly.facts, "seed": str(config.seed), "folder": config.folder or str(folder)}
    return {
        "title": assembly.title,
        "method": config.method,
        "objective": assembly.objective,
        "facts": {**facts, "changed": "; ".join(changed)} if changed else facts,
        "total_steps": config.steps,
        "eval_size": assembly.eval_size,
        "started": started,
        "command": inputs.command or f"whet resume {shlex.quote(str(folder))}",
        "seed": config.seed,
    }


def _reviewers(config: Config, folder: Path, reward_hash: str) -> list[object]:
    """Who picks completions for a person to look at, where there is a reward."""
    from whet.report.review import Review, ReviewPlan

    if not reward_hash or not config.report.review_every:
        return []
    plan = ReviewPlan(config.report.review_every, config.report.review_count, config.seed)
    return [Review(folder, config.steps, plan, reward_hash)]


def _ending(outcome: TrainingResult, start_up: float) -> dict[str, Any]:
    found = {
        "status": outcome.status,
        "finished": time.time(),
        "before": dict(outcome.before),
        "after": dict(outcome.after),
        "seconds": {"start_up": start_up, **outcome.seconds},
        "tokens": outcome.tokens,
    }
    return {**found, "ended": outcome.ended} if outcome.ended else found
