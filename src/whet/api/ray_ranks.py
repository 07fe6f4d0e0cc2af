"""Runs whose ranks Ray starts: this process shows what the first rank tells, and passes on how it ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from whet.training.config import Config

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
    from whet.training.run import notify

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
