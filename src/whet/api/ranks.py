"""A run of several ranks: the first owns folder, console and records; the others work, and are heard when they fail."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.api.ending import one_line_of, signals_wait, write_traceback
from whet.api.inputs import saved_start
from whet.settings.layers import flattened
from whet.training.config import Config, PolicyConfig, config_values
from whet.training.distributed.launch import Launch, launched, rank_device, refuse_idle_ranks
from whet.training.saved_config import claimed_folder
from whet.types import WhetError

if TYPE_CHECKING:
    from whet.training.assembly.assembly import Assembly
    from whet.training.distributed.rank_group import Crew
    from whet.training.distributed.ranks import Ranks

INTERRUPTED = "it was interrupted"
MADE_BY_FIRST = (("data", "source"), ("eval", "source"), ("model", "name"))  # where what was given from Python lies
SAME_EVERYWHERE = "start every rank with the same command and settings"
_silent = False


def is_silent() -> bool:
    """Whether this process has said what it had to say through the first rank."""
    return _silent


def refuse_ranks(what: str) -> None:
    """Raise under a launcher of several processes, where each would do all of it on its own."""
    size = launched().size
    if size > 1:
        raise WhetError(f"{what} runs in one process, and {size} were started; start it without torchrun")


@contextlib.contextmanager
def crew_of(launch: Launch) -> Iterator[Crew | None]:
    """The ranks of this run, met and of one version; None for one process. They hear of every way to end."""
    global _silent
    if launch.size == 1:
        yield None
        return
    from whet.training.distributed.rank_group import meet

    crew = meet(launch)
    _silent = not launch.is_first
    in_order = False
    try:
        crew.agree_on_packages()
        yield crew
        crew.finish()
        in_order = True
    except BaseException as error:
        with signals_wait():
            ended = explained(crew, error)
        if ended is error:
            raise
        raise ended from error
    finally:
        crew.leave(in_order)


def explained(crew: Crew | None, error: BaseException) -> BaseException:
    """The error that ends this rank: another rank's, where that is the reason; the others are told of it."""
    if crew is None or getattr(error, "is_explained", False):
        return error
    from whet.training.distributed.rank_group import OtherRankEnded
    from whet.training.distributed.ranks import OtherRankFailed
    from whet.types import RunFailed

    cause: str | None = None
    if isinstance(error, OtherRankEnded | OtherRankFailed):
        cause = str(error)
    elif isinstance(error, KeyboardInterrupt) or _is_of_collective(error):
        cause = crew.cause()
    if cause is not None and not (isinstance(error, KeyboardInterrupt) and cause.endswith(INTERRUPTED)):
        found: BaseException = RunFailed(cause)
    else:
        found = error
        expected = isinstance(error, WhetError | RunFailed)
        line = str(error) if expected else one_line_of(error)
        crew.fail(INTERRUPTED if isinstance(error, KeyboardInterrupt) else line)
    found.is_explained = True  # type: ignore[attr-defined]
    return found


def _is_of_collective(error: BaseException) -> bool:
    """Whether it came out of torch's collectives, as it does when another rank is gone."""
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


@contextlib.contextmanager
def claimed_by_first(
    crew: Crew | None,
    config: Config,
    rows: Sequence[Mapping[str, Any]] | None,
    eval_rows: Sequence[Mapping[str, Any]] | None,
    model: Any,
    tokenizer: Any,
) -> Iterator[tuple[Config, Path]]:
    """The run's folder, and the config with what lies in it; made by the first rank, told to the others."""
    if crew is None or crew.is_first:
        with (
            claimed_folder(config, rows, eval_rows) as (folder, claimed),
            saved_start(claimed, folder, model, tokenizer) as final,
        ):
            if crew is not None:
                places = [getattr(getattr(final, section), key) for section, key in MADE_BY_FIRST]
                crew.hand_out("folder", json.dumps([str(folder.absolute()), final.folder, places]))
                agree_on_config(crew, final)
            yield final, folder
        return
    place, name, places = json.loads(crew.hand_out("folder"))
    updates: dict[str, Any] = {"folder": name}
    for (section, key), value in zip(MADE_BY_FIRST, places, strict=True):
        if Path(value).parent == Path(name):
            updates[section] = getattr(config, section).model_copy(update={key: value})
    folder = seen_folder(place)
    final = config.model_copy(update=updates)
    agree_on_config(crew, final)
    yield final, folder


def seen_folder(name: str) -> Path:
    """The run folder as this rank sees it."""
    folder = Path(name)
    if not folder.is_dir():
        raise WhetError(f"{folder} is not to be seen on this machine; give a --folder on a disk that all ranks share")
    return folder


def agree_on_config(crew: Crew, config: Config) -> None:
    values = flattened(config_values(config))
    facts = {f"config {name}": json.dumps(value) for name, value in values.items() if name != "folder"}
    crew.agree("config", facts, SAME_EVERYWHERE)


def connected(crew: Crew | None, config: Config) -> Ranks:
    """The ranks with a process group on their devices."""
    from whet.model.load import device_choice
    from whet.training.distributed.ranks import ALONE

    if crew is None:
        return ALONE
    device = rank_device(crew.launch, config.model.device, device_choice(config.model.device))
    return crew.connect(device, config.scale.timeout)


def agree_on_inputs(crew: Crew | None, config: Config, assembly: Assembly) -> None:
    """Data, model and reward are the same wherever they were read; one rank of each machine looks."""
    if crew is None:
        return
    from whet.reward.version import parts_version
    from whet.training.assembly.fingerprints import input_digests

    facts = {} if crew.launch.local_rank else dict(input_digests(config))
    if assembly.parts:
        facts["reward"] = parts_version(assembly.parts).hash
    crew.agree("inputs", facts, "give every rank the same files")


def log_of(folder: Path, launch: Launch) -> Path:
    return folder / f"rank-{launch.rank}.log"


@contextlib.contextmanager
def heard_in_log(folder: Path, crew: Crew | None, takes_streams: bool) -> Iterator[None]:
    """Errors and warnings of all ranks but the first go to rank-N.log; so does what they print, `takes_streams`.

    A log with nothing in it is not left behind.
    """
    if crew is None or crew.is_first:
        yield
        return
    path = log_of(folder, crew.launch)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    logging.getLogger("whet").addHandler(handler)
    logging.getLogger("whet").propagate = False
    crew.heart.last_words = lambda cause: logging.getLogger("whet").warning("%s", cause)
    try:
        with _streams_in(path) if takes_streams else contextlib.nullcontext():
            yield
    except BaseException as error:
        write_traceback(path, error)
        with signals_wait():
            ended = explained(crew, error)
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


@contextlib.contextmanager
def _streams_in(path: Path) -> Iterator[None]:
    """Standard output and error of the process, C code's too, in a file; after an error until the process ends."""
    streams = (sys.stdout, sys.stderr)
    kept = {number: os.dup(number) for number in (1, 2)}
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        for stream in streams:
            stream.flush()
        for number in kept:
            os.dup2(file, number)
        yield
        for stream in streams:
            stream.flush()
        for number, was in kept.items():
            os.dup2(was, number)
    finally:
        for descriptor in (file, *kept.values()):
            os.close(descriptor)
