"""whet from Python: the same runs as the command line, as functions that return values."""

from __future__ import annotations

import contextlib
import gc
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.config.config import (
    FROM_PYTHON,
    STEP_SCORERS,
    Config,
    EvaluationConfig,
    RewardModelConfig,
    read_toml,
    resolved,
    resolved_evaluation,
)
from whet.config.run_folder import CONFIG, ROWS, claimed_folder, locked, read_config, write_config
from whet.data.source import parse_source
from whet.protocols import Callback, Reward
from whet.types import WhetError

if TYPE_CHECKING:
    from whet.build.assembly import Assembly
    from whet.train.run import TrainingResult

RewardLike = str | Callable[..., Any] | Reward
Weight = float | tuple[tuple[float, float], ...]  # or points it moves between over training


@dataclass(frozen=True)
class Run:
    """A run folder after (or during) training."""

    folder: Path
    status: str  # finished or interrupted
    steps: int
    before: Mapping[str, float]  # marks on held-out prompts before the first step
    after: Mapping[str, float]
    report: Path

    @property
    def model(self) -> Path:
        """The newest checkpoint, a folder that transformers loads."""
        from whet.model import complete_checkpoints

        return complete_checkpoints(self.folder / "checkpoints")[-1]

    def metrics(self) -> list[dict[str, Any]]:
        from whet.report import read_metrics

        return read_metrics(self.folder)

    def samples(self) -> list[dict[str, Any]]:
        from whet.report import read_samples

        return read_samples(self.folder)


def train(
    method: str,
    *,
    model: str | None = None,
    data: str | Sequence[Mapping[str, Any]] | None = None,
    reward: RewardLike | Sequence[RewardLike] | Mapping[str, tuple[RewardLike, float]] | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] | None = None,
    command: str = "",
    **settings: Any,
) -> Run:
    """Train `model` on `data` by `method` and return the run.

    `data` is a source as on the command line, or rows as dictionaries. `reward` is a built-in name, a function
    `(prompt, completion) -> float` or one in TRL's signature, a list of them, or `{name: (reward, weight)}`.
    `config` is a TOML file or its nested values, `settings` are top-level keys that win over it:
    `steps=20, batch={"group_size": 4}`. `callbacks` defaults to the console.
    """
    layer = dict(settings)
    rows = None if data is None or isinstance(data, str) else list(data)
    parts = _parts(reward)
    if model is not None:
        layer["model"] = {"name": model}
    if data is not None:
        layer["data"] = {"source": ROWS if rows is not None else data}
    if parts is not None:
        listed = [{"reward": _path_of(each, name), "weight": weight} for name, weight, each in parts]
        layer["reward"] = {"parts": listed}
    base = read_toml(config) if isinstance(config, str | Path) else dict(config or {})
    resolved_config = resolved(method, base, layer)
    with claimed_folder(resolved_config, rows) as (folder, final):
        named = parts is not None and all(isinstance(each, str) for _, _, each in parts)
        return _run(final, folder, callbacks, None, command, None if named else _rewards(parts))


def resume(
    folder: str | Path,
    *,
    steps: int | None = None,
    checkpoint: str | None = None,
    reward: RewardLike | Sequence[RewardLike] | Mapping[str, tuple[RewardLike, float]] | None = None,
    callbacks: Sequence[Callback] | None = None,
    command: str = "",
) -> Run:
    """Go on with a run exactly where its newest complete checkpoint is; `steps` extends its total.

    `reward` is for a run whose reward was given from Python and is in no file; weights stay those of the run.
    """
    from whet.model import checkpoint_step, complete_checkpoints, verify_checkpoint
    from whet.report import read_summary

    path = Path(folder)
    config = read_config(path)
    if steps is not None:
        config = config.model_copy(update={"steps": steps})
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
        if chosen is not None:
            verify_checkpoint(chosen)
            done = checkpoint_step(chosen)
            if steps is not None and steps <= done:
                raise WhetError(f"{path} is at step {done} already; give --steps a larger total")
            # a run killed between its last step and its report still has that to write
            if done >= config.steps and read_summary(path).get("status") == "finished":
                raise WhetError(
                    f"{path}: nothing to do, all {config.steps} steps are done; to train on, "
                    f"`whet resume {path} --steps {2 * config.steps}`"
                )
        parts = _parts(reward)
        if parts is not None and not isinstance(reward, Mapping) and len(parts) == len(config.reward.parts):
            parts = [(name, was.weight, each) for (name, _, each), was in zip(parts, config.reward.parts, strict=True)]
        return _run(config, path, callbacks, chosen, command, _rewards(parts))


