"""A run of several ranks: the first owns folder, console and records; the others work, and are heard when they fail.

Where Ray starts the ranks, this process shows what the first rank tells, and passes on how it ended.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.api.ending import defer_signals, one_line_of
from whet.settings.layers import flattened
from whet.training.config import Config, PolicyConfig, config_values
from whet.training.distributed.launch import Launch, launched, refuse_idle_ranks
from whet.types import RunFailed, WhetError

if TYPE_CHECKING:
    from whet.training.assembly.assembly import Assembly
    from whet.training.distributed.rank_group import RankGroup


logger = logging.getLogger(__name__)


def rank_main(entry: Callable[..., Any], arguments: Mapping[str, Any], line: Callable[[Any], None] | None) -> str:
    """Runs in the rank's process: the same call as under torchrun. The first rank has a line to the caller."""
    from whet.training.distributed.rank_workers import Relay

    callbacks = [] if line is None else [Relay(line)]
    return str(entry(**arguments, callbacks=callbacks, console=False).folder)


def run_on_ray(
    config: Config,
    entry: Callable[..., Any],
    arguments: Mapping[str, Any],
    callbacks: Sequence[Any],
    display: Any,
) -> Path:
    """Train in `scale.workers` ranks; the run's folder. `entry(**arguments)` is `whet.train` or `whet.resume`."""
    from whet.model.load import device_choice
    from whet.training.distributed.rank_workers import run_ranks
    from whet.training.distributed.ray_cluster import open_cluster
    from whet.training.run_loop import notify

    scale = config.scale
    on_gpu = device_choice(config.model.device).type == "cuda"
    gpus = float(scale.workers + scale.engines) if on_gpu else 0.0
    everyone = [*([display] if display is not None else []), *callbacks]

    def hear(event: tuple[str, tuple[Any, ...]]) -> None:
        name, values = event
        if asked := notify(everyone, name, *values):
            logger.warning(
                "the callback %s asked to stop, which ranks that Ray started do not hear; give hours, eval.stop_after "
                "or health.on_problem, or start the ranks with torchrun",
                asked,
            )

    pool = open_cluster(scale.address, cpus=scale.workers + scale.engines + scale.reward_workers, gpus=gpus)
    try:
        main = partial(rank_main, entry, dict(arguments))
        folder = run_ranks(pool, main, scale.workers, gpus=1.0 if on_gpu else 0.0, timeout=scale.timeout, hear=hear)
    except BaseException:
        if display is not None:
            display.close()
        raise
    finally:
        pool.close()
    return Path(folder)


INTERRUPTED = "it was interrupted"
SAME_EVERYWHERE = "start every rank with the same command and settings"
_silent = False


def is_silent() -> bool:
    """Whether this process must print nothing, because the first rank has reported its end."""
    return _silent


def refuse_ranks(what: str) -> None:
    """Raise under a launcher of several processes, where each would do all of it on its own."""
    size = launched().size
    if size > 1:
        raise WhetError(f"{what} runs in one process, and {size} were started; start it without torchrun")


@contextlib.contextmanager
def join_ranks(launch: Launch, patience: float) -> Iterator[RankGroup | None]:
    """Meet the other ranks of this run, of the same version; None for one process. They hear of every way to end."""
    global _silent
    if launch.size == 1:
        yield None
        return
    from whet.training.distributed.rank_group import meet

    group = meet(launch, patience)
    _silent = not launch.is_first
    group.heart.last_words = lambda cause: speak_for_first(group, cause)
    in_order = False
    try:
        group.agree_on_packages()
        yield group
        group.finish()
        in_order = True
    except BaseException as error:
        with defer_signals():
            ended = root_cause(group, error)
        _silent = _silent and not group.is_first_unheard
        if ended is error:
            raise
        raise ended from error
    finally:
        group.leave(in_order)


def speak_for_first(group: RankGroup, cause: str, stderr: int = 2) -> None:
    """Say why the run ends, where the first rank is lost and has nobody to say it."""
    if group.is_first_unheard:
        os.write(stderr, f"whet: {cause}\n".encode())


def root_cause(group: RankGroup | None, error: BaseException) -> BaseException:
    """The error that ends this rank: another rank's, where that is the reason; the others are told of it."""
    if group is None or getattr(error, "is_root_cause", False):
        return error
    from whet.training.distributed.rank_group import OtherRankEnded
    from whet.training.distributed.ranks import OtherRankFailed

    cause: str | None = None
    if isinstance(error, OtherRankEnded | OtherRankFailed):
        cause = str(error)
    elif isinstance(error, KeyboardInterrupt) or _is_of_collective(error):
        cause = group.cause()
    if cause is not None and not (isinstance(error, KeyboardInterrupt) and cause.endswith(INTERRUPTED)):
        root: BaseException = RunFailed(cause)
    else:
        root = error
        expected = isinstance(error, WhetError)
        line = str(error) if expected else one_line_of(error)
        group.fail(INTERRUPTED if isinstance(error, KeyboardInterrupt) else line)
    root.is_root_cause = True  # type: ignore[attr-defined]
    return root


def _is_of_collective(error: BaseException) -> bool:
    """Whether it came out of torch's collectives or its store, as it does when another rank is gone."""
    from torch.distributed import DistError

    if isinstance(error, DistError):
        return True
    trace = error.__traceback__
    while trace is not None:
        if f"torch{os.sep}distributed" in trace.tb_frame.f_code.co_filename:
            return True
        trace = trace.tb_next
    return False


def check_ranks(config: Config, launch: Launch) -> None:
    """Raise where these settings cannot work on so many ranks, before anything is made or loaded."""
    size, scale = launch.size, config.scale
    if size == 1:
        return
    if scale.workers not in (1, size):
        raise WhetError(
            f"scale.workers={scale.workers} and {size} ranks were started; leave it away under torchrun, or start one "
            "process and let Ray start the ranks"
        )
    batch: Any = config.batch
    if isinstance(config, PolicyConfig):
        rows, what = batch.prompts_per_step * batch.group_size, "completions per step"
        refuse_idle_ranks(size, rows, what, "batch.prompts_per_step")
    else:
        refuse_idle_ranks(size, batch.rows_per_step, "rows per step", "batch.rows_per_step")


def agree_on_config(group: RankGroup, config: Config) -> None:
    """Fail on every rank unless all of them resolved the same config, apart from its folder."""
    values = flattened(config_values(config))
    facts = {f"config {name}": json.dumps(value) for name, value in values.items() if name != "folder"}
    group.agree("config", facts, SAME_EVERYWHERE)


def agree_on_inputs(group: RankGroup | None, config: Config, assembly: Assembly) -> None:
    """Data, model and reward are the same wherever they were read; one rank of each machine looks."""
    if group is None:
        return
    from whet.reward.version import parts_version
    from whet.training.assembly.fingerprints import input_digests

    facts = {} if group.launch.local_rank else dict(input_digests(config))
    if assembly.parts:
        facts["reward"] = parts_version(assembly.parts).hash
    group.agree("inputs", facts, "give every rank the same files")
