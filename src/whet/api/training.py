"""`whet.train` and `whet.resume`: a config, a folder, the trainer, its callbacks and the report at the end."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from whet.api.ending import crash_reporter, defer_signals, going_on, one_line_of, write_traceback
from whet.api.inputs import (
    RewardLike,
    check_callbacks,
    check_tokenizer,
    data_source,
    environment_section,
    is_stream,
    made_rewards,
    model_name,
    plain_settings,
    reward_parts,
    reward_section,
    rows_in_memory,
)
from whet.api.ranks import agree_on_config, agree_on_inputs, check_ranks, root_cause, run_on_ray
from whet.api.run import Run
from whet.api.run_files import Resumed, RunFiles, with_settings
from whet.api.settings import RunSettings
from whet.api.training_session import TrainingSession, begin_cuda, gc_disabled, training_session
from whet.model.run_models import BEST, MODELS, about_model, run_model
from whet.model.width import stated_width
from whet.record.run_folder import CONFIG, ERROR_LOG, discard, remove_run
from whet.registry import refuse_while_importing
from whet.settings.layers import ARGUMENTS, merged, read_toml
from whet.training.config import FROM_PYTHON, Config, RewardModelConfig, config_values, differing_keys, resolved
from whet.training.distributed.launch import Launch, launched
from whet.training.run_inputs import RunInputs, is_free
from whet.training.saved_config import (
    EVAL_ROWS,
    ROWS,
    START,
    placed,
    read_config,
    rows_text,
)
from whet.training.sections import ScaleSection
from whet.types import WhetError, did_you_mean

if TYPE_CHECKING:
    from whet.record.evaluations import Evaluations
    from whet.record.log import RunRecorder
    from whet.record.trackers.tracking import Trackers
    from whet.training.assembly.assembly import Assembly
    from whet.training.distributed.ranks import Ranks
    from whet.training.run_loop import TrainingResult
    from whet.types import StepReport

SHORTEST_MEETING = 60.0  # seconds that a rank waits at least for the others, which start and import beside it
RESUME, REPLACE = EXIST = ("resume", "replace")
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
    agent: str | Callable[..., Any] | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    callbacks: Sequence[Any] = (),
    console: bool = True,
    exist: str | None = None,
    command: str = "",
    **settings: Unpack[RunSettings],
) -> Run:
    """Train `model` on `data` by `method` and return the run.

        whet.train("grpo")  # the built-in model on a built-in task
        whet.train("grpo", model="Qwen/Qwen3-0.6B", data="hub:openai/gsm8k", reward="math_answer", steps=200)
        whet.train("dpo", model=run, data=pairs, batch={"rows_per_step": 64}, objective={"curve": {"beta": 0.05}})

    `model` is a name or path as on the command line, a `Run`, or a transformers model with its `tokenizer`. That object
    is not changed: its weights are copied into the run folder, and the run trains the copy. `data` is a source as on
    the command line, a path, rows as dictionaries, a Dataset or a DataFrame, and so is `eval_data`, which the run is
    evaluated on. `reward` is a built-in name, a function
    `(prompt, completion) -> float` or one in TRL's signature, a list of them, or `{name: (reward, weight)}`.
    `env` is an environment by name or a class, `tools` are names or functions the policy may call, `agent` is the
    command of a program, or an async function, that plays the episodes: docs/agents.md has all three.
    `config` is a TOML file or its nested values, `settings` are top-level keys that win over it:
    `steps=20, batch={"group_size": 4}`. `callbacks` have any of the methods of `whet.Callback` and are called
    beside the console; `console=False` silences that. `exist` says what happens where `folder` holds a run: "resume"
    continues it, or returns it if it is finished; "replace" deletes it. Without it, that is an error.
    """
    refuse_while_importing("whet.train")
    launch = launched()
    if "args" in settings:
        raise WhetError("whet.train has no argument 'args'; whet.from_trl(args, ...) translates a config of TRL's")
    for name in sorted(settings.keys() & ARGUMENTS.keys()):
        raise WhetError(f"whet.train has no argument {name!r}; in whet it is {ARGUMENTS[name]}=...")
    check_callbacks(callbacks)
    check_tokenizer(model, tokenizer)
    layer = plain_settings(settings)
    rows = rows_in_memory(data)
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
    with training_session(launch, _patience(launch, config, layer)) as session:
        base = read_toml(config) if isinstance(config, str | Path) else plain_settings(config or {})
        width = stated_width(model.config) if model is not None and model_name(model) is None else None
        count = None if rows is None else len(rows)
        if is_stream(data) and {**base, **layer}.get("epochs"):
            raise WhetError("epochs: the data is a stream, whose length is not known; give steps")
        resolved_config = resolved(method, base, layer, width=width, rows=count)
        check_trackers(resolved_config)
        rows = rows_in_memory(
            data if rows is None else rows,
            resolved_config.data.limit or resolved_config.steps * resolved_config.rows_per_step(),
        )
        eval_rows = rows_in_memory(eval_data, resolved_config.eval.prompts)
        if exist is not None:
            is_object = model is not None and model_name(model) is None
            there = existing_run(exist, resolved_config, rows, eval_rows, is_object, launch)
            if isinstance(there, Run):
                return there
            if there is not None:
                unnamed = any(part.reward.startswith(FROM_PYTHON) for part in resolved_config.reward.parts)
                return resume(
                    resolved_config.folder,
                    settings=there,
                    reward=reward if unnamed else None,
                    env=env,
                    tools=tools,
                    callbacks=callbacks,
                    console=console,
                    command=command,
                )
        if launch.size == 1 and resolved_config.scale.workers > 1:
            arguments = {
                **{"method": method, "model": model, "tokenizer": tokenizer},
                **{"data": data if rows is None else rows, "eval_data": eval_data if eval_rows is None else eval_rows},
                **{"reward": reward, "env": env, "tools": tools, "agent": agent, "config": base, "command": command},
                **settings,
            }
            return _train_on_ray(resolved_config, train, arguments, callbacks, console)
        check_ranks(resolved_config, launch)
        final, folder = session.claim_run_folder(resolved_config, rows, eval_rows, model, tokenizer)
        named = parts is not None and all(isinstance(part, str) for _, _, part in parts)
        rewards = None if named else made_rewards(parts)
        session.redirect_output(folder, streams=bool(command))
        return _run(session, RunFiles(final, folder, command), rewards, callbacks, console)


def resume(
    folder: str | Path | Run,
    *,
    steps: int | None = None,
    hours: float | None = None,
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
    """Go on with a run exactly where its newest complete checkpoint is; `steps` and `hours` extend its totals.

        whet.resume("runs/grpo-001")  # after Ctrl-C or a crash
        whet.resume(run, steps=400, checkpoint="step-000100", settings={"eval": {"every": 20}})

    `settings` are nested values over those of the run: how long it trains, what it saves and reports, how often it is
    evaluated. Data, model, reward or settings that decide what is trained and are no longer those of the run are
    refused, unless `accept_changes` is true; then the run notes what changed. `reward` is for a run whose reward was
    given from Python and is in no file; weights stay those of the run. `env` and `tools` likewise.
    """
    refuse_while_importing("whet.resume")
    check_callbacks(callbacks)
    path = folder.folder if isinstance(folder, Run) else Path(folder)
    launch = launched()
    with training_session(launch, _patience(launch, path / CONFIG, settings or {})) as session:
        environment_section(env, tools, None)  # what is in no file is found by its name again
        config = read_config(path)
        longer = {name: value for name, value in (("steps", steps), ("hours", hours)) if value is not None}
        changes = merged(longer, settings or {})
        if changes:
            config = with_settings(config, changes)
        check_trackers(config)
        unreachable = [part.reward for part in config.reward.parts if part.reward.startswith(FROM_PYTHON)]
        if reward is None and unreachable:
            name = unreachable[0].removeprefix(FROM_PYTHON)
            raise WhetError(
                f"{path}: its reward {name!r} was given from Python and is in no file; "
                "resume it there: whet.resume(folder, reward=...)"
            )
        if session.group is None and config.scale.workers > 1:
            asked = {
                **{"folder": path, "steps": steps, "hours": hours, "checkpoint": checkpoint, "reward": reward},
                **{"env": env, "tools": tools, "settings": settings, "accept_changes": accept_changes},
                "command": command,
            }
            return _train_on_ray(config, resume, asked, callbacks, console)
        if session.group is not None:
            check_ranks(config, session.group.launch)
            agree_on_config(session.group, config)
        chosen, done = session.claim_checkpoint(path, config, checkpoint, is_longer="steps" in changes)
        parts = reward_parts(reward)
        if parts is not None and not isinstance(reward, Mapping) and len(parts) == len(config.reward.parts):
            known = zip(parts, config.reward.parts, strict=True)
            parts = [(name, was.weight, part) for (name, _, part), was in known]
        files = RunFiles(config, path, command, Resumed(chosen, done, accept_changes, changes))
        session.redirect_output(path, streams=bool(command))
        return _run(session, files, made_rewards(parts), callbacks, console)


def _patience(launch: Launch, config: str | Path | Mapping[str, Any] | None, settings: Mapping[str, Any]) -> float:
    """How long this rank waits until the others are there: `scale.timeout`, read before the settings are checked.

    That is done when the ranks have met: then all of them hear what is wrong with one's settings.
    """
    default = ScaleSection().timeout
    if launch.size == 1:
        return default
    try:
        base = read_toml(config) if isinstance(config, str | Path) else config or {}
        stated = ScaleSection.model_validate({"timeout": merged(base, settings)["scale"]["timeout"]}).timeout
    except Exception:
        return default
    return max(stated, SHORTEST_MEETING)


def existing_run(
    exist: str, config: Config, rows: Any, eval_rows: Any, is_object: bool, launch: Launch
) -> Run | dict[str, Any] | None:
    """What `exist` makes of the run in the config's folder: a finished run, or settings to resume it with.

    None where there is none, also because it was deleted. A run of another config is not resumed. A model that was
    given as an object (`is_object`) is the run's own copy.
    """
    from whet.record.log import is_finished

    if exist not in EXIST:
        raise WhetError(f"exist is {exist!r}{did_you_mean(exist, EXIST)}; give {' or '.join(EXIST)}")
    if not config.folder:
        raise WhetError(f"exist={exist} needs a folder: without one every run gets the next free one")
    if launch.size > 1:
        raise WhetError(f"exist={exist} is for one process; resume a run of several ranks with whet.resume")
    folder = Path(config.folder)
    if not (folder / CONFIG).is_file():
        return None
    if exist == REPLACE:
        remove_run(folder)
        return None
    there = read_config(folder)
    asked = placed(config, folder, rows, eval_rows)
    if is_object:
        asked = asked.model_copy(update={"model": config.model.model_copy(update={"name": str(folder / START)})})
    longer = {key: getattr(config, key) for key in ("steps", "hours") if getattr(config, key) != getattr(there, key)}
    differing = [key for key in differing_keys(asked, there) if not is_free(key)]
    if differing:
        raise WhetError(
            f"{folder} holds a run with another config ({', '.join(differing[:3])}); give exist=replace, or another "
            "folder"
        )
    for name, passed in ((ROWS, rows), (EVAL_ROWS, eval_rows)):
        if passed is not None and rows_text(passed) != (folder / name).read_text(encoding="utf-8"):
            raise WhetError(f"{folder} holds a run with other rows ({name}); give exist=replace, or another folder")
    is_longer = config.steps > there.steps or (there.hours and not 0 < config.hours <= there.hours)
    return Run(folder) if is_finished(folder) and not is_longer else longer


def _train_on_ray(
    config: Config, entry: Callable[..., Run], arguments: Mapping[str, Any], callbacks: Sequence[Any], console: bool
) -> Run:
    """The same call in ranks that Ray starts; refused here where it cannot work on so many."""
    check_ranks(config, Launch(size=config.scale.workers))
    return Run(run_on_ray(config, entry, arguments, callbacks, _display() if console else None))


def _run(session: TrainingSession, files: RunFiles, rewards: Any, callbacks: Sequence[Any], console: bool) -> Run:
    """The run of the first rank: assembled, trained, and its report written, or what broke it told."""
    started, begun = time.time(), time.monotonic()  # imports are part of the start
    if session.group is None:
        begin_cuda(files.config)
        session.begin_conversion(files.config.model.name)
    with gc_disabled(looks=False):
        from whet.data.pieces import TokenPieces
        from whet.pages.run_report import write_report
        from whet.record.log import RunRecorder
        from whet.record.recorded_tokens import TokenSettings
        from whet.reward.run_record import note_version, record_effect, write_version
        from whet.training.assembly.assembly import assemble  # noqa: F401  # seconds that `_assemble` would hide
        from whet.training.run_loop import notify, refuse_lost, run_training

    if not session.is_first:
        return _run_silently(session, files, rewards)

    imports = time.monotonic() - begun
    config, folder, group = files.config, files.folder, session.group
    display, record, summary, first, opened = None, None, {}, _FirstStep(), contextlib.ExitStack()
    trackers: Trackers | None = None
    assembly: Assembly | None = None
    try:
        inputs = files.begin()
        ranks = session.init_process_group(config)
        assembly = opened.enter_context(contextlib.closing(_assemble(config, rewards, ranks)))
        inputs = files.settle(assembly.parts, inputs)
        agree_on_inputs(group, config, assembly)
        summary = _summary(config, assembly, folder, started, inputs)
        ledger = config.reward.ledger or None
        version = write_version(folder, assembly.parts) if assembly.parts else None
        reward_hash = version.hash if version else ""
        first.then = lambda: note_version(folder, version, ledger) if version else None
        tokens = TokenSettings(config.report.tokens, TokenPieces(assembly.trainer.tokenizer))
        shown_tokens = tokens if tokens.most else None
        record = RunRecorder(folder, config.report.samples_per_step, reward_hash, shown_tokens, beside=(CONFIG,))
        display = _display() if console else None
        reviewers = _reviewers(config, folder, reward_hash)
        trackers = _trackers(config, folder)
        followers = [follower for follower in (display, *callbacks, *reviewers, trackers) if follower is not None]
        everyone = [first, *followers]
        start_up = time.monotonic() - begun
        session.collect_seldom()
        with crash_reporter(folder) as let_go:
            if group is not None:
                group.share_watch()
                group.heart.last_words = _last_words(folder, record, summary, let_go)
            outcome = run_training(
                assembly.trainer,
                folder,
                record,
                everyone,
                summary,
                **_schedule(config),
                begun=begun,
                eval_size=assembly.eval_size,
                checkpoint=files.checkpoint,
                precision=assembly.precision,
                health_settings=assembly.settings,
                also_saved=assembly.also_saved,
                identity=inputs.identity,
                ranks=ranks,
                note=group.note if group is not None else None,
            )
    except BaseException as raised:
        _name_folder(raised, folder)
        with defer_signals():
            error = root_cause(group, raised)
            if record is not None:
                is_untouched = files.is_new and not first.done
                if is_untouched:  # while there is a folder: then it is given back
                    _close_trackers(trackers, error, summary)
                _break_off(error, folder, record, summary, display, is_untouched)
                _close_trackers(trackers, error, summary)
            elif files.is_new:  # a resume that is refused leaves the run as it was
                discard(folder)
        if error is raised:
            raise
        raise error from raised
    finally:
        processes = _processes(assembly)
        opened.close()  # before the report: processes elsewhere have nothing left to do
    with defer_signals(), _finishing(folder, record, outcome.steps):
        assert assembly is not None
        ending = {
            **_ending(outcome, start_up),
            "start_up": {"imports": imports, **assembly.seconds},
            "models": _models(folder, outcome.evaluations),
            "memory": _peak_memory(assembly.trainer.model),
            **processes,
        }
        if trackers is not None:  # before the report: it says where each service has the run, or why not
            trackers.close(outcome.status, {**summary, **ending})
            ending |= {"trackers": trackers.fact, "facts": {**summary["facts"], "trackers": trackers.fact}}
        if reward_hash:
            record_effect(folder, reward_hash, ledger)
        refuse_lost(record, outcome.steps)
        report = write_report(folder, {**summary, **ending})
        refuse_lost(record, outcome.steps)
        record.finished(ending)  # the last write: whoever finds the run finished finds everything else
        refuse_lost(record, outcome.steps)
        next_command = _next_command(config, folder, outcome)
        notify(everyone, "finished", {**summary, **ending, "report": str(report), "next": next_command})
    return Run(folder)


def _schedule(config: Config) -> dict[str, Any]:
    """How many steps and hours a run has, when it evaluates and saves, and what it does about problems."""
    from whet.training.assembly.health import health_policy

    return {
        "steps": config.steps,
        "hours": config.hours,
        "eval_every": config.eval.every,
        "stop_after": config.eval.stop_after,
        "saving": config.report,
        "problems": health_policy(config),
    }


def _assemble(config: Config, rewards: Any, ranks: Ranks) -> Assembly:
    """The run ready to start; refused where its weights alone exceed the device, which would be found out later."""
    import torch

    from whet.model.load import device_choice
    from whet.tools.planner.from_config import memory_facts, refuse_too_large, this_device
    from whet.training.assembly.assembly import assemble

    device = this_device(device_choice(config.model.device))  # before the model is on it
    refuse_too_large(config, device, ranks.size)
    with gc_disabled(), torch.inference_mode(False), torch.enable_grad():  # whatever mode the caller is in
        assembly = assemble(config, rewards, ranks)
    memory = memory_facts(config, device, assembly.prompts, ranks.size)
    return replace(assembly, facts={**assembly.facts, **memory})


def _run_silently(session: TrainingSession, files: RunFiles, rewards: Any) -> Run:
    """The part of a rank that is not the first: the same steps, and nothing written but its share of checkpoints."""
    from whet.record.log import SilentRecorder
    from whet.training.run_loop import run_training

    assert session.group is not None
    config, folder = files.config, files.folder
    ranks = session.init_process_group(config)
    assembly = _assemble(config, rewards, ranks)
    agree_on_inputs(session.group, config, assembly)
    session.group.share_watch()
    run_training(
        assembly.trainer,
        folder,
        SilentRecorder(folder),
        (),
        {},
        **_schedule(config),
        eval_size=assembly.eval_size,
        checkpoint=files.checkpoint,
        precision=assembly.precision,
        health_settings=assembly.settings,
        also_saved=assembly.also_saved,
        ranks=ranks,
        note=session.group.note,
    )
    session.group.is_first_watched = False  # what is left to the first rank, it writes unwatched
    return Run(folder)


def _last_words(
    folder: Path, record: RunRecorder, summary: Mapping[str, Any], let_go: Callable[[], None]
) -> Callable[[str], None]:
    """What is left to do where another rank is lost and the main thread cannot be interrupted."""
    from whet.pages.run_report import write_report

    def say(cause: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            record.finished({**summary, "status": "failed", "finished": time.time(), "error": cause})
        with contextlib.suppress(OSError, WhetError):
            write_report(folder)
        let_go()
        print(f"whet: {cause}; {going_on(folder)}", file=sys.stderr, flush=True)

    return say


@contextlib.contextmanager
def _finishing(folder: Path, record: RunRecorder, step: int) -> Iterator[None]:
    """The last writes of a run whose training is done: an error there costs the report, not the training."""
    from whet.training.run_loop import FolderLost, folder_lost

    try:
        yield
    except FolderLost:
        raise
    except Exception as error:
        if (lost := folder_lost(record, step)) is not None:
            raise lost from error
        _name_folder(error, folder)
        error.add_note(f"the training itself is done and saved; `whet resume {folder}` writes what is missing")
        raise


def _name_folder(error: BaseException, folder: Path) -> None:
    """A full disk is found when a file is written, and then the system does not say which."""
    if isinstance(error, OSError) and error.filename is None and error.errno is not None:
        error.filename = str(folder)


def _break_off(
    error: BaseException,
    folder: Path,
    record: RunRecorder,
    summary: Mapping[str, Any],
    display: Any,
    is_untouched: bool,
) -> None:
    """Leave a run that cannot go on as it should be found: its status, its report, and how to go on.

    Mistakes and interruptions before the first step leave nothing behind. An error nobody expected leaves its traceback
    in error.log, also then. What cannot be written, on a full disk say, is left: the error itself must come through.
    """
    from whet.pages.run_report import write_report
    from whet.training.run_loop import FolderLost

    is_expected = isinstance(error, WhetError | KeyboardInterrupt)
    if display is not None:
        with contextlib.suppress(Exception):
            display.close()
    if isinstance(error, FolderLost) or record.lost() is not None:  # nothing must be written in its place
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


def _processes(assembly: Assembly | None) -> dict[str, Any]:
    """What each process that the run started elsewhere did, for its summary."""
    rows = assembly.elsewhere() if assembly is not None else []
    return {"processes": rows} if rows else {}


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
    from whet.record.console import Console

    return NotebookDisplay() if in_notebook() else Console()


def _peak_memory(model: Any) -> int:
    """The most bytes that the run held: of the GPU where it trains there, else of the process."""
    import torch

    from whet.tools.bench.meter import peak_bytes

    device = next(model.parameters()).device
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_bytes()


def _next_command(config: Config, folder: Path, outcome: TrainingResult) -> str:
    if outcome.status == "interrupted":
        return f"whet resume {folder}"
    if isinstance(config, RewardModelConfig):
        return f"whet reward test {folder} --data FILE"
    has_prompts = "accuracy" in outcome.after or "reward" in outcome.after
    fell_from = outcome.evaluations.fell_from
    model = folder / BEST if fell_from is not None and fell_from.step else folder
    return f"whet sample {model}" + ("" if has_prompts else ' "your prompt"')


def _summary(config: Config, assembly: Assembly, folder: Path, started: float, inputs: RunInputs) -> dict[str, Any]:
    changed = [f"after step {change['after_step']}: {', '.join(change['what'])}" for change in inputs.changes]
    budget = {"hours": f"at most {config.hours:g}, or {config.steps} steps"} if config.hours else {}
    facts = {**assembly.facts, **budget, "seed": str(config.seed), "folder": config.folder or str(folder)}
    return {
        "whet": sys.modules["whet"].__version__,  # the front door imports this file
        "title": assembly.title,
        "method": config.method,
        "objective": assembly.objective,
        "facts": {**facts, "changed": "; ".join(changed)} if changed else facts,
        "total_steps": config.steps,
        "hours": config.hours,
        "eval_size": assembly.eval_size,
        "eval_questions": assembly.eval_questions,
        "started": started,
        "command": inputs.command or f"whet resume {shlex.quote(str(folder))}",
        "seed": config.seed,
        "settings": assembly.settings,
    }


def _reviewers(config: Config, folder: Path, reward_hash: str) -> list[object]:
    """Who picks completions for a person to look at, where there is a reward."""
    from whet.pages.review import Review, ReviewPlan

    if not reward_hash or not config.report.review_every:
        return []
    plan = ReviewPlan(config.report.review_every, config.report.review_count, config.seed)
    return [Review(folder, config.steps, plan, reward_hash)]


def check_trackers(config: Config) -> None:
    """Raise where a tracker that the run should have cannot work, before anything else is done."""
    if config.report.trackers or config.report.tracker_settings:
        from whet.record.trackers.find import make_trackers

        make_trackers(config.report.trackers, config.report.tracker_settings)


def _trackers(config: Config, folder: Path) -> Trackers | None:
    if not config.report.trackers:
        return None
    from whet.record.trackers.find import trackers_of

    report = config.report
    return trackers_of(report.trackers, report.tracker_settings, folder, config_values(config), report.samples_per_step)


def _close_trackers(trackers: Trackers | None, error: BaseException, summary: Mapping[str, Any]) -> None:
    """End what follows a run that broke; nothing is written in the place of a folder that is gone."""
    from whet.training.run_loop import FolderLost

    if trackers is not None and not isinstance(error, FolderLost):
        trackers.close("interrupted" if isinstance(error, KeyboardInterrupt) else "failed", summary)


def _models(folder: Path, evaluations: Evaluations) -> str:
    """The plain models that a run leaves, which of them its folder stands for, and whether any beat the start."""
    from whet.record.text import metric_text, words

    texts = []
    for name in MODELS:
        about = about_model(folder / name)
        if about is not None:
            metric = about.get("metric")
            measured = f", {words(metric)} {metric_text(metric, about['value'])}" if metric else ""
            texts.append(f"{name} (step {about['step']}{measured})")
    loaded = run_model(folder)
    best = evaluations.best
    start = "" if best is None or best.step else "; the model it began with evaluated as well or better"
    return ", ".join(texts) + (f"; --model {folder} loads {loaded.name}{start}" if loaded is not None else "")


def _ending(outcome: TrainingResult, start_up: float) -> dict[str, Any]:
    from whet.record.text import saving_text

    ending = {
        "status": outcome.status,
        "finished": time.time(),
        "before": dict(outcome.before),
        "after": dict(outcome.after),
        "seconds": {"start_up": start_up, **outcome.seconds},
        "tokens": outcome.tokens,
        "evaluations": outcome.evaluations.values(),
        "saving": dict(outcome.saving),
        "checkpoints": saving_text(outcome.saving),
    }
    return ending if outcome.ended is None else {**ending, "ended": outcome.ended.text, "ended_by": outcome.ended.by}
