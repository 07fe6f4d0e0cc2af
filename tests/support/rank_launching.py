"""Ranks as processes of their own, without torchrun: what it would set is set here."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whet.training.distributed.launch import rank_environment

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"


def free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


def start_ranks(
    size: int, command: Sequence[str], folder: Path, port: int | None = None, **changes: str
) -> list[subprocess.Popen[str]]:
    """One process per rank, in `folder`; what they say goes to out-N.txt there."""
    port = port or free_port()
    started = []
    for rank in range(size):
        place = rank_environment(rank, size, "127.0.0.1", port, rank, size)
        environment = {
            **os.environ,
            **place,
            "PYTHONPATH": f"{SOURCE}:{SOURCE.parent}",
            "OMP_NUM_THREADS": "1",
            **changes,
        }
        out = (folder / f"out-{rank}.txt").open("w")
        started.append(
            subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT, text=True)
        )
        out.close()
    return started


def said(folder: Path, rank: int) -> str:
    return (folder / f"out-{rank}.txt").read_text()


def run_calls(size: int, calls: Sequence[Sequence[Any]], folder: Path, seconds: float = 300) -> None:
    """Calls of the Python interface on `size` ranks; all of them must come to their end."""
    file = folder / "calls.json"
    file.write_text(json.dumps(calls))
    ranks = start_ranks(size, [sys.executable, str(HERE / "ranked_runs.py"), str(file)], folder)
    try:
        codes = [rank.wait(seconds) for rank in ranks]
    finally:
        end(ranks)
    assert codes == [0] * size, "\n".join(said(folder, rank) for rank in range(size))


def end(ranks: Sequence[subprocess.Popen[str]]) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
            rank.wait()
