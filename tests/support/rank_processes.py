"""Ranks as processes of their own, for tests: forked from one that has imported whet."""

from __future__ import annotations

import signal
import socket
import time
from datetime import timedelta
from pathlib import Path

import torch

from tests.support.commands import Command, started
from whet.training.distributed.launch import rank_environment
from whet.training.distributed.ranks import Ranks

HERE = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def joined_ranks() -> Ranks:
    """This process as one of the ranks that `run_ranks` has started."""
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=120))
    return Ranks(torch.distributed.get_rank(), torch.distributed.get_world_size())


def run_ranks(size: int, script: str, *arguments: str, folder: Path | None = None, seconds: float = 600) -> None:
    """Run `tests/support/SCRIPT` as so many ranks; an error has what the ranks wrote."""
    port, until = free_port(), time.monotonic() + seconds
    ranks: list[Command] = []
    for rank in range(size):
        environment = {**rank_environment(rank, size, "127.0.0.1", port, rank, size), "OMP_NUM_THREADS": "1"}
        ranks.append(started(str(HERE / script), *arguments, folder=folder, **environment))
    try:
        codes = [rank.wait(max(1.0, until - time.monotonic())) for rank in ranks]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.send_signal(signal.SIGKILL)
    failed = [(number, (rank.stdout + rank.stderr)[-3000:]) for number, rank in enumerate(ranks) if codes[number]]
    assert not failed, failed
