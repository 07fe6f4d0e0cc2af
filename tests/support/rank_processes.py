"""Ranks as processes of their own, for tests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def run_ranks(size: int, script: str, *arguments: str, seconds: float = 600) -> None:
    """Run `tests/support/SCRIPT` as so many ranks; an error has what the ranks wrote."""
    port = str(free_port())
    meeting = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(Path(__file__).parent / script), *arguments],
            env={
                **os.environ,
                **meeting,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        said = [rank.communicate(timeout=seconds)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    failed = [
        (number, text[-3000:]) for number, (rank, text) in enumerate(zip(ranks, said, strict=True)) if rank.returncode
    ]
    assert not failed, failed