def evaluate(
    model: str, *, data: str | None = None, samples: int = 1, settings: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Marks of a model or run on held-out prompts: greedy, or `samples` drawn completions a prompt with pass@k."""
    from whet.evaluate.evaluation import held_out_marks

    return held_out_marks(evaluation_config(model, data, settings), samples)


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
    callbacks: Sequence[Callback] | None,
    checkpoint: Path | None,
    command: str,
    rewards: Any,
) -> Run:
    from whet.build.assembly import assemble
    from whet.report import Console, Record, write_report
    from whet.train.run import LoopSettings, run_training
    from whet.workbench.workbench import close_version, open_version

    started = time.time()
    with uncollected():
        assembly = assemble(config, rewards)
    write_config(folder, config)
    summary = _summary(config, assembly, folder, started, command)
    ledger = config.reward.ledger or None
    reward_hash = open_version(folder, assembly.parts, ledger) if assembly.parts else ""
    record = Record(folder, config.report.samples_per_step, reward_hash)
    console = Console() if callbacks is None else None
    everyone: list[Callback] = [console] if console is not None else list(callbacks or ())
    everyone += _reviewers(config, folder, reward_hash)
    schedule = LoopSettings(
        config.steps, config.report.eval_every, config.report.save_every, config.report.keep_checkpoints
    )
    start_up = time.time() - started
    try:
        outcome = run_training(
            assembly.trainer,
            schedule,
            folder,
            record,
            everyone,
            summary,
            checkpoint=checkpoint,
            precision=assembly.precision,
        )
    except BaseException as error:
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        if console is not None:
            console.close()
        record.finished({**summary, "status": status, "finished": time.time(), "error": f"{error}" or repr(error)})
        write_report(folder)
        raise
    ending = {**_ending(outcome, start_up), "memory": _peak_memory(assembly.trainer.model)}
    record.finished(ending)
    if reward_hash:
        close_version(folder, reward_hash, ledger)
    report = write_report(folder)
    going_on = _next_command(config, folder, outcome)
    for callback in everyone:
        callback.finished({**summary, **ending, "report": str(report), "next": going_on})
    return Run(folder, outcome.status, outcome.steps, outcome.before, outcome.after, report)


def _peak_memory(model: Any) -> int:
    """The most bytes that the run held: of the GPU where it trains there, else of the process."""
    from whet.bench.benchmark import peak_memory

    return peak_memory(next(model.parameters()).device)


def _next_command(config: Config, folder: Path, outcome: TrainingResult) -> str:
    if outcome.status == "interrupted":
        return f"whet resume {folder}"
    if isinstance(config, RewardModelConfig):
        kind = "learned_steps" if config.method in STEP_SCORERS else "learned"
        model = sorted((folder / "checkpoints").iterdir())[-1]
        return f"whet reward test {kind} --set folder={model} --data FILE"
    asked = "" if "accuracy" in outcome.after or "reward" in outcome.after else ' "your prompt"'
    return f"whet sample {folder}{asked}"


def _summary(config: Config, assembly: Assembly, folder: Path, started: float, command: str) -> dict[str, Any]:
    return {
        "title": assembly.title,
        "method": config.method,
        "objective": assembly.objective,
        "facts": {**assembly.facts, "seed": str(config.seed), "folder": str(folder)},
        "total_steps": config.steps,
        "started": started,
        "command": command or f"whet resume {shlex.quote(str(folder))}",
        "seed": config.seed,
    }


def _reviewers(config: Config, folder: Path, reward_hash: str) -> list[Callback]:
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


def evaluation_config(model: str, data: str | None, settings: Mapping[str, Any] | None) -> EvaluationConfig:
    """The run's own config where `model` is a run folder, the defaults otherwise."""
    folder = Path(model)
    base = read_toml(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    layer: dict[str, Any] = {"model": {"name": model}}
    if data is not None:
        base.pop("data", None)
        layer["data"] = {"source": data, **({} if parse_source(data).is_generated else {"held_out": data})}
    return resolved_evaluation(base, layer, dict(settings or {}))


def _parts(reward: Any) -> list[tuple[str, Weight, RewardLike]] | None:
    """(name, weight, reward) of each part; an empty name is the reward's own."""
    if reward is None:
        return None
    if isinstance(reward, Mapping):
        for name, pair in reward.items():
            if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[1], int | float):
                raise WhetError(f"reward {name!r} is {pair!r}; give a pair, as in {{{name!r}: (reward, 1.0)}}")
        return [(name, float(weight), each) for name, (each, weight) in reward.items()]
    several = reward if isinstance(reward, list | tuple) else [reward]
    return [("", *_weighted(each)) for each in several]


def _weighted(reward: RewardLike) -> tuple[float, RewardLike]:
    """`exact_answer=0.5` is a name with its weight."""
    name, equals, weight = reward.rpartition("=") if isinstance(reward, str) else ("", "", "")
    try:
        return (float(weight), name) if equals else (1.0, reward)
    except ValueError:
        raise WhetError(
            f"reward {reward!r}: {weight!r} is no weight; write NAME=WEIGHT, as in think_format=0.2"
        ) from None


def _path_of(reward: RewardLike, name: str) -> str:
    """How a resumed run finds the reward again: its name, or file.py:function."""
    if isinstance(reward, str):
        return reward
    code = getattr(reward, "__code__", None)
    function = getattr(reward, "__qualname__", "")
    # a file's function comes back under its own name: under another one the reports would change it in midrun
    if code is not None and function.isidentifier() and name in ("", function) and Path(code.co_filename).is_file():
        return f"{code.co_filename}:{function}"
    return f"{FROM_PYTHON}{name or function or getattr(reward, 'name', type(reward).__name__)}"


def _rewards(parts: list[tuple[str, Weight, RewardLike]] | None) -> Any:
    if parts is None:
        return None
    from whet.reward import Part, as_reward, check_parts, find_reward

    rewards = [(find_reward(each) if isinstance(each, str) else each, name, weight) for name, weight, each in parts]
    found = [Part(as_reward(each, name or None), weight) for each, name, weight in rewards]
    check_parts(found)
    return found


__all__ = ["Run", "evaluate", "resume", "train"]
