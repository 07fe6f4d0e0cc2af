"""Ranks as processes of their own, without torchrun: what it would set is set here."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.rank_processes import free_port, run_ranks
from whet.training.distributed.launch import rank_environment

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"


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
    run_ranks(size, "ranked_runs.py", str(file), folder=folder, seconds=seconds)


def end(ranks: Sequence[subprocess.Popen[str]]) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
            rank.wait()
